// Package agent is the part of semaphore on every node: it sets the node's WireGuard devices, peers, routes and guard
// as its broker desires.
//
// It makes the owners of the agent's state, connects them and runs them. The package comment of each names its state:
// session, keys, guard, paths, device with schedule, status and events (docs/architecture/agent.md). Owners exchange
// values and share no locks. The package itself decides only the order of work in a round (loop.go) and which owner
// receives a message of the broker (stream.go). It never calls a kube-apiserver, and holds no credential but the token
// for its broker.
package agent

import (
	"context"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	devices "github.com/kube-semaphore/semaphore/agent/device"
	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/paths"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/agent/traffic"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Run runs the agent until ctx ends. It leaves the node as it is when it returns. It returns ctx's error, or fails if
// WireGuard, a listener or the kernel's events cannot be used.
func Run(ctx context.Context, cfg *config.Agent) error {
	table := tableOf(cfg)
	guarding := guard.New(cfg.GuardInbound, table)
	earlier, unread := stream.LoadState(cfg.StateFile, cfg.Cluster)
	if earlier != nil {
		if err := guardEarlier(io.Discard, guarding, earlier); err != nil {
			slog.Warn("cannot set the whole guard of an earlier agent; the agent tries again", "error", err)
		}
	}
	host, err := kernel.NewHost(cfg.Backend, cfg.UserspaceSocket, table)
	if err != nil {
		return err
	}
	defer host.Close()
	a := newAgent(cfg, host, guarding)
	reg := program.NewRegistry()
	a.register(reg)
	a.start(earlier, unread)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.pages(reg).Serve(ctx, cfg.Listen.HTTP) })
	g.Go(func() error {
		look := a.lookup()
		server := debug.NewServer(a.events.Recorder, a.status, debug.Answers{Path: look.LookUp, Locate: look.Locate})
		return debug.ServeSocket(ctx, cfg.Listen.DebugSocket, server, func(r grpc.ServiceRegistrar) {
			semaphorev1.RegisterControlServiceServer(r, operator{agent: a})
		})
	})
	g.Go(func() error { return kernel.Watch(ctx, table, a.kernelChanged, a.eventsLost) })
	g.Go(func() error { return kernel.FollowTable(ctx, guard.TableName, a.guardChanged) })
	g.Go(func() error { return a.stream.Run(ctx) })
	g.Go(func() error { return a.loop(ctx, a.round) })
	g.Go(func() error { return a.cache.Run(ctx) })
	g.Go(func() error { return a.sample(ctx) })
	if a.traffic != nil {
		g.Go(func() error { return a.countTraffic(ctx) })
	}
	if cfg.Listen.Probe != config.NoProbe {
		g.Go(func() error { return a.peers.AnswerProbes(ctx, cfg.Listen.Probe) })
	}
	return g.Wait()
}

func tableOf(cfg *config.Agent) kernel.RoutingTable {
	return kernel.RoutingTable{ID: cfg.Routing.Table, Priority: cfg.Routing.RulePriority}
}

// nodeKernel is the agent's access to the node: the node itself, or a scripted one in tests.
type nodeKernel interface {
	devices.Kernel
	guard.Kernel
	paths.Kernel
}

// agent has the owners of the node's state. Its only state of its own is the queue of the next round.
type agent struct {
	cfg      *config.Agent
	kernel   nodeKernel
	guard    guard.Rules
	board    *status.Board
	events   *events.Sink
	session  *stream.Session
	node     *guard.Monitor
	keys     *devices.Rotator
	peers    *paths.Monitor
	schedule *plan.Scheduler
	devices  *devices.Reconciler
	stream   *stream.Stream
	send     func(*semaphorev1.AttachRequest)
	cache    *stream.StateWriter
	// earlier is the state that an earlier agent saved, for as long as no broker has sent a complete one; nil for one that
	// cannot be used.
	earlier *stream.StateFile
	// unread is why the state file of an earlier agent cannot be used; empty once it is written again.
	unread string
	// traffic is nil where the agent does not count by Service.
	traffic  *traffic.Counter
	queue    *queue
	revision prometheus.Gauge
	clock    clock
}

func newAgent(cfg *config.Agent, k nodeKernel, g guard.Rules) *agent {
	a := &agent{
		cfg: cfg, kernel: k, guard: g, board: &status.Board{}, events: events.New(cfg.Cluster),
		schedule: plan.NewScheduler(), queue: newQueue(), revision: status.AppliedRevision(),
	}
	a.stream = stream.New(cfg, a)
	a.cache = stream.NewStateWriter(cfg.StateFile, cfg.Cluster, a.snapshot)
	a.send = a.stream.Send
	send := func(m *semaphorev1.AttachRequest) { a.send(m) }
	a.session = stream.NewSession(cfg.Cluster, cfg.Broker.Address, a.events, send)
	if cfg.ServiceTraffic {
		a.traffic = traffic.NewCounter()
	}
	a.keys = devices.NewRotator(cfg.Cluster, cfg.WGKeyPath, a.events)
	a.node = guard.NewMonitor(cfg, k, g, a.session, a.board, a.events, a.cache.Changed)
	a.peers = paths.New(k, a.session, a.events, a.queue.set, a.queue.poke, a.clockProblem)
	a.devices = devices.New(cfg, k, devices.Parts{
		Session: a.session, Node: a.node, Keys: a.keys, Peers: a.peers, Schedule: a.schedule,
		Board: a.board, Events: a.events,
	})
	return a
}
