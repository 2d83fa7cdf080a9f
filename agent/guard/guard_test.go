package guard

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/capture"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// must ends the test on an error.
var must = testkit.Must

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	testkit.Eventually(t, nodetest.Patience(time.Minute), what, testkit.True(ok))
}

// good is the device to c2.
const good = "wireguard.c2"

// wires is a node with two interfaces, good and bad, whose other ends are in a network namespace of their own. The
// default routes leave by bad.
type wires struct{ far *netns.Namespace }

func newWires(t testing.TB) *wires {
	t.Helper()
	far, err := netns.Create("far")
	must(t, err)
	t.Cleanup(func() { must(t, far.Delete()) })
	links, err := far.Netlink()
	must(t, err)
	defer links.Close()
	handle, err := os.Open(far.Path())
	must(t, err)
	defer handle.Close()
	for name, addresses := range map[string][2][]string{
		good:  {{"192.0.2.1/30", "2001:db8::1/64"}, {"192.0.2.2/30", "2001:db8::2/64"}},
		"bad": {{"192.0.2.5/30", "2001:db8:0:1::1/64"}, {"192.0.2.6/30", "2001:db8:0:1::2/64"}},
	} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name,
			PeerNamespace: netlink.NsFd(int(handle.Fd()))}))
		for side, h := range []*netlink.Handle{{}, links} {
			link, err := h.LinkByName(name)
			must(t, err)
			for _, text := range addresses[side] {
				a, err := netlink.ParseAddr(text)
				must(t, err)
				a.Flags = unix.IFA_F_NODAD
				must(t, h.AddrAdd(link, a))
			}
			must(t, h.LinkSetUp(link))
		}
	}
	for _, gateway := range []string{"192.0.2.6", "2001:db8:0:1::2"} {
		must(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}))
	}
	return &wires{far}
}

// watch captures the packets that leave by bad. The returned function ends the capture, and returns the number of
// packets to remote pods.
func (w *wires) watch(t *testing.T) func() int {
	t.Helper()
	wire, err := capture.Start(w.far, "bad")
	must(t, err)
	return func() int {
		t.Helper()
		packets, err := wire.Stop()
		must(t, err)
		n := 0
		for _, p := range packets {
			switch { // the addresses follow Ethernet's header of 14 bytes
			case len(p.Data) >= 34 && p.Data[12] == 8 && p.Data[13] == 0 && p.Data[30] == 10 && p.Data[31] == 2:
				n++
			case len(p.Data) >= 54 && p.Data[12] == 0x86 && p.Data[13] == 0xdd &&
				[4]byte(p.Data[38:42]) == [4]byte{0xfd, 0, 0, 2}:
				n++
			}
		}
		return n
	}
}

func linkIndex(t testing.TB, name string) int {
	t.Helper()
	link, err := netlink.LinkByName(name)
	must(t, err)
	return link.Attrs().Index
}

// route adds a route for a subnet by an interface.
func route(t testing.TB, subnet, device string) *netlink.Route {
	t.Helper()
	_, dst, err := net.ParseCIDR(subnet)
	must(t, err)
	r := &netlink.Route{Dst: dst, LinkIndex: linkIndex(t, device), Table: kernel.DefaultTableID}
	must(t, netlink.RouteAdd(r))
	return r
}

// send sends a packet. The error is that of the system call.
func send(to string) error {
	c, err := net.Dial("udp", net.JoinHostPort(to, "9"))
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("x"))
	return err
}

// set returns must for functions that also report a change.
func set(t testing.TB) func(bool, error) {
	t.Helper()
	return func(_ bool, err error) {
		t.Helper()
		must(t, err)
	}
}

func counts(t *testing.T, g *Guard, cluster string) status.GuardCount {
	t.Helper()
	all, err := g.Counts()
	must(t, err)
	return all[cluster]
}

