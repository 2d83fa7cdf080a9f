package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/broker/dashboard"
	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/front"
	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/broker/operator"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/internal/remotes/follow"
	"github.com/kube-semaphore/semaphore/internal/tracing"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// process is what all brokers of a process share, one after the other: each is built for a set of remotes, and another
// replaces it when it cannot follow a change of them.
type process struct {
	cfg    *config.Broker
	source *identity.Source
	pod    config.Pod
	rest   *rest.Config
	client kubernetes.Interface
	// unlimited is a client for requests that must not wait behind writes: reviews of agents' tokens, which peering
	// limits.
	unlimited kubernetes.Interface
	// routing is the client of front, which reads the Lease before it takes calls, and stops taking them after it was
	// lost: so it neither waits behind writes nor is guarded by the elector.
	routing  kubernetes.Interface
	elector  *leader.Elector
	registry *prometheus.Registry
	recorder *debug.Recorder
	tracer   *tracing.Tracer // nil while tracing is off
	log      *slog.Logger

	// front makes calls reach this replica while it leads.
	front      *front.Front
	federation *federation.Server
	servers    servers
	operators  *operator.Server
	debugger   semaphorev1.DebugServiceServer
	// built counts the brokers that were built.
	built prometheus.Counter
	// listening is set while the federation listener is up.
	listening atomic.Bool
	// current is the broker that runs, or would run.
	current atomic.Pointer[broker]
	// previewing is held while a preview is made.
	previewing sync.Mutex
	// following is nil if the remotes are in the file, and on a standby.
	following atomic.Pointer[following]
}

func newProcess(ctx context.Context, cfg *config.Broker, source *identity.Source) (*process, error) {
	p := &process{
		cfg: cfg, source: source, registry: program.NewRegistry(),
		recorder: debug.NewRecorder("broker", cfg.Cluster, ""), log: slog.Default(),
	}
	var err error
	if p.tracer, err = tracing.New("broker", cfg.Cluster, cfg.Tracing, p.registry, p.log); err != nil {
		return nil, err
	}
	p.tracer.Follow(p.recorder)
	if p.rest, err = kube.Config(cfg.Kube, "broker"); err != nil {
		return nil, err
	}
	if p.elector, err = leader.Of("broker", cfg.LeaderElection, cfg.Kube, p.registry, p.log); err != nil {
		return nil, err
	}
	if p.routing, err = unlimited(p.rest); err != nil {
		return nil, err
	}
	p.rest.Wrap(p.elector.Guard)
	if p.client, err = kubernetes.NewForConfig(kube.Protobuf(p.rest)); err != nil {
		return nil, fmt.Errorf("client for the apiserver: %w", err)
	}
	if p.unlimited, err = unlimited(p.rest); err != nil {
		return nil, err
	}
	if err := p.refuse(ctx); err != nil {
		return nil, err
	}
	p.built = newBuilt(p.registry)
	p.servers = newServers(p.registry, p.log)
	p.federation = newFederation(p)
	if p.pod, err = podOf(cfg); err != nil {
		return nil, err
	}
	if p.front, err = p.newFront(); err != nil {
		return nil, err
	}
	b, err := p.build(cfg)
	if err != nil {
		return nil, err
	}
	p.current.Store(b)
	p.registry.MustRegister(debug.Findings(p.found))
	p.operators = operator.New(p.log)
	p.debugger = p.newDebugger()
	return p, nil
}

// unlimited returns a client whose requests do not wait behind others.
func unlimited(cfg *rest.Config) (kubernetes.Interface, error) {
	cfg = kube.Protobuf(cfg)
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for the apiserver: %w", err)
	}
	return client, nil
}

// newBuilt counts the brokers that a process built.
func newBuilt(reg prometheus.Registerer) prometheus.Counter {
	built := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "semaphore_broker_engines_built_total",
		Help: "How often this leader built its engines: once when it began, and once for each change of a remote's " +
			"subnets, " +
			"prefix or address family. Agents attach again each time.",
	})
	reg.MustRegister(built)
	return built
}

// refuse refuses remotes in the file beside RemoteClusters, as it would be a guess which of them count, and a
// configuration that takes RemoteClusters out of effect.
func (p *process) refuse(ctx context.Context) error {
	client, err := dynamic.NewForConfig(p.rest)
	if err != nil {
		return fmt.Errorf("client for RemoteClusters: %w", err)
	}
	if !p.cfg.Follows {
		return follow.RefuseBoth(ctx, client, "remotes")
	}
	store, err := p.kept()
	if err != nil {
		return err
	}
	return follow.RefuseLosses(ctx, client, store, p.cfg)
}

// kept returns the store of the RemoteClusters in effect.
func (p *process) kept() (*follow.Store, error) {
	namespace, err := leader.Namespace(p.cfg.LeaderElection.Namespace)
	if err != nil {
		return nil, err
	}
	return follow.NewStore(p.client, namespace, keptIn, p.log), nil
}

// newFront returns the front that routes calls to this replica while it leads.
func (p *process) newFront() (*front.Front, error) {
	listen := map[string]string{federationPort: p.cfg.Listen.Federation, httpPort: p.cfg.Listen.HTTP}
	if p.cfg.Features.Has(config.Encryption) {
		listen[peeringPort] = p.cfg.Listen.Peering
	}
	ports, err := front.Ports(listen)
	if err != nil {
		return nil, err
	}
	return front.New(front.Options{
		Client: p.routing, Pod: p.pod, Services: p.cfg.Listen.Services, Ports: ports, Holds: p.elector.Holds,
		Ready: p.working,
		Log:   p.log,
	}), nil
}

