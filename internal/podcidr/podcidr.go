// Package podcidr decides which prefixes the pods of each of a cluster's nodes have their IPs from: the blocks that
// Calico's IPAM ties to the node, or its spec.podCIDRs. The exporter publishes them, as what remote nodes accept from the
// node, and the broker sends them to the node's own agent: both decide here, so that they agree. It reads nothing itself.
//
// It imports internal/kube for the type of a block, and internal/config for the choice between the two. It is pure.
package podcidr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// Table has the prefixes of all nodes. One kubelet that is wrong must not take the traffic of another node's pods: of two
// nodes whose podCIDRs overlap, the Node that was created first keeps its own; of two with one block, the BlockAffinity
// that was created first; and a block goes before a podCIDR. What a node has depends on what there is, and not on the
// order in which it came here: exporter and broker agree, and one that restarts decides as before.
//
// It is not safe for concurrent use.
type Table struct {
	from    config.AllowedIPs
	subnets []netip.Prefix
	nodes   map[string]*node
	blocks  blocks
	claims  claims
	// users is how many nodes have blocks.
	users int
}

// node is one as it was last seen, and which prefixes it may have.
type node struct {
	// podCIDRs are its spec.podCIDRs, and malformed says why some of them is none.
	podCIDRs  []cidr
	malformed string
	// cidrs are what it claims, unread is why some of them is none, and byBlocks says that they are blocks.
	cidrs    []cidr
	unread   string
	byBlocks bool
	// kept are those of cidrs that it has, and problem why it has not the others.
	kept     []string
	prefixes []netip.Prefix // kept, parsed
	problem  string
}

// Changed are the nodes that a change concerns.
type Changed struct {
	// Nodes whose prefixes or problem may differ, in an order in which at no step two nodes have one prefix: those that
	// lose one come first, with what they keep, and again where they also get one.
	Nodes []Node
	// Strays are names by which Calico knows a node, of which Table.Strays may differ.
	Strays []string
}

// Node is what a node has at a step.
type Node struct {
	Name     string
	Prefixes []string
}

// New makes an empty table. from says where prefixes come from; subnets are those of the cluster's pods, any where there
// are none.
func New(from config.AllowedIPs, subnets []netip.Prefix) *Table {
	return &Table{from: from, subnets: subnets, nodes: map[string]*node{}, blocks: newBlocks(), claims: claims{}}
}

// Prefixes are those of a node, canonical.
func (t *Table) Prefixes(name string) []string {
	if it := t.nodes[name]; it != nil {
		return it.kept
	}
	return nil
}

// Contains says whether an IP lies in the prefixes of a node.
func (t *Table) Contains(name string, ip netip.Addr) bool {
	it := t.nodes[name]
	return it != nil && slices.ContainsFunc(it.prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// HasBlocks says whether a node's prefixes are blocks of Calico's IPAM.
func (t *Table) HasBlocks(name string) bool { return t.nodes[name] != nil && t.nodes[name].byBlocks }

// HostLocal says whether the pods of a node have their IPs from its spec.podCIDRs for all that can be seen: no node has
// a block.
func (t *Table) HostLocal(name string) bool {
	return t.nodes[name] != nil && !t.nodes[name].byBlocks && t.users == 0
}

// Problem is why a node has not all the prefixes that it claims; empty for none.
func (t *Table) Problem(name string) string {
	if it := t.nodes[name]; it != nil {
		return it.problem
	}
	return ""
}

// Strays is how many blocks are affine to what is no node. They are a cluster's whose Calico knows nodes by other names,
// or of a node that has just gone.
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

// Empty says whether the table has nothing of any node.
func (t *Table) Empty() bool {
	return len(t.nodes)+len(t.claims)+len(t.blocks.all)+len(t.blocks.of) == 0
}

// PutNode takes a node as it is now: its spec.podCIDRs, its UID and when it was created.
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

// DeleteNode takes a node's end.
func (t *Table) DeleteNode(name string) Changed {
	it := t.nodes[name]
	if it == nil {
		return Changed{}
	}
	concerned := t.claim(name, nil, "", false)
	delete(t.nodes, name)
	return Changed{t.settle(slices.DeleteFunc(concerned, func(n string) bool { return n == name })), []string{name}}
}

// PutBlock takes a block affinity as it is now.
func (t *Table) PutBlock(a *kube.BlockAffinity) Changed {
	before := t.blocks.all[a.Name].node
	t.blocks.put(a.Name, projectBlock(a))
	return t.blocksChanged(before, a.Spec.Node)
}

// DeleteBlock takes a block affinity's end.
func (t *Table) DeleteBlock(name string) Changed {
	before := t.blocks.all[name].node
	t.blocks.drop(name)
	return t.blocksChanged(before)
}

// blocksChanged settles anew what nodes have, all at once: a block that moves leaves the one before it joins the other.
func (t *Table) blocksChanged(nodes ...string) Changed {
	var concerned []string
	for _, name := range nodes {
		concerned = append(concerned, t.choose(name)...)
	}
	return Changed{t.settle(concerned), nodes}
}

// choose has a node claim what it does now, and returns the names of those that may lose or gain by it.
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
	// A node without a block: of a cluster that does not use Calico's IPAM, or not on this node; or one that has no pod
	// yet. Then nothing is lost by its podCIDRs, as a block goes before them.
	if unread == "" {
		unread = it.malformed
	}
	return t.claim(name, it.podCIDRs, unread, false)
}

// claim takes what a node claims now, and returns the names of those that may lose or gain by it, itself among them.
func (t *Table) claim(name string, cidrs []cidr, unread string, byBlocks bool) []string {
	it := t.nodes[name]
	concerned := []string{name}
	change := func(of []cidr, but []cidr, do func(string, cidr)) {
		there := make(map[cidr]bool, len(but))
		for _, p := range but {
			there[p] = true
		}
		for _, p := range of {
			// One that lies outside the pod subnets, such as 0.0.0.0/0, takes nothing from anybody.
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
	if used != (t.users > 0) && t.from == config.AutoAllowedIPs { // what is a problem of podCIDRs depends on it
		for other := range t.nodes {
			concerned = append(concerned, other)
		}
	}
	return concerned
}

// settle judges nodes anew, and returns the steps from what they had to what they have.
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
		// What it gets was nobody's, or it were not the only one that loses.
		if i := slices.IndexFunc(gainers, func(n Node) bool { return n.Name == losers[0].Name }); i >= 0 {
			losers[0] = gainers[i]
			gainers = slices.Delete(gainers, i, i+1)
		}
	}
	return append(losers, gainers...)
}

// judge says which of a node's claims it has.
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
	// Where Calico's IPAM is in use, the podCIDRs of a node that has no block need not mean anything.
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

// parse is prefixes, canonical, each once; malformed says what is none.
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

// Within reports whether a subnet lies in one of several; in any, where there are none.
func Within(p netip.Prefix, subnets []netip.Prefix) bool {
	return len(subnets) == 0 || slices.ContainsFunc(subnets, func(s netip.Prefix) bool {
		return s.Bits() <= p.Bits() && s.Contains(p.Addr())
	})
}
