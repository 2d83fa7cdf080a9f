package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// Family is an address family, as EndpointSlices write it.
type Family string

const (
	AnyFamily Family = ""
	IPv4      Family = "IPv4"
	IPv6      Family = "IPv6"
)

// completeFamilies sets the address family of each remote's endpoints if the remote's node subnets determine it. A node
// has one endpoint for a remote, so one address, of a family that both sides must support.
func (c *Broker) completeFamilies(p *problems) {
	for i := range c.Remotes {
		r := &c.Remotes[i]
		family := &r.WireGuard.AddressFamily
		has := map[Family]bool{}
		for _, nodes := range r.NodePrefixes {
			has[familyOf(nodes)] = true
		}
		field := fmt.Sprintf("remotes[%d].wireguard.addressFamily", i)
		switch {
		case *family == AnyFamily:
			if len(has) == 1 {
				*family = familyOf(r.NodePrefixes[0])
			}
		case *family != IPv4 && *family != IPv6:
			p.add(field, "%q: use IPv4 or IPv6, or leave it out", *family)
		case len(has) > 0 && !has[*family]:
			p.add(field, "%s, and remotes[%d].nodeSubnets has no subnet of that family: its nodes could have no end of a tunnel",
				*family, i)
		}
	}
}

func familyOf(subnet netip.Prefix) Family {
	if subnet.Addr().Is4() {
		return IPv4
	}
	return IPv6
}

// LocalFamilies returns the families of the own cluster's subnets.
func (c *Broker) LocalFamilies() (families []string) {
	for _, family := range []Family{IPv4, IPv6} {
		if slices.ContainsFunc(c.LocalPrefixes, func(s netip.Prefix) bool { return familyOf(s) == family }) {
			families = append(families, string(family))
		}
	}
	return families
}

// Families returns the families of the endpoints by remote.
func (c *Broker) Families() map[string]Family {
	families := map[string]Family{}
	for i := range c.Remotes {
		families[c.Remotes[i].Name] = c.Remotes[i].WireGuard.AddressFamily
	}
	return families
}
