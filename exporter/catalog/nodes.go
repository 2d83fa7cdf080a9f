package catalog

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// node is a node as it was last seen, and which of its pod CIDRs it may have.
type node struct {
	object *corev1.Node
	cidrs  []netip.Prefix
	// unread is why some CIDR is none.
	unread string
	// kept are those of cidrs that are exported, and problem why others are not.
	kept    []string
	problem string
}

// PutNode takes a node as it is now. One kubelet that is wrong must not take the traffic of another node's pods:
// of two nodes whose CIDRs overlap, the first by name keeps its own.
func (c *Catalog) PutNode(n *corev1.Node, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cidrs, unread := podCIDRs(n)
	it, ok := c.nodes[n.Name]
	if !ok {
		it = &node{}
		c.nodes[n.Name] = it
	}
	it.object = n
	if ok && it.unread == unread && slices.Equal(it.cidrs, cidrs) {
		c.exportNode(n.Name, now)
		return
	}
	before := it.cidrs
	it.cidrs, it.unread = cidrs, unread
	c.claims.drop(n.Name, c.claimed(before))
	c.claims.add(n.Name, c.claimed(cidrs))
	c.settle(append(c.claims.overlapping(append(before, cidrs...)), n.Name), now)
}

// DeleteNode takes a node's end.
func (c *Catalog) DeleteNode(name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	it, ok := c.nodes[name]
	if !ok {
		return
	}
	delete(c.nodes, name)
	c.forgetProblems(Key{Kind: semaphorev1.Kind_KIND_NODE, Name: name})
	for _, cluster := range c.rules.Clusters {
		key := nodeKey(cluster, name)
		c.forgetProblems(key)
		c.withdraw(key, now)
	}
	c.claims.drop(name, c.claimed(it.cidrs))
	c.settle(c.claims.overlapping(it.cidrs), now)
}

// claimed are those of a node's CIDRs that it can have at all. One that lies outside the pod subnets, such as 0.0.0.0/0,
// takes nothing from anybody.
func (c *Catalog) claimed(cidrs []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(cidrs), func(p netip.Prefix) bool { return !within(p, c.rules.PodSubnets) })
}

// settle judges nodes anew, those first that lose a CIDR: nowhere are two nodes to have one.
func (c *Catalog) settle(names []string, now time.Time) {
	slices.Sort(names)
	var gainers []string
	for _, name := range slices.Compact(names) {
		it := c.nodes[name]
		before := it.kept
		c.judgeNode(name)
		if slices.ContainsFunc(before, func(cidr string) bool { return !slices.Contains(it.kept, cidr) }) {
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
	for _, cidr := range it.cidrs {
		if !within(cidr, c.rules.PodSubnets) {
			wrong = append(wrong, fmt.Sprintf("spec.podCIDRs: %s lies outside podSubnets and is not exported", cidr))
			continue
		}
		first := slices.Min(c.claims.overlapping([]netip.Prefix{cidr})) // itself, if no other
		if first < name {
			wrong = append(wrong, fmt.Sprintf("spec.podCIDRs: %s overlaps that of node %s and is not exported", cidr, first))
			continue
		}
		it.kept = append(it.kept, cidr.String())
	}
	it.problem = strings.Join(wrong, "; ")
}

// exportNode tells every cluster its own end of a node's tunnels.
func (c *Catalog) exportNode(name string, now time.Time) {
	it := c.nodes[name]
	c.problem(Key{Kind: semaphorev1.Kind_KIND_NODE, Name: name}, BadPodCIDR, it.problem)
	for _, cluster := range c.rules.Clusters {
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