// TestTunnels: encrypted packets go only to nodes of the remote, and are accepted only from them. Otherwise an attacker
// with a peer's key could make this node send anywhere, with a single packet from there.
func TestTunnels(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		newWires(t)
		g := New(true, kernel.DefaultRoutingTable())
		here, err := net.ListenPacket("udp", ":7775")
		must(t, err)
		defer here.Close()
		got := make(chan string, 100)
		go func() {
			for buffer := make([]byte, 100); ; {
				_, from, err := here.ReadFrom(buffer)
				if err != nil {
					return
				}
				select {
				case got <- from.(*net.UDPAddr).IP.String():
				default: // nobody counts
				}
			}
		}()
		// Packets between two addresses of this node pass the same chains as those of others.
		ip := func(address string) {
			link, err := netlink.LinkByName(good)
			must(t, err)
			a, err := netlink.ParseAddr(address)
			must(t, err)
			a.Flags = unix.IFA_F_NODAD
			must(t, netlink.AddrAdd(link, a))
		}
		for _, address := range []string{"198.51.100.1/32", "203.0.113.1/32", "2001:db8:100::1/128", "2001:db8:200::1/128"} {
			ip(address)
		}
		arrives := func(from, to string) bool {
			t.Helper()
			c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(from)}, &net.UDPAddr{IP: net.ParseIP(to), Port: 7775})
			must(t, err)
			defer c.Close()
			_, _ = c.Write([]byte("x"))
			select {
			case source := <-got:
				if source != from {
					t.Fatalf("a packet from %s; want %s", source, from)
				}
				return true
			case <-time.After(300 * time.Millisecond):
				return false
			}
		}
		leaves := func(to string) bool {
			_, err := here.WriteTo([]byte("x"), &net.UDPAddr{IP: net.ParseIP(to), Port: 9})
			return err == nil
		}
		for _, from := range []string{"198.51.100.1", "203.0.113.1"} {
			if !arrives(from, "192.0.2.1") {
				t.Fatalf("without a guard no packet arrives from %s", from)
			}
		}
		c2 := Remote{Subnets: prefixes("10.2.0.0/16"), Port: 7775, Nodes: prefixes("198.51.100.0/24", "2001:db8:100::/64")}
		set(t)(g.Set("c2", c2))
		// the nodes of this remote may have any address
		set(t)(g.Set("c3", Remote{Subnets: prefixes("10.3.0.0/16"), Port: 7776}))
		for _, c := range []struct {
			at, here string
			want     bool
		}{
			{"198.51.100.1", "192.0.2.1", true}, {"203.0.113.1", "192.0.2.1", false},
			{"2001:db8:100::1", "2001:db8::1", true}, {"2001:db8:200::1", "2001:db8::1", false},
		} {
			if got := arrives(c.at, c.here); got != c.want {
				t.Errorf("a packet from %s arrives: %t", c.at, got)
			}
			if got := leaves(c.at); got != c.want {
				t.Errorf("a packet leaves for %s: %t", c.at, got)
			}
		}
		if got := counts(t, g, "c2"); got != (status.GuardCount{Tunnel: true, Sent: 2, Arrived: 2}) {
			t.Errorf("%+v; want 2 dropped each way", got)
		}
		if got := counts(t, g, "c3"); got != (status.GuardCount{}) {
			t.Errorf("c3: %+v", got)
		}
		// A later agent reads them before its broker sends them, and they survive changes of another remote.
		later := New(true, kernel.DefaultRoutingTable())
		set(t)(later.Set("c3", Remote{Subnets: prefixes("10.3.0.0/16", "10.33.0.0/16")}))
		if arrives("203.0.113.1", "192.0.2.1") {
			t.Error("a later agent has let a stranger's packet in")
		}
		// A stranger's packet costs the node no more than one that nothing refuses. Something else on the processor makes
		// some rounds dearer, and those with and without the guard take turns.
		var refused, free []time.Duration
		for range 10 {
			set(t)(later.Set("c2", c2))
			refused = append(refused, costOf(t, 2_000))
			set(t)(later.Remove("c2"))
			free = append(free, costOf(t, 2_000))
		}
		if !arrives("203.0.113.1", "192.0.2.1") {
			t.Error("without c2 a packet to the port does not arrive")
		}
		t.Logf("a stranger's packet: %s of CPU, and %s without the guard", slices.Min(refused), slices.Min(free))
		if slices.Min(refused) > 2*slices.Min(free) {
			t.Errorf("a stranger's packet costs %s of CPU, and %s without the guard", refused, free)
		}
	})
}

