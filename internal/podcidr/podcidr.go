// Package podcidr decides from which prefixes the pods of each node of a cluster get their IPs: the blocks that
// Calico's IPAM ties to the node, or its spec.podCIDRs. The exporter publishes them, as the prefixes that remote nodes
// accept from the node, and the broker sends them to the node's own agent: both use this package, so that they agree.
// It reads nothing itself.
//
// It is pure.
package podcidr

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// Table has the prefixes of all nodes. One wrong kubelet must not take the traffic of another node's pods: of two nodes
// whose podCIDRs overlap, the Node that was created first keeps its own; of two with one block, the BlockAffinity that
// was created first; and a block precedes a podCIDR. The result depends on the objects, and not on the order in which
// they arrive: exporter and broker agree, and a restarted one decides as before.
//
// It is not safe for concurrent use.
type Table struct {
	from    config.AllowedIPs
	subnets []netip.Prefix
	nodes   map[string]*node
	blocks  blocks
	claims  claims
	// users counts the nodes with blocks.
	users int
}

// node has the last known state of a node, and its prefixes.
type node struct {
	// podCIDRs are its spec.podCIDRs, and malformed is why some of them are invalid.
	podCIDRs  []cidr
	malformed string
	// cidrs are its claims, unread is why some of them are invalid, and byBlocks is set if they are blocks.
	cidrs    []cidr
	unread   string
	byBlocks bool
	// kept are the granted cidrs, and problem is why others are not.
	kept     []string
	prefixes []netip.Prefix // kept, parsed
	problem  string
}

// Changed names the nodes that a change affects.
type Changed struct {
	// Nodes whose prefixes or problem may have changed, in an order in which at no step two nodes have one prefix:
	// those that lose one come first, with the rest, and again if they also get one.
	Nodes []Node
	// Strays are names under which Calico knows nodes, and for which Table.Strays may have changed.
	Strays []string
}

type Node struct {
	Name     string
	Prefixes []string
}

// New returns an empty table. from is the source of prefixes; subnets are those of the cluster's pods, any if there are
// none.
func New(from config.AllowedIPs, subnets []netip.Prefix) *Table {
	return &Table{from: from, subnets: subnets, nodes: map[string]*node{}, claims: claims{},
		blocks: blocks{all: map[string]block{}, of: map[string]map[string]bool{}}}
}

// Prefixes returns those of a node, canonical.
func (t *Table) Prefixes(name string) []string {
	if it := t.nodes[name]; it != nil {
		return it.kept
	}
	return nil
}

