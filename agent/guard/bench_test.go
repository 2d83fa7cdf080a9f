package guard

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// BenchmarkGuard: with 256 remotes a packet costs what it costs with one, and a remote costs a read no more than one
// alone.
func BenchmarkGuard(b *testing.B) {
	nodetest.Bench(b, func(b *testing.B) {
		figure.WithoutTime(b)
		w := newWires(b)
		links, err := w.far.Netlink()
		must(b, err)
		defer links.Close()
		lo, err := links.LinkByName("lo")
		must(b, err)
		must(b, links.LinkSetUp(lo))
		pod, err := netlink.ParseAddr("10.2.1.1/32")
		must(b, err)
		must(b, links.AddrAdd(lo, pod))
		route(b, "10.2.1.0/24", good)

		few := remotes{"c2": {Subnets: prefixes("10.2.0.0/16"), Nodes: prefixes("198.51.100.0/24"), Port: 7775}}
		many := remotes{"c2": few["c2"]}
		for i := range 255 {
			pods, node := netip.AddrFrom4([4]byte{11, byte(i)}), netip.AddrFrom4([4]byte{172, 20, byte(i)})
			many[fmt.Sprint("x", i)] = Remote{Subnets: []netip.Prefix{netip.PrefixFrom(pods, 16)},
				Nodes: []netip.Prefix{netip.PrefixFrom(node, 24)}, Port: 50000 + i}
		}
		work := map[string]func(){
			"packet-of-none":     w.packets(b, "192.0.2.5", "192.0.2.6"),
			"packet-of-a-remote": w.packets(b, "192.0.2.1", "10.2.1.1"),
			"read": func() {
				_, err := readRuleset()
				must(b, err)
			},
			"counters": func() {
				_, err := readCounters()
				must(b, err)
			},
		}
		g := New(true, kernel.DefaultRoutingTable())
		set(b)(g.Set("c2", few["c2"])) // with the routing rule
		least := map[string][2]time.Duration{}
		for range 5 { // by turns; the least is what nothing else on the machine made longer
			for i, all := range []remotes{few, many} {
				_, err := g.rules(all)
				must(b, err)
				for name, do := range work {
					for range 40 {
						began := time.Now()
						do()
						took, so := time.Since(began), least[name]
						if so[i] == 0 || took < so[i] {
							so[i] = took
							least[name] = so
						}
					}
				}
			}
		}
		us := func(name string, i, of int) float64 {
			return float64(least[name][i].Nanoseconds()) / 1000 / float64(of)
		}
		for _, name := range []string{"packet-of-none", "packet-of-a-remote"} {
			figure.Report(b, name+"-us", us(name, 1, packets)).Floor(us(name, 0, packets)).AtMostTimesFloor(1.5)
		}
		for _, name := range []string{"read", "counters"} {
			figure.Report(b, name+"-us/remote", us(name, 1, len(many))).Floor(us(name, 0, 1)).AtMostTimesFloor(1)
		}
	})
}

// packets is how many go each way at a time: the figures are for one there and one back.
const packets = 100

// packets returns what sends packets from an address of the node to one of the other side, and as many back. They end
// in sockets that nobody reads.
func (w *wires) packets(b *testing.B, near, far string) func() {
	b.Helper()
	here, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(near)})
	must(b, err)
	b.Cleanup(func() { _ = here.Close() })
	var there *net.UDPConn
	must(b, w.far.Do(func() (err error) {
		there, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(far)})
		return err
	}))
	b.Cleanup(func() { _ = there.Close() })
	at, from := there.LocalAddr().(*net.UDPAddr).AddrPort(), here.LocalAddr().(*net.UDPAddr).AddrPort()
	return func() {
		for range packets {
			_, err1 := here.WriteToUDPAddrPort([]byte("x"), at)
			_, err2 := there.WriteToUDPAddrPort([]byte("x"), from)
			must(b, err1)
			must(b, err2)
		}
	}
}