// costOf returns the processor time of one of some packets of a stranger, with its way to the receiver.
func costOf(t *testing.T, packets int) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP("203.0.113.1")},
		&net.UDPAddr{IP: net.ParseIP("192.0.2.1"), Port: 7775})
	must(t, err)
	defer c.Close()
	ran := func() time.Duration { // getrusage counts in ticks of the kernel, which are longer than a round
		var at unix.Timespec
		must(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at))
		return time.Duration(at.Nano())
	}
	before := ran()
	for range packets {
		_, _ = c.Write([]byte("x"))
	}
	return (ran() - before) / time.Duration(packets)
}

func TestGuard(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		w := newWires(t)
		g := New(true, kernel.DefaultRoutingTable())
		set(t)(g.Set("c2", Remote{Subnets: prefixes("10.2.0.0/16", "fd00:2::/48")}))

		// Without a route into the device the packet is refused, and never reaches the rules.
		for _, to := range []string{"10.2.1.1", "fd00:2::1"} {
			if err := send(to); err == nil {
				t.Errorf("a packet to %s follows the default route", to)
			}
		}
		must(t, send("10.3.1.1"))
		must(t, send("fd00:3::1"))
		if got := counts(t, g, "c2"); got != (status.GuardCount{}) {
			t.Errorf("%+v", got)
		}

		// Routes lead past the device. It depends on the kernel whether the sender gets an error.
		for _, subnet := range []string{"10.2.1.0/24", "fd00:2:0:1::/64"} {
			route(t, subnet, "bad")
		}
		neighbour(t, "bad", "10.2.1.1", "fd00:2:0:1::1")
		leaked := w.watch(t)
		_ = send("10.2.1.1")
		_ = send("fd00:2:0:1::1")
		if got := counts(t, g, "c2"); got != (status.GuardCount{Out: 2}) {
			t.Errorf("%+v; want 2 dropped on their way out", got)
		}
		if n := leaked(); n != 0 {
			t.Errorf("%d packets have left past the device", n)
		}
		route(t, "10.2.2.0/24", good)
		neighbour(t, good, "10.2.2.1")
		before := sent(t, good)
		must(t, send("10.2.2.1"))
		if sent(t, good) == before {
			t.Error("a packet that leaves by the device is dropped")
		}
		if got := counts(t, g, "c2"); got != (status.GuardCount{Out: 2}) {
			t.Errorf("%+v after a packet that left by the device", got)
		}

		// A second remote is added, whose device does not exist; the first one keeps its counter.
		set(t)(g.Set("c3", Remote{Subnets: prefixes("10.3.0.0/16", "fd00:3::/48")}))
		if err := send("10.3.1.1"); err == nil {
			t.Error("a packet to 10.3.1.1 follows the default route")
		}
		if got := counts(t, g, "c2"); got != (status.GuardCount{Out: 2}) {
			t.Errorf("%+v after another remote came", got)
		}

		// Another program deletes everything.
		conn, err := nftables.New()
		must(t, err)
		conn.FlushRuleset()
		must(t, conn.Flush())
		must(t, g.unreachable(netip.MustParsePrefix("10.3.0.0/16")).Delete())
		set(t)(g.Restore(false))
		if err := send("10.3.1.1"); err == nil {
			t.Error("a packet to 10.3.1.1 follows the default route after the guard was healed")
		}
		_ = send("10.2.1.1")
		if got := counts(t, g, "c2"); got != (status.GuardCount{Out: 1}) {
			t.Errorf("%+v after the guard was healed", got)
		}

		// A restarted agent, to which no broker has sent c3, removes c2.
		g = New(true, kernel.DefaultRoutingTable())
		if diff := cmp.Diff([]string{"c2", "c3"}, g.Clusters()); diff != "" {
			t.Errorf("remembered (-want +got):\n%s", diff)
		}
		set(t)(g.Remove("c2"))
		leaked = w.watch(t)
		for _, to := range []string{"10.2.1.1", "fd00:2:0:1::1"} {
			if err := send(to); err != nil {
				t.Errorf("%s cannot be sent to, and is not guarded any more: %v", to, err)
			}
		}
		if n := leaked(); n != 2 {
			t.Errorf("%d packets are seen that are not guarded any more; want 2", n)
		}
		if err := send("10.3.1.1"); err == nil {
			t.Error("c3 went with c2")
		}
		stands, err := readRuleset()
		must(t, err)
		if len(stands.counters) != 2 {
			t.Errorf("counters %v", stands.counters)
		}

		removed, err := removeAll()
		must(t, err)
		want := []string{
			"nftables table inet semaphore", "IPv4 rule 94 for table 7394", "unreachable route 10.3.0.0/16 of table 7394",
			"IPv6 rule 94 for table 7394", "unreachable route fd00:3::/48 of table 7394",
		}
		if diff := cmp.Diff(want, removed); diff != "" {
			t.Errorf("removed (-want +got):\n%s", diff)
		}
		must(t, send("10.3.1.1"))
		if removed, err := removeAll(); err != nil || len(removed) > 0 {
			t.Errorf("a second time: %v, %v", removed, err)
		}
	})
}

