package broker

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/migrate"
	"github.com/kube-semaphore/semaphore/broker/nodes"
	"github.com/kube-semaphore/semaphore/broker/operator"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/broker/report"
	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/broker/stored"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// build builds the broker with the features of a configuration and its remotes. It is called once.
func (p *process) build(cfg *config.Broker) (*broker, error) {
	events := report.NewEvents(p.client, cfg.MirrorNamespace, append(cfg.Names(), cfg.Cluster), p.registry, p.log)
	state := peering.NewState()
	b := &broker{
		options: apply.Options{Metrics: apply.NewMetrics(p.registry), Recorder: p.recorder, Events: events, Log: p.log,
			Workers: writers, Budgets: writes.NewBudgets(cfg.Remotes)},
		engines: newEngines(cfg, state, events.WarnOf, time.Now), calico: apply.NewCalico(p.rest, p.log),
		adopted: make(chan struct{}, 1),
	}
	b.cfg.Store(cfg)
	b.finders = append(b.finders, b.options.Informers().Failing.Findings)
	b.Broker = operator.Broker{Config: b.cfg.Load, Federation: p.federation, Release: b.engines.Release,
		Services: b.services}
	events.WhenRoom(b.engines.Remind)
	p.registry.MustRegister(every[prometheus.Collector](b.engines)...)
	if cfg.Features.Has(config.Encryption) {
		b.buildEncryption(p, state)
		b.servers = append(b.servers, p.servers.peering(cfg.Listen.Peering, p.source, b.Peering))
	}
	b.followers = append(b.followers, func(cfg *config.Broker) {
		events.Follow(append(cfg.Names(), cfg.Cluster))
		b.options.Budgets.Follow(cfg.Remotes)
	})
	if cfg.Features.Has(config.Services) {
		if err := b.buildServices(p); err != nil {
			return nil, err
		}
	}
	if cfg.Features.Has(config.Policy) {
		b.buildPolicy(p)
	}
	if cfg.ManageIPPools {
		pools := apply.Pools(b.calico, nodes.Pools(b.cfg.Load), b.options)
		b.loops = append(b.loops, loop{writer: pools, kind: writes.IPPool, calico: true})
		b.followers = append(b.followers, func(*config.Broker) { pools.WakeAll() })
	}
	if cfg.Features.Has(config.Services) {
		dns := stored.NewDNS(p.client, cfg, p.log)
		b.runs, b.finders = append(b.runs, dns.Run), append(b.finders, dns.Findings)
		b.followers = append(b.followers, func(cfg *config.Broker) { dns.Follow(cfg.Remotes) })
	}
	if b.Drains != nil && b.Peering != nil {
		b.watch(p.registry, p.recorder, p.log)
		b.reaching = newReaching(cfg, b.engines, state, b.Peering.Applied)
		b.runs = append(b.runs, b.reaching.run)
		b.finders = append(b.finders, func() []finding.Finding { return b.reaching.findings(b.refusedNodes) })
		b.followers = append(b.followers, b.reaching.follow)
	}
	if b.lists != nil {
		b.runs = append(b.runs, func(ctx context.Context) error { return kube.FollowStore(ctx, p.storeEvery, b.lists, nil) })
	}
	b.runs = append(b.runs, events.Run)
	return b, nil
}

