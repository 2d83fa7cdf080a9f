package podcidr

import (
	"cmp"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// cidr is a subnet that a node claims for its pods.
type cidr struct {
	netip.Prefix
	rank rank
}

// rank decides which of two overlapping claims is kept.
type rank struct {
	// fallback: spec.podCIDRs, if nodes with blocks come first.
	fallback bool
	// leaving: a block that its node is about to give up.
	leaving bool
	since
}

// since is the creation time of the claim's object, the Node or the BlockAffinity: the first claim keeps its prefix.
// Only the apiserver sets it, when it creates an object, so that a writer of Nodes or other objects cannot move it to
// the front.
type since struct {
	created int64 // in seconds, the resolution of metadata.creationTimestamp
	uid     types.UID
}

func sinceOf(o metav1.Object) since { return since{o.GetCreationTimestamp().Unix(), o.GetUID()} }

func (s since) compare(other since) int {
	return cmp.Or(cmp.Compare(s.created, other.created), cmp.Compare(s.uid, other.uid))
}

type claim struct {
	node string
	rank rank
}

// before reports which of two claims of different nodes is kept: it depends on the claims and not on their order of
// arrival.
func (c claim) before(other claim) bool {
	if c.rank.fallback != other.rank.fallback {
		return other.rank.fallback
	}
	if c.rank.leaving != other.rank.leaving {
		return other.rank.leaving
	}
	return cmp.Or(c.rank.compare(other.rank.since), cmp.Compare(c.node, other.node)) < 0 // UIDs are equal only in tests
}

// claims finds the nodes whose CIDRs overlap others. It is indexed by the length of prefixes; a cluster has one or two
// lengths: a search costs one map lookup for each, whatever the number of nodes.
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

// overlapping returns all claims to a part of p, in no order.
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

// taker returns the node that keeps p; false if that is the node that claims it with this rank.
func (c claims) taker(p cidr, node string) (string, bool) {
	first := claim{node, p.rank}
	for _, other := range c.overlapping(p.Prefix) {
		if other.node != node && other.before(first) {
			first = other
		}
	}
	return first.node, first.node != node
}
