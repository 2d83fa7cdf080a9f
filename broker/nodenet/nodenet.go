// Package nodenet knows the pod network of the own cluster's nodes: the prefixes that the pods of each have their IPs
// from. It does not know who asks.
package nodenet

import (
	"net/netip"
	"slices"
	"sync"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Networks are those of the nodes. It is safe for concurrent use.
type Networks struct {
	changed func(node string)

	mu    sync.Mutex
	nodes map[string]*semaphorev1.NodeNetwork // never changed, but replaced
}

// New makes it. changed is called with the name of a node whose network differs from what it was.
func New(changed func(node string)) *Networks {
	return &Networks{changed: changed, nodes: map[string]*semaphorev1.NodeNetwork{}}
}

// PutNode takes a node with its spec.podCIDRs.
func (n *Networks) PutNode(name string, podCIDRs []string) {
	network := &semaphorev1.NodeNetwork{PodPrefixes: canonical(podCIDRs)}
	n.mu.Lock()
	was, known := n.nodes[name]
	same := known && slices.Equal(was.GetPodPrefixes(), network.GetPodPrefixes())
	if !same {
		n.nodes[name] = network
	}
	n.mu.Unlock()
	if !same {
		n.changed(name)
	}
}

// DeleteNode takes the end of a node.
func (n *Networks) DeleteNode(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.nodes, name)
}

// Network is that of a node, which nobody changes any more; nil while it is not known.
func (n *Networks) Network(node string) *semaphorev1.NodeNetwork {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nodes[node]
}

// canonical are the prefixes among texts that are ones, without bits outside their masks, sorted.
func canonical(texts []string) []string {
	var prefixes []netip.Prefix
	for _, text := range texts {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			prefixes = append(prefixes, prefix.Masked())
		}
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	var out []string
	for _, prefix := range slices.Compact(prefixes) {
		out = append(out, prefix.String())
	}
	return out
}
