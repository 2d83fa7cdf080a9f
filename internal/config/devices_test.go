package config

import (
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestDevicesOfOneName: the short device names of two remotes can be equal by chance, or because an attacker searched
// for such names. The broker's configuration refuses them, and so does its copy for the agents (internal/remotes).
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
	refuses[described](t, "cluster: c1\n", map[string]string{
		text: `remotes[1].name: "cluster-320514" and "cluster-42807" have devices of one name, wg.0c5526e1cb`})
}

// TestDottedNames: names of remotes may have dots and 63 characters. The names that are derived from them differ
// between any two clusters.
func TestDottedNames(t *testing.T) {
	long := strings.Repeat("c", 63)
	text := `
cluster: own.example.com
localSubnets: [10.1.0.0/16]
remotes:
- {name: eu-1.example.com, podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/16], wireguard: {listenPort: 1}}
- {name: ` + long + `, podSubnets: [10.3.0.0/16], nodeSubnets: [172.16.0.0/16], wireguard: {listenPort: 2}}
- {name: a.b, podSubnets: [10.4.0.0/16], nodeSubnets: [172.16.0.0/16], servicePrefix: ab, wireguard: {listenPort: 3}}
`
	c := testkit.Value(Parse[described]([]byte(text)))(t)
	for i, want := range []string{naming.ClusterLabel("eu-1.example.com"), naming.ClusterLabel(long), "ab"} {
		if got := c.Remotes[i].ServicePrefix; got != want || strings.Contains(got, ".") || len(got) > 11 {
			t.Errorf("mirrors of %s begin with %q, want %q", c.Remotes[i].Name, got, want)
		}
	}
	remote := func(name string) Remote {
		return Remote{Name: name, PodSubnets: []string{"10.9.0.0/16"}, NodeSubnets: []string{"172.16.0.0/16"},
			WireGuard: WireGuard{ListenPort: 9}}
	}
	for _, label := range []string{naming.ClusterLabel("eu-1.example.com"), naming.ClusterLabel("own.example.com")} {
		_, wrong := c.WithRemotes(append(c.Remotes, remote(label)))
		if got := strings.Join(wrong[label], "; "); !strings.Contains(got, "metadata.name") || !strings.Contains(got,
			"have one short name, "+label) {
			t.Errorf("a cluster that is called as the short name of another: %q", got)
		}
	}
}

// TestPrefixOfImports: no mirror may have the name of an imported Service, whether its remote is in the file or a
// RemoteCluster.
func TestPrefixOfImports(t *testing.T) {
	const text = `
cluster: c1
localSubnets: [10.1.0.0/16]
globalServices: {podSubnets: [10.1.0.0/16]}
mcs: {enabled: %s}
`
	for enabled, want := range map[string]string{"true": "begins the names of imported services: use another",
		"false": ""} {
		c := testkit.Value(Parse[described]([]byte(strings.ReplaceAll(text, "%s", enabled))))(t)
		for _, r := range []Remote{{Name: "mcs"}, {Name: "c2", ServicePrefix: "mcs"}, {Name: "c2", ServicePrefix: "mcs-eu"}} {
			r.PodSubnets, r.NodeSubnets = []string{"10.2.0.0/16"}, []string{"172.16.0.0/16"}
			_, wrong := c.WithRemotes([]Remote{r})
			if got := strings.Join(wrong[r.Name], "; "); (got == "") != (want == "") || !strings.Contains(got, want) ||
				want != "" && !strings.Contains(got, "spec.servicePrefix") {
				t.Errorf("mcs.enabled %s, remote %s with prefix %q: %q", enabled, r.Name, r.ServicePrefix, got)
			}
		}
		if _, wrong := c.WithRemotes([]Remote{{Name: "mcs2", PodSubnets: []string{"10.2.0.0/16"},
			NodeSubnets: []string{"172.16.0.0/16"}}}); len(wrong) > 0 {
			t.Errorf("mcs2: %v", wrong)
		}
	}
}
