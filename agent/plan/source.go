package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

// Sources are the source addresses of the node's own packets to remote pods. A remote node accepts only sources within
// this node's allowed IPs there, which are its pod CIDRs, and the kernel would choose another.
type Sources struct {
	// Known is false until the node's pod CIDRs are known: until then existing routes remain unchanged.
	Known bool
	// V4 and V6 are the zero Addr for none.
	V4, V6 netip.Addr
}

func (s Sources) Of(prefix netip.Prefix) netip.Addr {
	if prefix.Addr().Is6() {
		return s.V6
	}
	return s.V4
}

// preferred are the interfaces to which Calico and the CNI's bridge plugin give an address of the node's own pod
// CIDRs, best first. Any other interface with one serves as well.
var preferred = []string{"tunl0", "vxlan.calico", "vxlan-v6.calico", "wireguard.cali", "wg-v6.cali", "cni0"}

// Source has the inputs of ChooseSources besides the node's addresses.
type Source struct {
	// Setting is "auto", "none" or an address.
	Setting string
	// PodPrefixes are the node's pod CIDRs, nil if unknown.
	PodPrefixes []netip.Prefix
	// Reserved are addresses among them that the broker keeps free for the node, for a family in which the node has none.
	Reserved []netip.Addr
	// Devices are the names of the agent's devices, whose addresses result from an earlier choice and do not count.
	Devices []string
}

// ChooseSources chooses among the node's addresses, and those reserved for it. The choice does not depend on their
// order. problem is a sentence, empty for none.
func ChooseSources(from Source, addresses []kernel.Address) (s Sources, problem string) {
	var usable []kernel.Address
	for _, a := range addresses {
		if a.Usable && !slices.Contains(from.Devices, a.Interface) {
			usable = append(usable, a)
		}
	}
	switch from.Setting {
	case "none":
		return Sources{Known: true}, ""
	case "auto":
	default:
		addr, err := netip.ParseAddr(from.Setting)
		there := err == nil && slices.ContainsFunc(usable, func(a kernel.Address) bool { return a.Prefix.Addr() == addr })
		switch {
		case !there:
			return Sources{Known: true},
				fmt.Sprintf("routeSource %s is no address of this node: it reaches remote pods with no set source", from.Setting)
		case addr.Is6():
			return Sources{Known: true, V6: addr}, ""
		}
		return Sources{Known: true, V4: addr}, ""
	}
	if from.PodPrefixes == nil {
		return Sources{}, ""
	}
	among := func(at netip.Addr) bool { return Inside(netip.PrefixFrom(at, at.BitLen()), from.PodPrefixes) }
	rank := func(a kernel.Address) int {
		if i := slices.Index(preferred, a.Interface); i >= 0 {
			return i
		}
		return len(preferred)
	}
	usable = slices.DeleteFunc(usable, func(a kernel.Address) bool { return !among(a.Prefix.Addr()) })
	slices.SortFunc(usable, func(a, b kernel.Address) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Prefix.Addr().Compare(b.Prefix.Addr()))
	})
	s.Known = true
	choose := func(at netip.Addr) {
		if at.Is6() && !s.V6.IsValid() {
			s.V6 = at
		} else if at.Is4() && !s.V4.IsValid() {
			s.V4 = at
		}
	}
	for _, a := range usable {
		choose(a.Prefix.Addr())
	}
	for _, at := range slices.SortedFunc(slices.Values(from.Reserved), netip.Addr.Compare) {
		if among(at) {
			choose(at)
		}
	}
	return s, ""
}

// SetSources adds to the steps the sources of routes, and the addresses of the device: kube-proxy masquerades with the
// address of the outgoing device. A device that receives packets before routes lead into it, as that of a permissive
// remote does, always has an IPv4 address: the placeholder if it has no other.
func (s *Steps) SetSources(sources Sources, existing *kernel.Device, early bool) {
	s.Sources = sources
	var has, wanted []netip.Addr
	if existing != nil {
		has = existing.Addresses
	}
	if !sources.Known {
		if early && !slices.ContainsFunc(has, netip.Addr.Is4) {
			s.AddAddresses = []netip.Addr{kernel.Placeholder}
		}
		return
	}
	if existing != nil {
		for _, r := range existing.Routes {
			if !slices.Contains(s.DeleteRoutes, r) && !slices.Contains(s.AddRoutes, r) && existing.Sources[r] != sources.Of(r) {
				s.ChangeRoutes = append(s.ChangeRoutes, r)
			}
		}
	}
	for _, subnet := range s.Routed {
		if at := sources.Of(subnet); at.IsValid() && !slices.Contains(wanted, at) {
			wanted = append(wanted, at)
		}
	}
	// It takes the place of the last IPv4 address, with which the kernel would delete all routes into the device.
	if !slices.ContainsFunc(wanted, netip.Addr.Is4) && (early || slices.ContainsFunc(has, netip.Addr.Is4)) {
		wanted = append(wanted, kernel.Placeholder)
	}
	s.AddAddresses, s.DeleteAddresses = Missing(wanted, has), Missing(has, wanted)
}

func (s *Steps) OnlySources() bool {
	rest := *s
	rest.ChangeRoutes, rest.AddAddresses, rest.DeleteAddresses = nil, nil, nil
	return !s.Empty() && rest.Empty()
}
