// Package agent is the part on every node: it wires attach → desired → plan → guard and wireguard, and
// keeps the node as its broker wants it. It never asks a kube-apiserver, and holds no
// credential but the token it shows its broker.
package agent

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
	"google.golang.org/grpc"

	"github.com/kube-semaphore/semaphore/agent/attach"
	"github.com/kube-semaphore/semaphore/agent/cache"
	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/routing"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Run is the agent's life, until ctx ends. It leaves the node as it is when it returns.
func Run(ctx context.Context, cfg *config.Agent) error {
	host, err := wireguard.NewHost(cfg.Backend)
	if err != nil {
		return err
	}
	defer host.Close()
	host.CarryUserspaceAt(cfg.UserspaceSocket)
	host.UseTable(tableOf(cfg))
	a := newAgent(cfg, host)
	reg := program.NewRegistry()
	a.register(reg)

	if err := a.loadDeclared(); err != nil {
		return err
	}
	a.restoreGuard()   // before anything else
	a.lookForOrphans() // the first report is to have them
	a.restore()
	a.dirty.node = nodeWork{guard: true, settings: true} // and what is wrong with the node
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return a.pages(reg).Serve(ctx, cfg.Listen.HTTP)
	})
	g.Go(func() error {
		return debug.ServeSocket(ctx, cfg.Listen.DebugSocket, debug.NewServer(a.recorder, a.status), func(r grpc.ServiceRegistrar) {
			semaphorev1.RegisterControlServiceServer(r, operator{agent: a})
		})
	})
	g.Go(func() error { return wireguard.Watch(ctx, tableOf(cfg), a.changedByKernel, a.missedOfKernel) })
	g.Go(func() error { return guard.Watch(ctx, a.changedGuard) })
	g.Go(func() error { return a.stream.Run(ctx) })
	g.Go(func() error { return a.program(ctx) })
	g.Go(func() error { return a.cache.Run(ctx) })
	g.Go(func() error { return a.watchDeclared(ctx) })
	g.Go(func() error { return a.watchPaths(ctx) })
	g.Go(func() error { return a.answerProbes(ctx) })
	return g.Wait()
}

// tableOf is the routing table that a configuration names.
func tableOf(cfg *config.Agent) routing.Table {
	return routing.Table{ID: cfg.Routing.Table, Priority: cfg.Routing.RulePriority}
}

// agent is one node's. The goroutine of program owns the node; the stream's goroutine only says what
// is wanted, and what waits to be done is kept by object.
type agent struct {
	cfg      *config.Agent
	host     *wireguard.Host
	guard    *guard.Guard
	stream   *attach.Stream
	cache    *cache.Writer
	recorder *debug.Recorder
	metrics  *metrics
	paths    *paths
	wake     chan struct{}
	// claims are the routes that stood, by cluster. They are program's alone.
	claims map[string]*plan.Claims
	// kept are the subnets that an earlier agent guarded, by cluster, as its state file tells. They are program's alone, after the start.
	kept map[string][]netip.Prefix

	mu    sync.Mutex
	state *desired.State
	dirty work
	// networks are the devices that are wanted, failing what cannot be done now, looks what looks at a device
	// have come to: by cluster.
	networks map[string]*network
	failing  map[string]*failure
	looks    map[string]*looks
	// orphans are our devices that stand and of which the broker says nothing, by cluster.
	orphans map[string]*semaphorev1.DeviceReport
	keys    keyring
	// adopted are devices that were taken over from another tool, by cluster, and from which.
	adopted  map[string]string
	restored restored
	around   surroundings
	// configured are the remotes that are guarded before anything more is known of them, and declared what of them the broker did not say.
	configured configured
	declared   declared
	// permissive are the remotes to which packets may go in the clear, by cluster.
	permissive map[string]*permissive

	attached bool
	// node is this one, as the broker has it; empty before it has said so.
	node string
	// streams counts them: what was found out for an earlier one is not for this one.
	streams   int
	since     time.Time
	heard     time.Time
	lastError string
	// programmed says that everything heard up to a Synced mark has been done once.
	programmed bool
	// reported and applied were last told on this stream.
	reported *semaphorev1.AgentReport
	applied  *uint64
}

func newAgent(cfg *config.Agent, host *wireguard.Host) *agent {
	a := &agent{
		cfg:        cfg,
		host:       host,
		guard:      guard.New(cfg.GuardInbound, tableOf(cfg)),
		claims:     map[string]*plan.Claims{},
		kept:       map[string][]netip.Prefix{},
		around:     surroundings{subnets: map[string][]netip.Prefix{}, lastClear: map[string]time.Time{}},
		recorder:   debug.NewRecorder("agent", cfg.Cluster, ""),
		metrics:    newMetrics(),
		paths:      newPaths(),
		wake:       make(chan struct{}, 1),
		state:      desired.New(),
		permissive: map[string]*permissive{},
		dirty:      newWork(),
		networks:   map[string]*network{},
		failing:    map[string]*failure{},
		looks:      map[string]*looks{},
		orphans:    map[string]*semaphorev1.DeviceReport{},
		keys:       newKeyring(cfg.WGKeyPath),
		adopted:    map[string]string{},
		restored:   restored{confirmedAt: map[string]time.Time{}},
		since:      time.Now(),
	}
	a.stream = attach.New(cfg, a)
	a.cache = cache.NewWriter(cfg.StateFile, cfg.Cluster, a.snapshot)
	return a
}

