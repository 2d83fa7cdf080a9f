package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/podcidr"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file computes the pod network of each node of the own cluster: the prefixes from which its pods get IPs. The
// decision is that of the exporter, which publishes the prefixes (internal/podcidr). It reads the block affinities of
// Calico's IPAM; its caller passes the nodes.
//
// It does not know who asks.

type NetworksOptions struct {
	// From is the configured source of the nodes' prefixes, and Subnets are those of the own cluster.
	From    config.AllowedIPs
	Subnets []netip.Prefix
	// Affinities are the block affinities. They are not read if the prefixes come from nodes alone.
	Affinities *kube.BlockAffinities
	Changed    func(node string)
	// Reserve, if not nil, is the client configuration with which addresses for the devices are reserved in Calico's
	// IPAM.
	Reserve *rest.Config
	// NodesKnown reports whether all nodes were passed. Knows reports whether the agent of a node is connected and has
	// the node's current network. Only the reservation of addresses calls them.
	NodesKnown func() bool
	Knows      func(node string) bool
	Informers  apply.InformerOptions
	Log        *slog.Logger
}

// Networks are the pod networks of the nodes. It is safe for concurrent use.
type Networks struct {
	options NetworksOptions

	mu    sync.Mutex
	table *podcidr.Table
	nodes map[string]*semaphorev1.NodeNetwork // immutable: replaced as a whole
	// own are the addresses of the host itself in its pod network, by node.
	own map[string][]netip.Addr
	// calls are the remotes for which nothing reaches a node, by node.
	calls map[string][]string
	// synced is set once the block affinities are known, or if there are none.
	synced  bool
	problem *kube.Problem
	unread  kube.Unread

	// reserved is nil if nothing is reserved.
	reserved *reservations
}

// NewNetworks returns Networks. It reads nothing before Run.
func NewNetworks(options NetworksOptions) *Networks {
	n := &Networks{
		options: options, table: podcidr.New(options.From, options.Subnets), nodes: map[string]*semaphorev1.NodeNetwork{},
		own: map[string][]netip.Addr{}, calls: map[string][]string{},
		synced: options.From == config.NodePodCIDRs, problem: kube.NewProblem(options.Log),
	}
	if options.Reserve != nil {
		n.reserved = &reservations{
			cfg: options.Reserve, log: options.Log, timing: ordinary, now: time.Now,
			wanted: n.wanted, knows: options.Knows, changed: n.addressesChanged, ready: map[string][]netip.Addr{},
		}
	}
	return n
}

// PutNode records a node with the remotes that it calls, and the known addresses of the host itself in its pod network.
func (n *Networks) PutNode(node *corev1.Node, own []netip.Addr) {
	n.change(func(t *podcidr.Table) []string {
		n.own[node.Name], n.calls[node.Name] = own, Calls(node)
		return append(affected(t.PutNode(node)), node.Name)
	})
}

func (n *Networks) DeleteNode(name string) {
	n.change(func(t *podcidr.Table) []string {
		delete(n.nodes, name)
		delete(n.own, name)
		delete(n.calls, name)
		return affected(t.DeleteNode(name))
	})
}

// Network returns the network of a node, which is immutable; nil while it is unknown.
func (n *Networks) Network(node string) *semaphorev1.NodeNetwork {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.synced {
		return nil
	}
	return n.nodes[node]
}

// change changes the table, or what else networks depend on, and calls Changed for each node whose network changed.
// change returns the names of those for which it may have.
func (n *Networks) change(change func(*podcidr.Table) []string) {
	n.mu.Lock()
	differ := slices.DeleteFunc(change(n.table), func(name string) bool { return !n.renew(name) })
	synced := n.synced
	n.mu.Unlock()
	if synced {
		for _, name := range differ {
			n.options.Changed(name)
		}
	}
}

// affected returns the nodes of all steps of a change. The order does not matter to agents: a prefix that two nodes
// have for a moment does not belong to a remote node yet.
func affected(c podcidr.Changed) (names []string) {
	for _, step := range c.Nodes {
		names = append(names, step.Name)
	}
	return names
}

// addressesChanged records that the reserved addresses of a node may have changed.
func (n *Networks) addressesChanged(name string) {
	n.change(func(*podcidr.Table) []string {
		if n.nodes[name] == nil {
			return nil
		}
		return []string{name}
	})
}

// renew computes the network of a node, and reports whether it changed. The caller holds mu.
func (n *Networks) renew(name string) bool {
	network := &semaphorev1.NodeNetwork{PodPrefixes: sorted(n.table.Prefixes(name)), Calls: n.calls[name]}
	var v4, v6 bool
	// With podCIDRs Calico annotates the address that tunl0 would have, whether tunl0 exists or not (libcalico-go,
	// lib/backend/k8s/resources/node.go). The candidate is that same address, and an agent prefers an address that its
	// node has.
	if !n.table.HostLocal(name) {
		for _, addr := range n.own[name] {
			if n.table.Contains(name, addr) {
				v4, v6 = v4 || addr.Is4(), v6 || addr.Is6()
			}
		}
	}
	for _, addr := range n.candidates(name) {
		have := &v6
		if addr.Is4() {
			have = &v4
		}
		if !*have && n.table.Contains(name, addr) {
			*have = true
			network.TunnelAddresses = append(network.TunnelAddresses, addr.String())
		}
	}
	if was, known := n.nodes[name]; known && proto.Equal(was, network) {
		return false
	}
	n.nodes[name] = network
	return true
}

