package broker

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/operator"
	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/internal/remotes/follow"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// process is what a standby has, too. The broker is built when the process leads and knows the remotes, and works until
// the process ends.
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
	log      *slog.Logger
	// storeEvery is the interval at which the leader reads the revision of the cluster's store.
	storeEvery time.Duration

	// front makes calls reach this replica while it leads.
	front      *leader.Front
	federation *federation.Server
	servers    servers
	operators  *operator.Server
	debugger   semaphorev1.DebugServiceServer
	// received are the metrics of what remotes send.
	received *federation.Metrics
	// listening is set while the federation listener is up.
	listening atomic.Bool
	// leading is nil until the process leads and knows the remotes.
	leading  atomic.Pointer[broker]
	inEffect *follow.InEffect
	// following is nil on a standby.
	following atomic.Pointer[following]
}

func newProcess(ctx context.Context, cfg *config.Broker, source *identity.Source) (*process, error) {
	p := &process{
		cfg: cfg, source: source, registry: program.NewRegistry(),
		recorder: debug.NewRecorder("broker", cfg.Cluster, ""), log: slog.Default(), storeEvery: kube.StoreEvery,
	}
	p.registry.MustRegister(identity.Expiry(source, cfg.Cluster))
	var err error
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
	if p.inEffect, err = follow.NewInEffect(follow.Options{
		Rest: p.rest, Client: p.client, Namespace: cfg.LeaderElection.Namespace, Part: "semaphore-broker",
		SetRoots: source.SetRoots, Log: p.log,
	}); err != nil {
		return nil, err
	}
	if err := p.refuse(ctx); err != nil {
		return nil, err
	}
	p.servers = newServers(p.registry, p.log)
	p.federation = newFederation(p)
	if p.pod, err = podOf(cfg); err != nil {
		return nil, err
	}
	if p.front, err = p.newFront(); err != nil {
		return nil, err
	}
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

// refuse refuses a configuration that takes RemoteClusters out of effect or that admission policies do not know.
func (p *process) refuse(ctx context.Context) error {
	if dir := os.Getenv("POLICY_KEYS"); dir != "" {
		keys, err := config.PolicyKeysIn(dir)
		if err != nil {
			return err
		}
		if err := config.ComparePolicyKeys(p.cfg, keys); err != nil {
			return err
		}
	}
	return p.inEffect.RefuseLosses(ctx, p.cfg)
}

func (p *process) newFront() (*leader.Front, error) {
	listen := map[string]string{federationPort: p.cfg.Listen.Federation, httpPort: p.cfg.Listen.HTTP}
	if p.cfg.Features.Has(config.Encryption) {
		listen[peeringPort] = p.cfg.Listen.Peering
	}
	ports, err := leader.Ports(listen)
	if err != nil {
		return nil, err
	}
	return leader.NewFront(leader.FrontOptions{
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
	p.received = federation.NewMetrics(p.registry)
	return federation.New(federation.Options{
		Cluster: p.cfg.Cluster, Local: p.cfg.LocalPrefixes, Brake: p.cfg.Brake, LabelDomains: domains,
		Warn: func(cluster, topic string, reason finding.Code, note string) bool {
			return p.leading.Load().options.Events.WarnOf(cluster, topic, reason, note)
		},
		Metrics: p.received, Recorder: p.recorder, Log: p.log,
	})
}

func (p *process) newDebugger() semaphorev1.DebugServiceServer {
	answers := debug.Answers{Locate: p.locate}
	if p.cfg.Features.Has(config.Policy) {
		answers.Sets = func(req *semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
			b, err := p.leader()
			if err != nil {
				return nil, err
			}
			return operator.Sets(req, b.sets, p.federation.Status())
		}
		answers.Holders = func(_ context.Context,
			req *semaphorev1.ListHoldersRequest) (*semaphorev1.ListHoldersResponse, error) {
			b, err := p.leader()
			if err != nil {
				return nil, err
			}
			return operator.Holders(req, b.sets)
		}
	}
	return debug.NewServer(p.recorder, p.status, answers)
}

// leader returns the broker of the replica that leads, and otherwise the error of a call that only the leader can
// answer.
func (p *process) leader() (*broker, error) {
	if err := p.elector.Standby(); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "%v: ask the broker that leads", err)
	}
	b := p.leading.Load()
	if b == nil {
		return nil, status.Error(codes.FailedPrecondition, "this broker leads, and does not work yet")
	}
	return b, nil
}

func (p *process) newPage() *operator.Page {
	return operator.NewPage(operator.Sources{
		Status: func() *semaphorev1.GetStatusResponse {
			s, err := p.debugger.GetStatus(context.Background(), nil)
			if err != nil {
				return p.status() // it never fails
			}
			return s
		},
		Recent: p.recorder.Recent,
		Watched: func() {
			if b, err := p.leader(); err == nil && b.Peering != nil {
				b.Peering.WatchClosely()
			}
		},
		Services: func() (all []services.Described) {
			if b, err := p.leader(); err == nil && b.services != nil {
				all = b.services.Services()
			}
			return all
		},
		Sets: func() (all []*semaphorev1.PolicySet) {
			if b, err := p.leader(); err == nil && b.sets != nil {
				all = b.sets.Sets(&semaphorev1.ListSetsRequest{}, netip.Addr{})
			}
			return all
		},
	})
}

// lead is the work of the process that leads, until ctx ends.
func (p *process) lead(ctx context.Context) error {
	if err := p.inEffect.Begin(ctx); err != nil {
		return err
	}
	f := &following{InEffect: p.inEffect, process: p, removed: map[string]time.Time{}}
	p.following.Store(f)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.front.Run(ctx) })
	g.Go(func() error { return f.Run(ctx) })
	g.Go(func() error {
		cfg, err := f.first(ctx)
		if err != nil {
			return err
		}
		b, err := p.build(cfg)
		if err != nil {
			return err
		}
		p.leading.Store(b)
		p.operators.Lead(&b.Broker)
		p.log.Info("remotes are in effect", "remotes", cfg.Names())
		return b.lead(ctx, func() {
			g.Go(func() error { return f.follow(ctx, b) })
			// Exporters are not served before the engines handle changes.
			s := p.servers.federation(p.cfg.Listen.Federation, p.source, p.federation, p.debugger, p.operators)
			g.Go(func() error { return s.serve(ctx, func() { p.listening.Store(true) }) })
		})
	})
	return g.Wait()
}

func sameRemotes(a, b *config.Broker) bool { return reflect.DeepEqual(a.Remotes, b.Remotes) }
