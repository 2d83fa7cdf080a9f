// Package broker is one cluster's end of all its connections: it takes what exporters of remote clusters publish,
// writes what that implies into its own cluster, and tells its agents whom to peer with.
//
//	federation  streams of exporters        → replica (what each remote says) + admission (what may be taken of it)
//	tunnels, services, networksets            engines, one a feature; fed by a queue, each with a plan: mesh, mirror, policy
//	                                          (what is wanted, decided from the replicas alone) and retain (what must stay)
//	apply       Services, EndpointSlices, GlobalNetworkSets, IPPools, Node annotations
//	peering     streams of agents
//
// This package wires them; what each feature wants is decided by an engine of its own. It keeps no database: its state is
// rebuilt from the streams, and what it wrote is labelled as its own. Of several replicas one does all this; the others
// wait, with nothing but probes, metrics and the debug socket (internal/kube/leader).
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/front"
	"github.com/kube-semaphore/semaphore/broker/nodenet"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/broker/pools"
	"github.com/kube-semaphore/semaphore/broker/presence"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/propagation"
	"github.com/kube-semaphore/semaphore/broker/standing"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// writers is how many objects of a type are written at a time. More would only wait in the apiserver.
const writers = 16

// The names of the ports in the manifests, by which kube-proxy finds them in the leader's slices.
const federationPort, peeringPort, httpPort = "federation", "peering", "http"

// broker is what runs.
type broker struct {
	cfg     *config.Broker
	elector *leader.Elector
	// front makes calls reach this replica while it leads.
	front       *front.Front
	federation  *federation.Server
	propagation *propagation.Tracker
	engines
	// peering, nodes, networks and agentPods are nil when encryption is off.
	peering   *peering.Server
	nodes     *apply.Nodes
	networks  *nodenet.Networks
	agentPods *apply.Pods
	// standing keeps what state has for the next broker; both are nil when encryption is off.
	// drains and leftovers are nil when services are off, and presence when they or encryption are.
	drains   *apply.Drains
	standing *standing.Store
	state    *peering.State
	// lists is anything in the cluster's own store that the features have the right to list.
	lists     func(context.Context, metav1.ListOptions) (runtime.Object, error)
	leftovers *apply.Leftovers
	presence  *presence.Watch
	calico    *apply.Calico
	events    *apply.Events
	loops     []loop
	servers   []*server
	// listening is how many of the servers listen.
	listening atomic.Int32
}

// loop is one that runs.
type loop struct {
	writer
	kind   string
	calico bool // needs Calico, which a cluster may not have
	// after, if not nil, is what has to be known before.
	after *apply.Drains
}

// writer is an apply.Objects of any type, or apply.Nodes.
type writer interface {
	Run(context.Context) error
	Synced() bool
	Problems() []string
}