// removeAll removes what a guard sets, as a cleanup does.
func removeAll() ([]string, error) {
	table, failed := RemoveTable()
	routes, err := kernel.RemoveRouting()
	return append(table, routes...), errors.Join(failed, err)
}

// TestLongName: the kernel stores the guard of a cluster with the longest name, and of subnets with the longest text,
// and a restarted agent parses it.
func TestLongName(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		newWires(t)
		long := strings.Repeat("c", 55) + ".example"
		g := New(true, kernel.DefaultRoutingTable())
		set(t)(g.Set(long, Remote{Subnets: prefixes("2001:db8:1111:2222:3333:4444:5555:6666/128"),
			Port: 65535, Nodes: prefixes("2001:db8:1111:2222:3333:4444:5555:7777/128")}))
		stands, err := readRuleset()
		must(t, err)
		if n := len(stands.comments[out]); n != 3 {
			t.Errorf("comments %q", stands.comments)
		}
		for _, comments := range stands.comments {
			for _, c := range comments {
				if len(c) > 128 {
					t.Errorf("nft takes no comment of %d bytes: %s", len(c), c)
				}
			}
		}
		g = New(true, kernel.DefaultRoutingTable())
		if diff := cmp.Diff([]string{long}, g.Clusters()); diff != "" {
			t.Errorf("remembered (-want +got):\n%s", diff)
		}
		if r := g.remotes[long]; r.Port != 65535 || len(r.Nodes) != 1 {
			t.Errorf("remembered %+v", r)
		}
		set(t)(g.Remove(long))
	})
}

// neighbour adds permanent neighbour entries, so that packets to these addresses leave although nobody answers.
func neighbour(t *testing.T, device string, addresses ...string) {
	t.Helper()
	for _, a := range addresses {
		must(t, netlink.NeighSet(&netlink.Neigh{
			LinkIndex: linkIndex(t, device), State: netlink.NUD_PERMANENT, IP: net.ParseIP(a),
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9},
		}))
	}
}

// sent returns the number of packets that an interface has sent.
func sent(t *testing.T, device string) uint64 {
	t.Helper()
	link, err := netlink.LinkByName(device)
	must(t, err)
	return link.Attrs().Statistics.TxPackets
}