// newFederation returns the server that exporters publish to. Nothing handles their changes before a broker leads.
func newFederation(p *process) *federation.Server {
	var domains []string
	if p.cfg.Features.Has(config.Policy) {
		domains = p.cfg.LabelDomains
	}
	return federation.New(federation.Options{
		Cluster: p.cfg.Cluster, Remotes: p.cfg.Remotes, Own: p.cfg.Own(), Local: p.cfg.LocalPrefixes, Brake: p.cfg.Brake,
		LabelDomains: domains,
		Warn:         func(reason finding.Code, note string) { p.current.Load().events.Warn("", reason, note) },
		Metrics:      federation.NewMetrics(p.registry), Recorder: p.recorder, Log: p.log,
	})
}

func (p *process) newDebugger() semaphorev1.DebugServiceServer {
	var sets debug.Sets // nil if policy is off
	var who debug.Holders
	if p.cfg.Features.Has(config.Policy) {
		sets = func(req *semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
			return operator.Sets(p.leads, p.current.Load().sets.Sets, p.federation.Status)(req)
		}
		who = func(req *semaphorev1.ListHoldersRequest) (*semaphorev1.ListHoldersResponse, error) {
			return operator.Holders(p.leads, p.current.Load().sets.Holders)(req)
		}
	}
	return debug.NewServer(p.recorder, p.status, debug.Answers{Sets: sets, Holders: who, Preview: p.preview,
		Locate: p.locate})
}

// leads returns nil if this replica leads, and otherwise the error of a call that only the leader can answer.
func (p *process) leads() error {
	if err := p.elector.Standby(); err != nil {
		return status.Errorf(codes.FailedPrecondition, "%v: ask the broker that leads", err)
	}
	return nil
}

// newDashboard returns the dashboard, which shows what semaphorectl gets.
func (p *process) newDashboard() *dashboard.Server {
	of := dashboard.Sources{
		Status: func() *semaphorev1.GetStatusResponse {
			s, err := p.debugger.GetStatus(context.Background(), nil)
			if err != nil {
				return p.status() // it never fails
			}
			return s
		},
		Recent: p.recorder.Recent,
		Watched: func() {
			if peering := p.current.Load().peering; peering != nil && p.elector.Standby() == nil {
				peering.WatchClosely()
			}
		},
	}
	if p.cfg.Features.Has(config.Services) {
		of.Services = func() []mirror.Described {
			if p.elector.Standby() != nil {
				return nil
			}
			return p.current.Load().services.Services()
		}
	}
	if p.cfg.Features.Has(config.Policy) {
		of.Sets = func() []*semaphorev1.PolicySet {
			if p.elector.Standby() != nil {
				return nil
			}
			return p.current.Load().sets.Sets(&semaphorev1.ListSetsRequest{}, netip.Addr{})
		}
	}
	return dashboard.New(of)
}

// gather returns the metrics of the process and of the current broker.
func (p *process) gather() ([]*dto.MetricFamily, error) {
	return prometheus.Gatherers{p.registry, p.current.Load().registry}.Gather()
}

// lead is the work of the process that leads, until ctx ends.
func (p *process) lead(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	s := p.servers.federation(p.cfg.Listen.Federation, p.source, p.federation, p.debugger, p.operators)
	// Exporters are not served before the engines handle changes.
	began := make(chan struct{})
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-began:
		}
		return s.serve(ctx, func() { p.listening.Store(true) })
	})
	g.Go(func() error { return p.front.Run(ctx) })
	if !p.cfg.Follows {
		b := p.current.Load()
		p.built.Inc()
		p.operators.Lead(b.leading.Load())
		g.Go(func() error { return b.lead(ctx, func() { close(began) }) })
		return g.Wait()
	}
	f, err := newFollowing(ctx, p)
	if err != nil {
		return err
	}
	p.following.Store(f)
	g.Go(func() error { return f.follower.Run(ctx) })
	g.Go(func() error { return p.leadFollowing(ctx, f, began) })
	return g.Wait()
}

// leadFollowing runs one broker after the other, each for the remotes in effect.
func (p *process) leadFollowing(ctx context.Context, f *following, began chan struct{}) error {
	first := true
	for {
		cfg, err := f.next(ctx, p.current.Load().cfg, first)
		if err != nil {
			return err
		}
		b, err := p.build(cfg)
		if err != nil {
			return err
		}
		p.current.Store(b)
		p.operators.Lead(b.leading.Load())
		p.built.Inc()
		p.log.Info("remotes are in effect", "remotes", cfg.Names(), "engines", "built")
		if err := p.leadUntil(ctx, f, b, func() {
			if first {
				close(began)
			}
		}); err != nil {
			return err
		}
		first = false
	}
}

// errOtherRemotes ends a broker that another one replaces.
var errOtherRemotes = errors.New("other remotes are in effect")

// leadUntil runs a broker until the remotes in effect are ones that it cannot follow.
func (p *process) leadUntil(ctx context.Context, f *following, b *broker, began func()) error {
	g, working := errgroup.WithContext(ctx)
	works := make(chan struct{})
	g.Go(func() error {
		return b.lead(working, func() {
			began()
			close(works)
		})
	})
	g.Go(func() error {
		if err := f.follow(working, b, works); err != nil {
			return err
		}
		return errOtherRemotes
	})
	if err := g.Wait(); !errors.Is(err, errOtherRemotes) {
		return err
	}
	return nil
}

// sameRemotes reports whether a broker that was built for one configuration serves the other.
func sameRemotes(a, b *config.Broker) bool { return reflect.DeepEqual(a.Remotes, b.Remotes) }

// settle is the wait for more changes of RemoteClusters: several arrive together if they are applied from a directory.
const settle = 300 * time.Millisecond
