package guard

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/wireguard"
)

// refusalMetric is that of our unreachable routes: behind the routes into devices, which have 0 or, for IPv6, 1024,
// so that they decide only where there is no device, or no route into it.
const refusalMetric = 1 << 16

// refusals are the prefixes that our unreachable routes refuse.
func refusals() ([]netip.Prefix, error) {
	filter := &netlink.Route{Protocol: wireguard.RouteProtocol, Type: unix.RTN_UNREACHABLE}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TYPE)
	if err != nil {
		return nil, fmt.Errorf("unreachable routes: %w", err)
	}
	var prefixes []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil || r.Priority != refusalMetric {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP)
		ones, _ := r.Dst.Mask.Size()
		if ok {
			prefixes = append(prefixes, netip.PrefixFrom(addr.Unmap(), ones))
		}
	}
	return prefixes, nil
}

// refuse makes the unreachable route of a prefix: what has no way into its device is refused, with an answer to
// the sender, and does not follow a default route.
func refuse(prefix netip.Prefix) error {
	if err := netlink.RouteAdd(refusal(prefix)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("unreachable route %s: %w", prefix, err)
	}
	return nil
}

func unrefuse(prefix netip.Prefix) error {
	if err := netlink.RouteDel(refusal(prefix)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("deleting unreachable route %s: %w", prefix, err)
	}
	return nil
}

func refusal(prefix netip.Prefix) *netlink.Route {
	return &netlink.Route{
		Dst:  wireguard.IPNet(prefix),
		Type: unix.RTN_UNREACHABLE, Protocol: wireguard.RouteProtocol, Priority: refusalMetric,
	}
}

// missing are those of want that are not in have.
func missing(want, have []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(want), func(p netip.Prefix) bool { return slices.Contains(have, p) })
}
