package podcidr

import (
	"cmp"
	"net/netip"
	"slices"
)

// cidr is a subnet that a node says its pods have their IPs from.
type cidr struct {
	netip.Prefix
	rank rank
}

// rank goes before the names of nodes where claims overlap. Of spec.podCIDRs, all but the first field are zero.
type rank struct {
	// fallback is of spec.podCIDRs where a node that has blocks goes first.
	fallback bool
	// leaving is of a block that its node is about to give up.
	leaving bool
	// version of the object that says so: the newest is right.
	version uint64
}

// claim is one of a node.
type claim struct {
	node string
	rank rank
}

// before says which of two claims of different nodes is kept: it depends on what they are and not on when they came.
func (c claim) before(other claim) bool {
	if c.rank.fallback != other.rank.fallback {
		return other.rank.fallback
	}
	if c.rank.leaving != other.rank.leaving {
		return other.rank.leaving
	}
	return cmp.Or(cmp.Compare(other.rank.version, c.rank.version), cmp.Compare(c.node, other.node)) < 0
}

// claims finds the nodes whose CIDRs overlap others. It is by the length of prefixes, of which a cluster has one or two:
// looking for overlaps then costs a look in a map for each, however many nodes there are.
type claims map[length]map[netip.Prefix][]claim

type length struct {
	v4   bool
	bits int
}

func lengthOf(p netip.Prefix) length { return length{p.Addr().Is4(), p.Bits()} }

func (c claims) add(node string, p cidr) {
	of := lengthOf(p.Prefix)
	if c[of] == nil {
		c[of] = map[netip.Prefix][]claim{}
	}
	c[of][p.Prefix] = append(c[of][p.Prefix], claim{node, p.rank})
}

func (c claims) drop(node string, p cidr) {
	of := lengthOf(p.Prefix)
	i := slices.Index(c[of][p.Prefix], claim{node, p.rank})
	if c[of][p.Prefix] = slices.Delete(c[of][p.Prefix], i, i+1); len(c[of][p.Prefix]) == 0 {
		delete(c[of], p.Prefix)
	}
	if len(c[of]) == 0 {
		delete(c, of)
	}
}

// overlapping are all claims to something of p, in no order.
func (c claims) overlapping(p netip.Prefix) []claim {
	var all []claim
	for of, held := range c {
		switch {
		case of.v4 != p.Addr().Is4():
		case of.bits <= p.Bits():
			around, _ := p.Addr().Prefix(of.bits) // it is no longer than p, so there is one
			all = append(all, held[around]...)
		default:
			for inside, by := range held {
				if p.Contains(inside.Addr()) {
					all = append(all, by...)
				}
			}
		}
	}
	return all
}

// taker is the node that keeps p, if it is not the one that claims it with that rank.
func (c claims) taker(p cidr, node string) (string, bool) {
	first := claim{node, p.rank}
	for _, other := range c.overlapping(p.Prefix) {
		if other.node != node && other.before(first) {
			first = other
		}
	}
	return first.node, first.node != node
}