func (b *broker) buildEncryption(p *process, state *peering.State) {
	cfg := b.cfg.Load()
	b.Nodes = nodes.New(p.client, cfg.NodeEndpoints, cfg.Families(), cfg.LocalPrefixes, b.sawNode,
		b.tunnels.LocalNodesKnown, func(uid types.UID) { b.Peering.NodeDeleted(uid) }, b.options)
	agentPods := apply.NewPods(p.client, cfg.Agents.Namespace, cfg.Agents.ServiceAccount,
		func(uid types.UID) { b.Peering.PodDeleted(uid) }, b.options.Informers())
	placing := &placing{kube: p.client, namespace: cfg.Agents.Namespace, node: b.Nodes.Node, log: p.log}
	b.Exempt = placing.exempt
	networks := nodes.NetworksOptions{
		From: cfg.AllowedIPs, Subnets: cfg.LocalPrefixes, Affinities: kube.NewBlockAffinities(p.rest),
		Changed:    func(node string) { b.Peering.NetworkChanged(node) },
		NodesKnown: func() bool { return b.Nodes.Synced() },
		Knows:      func(node string) bool { return b.Peering.KnowsNetwork(node) },
		Informers:  b.options.Informers(), Log: p.log,
	}
	if cfg.ReserveTunnelAddresses {
		networks.Reserve = p.rest
	}
	b.Networks = nodes.NewNetworks(networks)
	b.standing = stored.NewPeers(p.client, cfg.MirrorNamespace, cfg.Names(), p.log)
	var counted peering.Traffic
	if b.services != nil {
		b.traffic = services.NewTraffic(cfg.MirrorNamespace, b.services)
		p.registry.MustRegister(b.traffic)
		counted = b.traffic
	}
	b.Peering = peering.New(peering.Options{
		Cluster: cfg.Cluster, Remotes: cfg.Remotes, Agents: cfg.Agents,
		Kube: p.unlimited, Nodes: b.Nodes, PodsKnown: agentPods.Synced, Network: b.Networks.Network, Reports: b.Nodes,
		State:   state,
		Metrics: peering.NewMetrics(p.registry), Propagation: b.options.Metrics.Propagation,
		Recorder: p.recorder, Log: p.log,
		Traffic: counted,
	})
	b.loops = append(b.loops, loop{writer: b.Nodes, kind: writes.Node}, loop{writer: agentPods, kind: writes.Pod})
	b.runs = append(b.runs, b.Networks.Run, placing.run,
		func(ctx context.Context) error { return b.standing.Run(ctx, state) },
		func(ctx context.Context) error { return b.Peering.WatchUndelivered(ctx, b.Federation.Undelivered) })
	b.reports(finding.NodeNetworksUnknown, b.Networks.Problems)
	b.finders = append(b.finders, b.Peering.Findings)
	b.reports(finding.PeersNotStored, b.standing.Problems)
	b.reports(finding.StoredRestored, b.standing.Reports)
	b.followers = append(b.followers, func(cfg *config.Broker) {
		b.Nodes.Follow(cfg.Families())
		b.standing.Follow(cfg.Names())
		b.Peering.Follow(cfg.Remotes)
	})
	b.lists = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return p.client.CoreV1().Nodes().List(ctx, o)
	}
}

func (b *broker) buildServices(p *process) error {
	cfg, bound := b.cfg.Load(), services.Loops{Lent: b.options.Events.OwnName}
	b.lists = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return p.client.CoreV1().Services(cfg.MirrorNamespace).List(ctx, o)
	}
	adoption := &migrate.Services{Config: b.cfg.Load, API: p.client.CoreV1().Services(cfg.MirrorNamespace),
		Events: b.options.Events, Log: p.log}
	services := apply.Services(p.client, cfg.MirrorNamespace, adoption, b.services.DesiredServices(), b.options)
	if len(cfg.Services.AdoptFrom) > 0 {
		b.adopters = append(b.adopters, func(ctx context.Context) {
			services.AdoptAll(ctx)
			select {
			case b.adopted <- struct{}{}:
			default: // no reader has looked since the last time
			}
		})
	}
	slices := apply.Slices(p.client, writes.EndpointSlice, cfg.MirrorNamespace, b.services.DesiredSlices(), b.options)
	bound.Services, bound.Slices = services, slices
	b.failing = services.Failing
	b.outcomes = func(cluster string) []*semaphorev1.Outcome { return b.services.Outcomes(cluster, services.Failing()) }
	b.Drains = stored.NewDrains(p.client, cfg.MirrorNamespace, b.services.SetDrains, b.options)
	p.registry.MustRegister(b.Drains)
	b.loops = append(b.loops, loop{writer: b.Drains, kind: writes.Drains},
		loop{writer: services, kind: writes.Service, after: b.Drains},
		loop{writer: slices, kind: writes.EndpointSlice, after: b.Drains})
	meta, err := metadata.NewForConfig(kube.Quiet(p.rest))
	if err != nil {
		return fmt.Errorf("client for the apiserver: %w", err)
	}
	local := cfg.LocalPrefixes
	if cfg.Own() != nil {
		local = nil // the own exporter reports the existing ones
	}
	if cfg.GlobalServices.OwnNames {
		own := apply.Slices(p.client, writes.OwnSlice, metav1.NamespaceAll, b.services.DesiredOwnSlices(), b.options)
		bound.OwnSlices = own
		b.loops = append(b.loops, loop{writer: own, kind: writes.OwnSlice, after: b.Drains})
	}
	if cfg.MCS.Enabled {
		if err := b.buildImports(p, &bound); err != nil {
			return err
		}
	}
	b.services.Bind(bound)
	leftovers := migrate.NewLeftovers(
		p.client, meta, cfg.MirrorNamespace, adoption, services, slices, b.services.ServicesComplete, local)
	b.runs = append(b.runs, func(ctx context.Context) error { return b.removeLeftovers(ctx, leftovers) })
	b.reports(finding.Leftovers, leftovers.Problems)
	return nil
}

