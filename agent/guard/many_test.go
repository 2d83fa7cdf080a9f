package guard

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// TestManyRemotes: the node guards 120 remotes, each is set once, and nothing is read or written while all are as
// wanted: a device that is set has its guard set each time. After a failure, the next time sets it. A packet passes as
// many rules as with one remote.
func TestManyRemotes(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		const most = 120
		remote := func(i int) Remote {
			pods, more := netip.AddrFrom4([4]byte{10, 1, byte(i)}), netip.AddrFrom4([4]byte{10, 2, byte(i)})
			node := netip.AddrFrom4([4]byte{172, 20, 1, byte(i)})
			return Remote{Subnets: []netip.Prefix{netip.PrefixFrom(pods, 25), netip.PrefixFrom(more, 25)},
				Nodes: []netip.Prefix{netip.PrefixFrom(node, 32)}, Port: 50000 + i}
		}
		g := New(true, kernel.DefaultRoutingTable())
		g.adopt(remotes{}) // what is there is nothing
		g.mu.Lock()
		for i := range most - 1 { // one by one, each would write all before it again
			g.remotes[fmt.Sprint("x", i)] = remote(i)
		}
		g.mu.Unlock()
		reads, busy := 0, error(nil)
		g.read = func() (ruleset, error) {
			reads++
			s, err := readRuleset()
			return s, errors.Join(err, busy)
		}
		last := remote(most - 1)
		for i, c := range []struct {
			port    int
			fails   error
			changed bool
			reads   int
		}{{port: 1, changed: true, reads: 1}, {port: 1}, {port: 2, fails: errors.New("busy"), reads: 1},
			{port: 2, changed: true, reads: 1}, {port: 2}} {
			reads, busy, last.Port = 0, c.fails, c.port
			changed, err := g.Set(fmt.Sprint("x", most-1), last)
			if changed != c.changed || reads != c.reads || !errors.Is(err, c.fails) {
				t.Errorf("%d: changed: %v after %d reads: %v", i, changed, reads, err)
			}
		}
		s, err := g.read()
		must(t, err)
		if n := len(s.comments[out]); n != 4*most+1 {
			t.Errorf("%d rules of packets that leave", n)
		}
		for name, rules := range s.chains {
			if len(rules) > 3 { // that of loopback and one for each map, or those of one subnet
				t.Errorf("chain %s has %d rules", name, len(rules))
			}
		}
		if found := New(true, kernel.DefaultRoutingTable()).Clusters(); len(found) != most {
			t.Errorf("a later agent finds %d remotes", len(found))
		}
	})
}
