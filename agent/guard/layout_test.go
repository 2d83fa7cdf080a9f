package guard

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// writeFlat writes the table of earlier agents, with all rules in the base chains.
func writeFlat(t testing.TB, all remotes) {
	t.Helper()
	conn, err := open()
	must(t, err)
	conn.AddTable(table)
	for name := range all.counters() { // those that exist remain
		conn.AddObj(&nftables.CounterObj{Table: table, Name: name})
	}
	for _, d := range directions {
		conn.AddChain(base[d])
		conn.FlushChain(base[d])
		for _, r := range all.of(d, true) {
			addRules(conn, base[d].Name, []entry{{comment: r.comment(), exprs: r.expressions(d)}})
		}
	}
	must(t, conn.Flush())
}

// TestNoGapBetweenLayouts: no packet leaks while the subnets of its remote are joined and parted, and those of another
// surround them; while an agent replaces the table of an earlier one, with all rules in the base chains, and that one
// its; and while it replaces a table that it cannot change.
func TestNoGapBetweenLayouts(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		w := newWires(t)
		c2 := Remote{Subnets: prefixes("10.2.0.0/16")}
		writeFlat(t, remotes{"c2": c2, "c9": {Subnets: prefixes("10.9.0.0/16"), Port: 7775, Nodes: prefixes("192.0.2.0/24")}})
		leaked, stop := w.watch(t), traffic(t)
		for range 5 {
			g := New(true, kernel.DefaultRoutingTable())
			set(t)(g.Restore(false))
			if diff := cmp.Diff([]string{"c2", "c9"}, g.Clusters()); diff != "" {
				t.Errorf("remembered (-want +got):\n%s", diff)
			}
			for range 3 {
				was := counts(t, g, "c2").Out
				set(t)(g.Set("c2", Remote{Subnets: prefixes("10.2.0.0/17", "10.2.128.0/17")}))
				set(t)(g.Set("c3", Remote{Subnets: prefixes("10.0.0.0/8")}))
				set(t)(g.Set("c2", c2))
				set(t)(g.Remove("c3"))
				if now := counts(t, g, "c2").Out; now < was {
					t.Errorf("%d packets were stopped, and now %d: the table was replaced", was, now)
				}
			}
			writeFlat(t, g.remotes)
			set(t)(g.Restore(false))
			conn, err := open()
			must(t, err)
			hooked := *base[in]
			hooked.Name = "leaving-10.2.0.0_24"
			conn.AddChain(&hooked)
			must(t, conn.Flush())
			set(t)(g.Restore(false))
			stands, err := readRuleset()
			must(t, err)
			if _, there := stands.chains[hooked.Name]; there || !stands.matches(g.remotes.wanted(true)) {
				t.Errorf("chains %v", stands.chains)
			}
			writeFlat(t, g.remotes)
		}
		tried, _ := stop()
		t.Logf("%d packets", tried)
		if n := leaked(); n != 0 || tried == 0 {
			t.Errorf("%d of %d packets have left past the device", n, tried)
		}
		_, err := RemoveAll()
		must(t, err)
	})
}

// TestSharedSubnets: of subnets inside others, and of one subnet of two remotes, packets pass by the devices of those
// that have the longest one, and by no other; so do those of a subnet's first and last address.
func TestSharedSubnets(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		newWires(t)
		g := New(true, kernel.DefaultRoutingTable())
		own, other := good, "bad"
		link, err := netlink.LinkByName(other)
		must(t, err)
		must(t, netlink.LinkSetDown(link))
		must(t, netlink.LinkSetName(link, "wireguard.c3"))
		other = "wireguard.c3"
		must(t, netlink.LinkSetUp(link))
		for cluster, r := range map[string]Remote{
			"c2": {Subnets: prefixes("10.2.0.0/16", "10.8.0.0/16", "fd00:2::/48")},
			"c3": {Subnets: prefixes("10.2.7.0/24", "10.3.0.0/16", "10.8.0.0/16", "fd00:2:0:7::/64")},
			"c4": {Subnets: prefixes("10.8.4.0/24", "10.3.0.0/24")},
		} {
			set(t)(g.Set(cluster, r))
		}
		for _, c := range []struct {
			to      string
			by      []string
			dropped string
		}{
			{"10.2.0.0", []string{own}, "c2"}, {"10.2.255.255", []string{own}, "c2"},
			{"10.2.6.255", []string{own}, "c2"}, {"10.2.7.0", []string{other}, "c3"},
			{"10.2.7.255", []string{other}, "c3"}, {"10.2.8.0", []string{own}, "c2"},
			{"10.3.0.0", nil, "c4"}, {"10.3.1.0", []string{other}, "c3"}, {"10.3.255.255", []string{other}, "c3"},
			{"10.8.0.0", []string{own, other}, ""}, {"10.8.4.1", nil, "c4"}, {"10.8.255.255", []string{own, other}, ""},
			{"10.1.255.255", []string{own, other}, ""}, {"10.4.0.0", []string{own, other}, ""},
			{"fd00:2::1", []string{own}, "c2"}, {"fd00:2:0:7::1", []string{other}, "c3"},
			{"fd00:2:0:7:ffff:ffff:ffff:ffff", []string{other}, "c3"}, {"fd00:2:0:8::", []string{own}, "c2"},
			{"fd00:2:0:ffff:ffff:ffff:ffff:ffff", []string{own}, "c2"}, {"fd00:2:1::", []string{own, other}, ""},
		} {
			for _, device := range []string{own, other} {
				to := netip.MustParseAddr(c.to)
				r := route(t, netip.PrefixFrom(to, to.BitLen()).String(), device)
				neighbour(t, device, c.to)
				before := sent(t, device)
				was := counts(t, g, c.dropped).Out
				_ = send(c.to)
				left, dropped := sent(t, device) > before, counts(t, g, c.dropped).Out > was
				if want := slices.Contains(c.by, device); left != want || dropped == want {
					t.Errorf("a packet to %s by %s: left: %v, dropped for %s: %v", c.to, device, left, c.dropped, dropped)
				}
				must(t, netlink.RouteDel(r))
			}
		}
	})
}
