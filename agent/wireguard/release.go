package wireguard

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Release takes our marks off a device and leaves it with its peers and routes as they stand: no alias, and routes without a source and of the
// protocol that ip-route(8) gives those that it adds, which is what semaphore-wireguard leaves. A packet notices nothing: each route
// is replaced in one step. It returns the routes.
func (h *Host) Release(name string) ([]string, error) {
	link, err := findLink(name)
	if link == nil || err != nil {
		return nil, err
	}
	routes, err := ownRoutes(link)
	if err != nil {
		return nil, err
	}
	var released []string
	for _, r := range routes {
		r.Protocol, r.Src = unix.RTPROT_BOOT, nil
		if err := netlink.RouteReplace(&r); err != nil {
			return released, fmt.Errorf("handing over route %s via %s: %w", r.Dst, name, err)
		}
		released = append(released, r.Dst.String())
	}
	if err := netlink.LinkSetAlias(link, ""); err != nil {
		return released, fmt.Errorf("taking the alias off %s: %w", name, err)
	}
	return released, nil
}
