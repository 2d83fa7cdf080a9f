package wireguard

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
// that the kernel learned from routers do not count. The result has no entry for an address without a route.
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
						continue // of a route over several hops, or gone
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

// MTU is the MTU of an interface in bytes; 0 where there is no such interface.
func (*Host) MTU(name string) (int, error) {
	link, err := findLink(name)
	if link == nil || err != nil {
		return 0, err
	}
	return link.Attrs().MTU, nil
}
