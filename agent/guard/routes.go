package guard

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/routing"
)

// refusalMetric is that of our unreachable routes: behind the routes into devices, which have 0 or, for IPv6, 1024,
// so that they decide only where there is no device, or no route into it.
const refusalMetric = 1 << 16

// unreachableRoutes are the prefixes that our unreachable routes refuse, and those of other tables.
func (g *Guard) unreachableRoutes() (prefixes []netip.Prefix, strays []routing.Route, err error) {
	all, err := allRefusals()
	for _, r := range all {
		if r.Table == g.table.ID {
			prefixes = append(prefixes, r.Prefix)
		} else {
			strays = append(strays, r)
		}
	}
	return prefixes, strays, err
}

// allRefusals are our unreachable routes, of whatever table.
func allRefusals() (all []routing.Route, err error) {
	err = routing.Table{}.Each(routing.Filter{Protocol: routing.Protocol, Type: unix.RTN_UNREACHABLE}, func(r routing.Route) {
		if r.Metric == refusalMetric {
			all = append(all, r)
		}
	})
	return all, err
}

// refuse makes the unreachable route of a prefix: what has no way into its device is refused, with an answer to
// the sender, and does not follow a default route.
func (g *Guard) refuse(prefix netip.Prefix) error {
	if err := netlink.RouteAdd(g.refusal(prefix)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("unreachable route %s: %w", prefix, err)
	}
	return nil
}

func (g *Guard) unrefuse(prefix netip.Prefix) error {
	if err := netlink.RouteDel(g.refusal(prefix)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("deleting unreachable route %s: %w", prefix, err)
	}
	return nil
}

func (g *Guard) refusal(prefix netip.Prefix) *netlink.Route {
	return &netlink.Route{
		Dst: routing.IPNet(prefix), Table: g.table.ID,
		Type: unix.RTN_UNREACHABLE, Protocol: routing.Protocol, Priority: refusalMetric,
	}
}

// missing are those of want that are not in have.
func missing(want, have []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(want), func(p netip.Prefix) bool { return slices.Contains(have, p) })
}
