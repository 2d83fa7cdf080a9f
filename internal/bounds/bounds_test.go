package bounds

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestSubnets: what an agent reads from the broker's file as shipped, and of a remote.
func TestSubnets(t *testing.T) {
	shipped := testkit.Value(os.ReadFile("../../deploy/example/c1/broker.yaml"))(t)
	remotes := "remotes: [{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [192.0.2.16/28], wireguard: " +
		"{listenPort: 7775}}]\n"
	read := func(own, beside string) *Subnets {
		return LoadSubnets(func(path string) ([]byte, error) {
			switch {
			case filepath.Base(path) != RemotesFile:
				return []byte(own), nil
			case beside == "":
				return nil, fs.ErrNotExist
			}
			return []byte(beside), nil
		}, "broker.yaml", "c1", nil)
	}
	if s := read(string(shipped), ""); len(s.Problems) > 0 || len(s.Local) != 3 || len(s.Remotes) != 0 {
		t.Errorf("as shipped: %+v", s)
	}
	s := read(string(shipped)+"keyOfALaterVersion: {a: 1}\n", remotes)
	c2 := s.Remotes["c2"]
	if got, want := fmt.Sprintln(s.Problems, s.Local, len(s.Remotes), c2.PodPrefixes, c2.NodePrefixes, c2.Encryption,
		c2.WireGuard.ListenPort),
		"[] [10.1.0.0/16 10.101.0.0/16 192.0.2.8/29] 1 [10.2.0.0/16] [192.0.2.16/28] strict 7775\n"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	if s := read(string(shipped)+"features: [services]\n", remotes); len(s.Problems) > 0 || len(s.Remotes) != 0 {
		t.Errorf("without encryption: %+v", s)
	}
	if s := read(string(shipped)+"limits: 7\nbrake: {share: nonsense}\n", remotes); len(s.Problems) > 0 ||
		len(s.Remotes) != 1 {
		t.Errorf("with what is none of an agent's matter: %+v", s)
	}
}

// FuzzSubnets: whatever the agents' copies of a broker's file and of the remotes contain, the result is valid subnets.
func FuzzSubnets(f *testing.F) {
	f.Add([]byte("localSubnets: [10.1.0.0/16]\nremotes: [{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: " +
		"[172.16.0.0/12]}]\n"))
	f.Add([]byte("features: [policy]\nlocalSubnets: ['fd00::/48']\nremotes: [{name: c2, podSubnets: ['fd01::/48'], " +
		"limits: 7, wireguard: {listenPort: 70000}}]\n"))
	f.Add([]byte("---\n---\n"))
	f.Add([]byte("encryption: x\nremotes: [{}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file := subnetsText{data: data}
		s := readSubnets(file, file, "c1", nil)
		if len(s.Local) == 0 && (len(s.Problems) == 0 || len(s.Remotes) > 0) {
			t.Errorf("no local subnets, and %v, %v", s.Problems, s.Remotes)
		}
		for name, r := range s.Remotes {
			if name != r.Name || name == "" || len(r.PodPrefixes) == 0 || len(r.NodePrefixes) == 0 {
				t.Errorf("remote %q is %+v", name, r)
			}
		}
	})
}
