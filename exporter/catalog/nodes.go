package catalog

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// node is a node as it was last seen, and which of its pod CIDRs it may have.
type node struct {
	object *corev1.Node
	cidrs  []cidr
	// unread is why some CIDR is none.
	unread string
	// kept are those of cidrs that are exported, and problem why others are not.
	kept    []string
	problem string
}

// PutNode takes a node as it is now. One kubelet that is wrong must not take the traffic of another node's pods:
// of two nodes whose CIDRs overlap, the first by name keeps its own; of two with one Calico block, the one that was
// given it last.
func (c *Catalog) PutNode(n *corev1.Node, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	it, ok := c.nodes[n.Name]
	if !ok {
		it = &node{}
		c.nodes[n.Name] = it
	}
	it.object = n
	cidrs, unread := it.cidrs, it.unread
	switch {
	case !c.rules.CalicoBlocks:
		cidrs, unread = podCIDRs(n)
	case !ok: // after that, it is blocks that change
		cidrs, unread = c.blocks.cidrs(n.Name)
		c.strayBlocks(n.Name)
	}
	if ok && it.unread == unread && slices.Equal(it.cidrs, cidrs) {
		c.exportNode(n.Name, now)
		return
	}
	c.settle(c.claim(n.Name, cidrs, unread), now)
}

// DeleteNode takes a node's end.
func (c *Catalog) DeleteNode(name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[name] == nil {
		return
	}
	concerned := c.claim(name, nil, "")
	delete(c.nodes, name)
	c.forgetProblems(Key{Kind: semaphorev1.Kind_KIND_NODE, Name: name})
	for _, cluster := range c.remotes {
		key := nodeKey(cluster, name)
		c.forgetProblems(key)
		c.withdraw(key, now)
	}
	c.strayBlocks(name)
	c.settle(slices.DeleteFunc(concerned, func(n string) bool { return n == name }), now)
}

// claim takes what a node claims now, and returns the names of those that may lose or gain by it, itself among them.
func (c *Catalog) claim(name string, cidrs []cidr, unread string) []string {
	it := c.nodes[name]
	concerned := []string{name}
	change := func(of []cidr, but []cidr, do func(string, cidr)) {
		there := make(map[cidr]bool, len(but))
		for _, p := range but {
			there[p] = true
		}
		for _, p := range of {
			// One that lies outside the pod subnets, such as 0.0.0.0/0, takes nothing from anybody.
			if there[p] || !within(p.Prefix, c.rules.PodSubnets) {
				continue
			}
			do(name, p)
			for _, other := range c.claims.overlapping(p.Prefix) {
				concerned = append(concerned, other.node)
			}
		}
	}
	change(it.cidrs, cidrs, c.claims.drop)
	change(cidrs, it.cidrs, c.claims.add)
	it.cidrs, it.unread = cidrs, unread
	return concerned
}

// settle judges nodes anew, those first that lose a CIDR: nowhere are two nodes to have one.
func (c *Catalog) settle(names []string, now time.Time) {
	slices.Sort(names)
	var gainers []string
	for _, name := range slices.Compact(names) {
		it := c.nodes[name]
		before := it.kept
		c.judgeNode(name)
		kept := make(map[string]bool, len(it.kept))
		for _, cidr := range it.kept {
			kept[cidr] = true
		}
		if slices.ContainsFunc(before, func(cidr string) bool { return !kept[cidr] }) {
			c.exportNode(name, now)
		} else {
			gainers = append(gainers, name)
		}
	}
	for _, name := range gainers {
		c.exportNode(name, now)
	}
}

// judgeNode says which of a node's CIDRs are exported. It depends on what the nodes are now and not on the order
// in which they came.
func (c *Catalog) judgeNode(name string) {
	it := c.nodes[name]
	it.kept = nil
	var wrong []string
	if it.unread != "" {
		wrong = append(wrong, it.unread)
	}
	source := "spec.podCIDRs"
	if c.rules.CalicoBlocks {
		source = "block affinities"
	}
	for _, p := range it.cidrs {
		if !within(p.Prefix, c.rules.PodSubnets) {
			wrong = append(wrong, fmt.Sprintf("%s: %s lies outside podSubnets and is not exported", source, p.Prefix))
			continue
		}
		if other, taken := c.claims.taker(p, name); taken {
			wrong = append(wrong, fmt.Sprintf("%s: %s overlaps that of node %s and is not exported", source, p.Prefix, other))
			continue
		}
		it.kept = append(it.kept, p.String())
	}
	it.kept = slices.Compact(it.kept)
	it.problem = strings.Join(wrong, "; ")
}

// exportNode tells every cluster its own end of a node's tunnels.
func (c *Catalog) exportNode(name string, now time.Time) {
	it := c.nodes[name]
	c.problem(Key{Kind: semaphorev1.Kind_KIND_NODE, Name: name}, BadPodCIDR, it.problem)
	for _, cluster := range c.remotes {
		key := nodeKey(cluster, name)
		end, problem := projectEnd(it.object, cluster)
		c.problem(key, BadAnnotation, problem)
		c.put(key, &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_Node{
			Node: &semaphorev1.Node{PodCidrs: it.kept, Wireguard: end},
		}}, c.only[cluster], now)
	}
}

func nodeKey(cluster, name string) Key {
	return Key{Audience: cluster, Kind: semaphorev1.Kind_KIND_NODE, Name: name}
}
