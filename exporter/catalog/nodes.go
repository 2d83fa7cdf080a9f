package catalog

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/podcidr"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// PutNode takes a node as it is now.
func (c *Catalog) PutNode(n *corev1.Node, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[n.Name] = n
	changed := c.prefixes.PutNode(n)
	if len(changed.Nodes) == 0 { // its annotations may differ
		changed.Nodes = []podcidr.Node{{Name: n.Name, Prefixes: c.prefixes.Prefixes(n.Name)}}
	}
	c.prefixesChanged(changed, now)
}

// DeleteNode takes a node's end.
func (c *Catalog) DeleteNode(name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[name] == nil {
		return
	}
	changed := c.prefixes.DeleteNode(name)
	delete(c.nodes, name)
	c.forgetProblems(Key{Kind: semaphorev1.Kind_KIND_NODE, Name: name})
	for _, cluster := range c.remotes {
		key := nodeKey(cluster, name)
		c.forgetProblems(key)
		c.withdraw(key, now)
	}
	c.locateOn(name)
	c.prefixesChanged(changed, now)
}

// PutBlock takes a block affinity as it is now.
func (c *Catalog) PutBlock(a *kube.BlockAffinity, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prefixesChanged(c.prefixes.PutBlock(a), now)
}

// DeleteBlock takes a block affinity's end.
func (c *Catalog) DeleteBlock(name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prefixesChanged(c.prefixes.DeleteBlock(name), now)
}

// prefixesChanged exports the nodes that a change concerns, in its order: nowhere are two nodes to have one prefix.
func (c *Catalog) prefixesChanged(changed podcidr.Changed, now time.Time) {
	for _, step := range changed.Nodes {
		c.exportNode(step.Name, step.Prefixes, now)
	}
	for _, name := range changed.Strays {
		problem := ""
		if stray := c.prefixes.Strays(name); stray > 0 {
			problem = fmt.Sprintf("block affinities: %d name it, and it is no node: nobody is told of their blocks", stray)
		}
		c.problem(Key{Kind: semaphorev1.Kind_KIND_NODE, Name: name}, StrayBlocks, problem)
	}
}

// exportNode publishes a node to every cluster, with the node's end of the tunnel to that cluster.
func (c *Catalog) exportNode(name string, prefixes []string, now time.Time) {
	c.problem(Key{Kind: semaphorev1.Kind_KIND_NODE, Name: name}, BadPodCIDR, c.prefixes.Problem(name))
	for _, cluster := range c.remotes {
		key := nodeKey(cluster, name)
		end, problem := projectEnd(c.nodes[name], cluster)
		c.problem(key, BadAnnotation, problem)
		c.put(key, &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_Node{
			Node: &semaphorev1.Node{PodCidrs: prefixes, Wireguard: end},
		}}, c.only[cluster], now)
	}
	c.locateOn(name)
}

func nodeKey(cluster, name string) Key {
	return Key{Audience: cluster, Kind: semaphorev1.Kind_KIND_NODE, Name: name}
}
