package catalog

import (
	"net/netip"
	"slices"
)

// claims finds the nodes whose CIDRs overlap others. It is by the length of prefixes, of which a cluster has one or two:
// looking for overlaps then costs a look in a map for each, however many nodes there are.
type claims map[length]map[netip.Prefix][]string

type length struct {
	v4   bool
	bits int
}

func lengthOf(p netip.Prefix) length { return length{p.Addr().Is4(), p.Bits()} }

func (c claims) add(name string, cidrs []netip.Prefix) {
	for _, p := range cidrs {
		of := lengthOf(p)
		if c[of] == nil {
			c[of] = map[netip.Prefix][]string{}
		}
		c[of][p] = append(c[of][p], name)
	}
}

func (c claims) drop(name string, cidrs []netip.Prefix) {
	for _, p := range cidrs {
		of := lengthOf(p)
		i := slices.Index(c[of][p], name)
		if c[of][p] = slices.Delete(c[of][p], i, i+1); len(c[of][p]) == 0 {
			delete(c[of], p)
		}
		if len(c[of]) == 0 {
			delete(c, of)
		}
	}
}

// overlapping are the names of all nodes with a CIDR that overlaps one of cidrs, in no order, some of them twice.
func (c claims) overlapping(cidrs []netip.Prefix) []string {
	var names []string
	for _, p := range cidrs {
		for of, held := range c {
			switch {
			case of.v4 != p.Addr().Is4():
			case of.bits <= p.Bits():
				around, _ := p.Addr().Prefix(of.bits) // it is no longer than p, so there is one
				names = append(names, held[around]...)
			default:
				for inside, by := range held {
					if p.Contains(inside.Addr()) {
						names = append(names, by...)
					}
				}
			}
		}
	}
	return names
}
