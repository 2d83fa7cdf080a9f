package mesh

import (
	"maps"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// A remote that is removed gives up what it had to those that remain; one that is added in its place begins with
// nothing; a change of a device is returned, and no change of another remote.
func TestAddedAndRemovedRemotes(t *testing.T) {
	remote := func(name string, port uint16) config.Remote {
		return config.Remote{Name: name, WireGuard: config.WireGuard{ListenPort: port}}
	}
	p := New([]config.Remote{remote("c2", 1), remote("c3", 2)})
	node := func(key byte, cidr string) *semaphorev1.Node {
		return &semaphorev1.Node{PodCidrs: []string{cidr}, Wireguard: &semaphorev1.WireGuardEndpoint{
			PublicKey: append(make([]byte, 31), key), Address: "192.0.2.1:1"}}
	}
	p.SetNode("c2", "a", node(1, "10.2.0.0/24"))
	p.SetNode("c3", "b", node(1, "10.3.0.0/24")) // it has the key of c2's node
	taken := func() map[string]int {
		all := map[string]int{}
		for _, cluster := range p.Update() {
			for _, peer := range p.TakeChanges(cluster).Peers {
				if peer != nil {
					all[cluster]++
				} else {
					all[cluster] += 0
				}
			}
		}
		return all
	}
	is := func(what string, want map[string]int) {
		t.Helper()
		if got := taken(); !maps.Equal(got, want) {
			t.Errorf("%s: changes %v, want %v", what, got, want)
		}
	}
	is("two remotes, one key", map[string]int{"c2": 1, "c3": 0})
	p.Follow([]config.Remote{remote("c3", 2)})
	is("c2 is removed, and its key is free", map[string]int{"c3": 1})
	p.Follow([]config.Remote{remote("c3", 2), remote("c4", 3)})
	if got := p.Update(); len(got) != 1 || got[0] != "c4" {
		t.Errorf("c4 is added: changes of %v", got)
	}
	if c := p.TakeChanges("c4"); c.Device.GetListenPort() != 3 || len(c.Peers) > 0 {
		t.Errorf("c4 begins with %v", c)
	}
	p.SetNode("c4", "a", node(2, "10.4.0.0/24"))
	is("a node of c4", map[string]int{"c4": 1})
	p.Follow([]config.Remote{remote("c3", 5), remote("c4", 3)})
	if got := p.Update(); len(got) != 1 || got[0] != "c3" {
		t.Errorf("the port of c3 changes: changes of %v", got)
	}
	if c := p.TakeChanges("c3"); c.Device.GetListenPort() != 5 || len(c.Peers) > 0 {
		t.Errorf("the port of c3 changes: %v", c)
	}
	is("nothing more", map[string]int{})
	if lines := p.Problems(); len(finding.Texts(lines.Summary("c2").Findings("c2"))) > 0 {
		t.Errorf("c2 still has problems: %v", finding.Texts(lines.Summary("c2").Findings("c2")))
	}
}
