// Package broker is one cluster's end of all its connections: it receives what exporters of remote clusters publish,
// writes the mirrors, sets and pools that follow from it into its own cluster, and sends its agents their peers.
//
//	federation     streams of exporters → replica (what each remote exports) + admission (what is accepted of it)
//	tunnels, services, networksets
//	               engines, one for each feature; fed by a queue, each with a plan: mesh, mirror, policy (the desired
//	               state, decided from the replicas alone) and retain (what must stay)
//	apply          the writer of Services, EndpointSlices, GlobalNetworkSets, IPPools; apply/writes decides what is sent
//	nodes          annotations of the own cluster's nodes
//	drains         drains by operators
//	dns            the server blocks of CoreDNS
//	migrate        adoption of what earlier tools left
//	peering        streams of agents
//	traffic        bytes and connections of each Service, as agents count them
//	operator       calls of operators, the page with the live state, and the removal of all that was written
//
// This package builds the features and leads; an engine decides the desired state of each feature. It keeps no
// database: its state is rebuilt from the streams, and the labels of its objects mark them as its own. One replica does
// all this; the others wait, with only probes, metrics and the debug socket (internal/kube/leader).
package broker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/migrate"
	"github.com/kube-semaphore/semaphore/broker/operator"
	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/broker/stored"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// writers is the number of concurrent writes for one type of objects. More would only wait in the apiserver.
const writers = 16

// Names of the ports in the manifests. kube-proxy finds the ports by these names in the leader's slices.
const federationPort, peeringPort, httpPort = "federation", "peering", "http"

// broker is what a process builds once, when it leads and knows the remotes. It follows their changes while it works.
type broker struct {
	// Broker has the parts that calls of operators reach, too.
	operator.Broker
	// cfg has the remotes that the engines know. Only configure replaces it.
	cfg atomic.Pointer[config.Broker]
	// followers are called with a configuration of other remotes, after the engines have applied it. Other parts read cfg.
	followers []func(*config.Broker)
	// adopters adopt what earlier tools left of an added remote, before its exporter may connect.
	adopters []func(context.Context)
	// adopted has a value after Services were adopted for an added remote.
	adopted chan struct{}
	// options are those of all loops that write.
	options apply.Options
	engines
	// standing stores peers for the next broker; nil when encryption is off.
	standing *stored.PeerStore
	// traffic is nil unless both are on.
	traffic *services.Traffic
	// lists lists the objects of any loop or watch that the features have the right to list in the own cluster.
	lists    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	reaching *reaching // nil unless services and encryption are both on
	calico   *apply.Calico
	mcs      *apply.MCS // nil where nothing is imported
	loops    []loop
	// runs are what runs beside the loops, and finders return its findings.
	runs    []func(context.Context) error
	finders []func() []finding.Finding
	servers []*server
	// outcomes returns the results of a remote's services; nil if none are mirrored.
	outcomes func(cluster string) []*semaphorev1.Outcome
	// failing returns the Services that cannot be written, with the reason; nil if none are mirrored.
	failing   func() map[string]string
	listening atomic.Int32
}

type loop struct {
	writer
	kind   writes.ObjectKind
	calico bool // needs Calico, which a cluster may not have
	mcs    bool // needs the Multi-Cluster Services API, which a cluster may not have
	// after, if not nil, must be known before the loop starts
	after *stored.Drains
}

// writer is an apply.Objects of any type, or nodes.Nodes.
type writer interface {
	Run(context.Context) error
	Synced() bool
	Findings() []finding.Finding
}

// Run runs the broker until ctx ends. It fails earlier if the certificate, the access to the apiserver or a listener is
// unusable, the lease is lost, or the store of the cluster was restored.
func Run(ctx context.Context, cfg *config.Broker) error { return runAs(ctx, cfg, func(*process) {}) }

// runAs is Run with a change of the process, for tests.
func runAs(ctx context.Context, cfg *config.Broker, change func(*process)) error {
	source, err := identity.Open(ctx, cfg.TLS, identity.Broker(cfg.Cluster))
	if err != nil {
		return err
	}
	defer source.Close()
	p, err := newProcess(ctx, cfg, source)
	if err != nil {
		return err
	}
	change(p)
	return p.run(ctx)
}

// run runs the process until ctx ends, or returns the error that ended it.
func (p *process) run(ctx context.Context) error {
	cfg := p.cfg
	toLeader := &relay{cfg: cfg, source: p.source, client: p.unlimited, pod: p.pod, log: p.log}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return p.elector.Run(ctx, func(ctx context.Context, _ uint64) error { return p.lead(ctx) })
	})
	g.Go(func() error { return debug.ServeSocket(ctx, cfg.Listen.DebugSocket, p.debugger, p.operators.Register) })
	g.Go(func() error { return toLeader.serve(ctx) })
	if address := cfg.Listen.Dashboard; address != "" {
		refused := p.servers.refused.WithLabelValues("dashboard")
		g.Go(func() error { return p.newPage().Serve(ctx, address, refused.Inc) })
	}
	g.Go(func() error {
		return program.Pages{Metrics: p.registry, Ready: p.ready, Found: p.found}.Serve(ctx,
			cfg.Listen.HTTP)
	})
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// podOf returns this replica's pod: from a test's configuration, else from the environment.
func podOf(cfg *config.Broker) (config.Pod, error) {
	if len(cfg.Pod.IPs) > 0 {
		return cfg.Pod, nil
	}
	return leader.PodOfEnvironment()
}

// lead runs the broker until ctx ends. It calls began when the engines handle what exporters publish.
func (b *broker) lead(ctx context.Context, began func()) error {
	cfg := b.cfg.Load()
	b.Federation.Begin(cfg.Remotes, cfg.Own(), federation.Engines{
		Sink: b.engines, Room: b.engines.Room, ResyncDue: b.engines.ResyncDue,
		Retained: b.engines.Retained, Outcomes: b.outcomes,
	})
	if b.standing != nil {
		if err := b.restore(ctx); err != nil {
			return err
		}
	}
	began()
	g, ctx := errgroup.WithContext(ctx)
	if b.Peering != nil {
		b.Peering.SetUndelivered(b.Federation.Undelivered(time.Now())) // before an agent attaches
	}
	for _, run := range b.runs {
		g.Go(func() error { return run(ctx) })
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
	for _, e := range b.engines.all {
		g.Go(func() error { return e.Run(ctx) })
	}
	return g.Wait()
}

// reports adds lines, under a code, to the findings.
func (b *broker) reports(code finding.Code, lines func() []string) {
	b.finders = append(b.finders, func() []finding.Finding { return finding.Lines(code, "", lines()) })
}

// removeLeftovers removes what earlier tools left of adopted Services, and looks again whenever others were adopted.
func (b *broker) removeLeftovers(ctx context.Context, leftovers *migrate.Leftovers) error {
	for {
		if err := leftovers.Run(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.adopted:
		}
	}
}
