package kernel

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// EgressLink is the link through which packets to an address leave the node, and the largest IP packet that it takes.
type EgressLink struct {
	To   netip.Addr
	Link string
	MTU  int
}

// EgressLinks finds the links that lead to each address, by the routes and link MTUs that are configured. Path MTUs
// that the kernel learned from routers do not count. The result has no entry for an address without a route. It fails
// if it cannot ask the kernel.
func (*Host) EgressLinks(to []netip.Addr) ([]EgressLink, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("links to peers: %w", err)
	}
	defer h.Close()
	links := map[int]netlink.Link{}
	var out []EgressLink
	for _, at := range to {
		routes, err := h.RouteGetWithOptions(at.Unmap().AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
		if err != nil {
			continue
		}
		for _, r := range routes {
			hops := []int{r.LinkIndex}
			for _, hop := range r.MultiPath {
				hops = append(hops, hop.LinkIndex)
			}
			for _, index := range hops {
				if links[index] == nil {
					if links[index], err = h.LinkByIndex(index); err != nil {
						continue // a route over several hops, or the link was deleted
					}
				}
				link := EgressLink{at, links[index].Attrs().Name, links[index].Attrs().MTU}
				if r.MTU > 0 && r.MTU < link.MTU {
					link.MTU = r.MTU
				}
				out = append(out, link)
			}
		}
	}
	return out, nil
}

// RouteTo returns the link into which a packet from one address to another is routed, as the kernel decides for a
// packet that comes from the link to the pod which has from. It fails with the kernel's reason if it is routed nowhere.
func (*Host) RouteTo(to, from netip.Addr) (string, error) {
	var options netlink.RouteGetOptions
	if from.IsValid() {
		if into, err := netlink.RouteGet(from.AsSlice()); err == nil && len(into) > 0 && into[0].Type == unix.RTN_UNICAST {
			options.IifIndex, options.SrcAddr = into[0].LinkIndex, from.AsSlice()
		}
	}
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &options)
	if err != nil {
		return "", fmt.Errorf("route to %s: %w", to, err)
	}
	if len(routes) == 0 {
		return "", fmt.Errorf("route to %s: none", to)
	}
	switch r := routes[0]; r.Type {
	case unix.RTN_UNREACHABLE, unix.RTN_BLACKHOLE, unix.RTN_PROHIBIT, unix.RTN_THROW:
		return "", fmt.Errorf("route to %s: unreachable, by a route of that kind", to)
	default:
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil {
			return "", fmt.Errorf("route to %s: %w", to, err)
		}
		return link.Attrs().Name, nil
	}
}
