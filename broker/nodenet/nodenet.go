// Package nodenet knows the pod network of the own cluster's nodes: the prefixes that the pods of each have their IPs
// from, decided as the exporter decides what it publishes of the node (internal/podcidr). It reads the block affinities of
// Calico's IPAM; nodes it is given. It does not know who asks.
package nodenet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/podcidr"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Options of Networks.
type Options struct {
	// From says where the prefixes of nodes come from, and Subnets are those of the own cluster.
	From    config.AllowedIPs
	Subnets []netip.Prefix
	// Affinities are read unless prefixes come from nodes alone.
	Affinities *kube.BlockAffinities
	// Changed is called with the name of a node whose network differs from what it was.
	Changed func(node string)
	Log     *slog.Logger
}

// Networks are those of the nodes. It is safe for concurrent use.
type Networks struct {
	options Options

	mu    sync.Mutex
	table *podcidr.Table
	nodes map[string]*semaphorev1.NodeNetwork // never changed, but replaced
	// synced says that the block affinities are known, or that there are none; problem is why they are not followed.
	synced  bool
	problem string
}

// New makes it. Nothing is read before Run.
func New(options Options) *Networks {
	return &Networks{
		options: options, table: podcidr.New(options.From, options.Subnets), nodes: map[string]*semaphorev1.NodeNetwork{},
		synced: options.From == config.NodePodCIDRs,
	}
}

// PutNode takes a node with its spec.podCIDRs.
func (n *Networks) PutNode(name string, podCIDRs []string) {
	n.change(func(t *podcidr.Table) podcidr.Changed { return t.PutNode(name, podCIDRs) })
}

// DeleteNode takes the end of a node.
func (n *Networks) DeleteNode(name string) {
	n.mu.Lock()
	delete(n.nodes, name)
	n.mu.Unlock()
	n.change(func(t *podcidr.Table) podcidr.Changed { return t.DeleteNode(name) })
}

// Network is that of a node, which nobody changes any more; nil while it is not known.
func (n *Networks) Network(node string) *semaphorev1.NodeNetwork {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.synced {
		return nil
	}
	return n.nodes[node]
}

// change changes the table, and calls Changed for each node whose network differs.
func (n *Networks) change(change func(*podcidr.Table) podcidr.Changed) {
	n.mu.Lock()
	var differ []string
	for _, step := range change(n.table).Nodes {
		// The agents need no order: what is in the way of another node at a step is no remote node's yet.
		name, prefixes := step.Name, sorted(n.table.Prefixes(step.Name))
		if was, known := n.nodes[name]; !known || !slices.Equal(was.GetPodPrefixes(), prefixes) {
			n.nodes[name] = &semaphorev1.NodeNetwork{PodPrefixes: prefixes}
			differ = append(differ, name)
		}
	}
	synced := n.synced
	n.mu.Unlock()
	if synced {
		for _, name := range differ {
			n.options.Changed(name)
		}
	}
}

// sorted is prefixes in their order, of all families.
func sorted(prefixes []string) []string {
	out := slices.Clone(prefixes)
	slices.SortFunc(out, func(a, b string) int { return netip.MustParsePrefix(a).Compare(netip.MustParsePrefix(b)) })
	return out
}

// settled takes note that the block affinities are known.
func (n *Networks) settled() {
	n.mu.Lock()
	first := !n.synced
	n.synced = true
	var names []string
	for name := range n.nodes {
		names = append(names, name)
	}
	n.mu.Unlock()
	if first {
		for _, name := range names {
			n.options.Changed(name)
		}
	}
}

// Problems are why the networks are not known, a line each.
func (n *Networks) Problems() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.problem == "" {
		return nil
	}
	return []string{n.problem}
}

// failed takes the error of a list or a watch; nil for none.
func (n *Networks) failed(err error) {
	problem := ""
	switch {
	case err == nil, errors.Is(err, kube.ErrListFirst):
	case errors.Is(err, kube.ErrNoBlocks) && n.options.From == config.AutoAllowedIPs:
		n.settled()
	default:
		problem = fmt.Sprintf("blocks of Calico's IPAM: %v; until they are read, no agent learns its node's pod network", err)
	}
	n.mu.Lock()
	differs := problem != n.problem
	n.problem = problem
	n.mu.Unlock()
	if differs && problem != "" {
		n.options.Log.Warn("cannot follow the block affinities; trying again", "error", err)
	}
}

// Run follows the block affinities until ctx ends.
func (n *Networks) Run(ctx context.Context) error {
	if n.options.From == config.NodePodCIDRs {
		<-ctx.Done()
		return ctx.Err()
	}
	informer := cache.NewSharedIndexInformerWithOptions(n.options.Affinities.ListWatch(), &kube.BlockAffinity{}, cache.SharedIndexInformerOptions{ObjectDescription: "blockaffinity"})
	if err := informer.SetTransform(func(object any) (any, error) {
		if a, ok := object.(*kube.BlockAffinity); ok {
			a.ObjectMeta = metav1.ObjectMeta{Name: a.Name, ResourceVersion: a.ResourceVersion}
		}
		return object, nil
	}); err != nil {
		return err
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() == nil {
			n.failed(err)
		}
	}); err != nil {
		return err
	}
	put := func(object any) {
		if a, ok := object.(*kube.BlockAffinity); ok {
			n.change(func(t *podcidr.Table) podcidr.Changed { return t.PutBlock(a) })
		}
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    put,
		UpdateFunc: func(_, object any) { put(object) },
		DeleteFunc: func(object any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
				n.change(func(t *podcidr.Table) podcidr.Changed { return t.DeleteBlock(key) })
			}
		},
	})
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	if cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		n.settled()
		n.failed(nil)
	}
	<-done
	return ctx.Err()
}
