package guard

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// writeFlat writes the table of an earlier agent, with all rules in the base chains: into the table that exists, as
// that agent does after a rollback, and then in place of it.
func writeFlat(t testing.TB, all remotes) {
	t.Helper()
	conn, err := open()
	must(t, err)
	stands, err := readRuleset()
	must(t, err)
	for _, replaces := range []bool{false, true} {
		conn.AddTable(table)
		if replaces {
			conn.DelTable(table)
			stands = ruleset{}
		}
		stands.addCounters(conn, wanted{counters: all.counters()})
		for _, d := range directions {
			conn.AddChain(base[d])
			conn.FlushChain(base[d])
			for _, r := range all.of(d, true) {
				addRules(conn, base[d].Name, []entry{{comment: r.comment(), exprs: r.expressions(d)}})
			}
		}
		must(t, conn.Flush())
	}
}

// flood sends packets to 10.2.1.1, which is routed past the device, as fast as it can until it is stopped. The returned
// function stops it, and returns how many there were.
func flood(t *testing.T) func() (packets int) {
	t.Helper()
	route(t, "10.2.1.0/24", "bad")
	neighbour(t, "bad", "10.2.1.1")
	var sent atomic.Int64
	var stops []func()
	for range 3 {
		c, err := net.Dial("udp", "10.2.1.1:9")
		must(t, err)
		stops = append(stops, testkit.Run(t, func(ctx context.Context) error {
			for ; ctx.Err() == nil; sent.Add(1) {
				_, _ = c.Write([]byte("x"))
			}
			return c.Close()
		}))
	}
	return func() (packets int) {
		for _, stop := range stops {
			stop()
		}
		return int(sent.Load())
	}
}

// TestNoGapBetweenLayouts: no packet leaks while an agent takes over the table of an earlier one, with all rules in the
// base chains, and that one takes it back; while the subnets of the packet's remote are joined and parted, and those of
// others surround them and are in them; and while a table is replaced in which somebody else made what is in the way.
func TestNoGapBetweenLayouts(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		w := newWires(t)
		c2 := Remote{Subnets: prefixes("10.2.0.0/16")}
		both := remotes{"c2": c2, "c9": {Subnets: prefixes("10.9.0.0/16"), Port: 7775, Nodes: prefixes("192.0.2.0/24")}}
		writeFlat(t, both)
		leaked, stop := w.watch(t), flood(t)
		for range 4 {
			g := New(true, kernel.DefaultRoutingTable())
			set(t)(g.Restore(false))
			if diff := cmp.Diff([]string{"c2", "c9"}, g.Clusters()); diff != "" {
				t.Errorf("remembered (-want +got):\n%s", diff)
			}
			was := counts(t, g, "c2").Out
			set(t)(g.Set("c2", Remote{Subnets: prefixes("10.2.0.0/17", "10.2.128.0/17")}))
			set(t)(g.Set("c3", Remote{Subnets: prefixes("10.0.0.0/8")}))
			set(t)(g.Set("c2", c2))
			set(t)(g.Remove("c3"))
			set(t)(g.Set("c3", Remote{Subnets: prefixes("10.2.1.0/24")}))
			set(t)(g.Remove("c3"))
			if now := counts(t, g, "c2").Out; now < was {
				t.Errorf("%d packets were stopped, and now %d: the table was replaced", was, now)
			}
			conn, err := open()
			must(t, err)
			hooked := *base[in]
			hooked.Name = "leaving-10.2.0.0_24"
			conn.AddChain(&hooked)
			must(t, conn.Flush())
			set(t)(g.Restore(false))
			stands, err := readRuleset()
			must(t, err)
			if !stands.matches(both.wanted(true)) {
				t.Errorf("chains %v", stands.chains)
			}
			writeFlat(t, both)
		}
		tried := stop()
		if n := leaked(); n != 0 || tried == 0 {
			t.Errorf("%d of %d packets have left past the device", n, tried)
		}
		_, err := removeAll()
		must(t, err)
	})
}

// stopped returns how many packets of each cluster were stopped on their way out.
func stopped(t *testing.T, g *Guard) map[string]uint64 {
	t.Helper()
	all, err := g.Counts()
	must(t, err)
	by := map[string]uint64{}
	for cluster, c := range all {
		by[cluster] = c.Out
	}
	return by
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
				before, was := sent(t, device), stopped(t, g)
				_ = send(c.to)
				if slices.Contains(c.by, device) {
					if now := stopped(t, g); sent(t, device) == before || !maps.Equal(now, was) {
						t.Errorf("a packet to %s by %s does not pass: %v, and before %v", c.to, device, now, was)
					}
				} else if was[c.dropped]++; !maps.Equal(stopped(t, g), was) {
					t.Errorf("a packet to %s by %s: %v were stopped, want %v", c.to, device, stopped(t, g), was)
				}
				must(t, netlink.RouteDel(r))
			}
		}
	})
}
