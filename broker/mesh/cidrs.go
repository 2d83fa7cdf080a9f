package mesh

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// cidrs are the pod CIDRs that the nodes of one remote claim, and the overlapping claims that lost. A node keeps a CIDR
// for as long as it claims it, so that a later claim takes nothing that works. Of claims that are resolved together,
// the node that sorts first wins. A change costs time proportional to the claims that overlap it.
type cidrs struct {
	// claims by prefix, sorted by node within a prefix.
	claims *bart.Table[[]claim]
	// kept maps a prefix to the node that keeps it.
	kept *bart.Table[string]
	// lost maps a claim to the node that keeps an overlapping prefix.
	lost map[claim]string
	// added are claims that are not resolved yet, freed are prefixes that are no longer kept.
	added []prefixClaim
	freed []netip.Prefix
}

type claim struct{ node, cidr string }

type prefixClaim struct {
	prefix netip.Prefix
	claim
}

func newCIDRs() cidrs {
	return cidrs{claims: &bart.Table[[]claim]{}, kept: &bart.Table[string]{}, lost: map[claim]string{}}
}

func compareClaims(a, b claim) int {
	return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.cidr, b.cidr))
}

func (c *cidrs) replace(node string, before, now []string) {
	claimed := make(map[string]bool, len(before))
	for _, text := range before {
		claimed[text] = true
	}
	for _, text := range now {
		if !claimed[text] {
			c.add(node, text)
		}
		delete(claimed, text)
	}
	for text := range claimed {
		c.remove(node, text)
	}
}

func (c *cidrs) add(node, text string) {
	is := claim{node, text}
	if prefix, ok := c.modify(is, func(all []claim, i int, there bool) []claim {
		if there {
			return all
		}
		return slices.Insert(all, i, is)
	}); ok {
		c.added = append(c.added, prefixClaim{prefix, is})
	}
}

func (c *cidrs) remove(node, text string) {
	is := claim{node, text}
	prefix, ok := c.modify(is, func(all []claim, i int, there bool) []claim {
		if !there {
			return all
		}
		return slices.Delete(all, i, i+1)
	})
	if !ok {
		return
	}
	delete(c.lost, is)
	if by, ok := c.kept.Get(prefix); ok && by == node {
		c.kept.Delete(prefix)
		c.freed = append(c.freed, prefix)
	}
}

func (c *cidrs) modify(is claim, do func(all []claim, i int, there bool) []claim) (netip.Prefix, bool) {
	prefix, err := netip.ParsePrefix(is.cidr)
	if err != nil {
		return prefix, false // admission refuses others
	}
	prefix = prefix.Masked()
	c.claims.Modify(prefix, func(all []claim, _ bool) ([]claim, bool) {
		i, there := slices.BinarySearchFunc(all, is, compareClaims)
		all = do(all, i, there)
		return all, len(all) == 0
	})
	return prefix, true
}

// resolve decides new claims and claims that had lost against freed prefixes. It calls changed for each node whose
// outcome changes.
func (c *cidrs) resolve(changed func(node string)) {
	if len(c.added)+len(c.freed) == 0 {
		return
	}
	undecided := map[prefixClaim]bool{}
	for _, a := range c.added {
		if all, ok := c.claims.Get(a.prefix); ok && slices.Contains(all, a.claim) {
			undecided[a] = true
		}
	}
	for _, prefix := range c.freed {
		c.overlapping(prefix, func(p prefixClaim) {
			if _, lost := c.lost[p.claim]; lost {
				undecided[p] = true
			}
		})
	}
	c.added, c.freed = nil, nil
	order := slices.SortedFunc(maps.Keys(undecided),
		func(a, b prefixClaim) int { return compareClaims(a.claim, b.claim) })
	for _, is := range order {
		was, lost := c.lost[is.claim]
		by, kept := c.kept.Get(is.prefix)
		keeper := c.keeperOf(is)
		if keeper == "" {
			delete(c.lost, is.claim)
			c.kept.Insert(is.prefix, is.node)
		} else {
			c.lost[is.claim] = keeper
		}
		if was != keeper || !lost && !(kept && by == is.node) {
			changed(is.node)
		}
	}
}

func (c *cidrs) overlapping(prefix netip.Prefix, do func(prefixClaim)) {
	each := func(at netip.Prefix, all []claim) {
		for _, is := range all {
			do(prefixClaim{at, is})
		}
	}
	for at, all := range c.claims.Supernets(prefix) {
		each(at, all)
	}
	for at, all := range c.claims.Subnets(prefix) {
		each(at, all)
	}
}

// keeperOf returns another node that keeps an overlapping prefix: the widest that contains it, else the first within
// it; "" for none.
func (c *cidrs) keeperOf(is prefixClaim) string {
	keeper := ""
	for _, node := range c.kept.Supernets(is.prefix) { // ordered from narrow to wide
		if node != is.node {
			keeper = node
		}
	}
	if keeper != "" {
		return keeper
	}
	for _, node := range c.kept.Subnets(is.prefix) {
		if node != is.node {
			return node
		}
	}
	return ""
}
