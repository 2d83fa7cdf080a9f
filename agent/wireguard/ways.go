package wireguard

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Way is how the node reaches an address: the link that packets leave through, and the largest IP packet that it takes.
type Way struct {
	To   netip.Addr
	Link string
	MTU  int
}

// Ways finds how the node reaches each address, by its routes and links as they are configured; what routers have said of the paths
// meanwhile does not count. An address with no way to it is left out.
func Ways(to []netip.Addr) ([]Way, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("ways to peers: %w", err)
	}
	defer h.Close()
	links := map[int]netlink.Link{}
	var out []Way
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
				way := Way{at, links[index].Attrs().Name, links[index].Attrs().MTU}
				if r.MTU > 0 && r.MTU < way.MTU {
					way.MTU = r.MTU
				}
				out = append(out, way)
			}
		}
	}
	return out, nil
}

// MTU of an interface; 0 for one that is not there.
func MTU(name string) (int, error) {
	link, err := findLink(name)
	if link == nil || err != nil {
		return 0, err
	}
	return link.Attrs().MTU, nil
}