// Contains reports whether an IP lies in the prefixes of a node.
func (t *Table) Contains(name string, ip netip.Addr) bool {
	it := t.nodes[name]
	return it != nil && slices.ContainsFunc(it.prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// HasBlocks reports whether a node's prefixes are blocks of Calico's IPAM.
func (t *Table) HasBlocks(name string) bool { return t.nodes[name] != nil && t.nodes[name].byBlocks }

// HostLocal reports whether the pods of a node get their IPs from its spec.podCIDRs, as far as the objects show: no
// node has a block.
func (t *Table) HostLocal(name string) bool {
	return t.nodes[name] != nil && !t.nodes[name].byBlocks && t.users == 0
}

// Problem returns why a node does not have all the prefixes that it claims; empty for none.
func (t *Table) Problem(name string) string {
	if it := t.nodes[name]; it != nil {
		return it.problem
	}
	return ""
}

// Strays returns the number of blocks that are affine to a node of this name if no such node exists: Calico uses other
// names for the nodes, or the node was just deleted.
func (t *Table) Strays(name string) int {
	if t.nodes[name] != nil {
		return 0
	}
	stray := 0
	for affinity := range t.blocks.of[name] {
		if t.blocks.all[affinity].ok {
			stray++
		}
	}
	return stray
}

func (t *Table) Empty() bool {
	return len(t.nodes)+len(t.claims)+len(t.blocks.all)+len(t.blocks.of) == 0
}

// PutNode records a node: its spec.podCIDRs, its UID and its creation time.
func (t *Table) PutNode(n *corev1.Node) Changed {
	name, podCIDRs := n.Name, n.Spec.PodCIDRs
	if len(podCIDRs) == 0 && n.Spec.PodCIDR != "" {
		podCIDRs = []string{n.Spec.PodCIDR}
	}
	it, ok := t.nodes[name]
	if !ok {
		it = &node{}
		t.nodes[name] = it
	}
	cidrs, malformed := parse(podCIDRs, rank{fallback: t.from == config.AutoAllowedIPs, since: sinceOf(n)})
	if ok && malformed == it.malformed && slices.Equal(cidrs, it.podCIDRs) {
		return Changed{}
	}
	it.podCIDRs, it.malformed = cidrs, malformed
	return Changed{t.settle(t.choose(name)), []string{name}}
}

func (t *Table) DeleteNode(name string) Changed {
	it := t.nodes[name]
	if it == nil {
		return Changed{}
	}
	concerned := t.claim(name, nil, "", false)
	delete(t.nodes, name)
	return Changed{t.settle(slices.DeleteFunc(concerned, func(n string) bool { return n == name })), []string{name}}
}

func (t *Table) PutBlock(a *kube.BlockAffinity) Changed {
	before := t.blocks.all[a.Name].node
	t.blocks.put(a.Name, projectBlock(a))
	return t.blocksChanged(before, a.Spec.Node)
}

func (t *Table) DeleteBlock(name string) Changed {
	before := t.blocks.all[name].node
	t.blocks.drop(name)
	return t.blocksChanged(before)
}

// blocksChanged decides again about the affected nodes together: a block that moves leaves one before it joins the
// other.
func (t *Table) blocksChanged(nodes ...string) Changed {
	var concerned []string
	for _, name := range nodes {
		concerned = append(concerned, t.choose(name)...)
	}
	return Changed{t.settle(concerned), nodes}
}

// choose updates the claims of a node, and returns the names of the nodes that may lose or gain prefixes.
func (t *Table) choose(name string) []string {
	it := t.nodes[name]
	if it == nil {
		return nil
	}
	if t.from == config.NodePodCIDRs {
		return t.claim(name, it.podCIDRs, it.malformed, false)
	}
	cidrs, unread := t.blocks.cidrs(name)
	if len(cidrs) > 0 || t.from == config.CalicoBlocks {
		return t.claim(name, cidrs, unread, true)
	}
	// A node without a block: in a cluster that does not use Calico's IPAM, or not on this node; or without pods so
	// far. In that case its podCIDRs do no harm, because a block precedes them.
	return t.claim(name, it.podCIDRs, cmp.Or(unread, it.malformed), false)
}

// claim records the claims of a node, and returns the names of the nodes that may lose or gain prefixes, itself among
// them.
func (t *Table) claim(name string, cidrs []cidr, unread string, byBlocks bool) []string {
	it := t.nodes[name]
	concerned := []string{name}
	change := func(of []cidr, but []cidr, do func(string, cidr)) {
		there := make(map[cidr]bool, len(but))
		for _, p := range but {
			there[p] = true
		}
		for _, p := range of {
			// A claim outside of the pod subnets, such as 0.0.0.0/0, takes nothing from other nodes.
			if there[p] || !Within(p.Prefix, t.subnets) {
				continue
			}
			do(name, p)
			for _, other := range t.claims.overlapping(p.Prefix) {
				concerned = append(concerned, other.node)
			}
		}
	}
	change(it.cidrs, cidrs, t.claims.drop)
	change(cidrs, it.cidrs, t.claims.add)
	used := t.users > 0
	if it.byBlocks {
		t.users--
	}
	if byBlocks {
		t.users++
	}
	it.cidrs, it.unread, it.byBlocks = cidrs, unread, byBlocks
	if used != (t.users > 0) && t.from == config.AutoAllowedIPs { // problems of podCIDRs depend on it
		concerned = slices.AppendSeq(concerned, maps.Keys(t.nodes))
	}
	return concerned
}

// settle decides about nodes again, and returns the steps from the old to the new state.
func (t *Table) settle(names []string) []Node {
	slices.Sort(names)
	var losers, gainers []Node
	for _, name := range slices.Compact(names) {
		it := t.nodes[name]
		before := it.kept
		t.judge(name)
		remaining := make([]string, 0, len(before))
		had := make(map[string]bool, len(before))
		for _, prefix := range before {
			had[prefix] = true
		}
		for _, prefix := range it.kept {
			if had[prefix] {
				remaining = append(remaining, prefix)
			}
		}
		if len(remaining) < len(before) {
			losers = append(losers, Node{name, remaining})
		}
		if len(remaining) == len(before) || len(remaining) < len(it.kept) {
			gainers = append(gainers, Node{name, it.kept})
		}
	}
	if len(losers) == 1 && len(gainers) > 0 {
		// Its gain belonged to no node: otherwise it would not be the only one that loses.
		if i := slices.IndexFunc(gainers, func(n Node) bool { return n.Name == losers[0].Name }); i >= 0 {
			losers[0] = gainers[i]
			gainers = slices.Delete(gainers, i, i+1)
		}
	}
	return append(losers, gainers...)
}

func (t *Table) judge(name string) {
	it := t.nodes[name]
	it.kept, it.prefixes = nil, nil
	var wrong []string
	if it.unread != "" {
		wrong = append(wrong, it.unread)
	}
	source := "spec.podCIDRs"
	if it.byBlocks {
		source = "block affinities"
	}
	// If Calico's IPAM is in use, the podCIDRs of a node without a block may be meaningless.
	idle := !it.byBlocks && t.users > 0
	for _, p := range it.cidrs {
		if !Within(p.Prefix, t.subnets) {
			if !idle {
				wrong = append(wrong, fmt.Sprintf("%s: %s lies outside podSubnets and is not exported", source, p.Prefix))
			}
			continue
		}
		if other, taken := t.claims.taker(p, name); taken {
			if !idle || !t.nodes[other].byBlocks {
				wrong = append(wrong, fmt.Sprintf("%s: %s overlaps that of node %s and is not exported", source, p.Prefix, other))
			}
			continue
		}
		if !slices.Contains(it.prefixes, p.Prefix) {
			it.prefixes = append(it.prefixes, p.Prefix)
			it.kept = append(it.kept, p.String())
		}
	}
	it.problem = strings.Join(wrong, "; ")
}

// parse returns prefixes, canonical, each once; malformed lists the invalid ones.
func parse(texts []string, rank rank) (cidrs []cidr, malformed string) {
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			malformed = fmt.Sprintf("spec.podCIDRs: %v", err)
			continue
		}
		if c := (cidr{prefix.Masked(), rank}); !slices.Contains(cidrs, c) {
			cidrs = append(cidrs, c)
		}
	}
	return cidrs, malformed
}

// Within reports whether a subnet lies in one of several subnets. An empty list contains all.
func Within(p netip.Prefix, subnets []netip.Prefix) bool {
	return len(subnets) == 0 || slices.ContainsFunc(subnets, func(s netip.Prefix) bool {
		return s.Bits() <= p.Bits() && s.Contains(p.Addr())
	})
}