func (a *agent) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Begin implements attach.Handler.
func (a *agent) Begin() []*semaphorev1.AttachRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state.Begin()
	a.streams++
	a.configured.heard, a.configured.guarded, a.keys.told = false, false, false
	epoch, revision := a.state.Resume()
	a.reported, a.applied = a.report(), nil
	return []*semaphorev1.AttachRequest{
		attach.Hello(epoch, revision, a.state.Held()),
		{Message: &semaphorev1.AttachRequest_Report{Report: a.reported}},
	}
}

// Receive implements attach.Handler.
func (a *agent) Receive(_ context.Context, m *semaphorev1.AttachResponse) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard = time.Now()
	d, err := a.state.Receive(m)
	if err != nil {
		return err
	}
	switch m := m.GetMessage().(type) {
	case *semaphorev1.AttachResponse_Attached:
		a.attached, a.since, a.lastError, a.node = true, time.Now(), "", m.Attached.GetNode()
		a.recorder.SetNode(m.Attached.GetNode())
		if !a.around.networkHeard {
			a.attachedNode(m.Attached.GetPodCidrs(), nil)
		}
		how := "with the whole state"
		if m.Attached.GetResumed() {
			how = "going on"
		}
		a.recorder.Record(debug.Event{Source: a.cfg.Cluster, Object: "broker " + a.cfg.Cluster, Action: "connect", Detail: how})
		slog.Info("attached", "node", m.Attached.GetNode(), "how", how)
	case *semaphorev1.AttachResponse_NodeNetwork:
		a.around.networkHeard = true
		a.attachedNode(m.NodeNetwork.GetPodPrefixes(), m.NodeNetwork.GetTunnelAddresses())
	case *semaphorev1.AttachResponse_Guard:
		a.toGuard(m.Guard)
	case *semaphorev1.AttachResponse_Undelivered:
		a.toldUndelivered(m.Undelivered)
	case *semaphorev1.AttachResponse_Synced:
		if !a.keys.told {
			clear(a.keys.undelivered) // a broker that knows of none says nothing
		}
		if !a.configured.heard && a.declared.subnets == nil {
			a.configured.remotes = nil // a broker that names none: what an earlier one named counts no more
		}
	case *semaphorev1.AttachResponse_Unchanged:
		a.recorder.Record(debug.Event{Source: m.Unchanged.GetCluster(), Object: "device " + naming.Device(m.Unchanged.GetCluster()), Action: "receive", Detail: "unchanged"})
	case *semaphorev1.AttachResponse_Changes:
		for _, c := range m.Changes.GetChanges() {
			a.recorder.Record(eventOf(c))
		}
		a.dirty.observed.changes(m.Changes.GetChanges(), d)
	case *semaphorev1.AttachResponse_RotateKey:
		a.toRotate(m.RotateKey)
	}
	a.dirty.add(d)
	if !d.Empty() || m.GetSynced() != nil {
		a.cache.Changed()
	}
	a.poke()
	return nil
}

func eventOf(c *semaphorev1.PeeringChange) debug.Event {
	e := debug.Event{Action: "receive"}
	if c.GetObservedAt().IsValid() {
		e.ObservedAt = c.GetObservedAt().AsTime()
	}
	switch c := c.GetChange().(type) {
	case *semaphorev1.PeeringChange_Device:
		e.Source, e.Object = c.Device.GetCluster(), "device "+naming.Device(c.Device.GetCluster())
	case *semaphorev1.PeeringChange_DeleteDevice:
		e.Source, e.Object, e.Action = c.DeleteDevice, "device "+naming.Device(c.DeleteDevice), "delete"
	case *semaphorev1.PeeringChange_Peer:
		k := c.Peer.GetKey()
		e.Source, e.Object, e.Detail = k.GetCluster(), "peer "+k.GetCluster()+"/"+k.GetNode(), c.Peer.GetWireguard().GetAddress()
	case *semaphorev1.PeeringChange_DeletePeer:
		k := c.DeletePeer
		e.Source, e.Object, e.Action = k.GetCluster(), "peer "+k.GetCluster()+"/"+k.GetNode(), "delete"
	}
	return e
}

// Ended implements attach.Handler.
func (a *agent) Ended(err error) {
	if err == nil {
		err = errors.New("the stream ended")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	was, told := a.attached, a.lastError == err.Error()
	if was {
		a.lost(time.Now())
		a.attached, a.since = false, time.Now()
	}
	a.lastError = err.Error()
	if was || !told {
		a.recorder.Record(debug.Event{Source: a.cfg.Cluster, Object: "broker " + a.cfg.Cluster, Action: "disconnect", Detail: err.Error()})
		slog.Warn("not attached; what stands stays; trying again", "broker", a.cfg.Broker.Address, "error", err)
	}
}

// missedOfKernel has everything looked at: what changed was not told.
func (a *agent) missedOfKernel() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, cluster := range a.state.Clusters() {
		a.metrics.queueFull.WithLabelValues(naming.Device(cluster)).Inc()
		a.dirty.healing[cluster] = true
	}
	a.around.stale = true
	a.dirty.node = nodeWork{true, true, true}
	a.poke()
}

// ready is nil once the node stands as the broker wants it, or has wanted it of an earlier agent, and while nothing
// fails. It stays so while there is no broker: what stands goes on.
func (a *agent) ready() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, cluster := range slices.Sorted(maps.Keys(a.failing)) {
		if a.failing[cluster].partial {
			continue
		}
		return fmt.Errorf("device %s: %s", naming.Device(cluster), a.failing[cluster].problem)
	}
	if a.configured.heard && !a.configured.guarded {
		return errors.New("the pod subnets of remotes are not all guarded yet")
	}
	if !a.programmed && !a.restored.stands {
		if a.lastError != "" {
			return fmt.Errorf("never attached to the broker: %s", a.lastError)
		}
		return errors.New("the broker has not said yet what it wants")
	}
	return nil
}