// TestSpoofedSourceAddressesAreDropped: the guard drops packets with a remote pod's source address that do not come out
// of the remote's device.
func TestSpoofedSourceAddressesAreDropped(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		w := newWires(t)
		links, err := w.far.Netlink()
		must(t, err)
		defer links.Close()
		lo, err := links.LinkByName("lo")
		must(t, err)
		a, err := netlink.ParseAddr("10.2.1.1/32")
		must(t, err)
		must(t, links.AddrAdd(lo, a))
		listener, err := net.ListenPacket("udp", "0.0.0.0:7")
		must(t, err)
		defer listener.Close()
		send := func(to, text string) {
			t.Helper()
			must(t, w.far.Do(func() error {
				c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(10, 2, 1, 1)}, &net.UDPAddr{IP: net.ParseIP(to), Port: 7})
				if err != nil {
					return err
				}
				defer c.Close()
				_, err = c.Write([]byte(text))
				return err
			}))
		}
		received := map[string]bool{}
		// enters sends packets until one arrives.
		enters := func(to, text string) {
			t.Helper()
			eventually(t, text+" gets through", func() bool {
				send(to, text)
				must(t, listener.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
				for buffer := make([]byte, 100); ; {
					n, _, err := listener.ReadFrom(buffer)
					if err != nil {
						return received[text]
					}
					received[string(buffer[:n])] = true
				}
			})
		}
		// Without a route back, the kernel's reverse path filter drops the packets.
		route(t, "10.2.1.0/24", good)
		const byGood, byBad = "192.0.2.1", "192.0.2.5"
		enters(byGood, "unguarded, by the device")
		enters(byBad, "unguarded, by another")
		g := New(true, kernel.DefaultRoutingTable())
		set(t)(g.Set("c2", Remote{Subnets: prefixes("10.2.0.0/16")}))
		send(byBad, "by another")
		eventually(t, "a packet that came in by another interface is counted",
			func() bool { return counts(t, g, "c2") == status.GuardCount{In: 1} })
		enters(byGood, "by the device")
		if received["by another"] {
			t.Error("a packet with a remote pod's address comes in by another interface")
		}
		// Without guardInbound they pass.
		g = New(false, kernel.DefaultRoutingTable())
		set(t)(g.Restore(false))
		enters(byBad, "by another, which was not forbidden")
		_, err = removeAll()
		must(t, err)
	})
}

// traffic sends packets of c2 past the device, to 10.2.1.1, and by the device, to 10.2.2.1, until it is stopped. The
// returned function stops it, and returns how many went each way and how many of those by the device were refused.
func traffic(t *testing.T) func() (tried, lost uint64) {
	t.Helper()
	route(t, "10.2.1.0/24", "bad")
	route(t, "10.2.2.0/24", good)
	neighbour(t, "bad", "10.2.1.1")
	neighbour(t, good, "10.2.2.1")
	bad, err := net.Dial("udp", "10.2.1.1:9")
	must(t, err)
	good, err := net.Dial("udp", "10.2.2.1:9")
	must(t, err)
	var tries, lost atomic.Uint64
	stop := testkit.Run(t, func(ctx context.Context) error {
		for ; ctx.Err() == nil; time.Sleep(100 * time.Microsecond) { // one CPU must be enough for all of this
			_, _ = bad.Write([]byte("x"))
			if _, err := good.Write([]byte("x")); err != nil {
				lost.Add(1)
			}
			tries.Add(1)
		}
		return errors.Join(bad.Close(), good.Close())
	})
	return func() (uint64, uint64) {
		stop()
		return tries.Load(), lost.Load()
	}
}

