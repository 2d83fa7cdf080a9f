package bounds

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestSubnets: what an agent reads from the broker's file, in the released form and with a remote.
func TestSubnets(t *testing.T) {
	shipped, err := os.ReadFile("../../deploy/example/c1/broker.yaml")
	testkit.Must(t, err)
	if s, err := ParseSubnets(shipped, "c1"); err != nil || len(s.Local) != 3 || len(s.Remotes) != 0 {
		t.Errorf("as shipped, where remotes are objects: %+v, %v", s, err)
	}
	shipped = append(shipped, "remotes: [{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [192.0.2.16/28], "+
		"wireguard: {listenPort: 7775}}]\n"...)
	s, err := ParseSubnets(append(shipped, "keyOfALaterVersion: {a: 1}\n"...), "c1")
	testkit.Must(t, err)
	c2 := s.Remotes["c2"]
	if got, want := fmt.Sprintln(s.Local, len(s.Remotes), c2.PodPrefixes, c2.NodePrefixes, c2.Encryption,
		c2.WireGuard.ListenPort),
		"[10.1.0.0/16 10.101.0.0/16 192.0.2.8/29] 1 [10.2.0.0/16] [192.0.2.16/28] strict 7775\n"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	if s, err := ParseSubnets(append(shipped, "features: [services]\n"...), "c1"); err != nil || len(s.Remotes) != 0 {
		t.Errorf("without encryption: %+v, %v", s, err)
	}
	if s, err := ParseSubnets(append(shipped, "limits: 7\nbrake: {share: nonsense}\n"...), "c1"); err != nil ||
		len(s.Remotes) != 1 {
		t.Errorf("with what is none of an agent's matter: %+v, %v", s, err)
	}
	other := []byte("remotes: [{name: c3, podSubnets: [10.3.0.0/16], nodeSubnets: [192.0.2.32/28], " +
		"wireguard: {listenPort: 7776}}]\n")
	if s, err := parseSubnets(shipped, other, "c1"); err != nil || len(s.Remotes) != 1 || s.Remotes["c2"].Name != "c2" {
		t.Errorf("remotes of the broker's file, with a file of others beside it: %+v, %v", s, err)
	}
	for name, text := range map[string]string{
		"localSubnets": "remotes: [{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [192.0.2.0/24]}]",
		"podSubnets": "localSubnets: [10.1.0.0/16]\nremotes: [{name: c2, podSubnets: [10.1.2.0/24], nodeSubnets: " +
			"[192.0.2.0/24]}]",
	} {
		if _, err := ParseSubnets([]byte(text), "c1"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v; want it to name %s", err, name)
		}
	}
}

// TestSubnetsOfOneDevice: the agents' copy refuses remotes whose device names are equal, as the broker's configuration
// does (TestDevicesOfOneName in internal/config).
func TestSubnetsOfOneDevice(t *testing.T) {
	const text = `
localSubnets: [10.1.0.0/16]
remotes:
- {name: cluster-42807, podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/16], wireguard: {listenPort: 1}}
- {name: cluster-320514, podSubnets: [10.3.0.0/16], nodeSubnets: [172.17.0.0/16], wireguard: {listenPort: 2}}
`
	const want = `remotes[1].name: "cluster-320514" and "cluster-42807" have devices of one name, wg.0c5526e1cb`
	if _, err := ParseSubnets([]byte(text), "c1"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the agents' copy: %v; want %s", err, want)
	}
}

// FuzzSubnets: whatever the agents' copy of a broker's file contains, the result is valid subnets or an error.
func FuzzSubnets(f *testing.F) {
	f.Add([]byte("localSubnets: [10.1.0.0/16]\nremotes: [{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: " +
		"[172.16.0.0/12]}]\n"))
	f.Add([]byte("features: [policy]\nlocalSubnets: ['fd00::/48']\nremotes: [{name: c2, podSubnets: ['fd01::/48'], " +
		"limits: 7, wireguard: {listenPort: 70000}}]\n"))
	f.Add([]byte("---\n---\n"))
	f.Add([]byte("encryption: x\nremotes: [{}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseSubnets(data, "c1")
		if (err == nil) == (s == nil) {
			t.Fatalf("value %v and error %v", s, err)
		}
		if err != nil {
			return
		}
		if len(s.Local) == 0 {
			t.Error("no local subnets, and no error")
		}
		for name, r := range s.Remotes {
			if name != r.Name || name == "" || len(r.PodPrefixes) == 0 || len(r.NodePrefixes) == 0 {
				t.Errorf("remote %q is %+v", name, r)
			}
		}
	})
}