// buildImports builds what imports the Services that ServiceExports export, and adds the loops that write it.
func (b *broker) buildImports(p *process, bound *services.Loops) error {
	client, err := mcs.New(p.rest, writes.FieldManager)
	if err != nil {
		return err
	}
	b.mcs = apply.NewMCS(client, p.log)
	b.runs = append(b.runs, func(ctx context.Context) error { return b.mcs.CompareID(ctx, p.cfg.Cluster) })
	b.finders = append(b.finders,
		func() []finding.Finding { return finding.Line(finding.MCSUnserved, "", b.mcs.Problem()) },
		func() []finding.Finding { return finding.Line(finding.ClusterPropertyWrong, "", b.mcs.AboutProblem()) })
	imports := apply.ServiceImports(b.mcs, b.services.DesiredImports(), b.options)
	bound.Imports = imports
	slices := apply.Slices(p.client, writes.ImportSlice, metav1.NamespaceAll, b.services.DesiredImportSlices(), b.options)
	bound.ImportSlices = slices
	namespaces := apply.NewNamespaces(p.client, b.services.KnowNamespaces, b.services.SetNamespace,
		b.options.Informers())
	b.loops = append(b.loops, loop{writer: imports, kind: writes.ServiceImport, mcs: true},
		loop{writer: slices, kind: writes.ImportSlice}, loop{writer: namespaces, kind: writes.Namespace})
	return nil
}

func (b *broker) buildPolicy(p *process) {
	if b.lists == nil {
		b.lists = b.calico.ListSets
	}
	adoption := &migrate.Sets{Config: b.cfg.Load, Events: b.options.Events}
	sets := apply.Sets(b.calico, adoption, b.sets.DesiredGlobal(), b.options)
	if len(p.cfg.Sets.AdoptFrom) > 0 {
		b.adopters = append(b.adopters, sets.AdoptAll)
	}
	b.loops = append(b.loops, loop{writer: sets, kind: writes.GlobalNetworkSet, calico: true})
	b.sets.Bind(sets)
	if p.cfg.Sets.Namespaced {
		namespaced := apply.NetworkSets(b.calico, b.sets.DesiredNamespaced(), b.options)
		b.sets.Bind(sets, namespaced)
		namespaces := apply.NewNamespaces(p.client, b.sets.KnowLocalNamespaces, b.sets.LocalNamespace, b.options.Informers())
		b.loops = append(b.loops,
			loop{writer: namespaced, kind: writes.NetworkSet, calico: true}, loop{writer: namespaces, kind: writes.Namespace})
	}
}

// sawNode handles the current state of a node of the own cluster, or its last state before its deletion.
func (b *broker) sawNode(node *corev1.Node, gone bool) {
	b.tunnels.LocalNode(nodes.Ends(node, gone))
	if gone {
		b.tunnels.LocalCalls(node.Name, nil)
		b.Networks.DeleteNode(node.Name)
		if b.traffic != nil {
			b.traffic.Forget(node.Name)
		}
	} else {
		b.tunnels.LocalCalls(node.Name, nodes.Calls(node))
		var own []netip.Addr
		for _, key := range naming.CalicoTunnelAddresses {
			if addr, err := netip.ParseAddr(node.Annotations[key]); err == nil {
				own = append(own, addr)
			}
		}
		b.Networks.PutNode(node, own)
	}
}
