package catalog

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/podcidr"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func (c *Catalog) PutNode(n *corev1.Node, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[n.Name] = n
	changed := c.prefixes.PutNode(n)
	if len(changed.Nodes) == 0 { // the annotations may have changed
		changed.Nodes = []podcidr.Node{{Name: n.Name, Prefixes: c.prefixes.Prefixes(n.Name)}}
	}
	c.prefixesChanged(changed, now)
}

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
	c.recountNode(name)
	c.prefixesChanged(changed, now)
}

func (c *Catalog) PutBlock(a *kube.BlockAffinity, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prefixesChanged(c.prefixes.PutBlock(a), now)
}

func (c *Catalog) DeleteBlock(name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prefixesChanged(c.prefixes.DeleteBlock(name), now)
}

// prefixesChanged exports the nodes of a change in its order, so that no receiver sees one prefix at two nodes.
func (c *Catalog) prefixesChanged(changed podcidr.Changed, now time.Time) {
	for _, step := range changed.Nodes {
		c.exportNode(step.Name, step.Prefixes, now)
	}
	for _, name := range changed.Strays {
		problem := ""
		if stray := c.prefixes.Strays(name); stray > 0 {
			problem = fmt.Sprintf("block affinities: %d name it, but no such node exists: their blocks are not exported", stray)
		}
		c.setProblem(Key{Kind: semaphorev1.Kind_KIND_NODE, Name: name}, finding.StrayBlocks, problem)
	}
}

// exportNode exports a node to every remote, with the node's tunnel endpoint for that remote.
func (c *Catalog) exportNode(name string, prefixes []string, now time.Time) {
	c.setProblem(Key{Kind: semaphorev1.Kind_KIND_NODE, Name: name}, finding.InvalidNodePodCIDR, c.prefixes.Problem(name))
	for _, cluster := range c.remotes {
		key := nodeKey(cluster, name)
		end, problem := projectTunnelEndpoint(c.nodes[name], cluster)
		c.setProblem(key, finding.InvalidNodeEndpoint, problem)
		c.put(key, &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_Node{
			Node: &semaphorev1.Node{PodCidrs: prefixes, Wireguard: end},
		}}, For(cluster), now)
	}
	c.recountNode(name)
}

func nodeKey(cluster, name string) Key {
	return Key{Audience: cluster, Kind: semaphorev1.Kind_KIND_NODE, Name: name}
}
