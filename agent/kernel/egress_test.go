package kernel_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestEgressLinks: the MTU of a path is that of its link or its route, whichever is smaller, for each link of a
// multipath route. A route that the kernel learned from routers does not count.
func TestEgressLinks(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		var host *kernel.Host // neither case needs WireGuard
		for _, command := range []string{
			"link add da type veth peer name pa", "link set pa up", "link set da up mtu 1500", "addr add 192.0.2.1/24 dev da",
			"addr add 2001:db8:1::1/64 dev da nodad",
			"link add db type veth peer name pb", "link set pb up", "link set db up mtu 9000", "addr add 198.51.100.1/24 dev db",
			"route add 203.0.113.0/24 via 198.51.100.2 mtu 8000",
			"route add 203.0.114.0/24 nexthop via 192.0.2.9 nexthop via 198.51.100.9",
			"route add unreachable 203.0.115.0/24",
		} {
			testkit.IP(t, command)
		}
		for to, want := range map[string][]kernel.EgressLink{
			"192.0.2.7":     {{Link: "da", MTU: 1500}},
			"2001:db8:1::7": {{Link: "da", MTU: 1500}},
			"198.51.100.7":  {{Link: "db", MTU: 9000}},
			"203.0.113.7":   {{Link: "db", MTU: 8000}},
			"203.0.114.7":   {{Link: "da", MTU: 1500}, {Link: "db", MTU: 9000}},
			"203.0.115.7":   nil,
			"8.8.8.8":       nil,
		} {
			at := netip.MustParseAddr(to)
			for i := range want {
				want[i].To = at
			}
			got, err := host.EgressLinks([]netip.Addr{at})
			slices.SortFunc(got, func(a, b kernel.EgressLink) int { return strings.Compare(a.Link, b.Link) })
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %v, %v; want %v", to, got, err, want)
			}
		}
	})
}
