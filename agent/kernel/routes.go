package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Foreign is a route of the agent's table that is not the agent's.
type Foreign struct {
	Prefix netip.Prefix
	Metric int
	// Text is nearly the text of ip-route(8), without the prefix.
	Text string
}

// Foreign returns the routes of the agent's table that are not the agent's and for which wanted returns true. It fails
// if the kernel does not list them.
func (h *Host) Foreign(wanted func(netip.Prefix) bool) ([]Foreign, error) {
	var out []Foreign
	err := h.table.Each(RouteFilter{}, func(r Route) {
		if r.Protocol != RouteProtocol && wanted(r.Prefix) {
			out = append(out, Foreign{r.Prefix, r.Metric, r.Text()})
		}
	})
	return out, err
}

// PrefixOf converts a net.IPNet, which has two forms of an IPv4 prefix.
func PrefixOf(n *net.IPNet) netip.Prefix {
	addr, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones)
}

// ErrTaken means that another program's route has the place of the agent's.
var ErrTaken = errors.New("another program has a route there")

// AddRoute routes prefix into the device, in the agent's table and with the rule that leads there, with the source
// address for the node's own packets; none if source is the zero Addr. It takes over an existing route that leads
// there. A route that leads elsewhere belongs to another program: it remains, and causes ErrTaken. It also fails if
// there is no device, or the kernel refuses route or rule.
func (h *Host) AddRoute(name string, prefix netip.Prefix, source netip.Addr) error {
	if err := h.route(name, prefix, source, netlink.RouteAdd); errors.Is(err, unix.EEXIST) {
		elsewhere, found := h.conflictingRoute(name, prefix)
		if found != nil {
			return errors.Join(err, found)
		}
		if elsewhere != "" {
			return fmt.Errorf("route %s of table %d: %w (%s): remove it to have it lead to %s", prefix, h.table.ID, ErrTaken,
				elsewhere, name)
		}
		if err := h.ReplaceRoute(name, prefix, source); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	_, err := h.table.Rule(Family(prefix))
	return err
}

// ReplaceRoute is AddRoute in place of any existing route of that metric, and without a rule. It fails if there is no
// device, or the kernel refuses.
func (h *Host) ReplaceRoute(name string, prefix netip.Prefix, source netip.Addr) error {
	return h.route(name, prefix, source, netlink.RouteReplace)
}

// conflictingRoute describes the route to prefix that is in place of the agent's, empty if it leads into the device.
func (h *Host) conflictingRoute(name string, prefix netip.Prefix) (way string, err error) {
	link, err := findLink(name)
	if err != nil || link == nil {
		return "", err
	}
	err = h.table.Each(RouteFilter{Family: Family(prefix)}, func(r Route) {
		// A route of another metric does not conflict.
		if r.Prefix == prefix && r.Metric == MetricOf(prefix) && (r.Link != link.Attrs().Index || r.Gateway.IsValid() ||
			r.Several) {
			way = r.Text()
		}
	})
	return way, err
}

// MetricOf returns the metric ("priority") of the agent's routes into devices: the kernel's default.
func MetricOf(prefix netip.Prefix) int {
	if prefix.Addr().Is6() {
		return 1024 // IP6_RT_PRIO_USER
	}
	return 0
}

// DeleteRoute deletes a route into a device; one that does not exist is no error. It fails if there is no device, or
// the kernel refuses.
func (h *Host) DeleteRoute(name string, prefix netip.Prefix) error {
	err := h.route(name, prefix, netip.Addr{}, netlink.RouteDel)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

func (h *Host) route(name string, prefix netip.Prefix, source netip.Addr, do func(*netlink.Route) error) error {
	link, err := existingLink(name)
	if err != nil {
		return err
	}
	r := Route{Prefix: prefix, Table: h.table.ID, Type: unix.RTN_UNICAST, Protocol: RouteProtocol,
		Link: link.Attrs().Index, Source: source}
	if err := do(r.message()); err != nil {
		return fmt.Errorf("route %s via %s: %w", prefix, name, err)
	}
	return nil
}

// Strays returns the routes into a device outside the agent's table that replace its routes: those with its protocol
// number, of an agent with another table, and those of the main table to exactly one of the subnets, as
// semaphore-wireguard adds. It fails if the kernel does not list them.
func (h *Host) Strays(name string, subnets []netip.Prefix) ([]Route, error) {
	link, err := findLink(name)
	if link == nil || err != nil {
		return nil, err
	}
	var strays []Route
	err = RoutingTable{}.Each(RouteFilter{Link: link.Attrs().Index, Type: unix.RTN_UNICAST}, func(r Route) {
		switch {
		case r.Table == h.table.ID:
		case r.Protocol == RouteProtocol,
			r.Table == unix.RT_TABLE_MAIN && !r.Gateway.IsValid() && !r.Several && slices.Contains(subnets, r.Prefix):
			strays = append(strays, r)
		}
	})
	return strays, err
}

// DeleteStray deletes a route of Strays, and with a table's last one the rule that leads there. It fails if the kernel
// refuses.
func (h *Host) DeleteStray(r Route) error {
	err := r.Delete()
	if err == nil {
		_, err = h.table.Rule(Family(r.Prefix))
	}
	return err
}

// Elsewhere reports whether packets to one of the subnets are routed into a device outside the agent's table, and not
// in it. It fails if the kernel does not list the routes.
func (h *Host) Elsewhere(name string, subnets []netip.Prefix) (bool, error) {
	strays, err := h.Strays(name, subnets)
	if err != nil || len(strays) == 0 {
		return false, err
	}
	inside := map[netip.Prefix]bool{}
	err = h.table.Each(RouteFilter{Link: strays[0].Link, Protocol: RouteProtocol, Type: unix.RTN_UNICAST},
		func(r Route) { inside[r.Prefix] = true })
	return slices.ContainsFunc(strays, func(r Route) bool {
		return slices.Contains(subnets, r.Prefix) && !inside[r.Prefix]
	}), err
}
