package guard

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

// unreachableMetric is the metric of the unreachable routes: larger than that of routes into devices, which is 0 or,
// for IPv6, 1024, so that they apply only without a device, or without a route into it.
const unreachableMetric = 1 << 16

// unreachableRoutes returns the prefixes of the agent's unreachable routes, and those routes of other tables.
func (g *Guard) unreachableRoutes() (prefixes []netip.Prefix, strays []kernel.Route, err error) {
	err = kernel.RoutingTable{}.Each(kernel.RouteFilter{Protocol: kernel.RouteProtocol, Type: unix.RTN_UNREACHABLE},
		func(r kernel.Route) {
			switch {
			case r.Metric != unreachableMetric:
			case r.Table == g.table.ID:
				prefixes = append(prefixes, r.Prefix)
			default:
				strays = append(strays, r)
			}
		})
	return prefixes, strays, err
}

// unreachable returns the unreachable route of a prefix: packets without a route into the device are rejected with an
// answer to the sender, and do not follow a default route.
func (g *Guard) unreachable(prefix netip.Prefix) kernel.Route {
	return kernel.Route{Prefix: prefix, Table: g.table.ID, Type: unix.RTN_UNREACHABLE, Protocol: kernel.RouteProtocol,
		Metric: unreachableMetric}
}
