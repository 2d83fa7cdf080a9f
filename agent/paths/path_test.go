package paths

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestNarrowPath: a router's link carries 1400 bytes, which it may or may not report; the links at both ends carry
// 1500.
func TestNarrowPath(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		_, err := netns.Create("router")
		must(t, err)
		far, err := netns.Create("far")
		must(t, err)
		for _, command := range []string{
			"link add eth0 type veth peer name near netns router",
			"-n router link add far type veth peer name eth0 netns far",
			"addr add 192.0.2.1/24 dev eth0", "link set eth0 up",
			"addr add 2001:db8:1::1/64 dev eth0 nodad",
			"-n router addr add 192.0.2.2/24 dev near", "-n router link set near up",
			"-n router addr add 2001:db8:1::2/64 dev near nodad",
			"-n router addr add 198.51.100.2/24 dev far", "-n router link set far up",
			"-n router addr add 2001:db8:2::2/64 dev far nodad",
			"-n far addr add 198.51.100.1/24 dev eth0", "-n far link set eth0 up",
			"-n far addr add 2001:db8:2::1/64 dev eth0 nodad",
			"route add 198.51.100.0/24 via 192.0.2.2", "route add 2001:db8:2::/64 via 2001:db8:1::2",
			"-n far route add 192.0.2.0/24 via 198.51.100.2", "-n far route add 2001:db8:1::/64 via 2001:db8:2::2",
			"netns exec router sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
		} {
			testkit.IP(t, command)
		}
		var r *Responder
		must(t, far.Do(func() error {
			var err error
			r, err = NewResponder(t.Context(), ":7774", func(at netip.Addr) bool {
				return at == netip.MustParseAddr("192.0.2.1") || at == netip.MustParseAddr("2001:db8:1::1")
			})
			return err
		}))
		testkit.Run(t, r.Run)
		four, six := netip.MustParseAddrPort("198.51.100.1:7774"), netip.MustParseAddrPort("[2001:db8:2::1]:7774")
		type question struct {
			to         netip.AddrPort
			most, want int
		}
		check := func(what string, questions ...question) {
			t.Helper()
			var all sync.WaitGroup
			for _, q := range questions {
				all.Go(func() {
					got, err := MeasurePath(t.Context(), q.to, 1280, q.most)
					if err != nil || !got.Answered || got.Carries != q.want {
						t.Errorf("%s to %s: %+v, %v; want %d", what, q.to.Addr(), got, err, q.want)
					}
				})
			}
			all.Wait()
		}
		// The neighbours on a new link are not resolved yet.
		for began := time.Now(); ; {
			if got, err := MeasurePath(t.Context(), six, 1280, 1280); got.Answered || time.Since(began) > time.Minute {
				must(t, err)
				break
			}
		}
		check("wide", question{four, 1440, 1440}, question{six, 1420, 1420})
		testkit.IP(t, "-n router link set far mtu 1400")
		testkit.IP(t, "-n far link set eth0 mtu 1400")
		check("with a router's word", question{four, 1440, 1340}, question{six, 1420, 1320})
		// The kernel stores the reported MTU for ten minutes; a new measurement ignores it.
		testkit.IP(t, "-n router link set far mtu 1500")
		testkit.IP(t, "-n far link set eth0 mtu 1500")
		check("wide again", question{four, 1440, 1440}, question{six, 1420, 1420})

		testkit.IP(t, "netns exec router iptables -A OUTPUT -p icmp -j DROP")
		testkit.IP(t, "netns exec router ip6tables -A OUTPUT -p icmpv6 --icmpv6-type packet-too-big -j DROP")
		testkit.IP(t, "-n router link set far mtu 1401")
		// This also holds if the requested size exceeds the MTU of the own link.
		check("a black hole", question{four, 1440, 1341}, question{six, 1420, 1321}, question{four, 3000, 1341})
		testkit.IP(t, "-n router link set far mtu 1300")
		check("less than the least", question{four, 1440, 0})
	})
}