// TestNoGapWhileItChanges: while remotes come and go, no packet of a remaining one leaks, or is dropped on its way into
// the device.
func TestNoGapWhileItChanges(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		w := newWires(t)
		leaked := w.watch(t)
		g := New(true, kernel.DefaultRoutingTable())
		set(t)(g.Set("c2", Remote{Subnets: prefixes("10.2.0.0/16")}))
		beforeGood := sent(t, good)
		stop := traffic(t)
		for i := range 10 {
			cluster := []string{"c3", "c4"}[i%2]
			set(t)(g.Set(cluster, Remote{Subnets: prefixes("10.3.0.0/16")}))
			set(t)(g.Remove(cluster))
		}
		tried, lost := stop()
		got := counts(t, g, "c2")
		t.Logf("%d packets each way while the rules changed 20 times", tried)
		if tried == 0 || got.Out != tried {
			t.Errorf("%d of %d packets past the device were stopped", got.Out, tried)
		}
		if n := leaked(); n != 0 {
			t.Errorf("%d packets have left past the device", n)
		}
		if by := sent(t, good) - beforeGood; lost > 0 || by < tried {
			t.Errorf("%d of %d packets left by the device, %d were refused", by, tried, lost)
		}
		_, err := removeAll()
		must(t, err)
	})
}

// TestChangesOfOthers: the guard notices and heals changes of other programs: a changed rule with its comment
// unchanged, an element that leads elsewhere or is gone, a map or a chain that is gone, a dormant table, a removed
// counter, all rules deleted. It does not notice changes of another table, and writes nothing where nothing changed.
func TestChangesOfOthers(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		w := newWires(t)
		g := New(true, kernel.DefaultRoutingTable())
		set(t)(g.Set("c2", Remote{Subnets: prefixes("10.2.0.0/16")}))
		route(t, "10.2.1.0/24", "bad")
		neighbour(t, "bad", "10.2.1.1")
		var notified atomic.Int64
		testkit.Run(t, func(ctx context.Context) error {
			return kernel.FollowTable(ctx, TableName, func() { notified.Add(1) })
		})
		conn, err := nftables.New()
		must(t, err)
		eventually(t, "it watches", func() bool { // repeatedly: the watch may begin late
			conn.DelTable(table)
			must(t, conn.Flush())
			set(t)(g.Restore(false))
			return notified.Load() > 0
		})
		for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyINet} {
			other := conn.AddTable(&nftables.Table{Name: "aaa", Family: family})
			conn.AddChain(&nftables.Chain{Name: "c", Table: other})
		}
		must(t, conn.Flush())
		time.Sleep(100 * time.Millisecond)
		before := notified.Load()
		conn.DelTable(&nftables.Table{Name: "aaa", Family: nftables.TableFamilyINet})
		must(t, conn.Flush())
		time.Sleep(100 * time.Millisecond)
		if n := notified.Load() - before; n != 0 {
			t.Errorf("%d callbacks for another program's table", n)
		}
		ours := func(d direction, verdict string) *nftables.Rule {
			return ruleOf(t, conn, base[d].Name+"-10.2.0.0/16", "c2 10.2.0.0/16 "+verdict)
		}
		harms := mapHarms(t, conn)
		maps.Copy(harms, map[string]func(){
			"a rule that accepts what it dropped": func() {
				r := ours(out, "drop")
				r.Exprs = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
				conn.ReplaceRule(r)
			},
			"a rule that drops only some": func() {
				r := ours(out, "drop")
				r.Exprs = slices.Insert(r.Exprs, len(r.Exprs)-1, expr.Any(&expr.Limit{Type: expr.LimitTypePkts, Rate: 1,
					Unit: expr.LimitTimeDay}))
				conn.ReplaceRule(r)
			},
			"a rule of another prefix": func() {
				r := ours(in, "pass")
				r.Exprs = rule{"c2", netip.MustParsePrefix("10.9.0.0/16"), 0, pass}.expressions(in)
				conn.ReplaceRule(r)
			},
			"a table that sleeps":                          func() { sleep(t) },
			"everything, beginning with what is another's": func() { conn.FlushRuleset() },
			"a counter that was deleted": func() {
				r := ours(out, "drop")
				r.Exprs = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
				conn.ReplaceRule(r)
				conn.DeleteObject(&nftables.CounterObj{Table: table, Name: counterOf(out, "c2")})
			},
		})
		for name, harm := range harms {
			before := notified.Load()
			harm()
			must(t, conn.Flush())
			eventually(t, name+" is noticed", func() bool { return notified.Load() > before })
			if changed, err := g.Restore(false); !changed || err != nil {
				t.Errorf("%s: changed: %v, %v", name, changed, err)
			}
			wrote := generation(t)
			if changed, err := g.Restore(false); changed || err != nil || generation(t) != wrote {
				t.Errorf("%s: a second look changes: %v, %v, or writes", name, changed, err)
			}
			was := counts(t, g, "c2").Out
			leaked := w.watch(t)
			_ = send("10.2.1.1")
			if n, stopped := leaked(), counts(t, g, "c2").Out-was; n != 0 || stopped != 1 {
				t.Errorf("%s: %d packets have left, %d were stopped", name, n, stopped)
			}
		}
	})
}

