package mesh

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// cidrs are the pod CIDRs that the nodes of one remote claim, and who of those that overlap has lost: of two it is
// the one whose node's name comes later. Two prefixes overlap only when one holds the other, so those that
// can matter to each other stand under the widest of them, and groups of one, which is nearly all, cost next to nothing.
type cidrs struct {
	// claims are by prefix and, within one, in the order of their nodes.
	claims *bart.Table[[]claim]
	// lost leads to the node that keeps what the claim overlaps.
	lost map[claim]string
	// touched are the prefixes that were claimed or let go of since all was settled.
	touched []netip.Prefix
}

type claim struct{ node, cidr string }

func newCIDRs() cidrs {
	return cidrs{claims: &bart.Table[[]claim]{}, lost: map[claim]string{}}
}

func compareClaims(a, b claim) int {
	return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.cidr, b.cidr))
}

func (c *cidrs) add(node string, texts []string) {
	for _, text := range texts {
		c.modify(text, func(all []claim) []claim {
			i, there := slices.BinarySearchFunc(all, claim{node, text}, compareClaims)
			if there {
				return all
			}
			return slices.Insert(all, i, claim{node, text})
		})
	}
}

func (c *cidrs) remove(node string, texts []string) {
	for _, text := range texts {
		delete(c.lost, claim{node, text})
		c.modify(text, func(all []claim) []claim {
			i, there := slices.BinarySearchFunc(all, claim{node, text}, compareClaims)
			if !there {
				return all
			}
			return slices.Delete(all, i, i+1)
		})
	}
}

func (c *cidrs) modify(text string, do func([]claim) []claim) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return // admission lets no other in
	}
	prefix = prefix.Masked()
	c.claims.Modify(prefix, func(all []claim, _ bool) ([]claim, bool) {
		all = do(all)
		return all, len(all) == 0
	})
	c.touched = append(c.touched, prefix)
}

// settle decides anew wherever a prefix was touched, and names the nodes for which that changed something.
func (c *cidrs) settle(changed func(node string)) {
	settled := map[netip.Prefix]bool{}
	for _, prefix := range c.touched {
		widest := prefix
		for holder := range c.claims.Supernets(prefix) { // the widest comes last
			widest = holder
		}
		if !settled[widest] {
			settled[widest] = true
			c.settleUnder(widest, changed)
		}
	}
	c.touched = nil
}

// settleUnder decides on the claims within a prefix that no claim from outside overlaps.
func (c *cidrs) settleUnder(widest netip.Prefix, changed func(node string)) {
	type place struct {
		prefix netip.Prefix
		claim
	}
	var all []place
	for prefix, claims := range c.claims.Subnets(widest) {
		for _, is := range claims {
			all = append(all, place{prefix, is})
		}
	}
	set := func(is claim, keeper string) {
		switch {
		case c.lost[is] == keeper:
			return
		case keeper == "":
			delete(c.lost, is)
		default:
			c.lost[is] = keeper
		}
		changed(is.node)
	}
	if len(all) == 1 {
		set(all[0].claim, "")
		return
	}
	slices.SortStableFunc(all, func(a, b place) int { return cmp.Compare(a.node, b.node) })
	var kept bart.Table[string] // the node that keeps a prefix
	for _, a := range all {
		keeper := keeperOf(&kept, a.prefix, a.node)
		if keeper == "" {
			kept.Insert(a.prefix, a.node)
		}
		set(a.claim, keeper)
	}
}

// keeperOf is another node than this one that keeps what overlaps prefix: the first by address, the widest first;
// "" for none.
func keeperOf(kept *bart.Table[string], prefix netip.Prefix, node string) string {
	keeper := ""
	for _, n := range kept.Supernets(prefix) { // the widest comes last
		if n != node {
			keeper = n
		}
	}
	if keeper != "" {
		return keeper
	}
	for _, n := range kept.Subnets(prefix) {
		if n != node {
			return n
		}
	}
	return ""
}
