package config

import (
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// TestDevicesOfOneName: the short names of the devices of two remotes can be the same by chance, or because somebody
// looked for such names: the broker's configuration and its copy for the agents refuse them.
func TestDevicesOfOneName(t *testing.T) {
	const a, b = "cluster-42807", "cluster-320514"
	if naming.Device(a) != naming.Device(b) {
		t.Fatalf("the devices are %s and %s", naming.Device(a), naming.Device(b))
	}
	const text = `
localSubnets: [10.1.0.0/16]
remotes:
- {name: cluster-42807, podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/16], wireguard: {listenPort: 1}}
- {name: cluster-320514, podSubnets: [10.3.0.0/16], nodeSubnets: [172.17.0.0/16], wireguard: {listenPort: 2}}
`
	const want = `remotes[1].name: "cluster-320514" and "cluster-42807" have devices of one name, wg.0c5526e1cb`
	if _, err := Parse[Broker]([]byte("cluster: c1\n" + text)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the broker's configuration: %v; want %s", err, want)
	}
	if _, err := ParseSubnets([]byte(text), "c1"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the agents' copy: %v; want %s", err, want)
	}
}