func ruleOf(t *testing.T, conn *nftables.Conn, chain, comment string) *nftables.Rule {
	t.Helper()
	rules, err := conn.GetRules(table, chainNamed(chain))
	must(t, err)
	for _, r := range rules {
		if is, _ := userdata.GetString(r.UserData, userdata.TypeComment); is == comment {
			r.Table, r.Chain = table, chainNamed(chain)
			return r
		}
	}
	t.Fatalf("chain %s has no rule %q", chain, comment)
	return nil
}

// mapHarms are changes of the map of packets that leave, and of what it leads to.
func mapHarms(t *testing.T, conn *nftables.Conn) map[string]func() {
	leads, led := verdictMap{out, nftables.TypeIPAddr}, chainNamed("leaving-10.2.0.0/16")
	begin := nftables.SetElement{Key: []byte{10, 2, 0, 0}}
	remove := func(e nftables.SetElement) { must(t, conn.SetDeleteElements(leads.set(), []nftables.SetElement{e})) }
	add := func(e nftables.SetElement) { must(t, conn.SetAddElements(leads.set(), []nftables.SetElement{e})) }
	lead := func(to expr.Verdict) {
		remove(begin)
		e := begin
		e.VerdictData = &to
		add(e)
	}
	return map[string]func(){
		"an element that leads elsewhere": func() {
			conn.AddChain(chainNamed("elsewhere"))
			must(t, conn.Flush())
			lead(expr.Verdict{Kind: expr.VerdictJump, Chain: "elsewhere"})
		},
		"an element that accepts": func() { lead(expr.Verdict{Kind: expr.VerdictAccept}) },
		"an element that is gone": func() { remove(begin) },
		"an element of fewer addresses": func() {
			remove(nftables.SetElement{Key: []byte{10, 3, 0, 0}, IntervalEnd: true})
			add(nftables.SetElement{Key: []byte{10, 2, 1, 0}, IntervalEnd: true})
		},
		"a map in which nothing is looked up": func() { conn.FlushChain(base[out]) },
		"a map that is gone": func() {
			conn.FlushChain(base[out])
			conn.DelSet(leads.set())
		},
		"a map of another kind": func() {
			conn.FlushChain(base[out])
			conn.DelSet(leads.set())
			other := leads.set()
			other.IsMap, other.Interval = false, false
			must(t, conn.AddSet(other, nil))
		},
		"a chain without rules": func() { conn.FlushChain(led) },
		"a chain that is gone": func() {
			remove(begin)
			conn.FlushChain(led)
			conn.DelChain(led)
		},
	}
}

