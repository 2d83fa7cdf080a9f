package wireguard

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/routing"
)

// Foreign is a route of our table that is not ours.
type Foreign struct {
	Prefix netip.Prefix
	Metric int
	// Text tells it nearly as ip-route(8) does, without the prefix.
	Text string
}

// Foreign are the routes of our table that are not ours and for which wanted is true.
func (h *Host) Foreign(wanted func(netip.Prefix) bool) ([]Foreign, error) {
	var out []Foreign
	err := h.table.Each(routing.Filter{}, func(r routing.Route) {
		if r.Protocol != routing.Protocol && wanted(r.Prefix) {
			out = append(out, Foreign{r.Prefix, r.Metric, r.Text()})
		}
	})
	return out, err
}

// PrefixOf is IPNet's reverse. It has one form for an IPv4 prefix, which net.IPNet has two for; ok is false where there
// is none.
func PrefixOf(n *net.IPNet) (prefix netip.Prefix, ok bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones), ok
}

// ErrTaken says that another's route is in the place of one of ours.
var ErrTaken = errors.New("there is one already, which is not ours")

// AddRoute routes prefix into the device, in our table and with the rule that leads there, with the source address for
// packets of the node's own; none when source is the zero Addr. A route of the table that leads there already is taken
// over. One that leads elsewhere is someone's, stays, and gives ErrTaken.
func (h *Host) AddRoute(name string, prefix netip.Prefix, source netip.Addr) error {
	if err := h.route(name, prefix, source, netlink.RouteAdd); errors.Is(err, unix.EEXIST) {
		elsewhere, found := h.othersWay(name, prefix)
		if found != nil {
			return errors.Join(err, found)
		}
		if elsewhere != "" {
			return fmt.Errorf("route %s of table %d: %w (%s): remove it to have it lead to %s", prefix, h.table.ID, ErrTaken, elsewhere, name)
		}
		if err := h.ReplaceRoute(name, prefix, source); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	_, err := h.table.Rule(routing.Family(prefix))
	return err
}

// ReplaceRoute is AddRoute in the place of whatever route of that metric there is.
func (h *Host) ReplaceRoute(name string, prefix netip.Prefix, source netip.Addr) error {
	return h.route(name, prefix, source, netlink.RouteReplace)
}

// othersWay is where a route to prefix leads that is in the way of ours, empty for into the device.
func (h *Host) othersWay(name string, prefix netip.Prefix) (way string, err error) {
	link, err := findLink(name)
	if err != nil || link == nil {
		return "", err
	}
	err = h.table.Each(routing.Filter{Family: routing.Family(prefix)}, func(r routing.Route) {
		// Those of another metric are beside ours, not in its way.
		if r.Prefix == prefix && r.Metric == MetricOf(prefix) && (r.Link != link.Attrs().Index || r.Gateway.IsValid() || r.Several) {
			way = r.Text()
		}
	})
	return way, err
}

// MetricOf is the metric ("priority") of our routes into devices: that of a route that names none.
func MetricOf(prefix netip.Prefix) int {
	if prefix.Addr().Is6() {
		return 1024 // IP6_RT_PRIO_USER
	}
	return 0
}

// DeleteRoute takes our route to prefix out.
func (h *Host) DeleteRoute(name string, prefix netip.Prefix) error {
	err := h.route(name, prefix, netip.Addr{}, netlink.RouteDel)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

func (h *Host) route(name string, prefix netip.Prefix, source netip.Addr, do func(*netlink.Route) error) error {
	link, err := findLink(name)
	if err != nil {
		return err
	}
	if link == nil {
		return fmt.Errorf("interface %s: %w", name, fs.ErrNotExist)
	}
	route := &netlink.Route{
		LinkIndex: link.Attrs().Index,
		Dst:       routing.IPNet(prefix),
		Scope:     netlink.SCOPE_LINK,
		Protocol:  routing.Protocol,
		Table:     h.table.ID,
		Src:       source.AsSlice(),
	}
	if prefix.Addr().Is6() {
		route.Scope = netlink.SCOPE_UNIVERSE // IPv6 has no other
	}
	if err := do(route); err != nil {
		return fmt.Errorf("route %s via %s: %w", prefix, name, err)
	}
	return nil
}

// Strays are the routes into a device that are outside of our table and stand in for ours: those that bear our protocol
// number, as of an earlier version, and those of the main table to just one of the subnets, as semaphore-wireguard's.
func (h *Host) Strays(name string, subnets []netip.Prefix) ([]routing.Route, error) {
	link, err := findLink(name)
	if link == nil || err != nil {
		return nil, err
	}
	var strays []routing.Route
	err = routing.Table{}.Each(routing.Filter{Link: link.Attrs().Index, Type: unix.RTN_UNICAST}, func(r routing.Route) {
		switch {
		case r.Table == h.table.ID:
		case r.Protocol == routing.Protocol,
			r.Table == unix.RT_TABLE_MAIN && !r.Gateway.IsValid() && !r.Several && slices.Contains(subnets, r.Prefix):
			strays = append(strays, r)
		}
	})
	return strays, err
}

// Elsewhere says whether packets to one of the subnets find their way into a device outside of our table, and not in
// it.
func (h *Host) Elsewhere(name string, subnets []netip.Prefix) (bool, error) {
	strays, err := h.Strays(name, subnets)
	if err != nil || len(strays) == 0 {
		return false, err
	}
	inside := map[netip.Prefix]bool{}
	err = h.table.Each(routing.Filter{Link: strays[0].Link, Protocol: routing.Protocol, Type: unix.RTN_UNICAST}, func(r routing.Route) { inside[r.Prefix] = true })
	return slices.ContainsFunc(strays, func(r routing.Route) bool { return slices.Contains(subnets, r.Prefix) && !inside[r.Prefix] }), err
}