// candidates returns addresses of a node's pod network that no pod has or will get.
func (n *Networks) candidates(name string) []netip.Addr {
	if !n.table.HostLocal(name) {
		if n.reserved == nil {
			return nil
		}
		return n.reserved.addresses(name)
	}
	// The first address of a podCIDR is the gateway's by default. host-local assigns it to no pod, even if there is no
	// such gateway, as with Calico (containernetworking/plugins, plugins/ipam/host-local; libcalico-go uses it for
	// tunl0, getTunnelIp in lib/backend/k8s/resources/node.go).
	var out []netip.Addr
	for _, text := range n.table.Prefixes(name) {
		if prefix := netip.MustParsePrefix(text); prefix.Bits() < prefix.Addr().BitLen()-1 {
			out = append(out, prefix.Addr().Next())
		}
	}
	return out
}

// wanted returns the blocks in which each node should have an address; nil while they are unknown.
func (n *Networks) wanted() map[string]wants {
	if !n.options.NodesKnown() {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.synced {
		return nil
	}
	out := make(map[string]wants, len(n.nodes))
	for name := range n.nodes {
		var w wants
		if n.table.HasBlocks(name) {
			for _, text := range n.table.Prefixes(name) {
				if prefix := netip.MustParsePrefix(text); prefix.Addr().Is4() {
					w.v4 = append(w.v4, prefix)
				} else {
					w.v6 = append(w.v6, prefix)
				}
			}
			for _, addr := range n.own[name] {
				switch {
				case !n.table.Contains(name, addr):
				case addr.Is4():
					w.v4 = nil
				default:
					w.v6 = nil
				}
			}
		}
		out[name] = w
	}
	return out
}

// sorted returns prefixes of all families in order.
func sorted(prefixes []string) []string {
	out := slices.Clone(prefixes)
	slices.SortFunc(out, func(a, b string) int { return netip.MustParsePrefix(a).Compare(netip.MustParsePrefix(b)) })
	return out
}

func (n *Networks) markSynced() {
	n.mu.Lock()
	first := !n.synced
	n.synced = true
	names := slices.Collect(maps.Keys(n.nodes))
	n.mu.Unlock()
	if first {
		for _, name := range names {
			n.options.Changed(name)
		}
	}
}

// Problems returns why networks are unknown, a line each.
func (n *Networks) Problems() []string {
	lines := append(n.problem.Lines(), n.unread.Lines()...)
	if n.reserved != nil {
		all := n.reserved.lines()
		lines = append(lines, all[:min(len(all), mostLines)]...)
		if more := len(all) - mostLines; more > 0 {
			lines = append(lines, fmt.Sprintf("addresses for devices: %d more nodes have none", more))
		}
	}
	return lines
}

const mostLines = 20

// failed records the error of a list or a watch; nil ends the problem.
func (n *Networks) failed(err error) {
	problem := ""
	switch {
	case err == nil, errors.Is(err, kube.ErrListFirst):
	case errors.Is(err, kube.ErrNoBlocks) && n.options.From == config.AutoAllowedIPs:
		n.markSynced()
	default: // an informer tries again
		problem = fmt.Sprintf("blocks of Calico's IPAM: %v; until they are read, agents do not get their node's pod network",
			err)
	}
	n.problem.Set(problem)
}

// Run watches the block affinities, and reserves addresses, until ctx ends, and returns ctx's error.
func (n *Networks) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { return n.follow(ctx) })
	if n.reserved != nil && n.options.From != config.NodePodCIDRs {
		g.Go(func() error { return n.reserved.run(ctx) })
	}
	return g.Wait()
}

func (n *Networks) follow(ctx context.Context) error {
	if n.options.From == config.NodePodCIDRs {
		<-ctx.Done()
		return ctx.Err()
	}
	var store apply.Store[*kube.BlockAffinity]
	n.unread.Earlier = func(metadata kube.Object) (kube.Object, bool) { return store.Get(metadata.GetName()) }
	return apply.Watch[*kube.BlockAffinity]{
		Kind: "blockaffinity", Example: &kube.BlockAffinity{}, ListWatch: n.options.Affinities.Follow(&n.unread),
		Reduce: func(a *kube.BlockAffinity) *kube.BlockAffinity {
			a.ObjectMeta = metav1.ObjectMeta{Name: a.Name, UID: a.UID, CreationTimestamp: a.CreationTimestamp,
				ResourceVersion: a.ResourceVersion}
			return a
		},
		Saw: func(_, a *kube.BlockAffinity, gone bool) {
			n.change(func(t *podcidr.Table) []string {
				if gone {
					return affected(t.DeleteBlock(a.Name))
				}
				return affected(t.PutBlock(a))
			})
		},
		Failed: n.failed,
	}.Run(ctx, n.options.Informers, &store, func(ctx context.Context) error {
		n.markSynced()
		<-ctx.Done()
		return ctx.Err()
	})
}