// sleep makes the table dormant, as "nft add table inet semaphore { flags dormant; }" does. The library lacks this.
func sleep(t *testing.T) {
	t.Helper()
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	must(t, err)
	defer unix.Close(s)
	message := func(kind uint16, family byte, resource uint16, attributes ...byte) []byte {
		m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+4+len(attributes)))
		m = binary.NativeEndian.AppendUint16(m, kind)
		m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST)
		m = append(m, 0, 0, 0, 0, 0, 0, 0, 0) // sequence number and port
		m = append(m, family, unix.NFNETLINK_V0)
		return append(binary.BigEndian.AppendUint16(m, resource), attributes...)
	}
	name := nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(TableName)).Serialize()
	flags := nl.NewRtAttr(unix.NFTA_TABLE_FLAGS, binary.BigEndian.AppendUint32(nil, dormant)).Serialize()
	batch := slices.Concat(
		message(unix.NFNL_MSG_BATCH_BEGIN, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
		message(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, byte(table.Family), 0, slices.Concat(name, flags)...),
		message(unix.NFNL_MSG_BATCH_END, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
	)
	must(t, unix.Sendto(s, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
}

// TestNFTablesThatCannotBeRead: if nftables cannot be read, the unreachable routes are created nevertheless, and the
// state of an earlier guard is read once that is possible.
func TestNFTablesThatCannotBeRead(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		newWires(t)
		earlier := New(true, kernel.DefaultRoutingTable())
		set(t)(earlier.Set("c2", Remote{Subnets: prefixes("10.2.0.0/16")}))
		set(t)(earlier.Set("c4", Remote{Subnets: prefixes("10.4.0.0/16")}))
		g := New(true, kernel.DefaultRoutingTable())
		busy := errors.New("busy")
		g.read = func() (ruleset, error) { return ruleset{}, busy }
		if changed, err := g.Set("c3", Remote{Subnets: prefixes("10.3.0.0/16")}); !changed ||
			!errors.Is(err, busy) {
			t.Errorf("changed: %v, %v", changed, err)
		}
		if err := send("10.3.1.1"); err == nil {
			t.Error("a packet to 10.3.1.1 follows the default route")
		}
		if _, err := g.Remove("c4"); !errors.Is(err, busy) {
			t.Error(err)
		}
		g.read = readRuleset
		if changed, err := g.Restore(false); !changed || err != nil {
			t.Errorf("changed: %v, %v", changed, err)
		}
		if diff := cmp.Diff([]string{"c2", "c3"}, g.Clusters()); diff != "" {
			t.Errorf("guarded (-want +got):\n%s", diff)
		}
		set(t)(g.Restore(true))
		if err := send("10.2.1.1"); err == nil {
			t.Error("a packet to 10.2.1.1 follows the default route")
		}
		must(t, send("10.4.1.1"))
	})
}

// TestRoutesOfAnEarlierVersionAreReplaced: routes of an agent with another table, in the main one, are removed after
// the new ones exist.
func TestRoutesOfAnEarlierVersionAreReplaced(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		newWires(t)
		for _, prefix := range []string{"10.2.0.0/16", "fd00:2::/48"} {
			r := New(true, kernel.DefaultRoutingTable()).unreachable(netip.MustParsePrefix(prefix))
			r.Table = 0
			must(t, r.Add())
		}
		g := New(true, kernel.DefaultRoutingTable())
		set(t)(g.Set("c2", Remote{Subnets: prefixes("10.2.0.0/16", "fd00:2::/48")}))
		have, strays, err := g.unreachableRoutes()
		must(t, err)
		if len(have) != 2 || len(strays) != 0 {
			t.Errorf("%v in our table, %v elsewhere", have, strays)
		}
		for _, to := range []string{"10.2.1.1", "fd00:2::1"} {
			if err := send(to); err == nil {
				t.Errorf("a packet to %s follows the default route", to)
			}
		}
		set(t)(g.Remove("c2"))
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			if ruled, err := kernel.DefaultRoutingTable().Ruled(family); ruled || err != nil {
				t.Errorf("a rule for nothing: %v, %v", ruled, err)
			}
		}
	})
}

// generation is the number of transactions of nftables in this network namespace.
func generation(t *testing.T) uint32 {
	t.Helper()
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	request.AddData(&nl.Nfgenmsg{})
	answer := testkit.Value(request.Execute(unix.NETLINK_NETFILTER, 0))(t)
	attributes := testkit.Value(nl.ParseRouteAttr(answer[0][nl.SizeofNfgenmsg:]))(t)
	return binary.BigEndian.Uint32(attributes[0].Value)
}