// Run carries the broker until ctx ends, or returns the error that it cannot go on with.
func Run(ctx context.Context, cfg *config.Broker) error {
	source, err := identity.Open(ctx, cfg.TLS, identity.Broker(cfg.Cluster))
	if err != nil {
		return err
	}
	defer source.Close()
	rest, err := kube.Config(cfg.Kube, "broker")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(kube.Protobuf(rest))
	if err != nil {
		return fmt.Errorf("client for the apiserver: %w", err)
	}
	// Reviews of agents' tokens do not wait behind writes: how many there are at a time is limited where they are made. Nor
	// does what makes calls reach this replica.
	unlimited := kube.Protobuf(rest)
	unlimited.QPS = -1
	reviews, err := kubernetes.NewForConfig(unlimited)
	if err != nil {
		return fmt.Errorf("client for the apiserver: %w", err)
	}
	log := slog.Default()
	registry := program.NewRegistry()
	elector, err := leader.Of("broker", cfg.LeaderElection, cfg.Kube, registry, log)
	if err != nil {
		return err
	}
	recorder := debug.NewRecorder("broker", cfg.Cluster, "")
	metrics := apply.NewMetrics(registry)
	events := apply.NewEvents(client, cfg.MirrorNamespace, append(remoteNames(cfg), cfg.Cluster), metrics, log)
	options := apply.Options{Metrics: metrics, Recorder: recorder, Events: events, Log: log, Workers: writers, Budgets: apply.NewBudgets(cfg.Remotes)}

	state := peering.NewState()
	b := &broker{cfg: cfg, elector: elector, events: events, engines: newEngines(cfg, state, events.WarnOf, time.Now), calico: apply.NewCalico(rest, log), propagation: metrics.Propagation}
	registry.MustRegister(b.engines.collectors()...)
	if cfg.Features.Has(config.Encryption) {
		b.nodes = apply.NewNodes(client, cfg.Families(), func(uid types.UID) { b.peering.NodeGone(uid) }, options)
		b.agentPods = apply.NewPods(client, cfg.Agents.Namespace, cfg.Agents.ServiceAccount, func(uid types.UID) { b.peering.PodGone(uid) }, options)
		networks := nodenet.Options{
			From: cfg.AllowedIPs, Subnets: cfg.LocalPrefixes, Affinities: kube.NewBlockAffinities(rest),
			Changed:    func(node string) { b.peering.NetworkChanged(node) },
			NodesKnown: func() bool { return b.nodes.Synced() },
			Knows:      func(node string) bool { return b.peering.KnowsNetwork(node) }, Log: log,
		}
		if cfg.ReserveTunnelAddresses {
			networks.Reserve = rest
		}
		b.networks = nodenet.New(networks)
		b.standing = standing.New(client, cfg.MirrorNamespace, remoteNames(cfg), log)
		b.state = state
		b.nodes.OnChange(b.sawNode)
		b.peering = peering.New(peering.Options{
			Cluster: cfg.Cluster, Remotes: cfg.Remotes, Agents: cfg.Agents,
			Kube: reviews, Nodes: b.nodes, Network: b.networks.Network, Reports: b.nodes, State: state,
			Metrics: peering.NewMetrics(registry), Propagation: metrics.Propagation, Recorder: recorder, Log: log,
		})
		b.loops = append(b.loops, loop{writer: b.nodes, kind: "nodes"})
		b.lists = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Nodes().List(ctx, o)
		}
	}
	var outcomes func(cluster string) []*semaphorev1.Outcome // where services are mirrored
	if cfg.Features.Has(config.Services) {
		b.lists = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Services(cfg.MirrorNamespace).List(ctx, o)
		}
		adoption := apply.NewServiceAdoption(cfg, events, log)
		services := apply.AdoptingServices(client, cfg.MirrorNamespace, adoption, b.services.DesiredServices(), options)
		slices := apply.EndpointSlices(client, cfg.MirrorNamespace, b.services.DesiredSlices(), options)
		b.services.Bind(services, slices)
		outcomes = func(cluster string) []*semaphorev1.Outcome { return b.services.Outcomes(cluster, services.Failing()) }
		b.drains = apply.NewDrains(client, cfg.MirrorNamespace, b.services.SetDrains, options)
		b.loops = append(b.loops, loop{writer: b.drains, kind: "drains"},
			loop{writer: services, kind: "services", after: b.drains}, loop{writer: slices, kind: "endpointslices", after: b.drains})
		quiet, err := kubernetes.NewForConfig(kube.Protobuf(kube.Quiet(rest)))
		if err != nil {
			return fmt.Errorf("client for the apiserver: %w", err)
		}
		meta, err := metadata.NewForConfig(kube.Quiet(rest))
		if err != nil {
			return fmt.Errorf("client for the apiserver: %w", err)
		}
		local := cfg.LocalPrefixes
		if cfg.Own() != nil {
			local = nil // the own exporter tells of what is there
		}
		b.leftovers = apply.NewLeftovers(client, meta, cfg.MirrorNamespace, adoption, services, slices, b.services.Heard, local)
		if cfg.Services.Endpoints {
			endpoints := apply.Endpoints(quiet, cfg.MirrorNamespace, adoption, b.services.DesiredEndpoints(), options)
			b.services.BindEndpoints(endpoints)
			b.leftovers.KeepEndpoints(quiet, cfg.MirrorNamespace)
			b.loops = append(b.loops, loop{writer: endpoints, kind: "endpoints", after: b.drains})
		}
	}
	if cfg.Features.Has(config.Policy) {
		if b.lists == nil {
			b.lists = b.calico.ListSets
		}
		sets := apply.Sets(b.calico, adoption(cfg, events, log), b.sets.DesiredGlobal(), options)
		b.loops = append(b.loops, loop{writer: sets, kind: "globalnetworksets", calico: true})
		b.sets.Bind(sets)
		if cfg.Sets.Namespaced {
			namespaced := apply.NetworkSets(b.calico, b.sets.DesiredNamespaced(), options)
			b.sets.Bind(sets, namespaced)
			namespaces := apply.NewNamespaces(client, b.sets.LocalNamespaces, b.sets.LocalNamespace, options)
			b.loops = append(b.loops, loop{writer: namespaced, kind: "networksets", calico: true}, loop{writer: namespaces, kind: "namespaces"})
		}
	}
	if cfg.ManageIPPools {
		b.loops = append(b.loops, loop{writer: apply.Pools(b.calico, pools.Desired(cfg.Remotes), options), kind: "ippools", calico: true})
	}
	var domains []string
	if cfg.Features.Has(config.Policy) {
		domains = cfg.LabelDomains
	}
	b.federation = federation.New(federation.Options{
		Cluster: cfg.Cluster, Remotes: cfg.Remotes, Own: cfg.Own(), Local: cfg.LocalPrefixes, Brake: cfg.Brake, Sink: b.engines, Room: b.engines.Room, Due: b.engines.ResyncDue,
		LabelDomains: domains, Outcomes: outcomes, Warn: func(reason, note string) { b.events.Warn("", reason, note) },
		Metrics: federation.NewMetrics(registry), Recorder: recorder, Log: log,
	})
	if b.drains != nil && b.peering != nil {
		b.presence = b.watch(registry, recorder, log)
	}
	pod, err := podOf(cfg)
	if err != nil {
		return err
	}
	if b.front, err = b.newFront(reviews, pod, log); err != nil {
		return err
	}
	toLeader := &relay{cfg: cfg, source: source, client: reviews, pod: pod, log: log}
	debugger := debug.NewBrokerServer(recorder, b.status, b.listSets())
	operator := &control{log: log}
	servers := newServers(registry, log)
	b.servers = append(b.servers, servers.federation(cfg.Listen.Federation, source, b.federation, debugger, operator))
	if b.peering != nil {
		b.servers = append(b.servers, servers.peering(cfg.Listen.Peering, source, b.peering))
	}

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return elector.Run(ctx, func(ctx context.Context, _ uint64) error {
			operator.working.Store(&working{cfg.Cluster, b.federation, b.engines, b.peering, b.nodes, b.networks, b.drains, cfg.Remotes})
			return b.lead(ctx)
		})
	})
	g.Go(func() error { return debug.ServeSocket(ctx, cfg.Listen.DebugSocket, debugger, operator.register) })
	g.Go(func() error { return toLeader.serve(ctx) })
	g.Go(func() error {
		return program.HTTP(ctx, cfg.Listen.HTTP, registry, func() (string, error) { return elector.Ready(b.working) })
	})
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// sawNode takes a node of the own cluster as it is now, or was at last.
func (b *broker) sawNode(node *corev1.Node, gone bool) {
	b.tunnels.LocalNode(apply.Ends(node, gone))
	if gone {
		b.networks.DeleteNode(node.Name)
	} else {
		var own []netip.Addr
		for _, key := range naming.CalicoTunnelAddresses {
			if addr, err := netip.ParseAddr(node.Annotations[key]); err == nil {
				own = append(own, addr)
			}
		}
		b.networks.PutNode(node, own)
	}
}

