package podcidr

import (
	"cmp"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// cidr is a subnet that a node says its pods have their IPs from.
type cidr struct {
	netip.Prefix
	rank rank
}

// rank says which of two claims that overlap is kept.
type rank struct {
	// fallback is of spec.podCIDRs where a node that has blocks goes first.
	fallback bool
	// leaving is of a block that its node is about to give up.
	leaving bool
	since
}

// since is when the object was made that a claim comes from, the Node or the BlockAffinity: who claimed first keeps what
// it has. The apiserver sets both fields when it creates an object. Whoever may register a Node or rename one, or
// write to an object, moves neither to the front.
type since struct {
	created int64 // in seconds, the resolution of metadata.creationTimestamp
	uid     types.UID
}

func sinceOf(o metav1.Object) since { return since{o.GetCreationTimestamp().Unix(), o.GetUID()} }

func (s since) compare(other since) int {
	return cmp.Or(cmp.Compare(s.created, other.created), cmp.Compare(s.uid, other.uid))
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
	return cmp.Or(c.rank.compare(other.rank.since), cmp.Compare(c.node, other.node)) < 0 // UIDs are not equal but in tests
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
