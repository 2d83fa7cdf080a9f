package mesh

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// cidrs are the pod CIDRs that the nodes of one remote claim, and who of those that overlap has lost. Who keeps one keeps it for as
// long as it claims it: a claim that comes later takes nothing that works. Of claims that are decided on at one time the one whose
// node's name comes first is kept. A change costs the claims that overlap what changed.
type cidrs struct {
	// claims are by prefix and, within one, in the order of their nodes.
	claims *bart.Table[[]claim]
	// kept is the node that keeps a prefix.
	kept *bart.Table[string]
	// lost leads to the node that keeps what the claim overlaps.
	lost map[claim]string
	// added are claims that were not decided on yet, freed the prefixes that were kept and are no more.
	added []place
	freed []netip.Prefix
}

type claim struct{ node, cidr string }

// place is a claim and where it is.
type place struct {
	prefix netip.Prefix
	claim
}

func newCIDRs() cidrs {
	return cidrs{claims: &bart.Table[[]claim]{}, kept: &bart.Table[string]{}, lost: map[claim]string{}}
}

func compareClaims(a, b claim) int {
	return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.cidr, b.cidr))
}

// replace has a node claim other CIDRs than before.
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
		c.added = append(c.added, place{prefix, is})
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
		return prefix, false // admission lets no other in
	}
	prefix = prefix.Masked()
	c.claims.Modify(prefix, func(all []claim, _ bool) ([]claim, bool) {
		i, there := slices.BinarySearchFunc(all, is, compareClaims)
		all = do(all, i, there)
		return all, len(all) == 0
	})
	return prefix, true
}

// settle decides on the claims that are new, and on those that lost to what is free now, and names the nodes for which that changed
// something.
func (c *cidrs) settle(changed func(node string)) {
	if len(c.added)+len(c.freed) == 0 {
		return
	}
	undecided := map[place]bool{}
	for _, a := range c.added {
		if all, ok := c.claims.Get(a.prefix); ok && slices.Contains(all, a.claim) {
			undecided[a] = true
		}
	}
	for _, prefix := range c.freed {
		c.overlapping(prefix, func(p place) {
			if _, lost := c.lost[p.claim]; lost {
				undecided[p] = true
			}
		})
	}
	c.added, c.freed = nil, nil
	order := make([]place, 0, len(undecided))
	for p := range undecided {
		order = append(order, p)
	}
	slices.SortFunc(order, func(a, b place) int { return compareClaims(a.claim, b.claim) })
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

// overlapping calls do with the claims that overlap a prefix.
func (c *cidrs) overlapping(prefix netip.Prefix, do func(place)) {
	each := func(at netip.Prefix, all []claim) {
		for _, is := range all {
			do(place{at, is})
		}
	}
	for at, all := range c.claims.Supernets(prefix) {
		each(at, all)
	}
	for at, all := range c.claims.Subnets(prefix) {
		each(at, all)
	}
}

// keeperOf is another node than the claim's that keeps what overlaps it: the first by address, the widest first; "" for none.
func (c *cidrs) keeperOf(is place) string {
	keeper := ""
	for _, node := range c.kept.Supernets(is.prefix) { // the widest comes last
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
