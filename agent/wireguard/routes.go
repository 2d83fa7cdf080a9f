package wireguard

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RouteProtocol marks the routes that are ours, see the "protocol" of ip-route(8). The number
// is in the range that is left to administrators.
const RouteProtocol = 94

// Address is one of the node's.
type Address struct {
	Interface string
	// Prefix is the address with the length of its subnet.
	Prefix netip.Prefix
	// Usable says that packets can have it for a source: no other node was found to have it, nor may yet be.
	Usable bool
}

// Addresses are those of the node's interfaces.
func (h *Host) Addresses() ([]Address, error) {
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // what came and went meanwhile is seen next time
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	names := map[int]string{}
	out := make([]Address, 0, len(all))
	for _, a := range all {
		addr, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		bits, _ := a.Mask.Size()
		// On a link to a single peer, Mask is that of the peer's.
		if a.Peer != nil && !a.Peer.IP.Equal(a.IP) {
			bits = addr.BitLen()
		}
		name, known := names[a.LinkIndex]
		if !known {
			if link, err := netlink.LinkByIndex(a.LinkIndex); err == nil {
				name = link.Attrs().Name
			}
			names[a.LinkIndex] = name
		}
		out = append(out, Address{
			Interface: name, Prefix: netip.PrefixFrom(addr, bits), Usable: a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0,
		})
	}
	return out, nil
}

// Foreign is a route of the main table that is not ours.
type Foreign struct {
	Prefix netip.Prefix
	Metric int
	// Text tells it nearly as ip-route(8) does, without the prefix.
	Text string
}

// Foreign are the routes of the main table that are not ours and for which wanted is true. It goes through all
// routes of the node.
func (h *Host) Foreign(wanted func(netip.Prefix) bool) ([]Foreign, error) {
	var out []Foreign
	err := netlink.RouteListFilteredIter(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
		if prefix, ok := PrefixOf(r.Dst); ok && r.Protocol != RouteProtocol && wanted(prefix) {
			out = append(out, Foreign{prefix, r.Priority, describeRoute(r)})
		}
		return true
	})
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list the node's routes: %w", err)
	}
	return out, nil
}

func ownRoutes(link netlink.Link) ([]netlink.Route, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL,
		&netlink.Route{LinkIndex: link.Attrs().Index, Protocol: RouteProtocol}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("routes into %s: %w", link.Attrs().Name, err)
	}
	return routes, nil
}

// PrefixOf is IPNet's reverse. It has one form for an IPv4 prefix, which net.IPNet has two for; ok is false where there is none.
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

// AddRoute routes prefix into the device, with the source address for packets of the node's own; none when source is
// the zero Addr. A route to the same prefix that leads there already, such as semaphore-wireguard's, is taken over.
// One that leads elsewhere is someone's, stays, and gives ErrTaken.
func (h *Host) AddRoute(name string, prefix netip.Prefix, source netip.Addr) error {
	err := h.route(name, prefix, source, netlink.RouteAdd)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	elsewhere, found := othersWay(name, prefix)
	if found != nil {
		return errors.Join(err, found)
	}
	if elsewhere != "" {
		return fmt.Errorf("route %s: %w (%s): remove it to have it lead to %s", prefix, ErrTaken, elsewhere, name)
	}
	return h.ReplaceRoute(name, prefix, source)
}

// ReplaceRoute is AddRoute in the place of whatever route of that metric there is.
func (h *Host) ReplaceRoute(name string, prefix netip.Prefix, source netip.Addr) error {
	return h.route(name, prefix, source, netlink.RouteReplace)
}

// othersWay is where a route to prefix leads that is in the way of ours, empty for into the device.
func othersWay(name string, prefix netip.Prefix) (string, error) {
	link, err := findLink(name)
	if err != nil || link == nil {
		return "", err
	}
	routes, err := netlink.RouteListFiltered(familyOf(prefix), &netlink.Route{Dst: IPNet(prefix)}, netlink.RT_FILTER_DST)
	if err != nil {
		return "", fmt.Errorf("routes to %s: %w", prefix, err)
	}
	for _, r := range routes {
		// Those of another priority are beside ours, not in its way.
		if r.Priority != MetricOf(prefix) || r.LinkIndex == link.Attrs().Index && r.Gw == nil && len(r.MultiPath) == 0 {
			continue
		}
		return describeRoute(r), nil
	}
	return "", nil
}

// describeRoute tells a route nearly as ip-route(8) does.
func describeRoute(r netlink.Route) string {
	text := ""
	if r.Gw != nil {
		text += "via " + r.Gw.String() + " "
	}
	if r.LinkIndex != 0 {
		name := strconv.Itoa(r.LinkIndex)
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			name = link.Attrs().Name
		}
		text += "dev " + name + " "
	}
	if r.Type != unix.RTN_UNICAST {
		text += fmt.Sprintf("type %d ", r.Type)
	}
	return text + "proto " + r.Protocol.String()
}

func familyOf(prefix netip.Prefix) int {
	if prefix.Addr().Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// MetricOf is the metric ("priority") of our routes into devices: that of a route that names none.
func MetricOf(prefix netip.Prefix) int {
	if prefix.Addr().Is6() {
		return 1024 // IP6_RT_PRIO_USER
	}
	return 0
}

// IPNet is a prefix as netlink and wgctrl have it.
func IPNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
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
		Dst:       IPNet(prefix),
		Scope:     netlink.SCOPE_LINK,
		Protocol:  RouteProtocol,
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

// DeleteOwnRoutes takes out every route with our protocol number, and returns what they were.
func DeleteOwnRoutes() ([]string, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("routes: %w", err)
	}
	var gone []string
	for _, r := range routes {
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return gone, fmt.Errorf("deleting route %s: %w", r.Dst, err)
		}
		gone = append(gone, r.Dst.String())
	}
	return gone, nil
}
