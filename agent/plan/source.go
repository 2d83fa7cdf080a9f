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

// ChooseSources chooses among the node's addresses. setting is "auto", "none" or an address, own are the node's pod
// CIDRs, none for unknown. The choice does not depend on the order of either. A problem is a sentence, empty for none.
func ChooseSources(setting string, own []netip.Prefix, addresses []wireguard.Address) (s Sources, problem string) {
	switch setting {
	case "none":
		return Sources{Known: true}, ""
	case "auto":
	default:
		addr, err := netip.ParseAddr(setting)
		there := err == nil && slices.ContainsFunc(addresses, func(a wireguard.Address) bool { return a.Usable && a.Prefix.Addr() == addr })
		switch {
		case !there:
			return Sources{Known: true}, fmt.Sprintf("routeSource %s is no address of this node: it reaches remote pods with no set source", setting)
		case addr.Is6():
			return Sources{Known: true, V6: addr}, ""
		}
		return Sources{Known: true, V4: addr}, ""
	}
	if len(own) == 0 {
		return Sources{}, ""
	}
	rank := func(a wireguard.Address) int {
		if i := slices.Index(preferred, a.Interface); i >= 0 {
			return i
		}
		return len(preferred)
	}
	var usable []wireguard.Address
	for _, a := range addresses {
		if a.Usable && within(netip.PrefixFrom(a.Prefix.Addr(), a.Prefix.Addr().BitLen()), own) {
			usable = append(usable, a)
		}
	}
	slices.SortFunc(usable, func(a, b wireguard.Address) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Prefix.Addr().Compare(b.Prefix.Addr()))
	})
	s.Known = true
	for _, a := range usable {
		if at := a.Prefix.Addr(); at.Is6() && !s.V6.IsValid() {
			s.V6 = at
		} else if at.Is4() && !s.V4.IsValid() {
			s.V4 = at
		}
	}
	return s, ""
}

// SetSources adds to the steps that routes get these sources.
func (s *Steps) SetSources(sources Sources, stands *wireguard.Device) {
	s.Sources = sources
	if stands == nil || !sources.Known {
		return
	}
	for _, r := range stands.Routes {
		if !slices.Contains(s.DeleteRoutes, r) && stands.Sources[r] != sources.of(r) {
			s.ChangeRoutes = append(s.ChangeRoutes, r)
		}
	}
}

// SourceOf is the source that a route of the steps gets; the zero Addr for none.
func (s *Steps) SourceOf(prefix netip.Prefix) netip.Addr { return s.Sources.of(prefix) }

// OnlySources says that nothing else differs.
func (s *Steps) OnlySources() bool {
	rest := *s
	rest.ChangeRoutes = nil
	return len(s.ChangeRoutes) > 0 && rest.Empty()
}
