package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/semaphore/agent/wireguard"
)

// Sources are the addresses that packets of the node's own to remote pods bear. A remote node takes only such as are
// among our allowed IPs there, which are the node's pod CIDRs, and the kernel would choose another.
type Sources struct {
	// Known is false as long as nobody has said what the node's pod CIDRs are: then the routes that stand stay
	// as they are.
	Known bool
	// V4 and V6 are the zero Addr for none.
	V4, V6 netip.Addr
}

// of is the source of a route.
func (s Sources) of(prefix netip.Prefix) netip.Addr {
	if prefix.Addr().Is6() {
		return s.V6
	}
	return s.V4
}

// preferred are the interfaces that Calico and the CNI's bridge plugin give an address of the node's own pod CIDRs,
// best first. Any other serves as well, if it has one.
var preferred = []string{"tunl0", "vxlan.calico", "vxlan-v6.calico", "wireguard.cali", "wg-v6.cali", "cni0"}

// Source is what sources are chosen from besides the node's addresses.
type Source struct {
	// Setting is "auto", "none" or an address.
	Setting string
	// PodPrefixes are those that the node's pods have their addresses from, none for unknown.
	PodPrefixes []netip.Prefix
	// Reserved are addresses among them that the broker keeps free for the node: they are for a family of which the
	// node has none.
	Reserved []netip.Addr
	// Devices are the names of our own. What they have does not count: they have it by an earlier choice.
	Devices []string
}

// ChooseSources chooses among the node's addresses, and those reserved for it. The choice does not depend on the order
// of either. A problem is a sentence, empty for none.
func ChooseSources(from Source, addresses []wireguard.Address) (s Sources, problem string) {
	var usable []wireguard.Address
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
		there := err == nil && slices.ContainsFunc(usable, func(a wireguard.Address) bool { return a.Prefix.Addr() == addr })
		switch {
		case !there:
			return Sources{Known: true}, fmt.Sprintf("routeSource %s is no address of this node: it reaches remote pods with no set source", from.Setting)
		case addr.Is6():
			return Sources{Known: true, V6: addr}, ""
		}
		return Sources{Known: true, V4: addr}, ""
	}
	if len(from.PodPrefixes) == 0 {
		return Sources{}, ""
	}
	among := func(at netip.Addr) bool { return within(netip.PrefixFrom(at, at.BitLen()), from.PodPrefixes) }
	rank := func(a wireguard.Address) int {
		if i := slices.Index(preferred, a.Interface); i >= 0 {
			return i
		}
		return len(preferred)
	}
	usable = slices.DeleteFunc(usable, func(a wireguard.Address) bool { return !among(a.Prefix.Addr()) })
	slices.SortFunc(usable, func(a, b wireguard.Address) int {
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

// SetSources adds to the steps that routes get these sources, and the device those addresses: what kube-proxy
// masquerades leaves with the address of the device that it leaves by. A device that takes packets early, before routes
// lead into it, as that of a permissive remote does, has an IPv4 address at any time: the placeholder, where it has no
// other.
func (s *Steps) SetSources(sources Sources, stands *wireguard.Device, early bool) {
	s.Sources = sources
	var has, wanted []netip.Addr
	if stands != nil {
		has = stands.Addresses
	}
	if !sources.Known {
		if early && !slices.ContainsFunc(has, netip.Addr.Is4) {
			s.AddAddresses = []netip.Addr{wireguard.Placeholder}
		}
		return
	}
	if stands != nil {
		for _, r := range stands.Routes {
			if !slices.Contains(s.DeleteRoutes, r) && !slices.Contains(s.AddRoutes, r) && stands.Sources[r] != sources.of(r) {
				s.ChangeRoutes = append(s.ChangeRoutes, r)
			}
		}
	}
	for _, subnet := range s.subnets {
		if at := sources.of(subnet); at.IsValid() && !slices.Contains(wanted, at) {
			wanted = append(wanted, at)
		}
	}
	// Once it is there it stays until another takes its place: with the last address the kernel takes the routes out.
	if !slices.ContainsFunc(wanted, netip.Addr.Is4) && (early || slices.Contains(has, wireguard.Placeholder)) {
		wanted = append(wanted, wireguard.Placeholder)
	}
	missing := func(of, in []netip.Addr) []netip.Addr {
		return slices.DeleteFunc(slices.Clone(of), func(at netip.Addr) bool { return slices.Contains(in, at) })
	}
	s.AddAddresses, s.DeleteAddresses = missing(wanted, has), missing(has, wanted)
}

// SourceOf is the source that a route of the steps gets; the zero Addr for none.
func (s *Steps) SourceOf(prefix netip.Prefix) netip.Addr { return s.Sources.of(prefix) }

// OnlySources says that nothing else differs.
func (s *Steps) OnlySources() bool {
	rest := *s
	rest.ChangeRoutes, rest.AddAddresses, rest.DeleteAddresses = nil, nil, nil
	return !s.Empty() && rest.Empty()
}