// adoption is which sets of the tools before this one are taken over.
func adoption(cfg *config.Broker, events *apply.Events, log *slog.Logger) *apply.Adoption {
	a := &apply.Adoption{From: cfg.Sets.AdoptFrom, LabelDomains: cfg.LabelDomains, Events: events}
	for _, r := range cfg.Remotes {
		a.Remotes = append(a.Remotes, r.Name)
	}
	return a
}

// podOf is this replica: as configured by a test, else as the environment describes it.
func podOf(cfg *config.Broker) (config.Pod, error) {
	if len(cfg.Pod.IPs) > 0 {
		return cfg.Pod, nil
	}
	return front.PodOfEnvironment()
}

// newFront makes what leads calls to this replica while it is the leader.
func (b *broker) newFront(client kubernetes.Interface, pod config.Pod, log *slog.Logger) (*front.Front, error) {
	listen := map[string]string{federationPort: b.cfg.Listen.Federation, httpPort: b.cfg.Listen.HTTP}
	if b.cfg.Features.Has(config.Encryption) {
		listen[peeringPort] = b.cfg.Listen.Peering
	}
	ports, err := front.Ports(listen)
	if err != nil {
		return nil, err
	}
	return front.New(front.Options{
		Client: client, Pod: pod, Services: b.cfg.Listen.Services, Ports: ports, Holds: b.elector.Holds, Ready: b.working, Log: log,
	}), nil
}

