package guard

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// TestManyRemotes: the node guards 120 remotes, each is set once, and nothing is written while all are as wanted.
func TestManyRemotes(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		const most = 120
		remote := func(i int) Remote {
			pods, node := netip.AddrFrom4([4]byte{10, 1, byte(i)}), netip.AddrFrom4([4]byte{172, 20, 1, byte(i)})
			return Remote{Subnets: []netip.Prefix{netip.PrefixFrom(pods, 24)},
				Nodes: []netip.Prefix{netip.PrefixFrom(node, 32)}, Port: 50000 + i}
		}
		g := New(true, kernel.DefaultRoutingTable())
		g.adopt(remotes{}) // what is there is nothing
		g.mu.Lock()
		for i := range most - 1 { // one by one, each would write all before it again
			g.remotes[fmt.Sprint("x", i)] = remote(i)
		}
		g.mu.Unlock()
		for _, wanted := range []bool{true, false} {
			changed, err := g.Set(fmt.Sprint("x", most-1), remote(most-1))
			must(t, err)
			if changed != wanted {
				t.Errorf("changed: %v, want %v", changed, wanted)
			}
		}
		s, err := g.read()
		must(t, err)
		if n := len(s.comments[out]); n != 2*most+1 {
			t.Errorf("%d rules of packets that leave", n)
		}
		if found := New(true, kernel.DefaultRoutingTable()).Clusters(); len(found) != most {
			t.Errorf("a later agent finds %d remotes", len(found))
		}
	})
}