// lead is the work of the one broker that leads, until ctx ends.
func (b *broker) lead(ctx context.Context) error {
	if b.standing != nil {
		// Before any remote is heard.
		peers, err := restored(ctx, b.cfg, b.standing)
		if err != nil {
			return err
		}
		b.tunnels.Restore(peers)
	}
	g, ctx := errgroup.WithContext(ctx)
	if b.standing != nil {
		g.Go(func() error { return b.standing.Run(ctx, b.state) })
	}
	if b.peering != nil {
		b.peering.SetUndelivered(b.federation.Undelivered(time.Now())) // before an agent attaches
		g.Go(func() error { return b.peering.FollowUndelivered(ctx, b.federation.Undelivered) })
	}
	for _, s := range b.servers {
		g.Go(func() error { return s.serve(ctx, func() { b.listening.Add(1) }) })
	}
	for _, l := range b.loops {
		g.Go(func() error {
			if l.after != nil {
				if err := l.after.Wait(ctx); err != nil {
					return err
				}
			}
			return l.Run(ctx)
		})
	}
	for _, e := range b.engines.all() {
		g.Go(func() error { return e.Run(ctx) })
	}
	if b.lists != nil {
		g.Go(func() error { return kube.FollowStore(ctx, b.lists, nil) })
	}
	if b.networks != nil {
		g.Go(func() error { return b.networks.Run(ctx) })
		g.Go(func() error { return b.agentPods.Run(ctx) })
	}
	if b.presence != nil {
		g.Go(func() error { return b.presence.Run(ctx) })
	}
	if b.leftovers != nil {
		g.Go(func() error { return b.leftovers.Run(ctx) })
	}
	g.Go(func() error { return b.events.Run(ctx) })
	g.Go(func() error { return b.front.Run(ctx) })
	return g.Wait()
}

// working says whether the leader does its work, or why not.
func (b *broker) working() error {
	if int(b.listening.Load()) < len(b.servers) {
		return errors.New("not all listeners are up")
	}
	return b.synced()
}

// synced says whether what is in the own cluster is known. A cluster without Calico is no reason to do
// nothing else.
func (b *broker) synced() error {
	for _, l := range b.loops {
		if !l.Synced() && (!l.calico || b.calico.Problem() == "") {
			return fmt.Errorf("%s: those of the cluster are not known yet", l.kind)
		}
	}
	return nil
}

// status answers semaphorectl.
func (b *broker) status() *semaphorev1.GetStatusResponse {
	out := &semaphorev1.GetStatusResponse{}
	if !b.elector.Status(out) {
		return out
	}
	links, linkProblems := b.federation.Describe()
	out.Ready, out.Links = b.working() == nil, links
	addLag(out.Links, b.propagation)
	if err := b.working(); err != nil {
		out.Problems = append(out.Problems, "not ready: "+err.Error())
	}
	if problem := b.calico.Problem(); problem != "" {
		out.Problems = append(out.Problems, problem)
	}
	out.Problems = append(out.Problems, b.front.Problems()...)
	if b.peering != nil {
		out.Nodes = b.peering.Status(b.nodes.Names())
		b.peering.TalkStatus(out)
		out.Problems = append(out.Problems, b.networks.Problems()...)
		out.Problems = append(out.Problems, b.peering.Problems()...)
	}
	if b.standing != nil {
		out.Problems = append(out.Problems, b.standing.Problems()...)
	}
	if b.presence != nil {
		out.Problems = append(out.Problems, b.presence.Problems()...)
	}
	out.Drains = b.drained()
	for _, l := range b.loops {
		out.Problems = append(out.Problems, l.Problems()...)
	}
	if b.leftovers != nil {
		out.Problems = append(out.Problems, b.leftovers.Problems()...)
	}
	out.Problems = append(out.Problems, b.engines.Problems()...)
	out.Problems = append(out.Problems, b.federation.Problems()...)
	out.Problems = bounded(append(out.Problems, linkProblems...))
	return out
}

// maxProblemBytes is what all problems of a status may have, of the 4 MiB that semaphorectl takes; those of nodes have 1 MiB beside it. What each
// remote adds is bounded before, to about 25 KiB at worst: this is for those who have more than a hundred.
const maxProblemBytes = 5 << 19

// bounded are the lines that a status has room for.
func bounded(lines []string) []string {
	size := 0
	for i, line := range lines {
		lines[i] = problem.Cut(line)
		if size += len(lines[i]); size > maxProblemBytes {
			return append(lines[:i], fmt.Sprintf("%d more lines: too many for one status", len(lines)-i))
		}
	}
	return lines
}
