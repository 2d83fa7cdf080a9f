// Package agent is the part on every node: it wires attach → desired → plan → wireguard, and
// keeps the node as its broker wants it. It never asks a kube-apiserver, and holds no
// credential but the token it shows its broker.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/attach"
	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// checkEvery is how often every device is looked at, whatever was heard: what the kernel does not
// tell, such as a peer changed by hand, is put right then.
const checkEvery = 30 * time.Second

// healGap is the least time between two looks at devices that someone else changes: whoever fights us
// does not make us spin.
const healGap = 500 * time.Millisecond

// Run is the agent's life, until ctx ends. It leaves the node as it is when it returns.
func Run(ctx context.Context, cfg *config.Agent) error {
	host, err := wireguard.NewHost(cfg.Backend)
	if err != nil {
		return err
	}
	defer host.Close()
	a := &agent{
		cfg:      cfg,
		host:     host,
		recorder: debug.NewRecorder("agent", cfg.Cluster, ""),
		metrics:  newMetrics(),
		wake:     make(chan struct{}, 1),
		state:    desired.New(),
		dirty:    newWork(),
		networks: map[string]*network{},
		since:    time.Now(),
	}
	a.stream = attach.New(cfg, a)
	reg := program.NewRegistry()
	reg.MustRegister(a.metrics.all()...)
	reg.MustRegister(a)

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return program.HTTP(ctx, cfg.Listen.HTTP, reg, a.ready) })
	g.Go(func() error {
		return debug.ServeSocket(ctx, cfg.Listen.DebugSocket, debug.NewServer(a.recorder, a.status))
	})
	g.Go(func() error { return wireguard.Watch(ctx, a.changedByKernel) })
	g.Go(func() error { return a.stream.Run(ctx) })
	g.Go(func() error { return a.program(ctx) })
	return g.Wait()
}

// agent is one node's. The goroutine of program owns the node; the stream's goroutine only says what
// is wanted, and what waits to be done is kept by object.
type agent struct {
	cfg      *config.Agent
	host     *wireguard.Host
	stream   *attach.Stream
	recorder *debug.Recorder
	metrics  *metrics
	wake     chan struct{}

	mu        sync.Mutex
	state     *desired.State
	dirty     work
	networks  map[string]*network
	attached  bool
	since     time.Time
	heard     time.Time
	lastError string
	// programmed says that everything heard up to a Synced mark has been done once.
	programmed bool
	reported   *semaphorev1.AgentReport
}

// network is a device as it was last programmed.
type network struct {
	report *semaphorev1.DeviceReport
	// applied are the peers as they were last set, by node; nil when that is not known.
	applied map[string]*semaphorev1.Peer
	// routes and mtu are for status.
	mtu     int
	problem string
	// lookedAt is when the device was last looked at as a whole.
	lookedAt time.Time
}

// work is what waits to be done.
type work struct {
	networks map[string]bool
	peers    map[string]map[string]bool
	// healing are networks to look at because of something the kernel told.
	healing map[string]bool
}

func newWork() work {
	return work{networks: map[string]bool{}, peers: map[string]map[string]bool{}, healing: map[string]bool{}}
}

func (w work) add(d desired.Dirty) {
	maps.Copy(w.networks, d.Networks)
	for cluster, nodes := range d.Peers {
		if w.peers[cluster] == nil {
			w.peers[cluster] = map[string]bool{}
		}
		maps.Copy(w.peers[cluster], nodes)
	}
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
	epoch, revision := a.state.Resume()
	a.reported = a.report()
	return []*semaphorev1.AttachRequest{
		attach.Hello(epoch, revision),
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
		a.attached, a.since, a.lastError = true, time.Now(), ""
		a.recorder.SetNode(m.Attached.GetNode())
		how := "with the whole state"
		if m.Attached.GetResumed() {
			how = "going on"
		}
		a.recorder.Record(debug.Event{Source: a.cfg.Cluster, Object: "broker " + a.cfg.Cluster, Action: "connect", Detail: how})
		slog.Info("attached", "node", m.Attached.GetNode(), "how", how)
	case *semaphorev1.AttachResponse_Changes:
		for _, c := range m.Changes.GetChanges() {
			a.recorder.Record(eventOf(c))
		}
	}
	a.dirty.add(d)
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
	a.mu.Lock()
	defer a.mu.Unlock()
	was, told := a.attached, a.lastError == err.Error()
	if was {
		a.attached, a.since = false, time.Now()
	}
	a.lastError = err.Error()
	if was || !told {
		a.recorder.Record(debug.Event{Source: a.cfg.Cluster, Object: "broker " + a.cfg.Cluster, Action: "disconnect", Detail: err.Error()})
		slog.Warn("not attached; what stands stays; trying again", "broker", a.cfg.Broker.Address, "error", err)
	}
}

// changedByKernel marks the network whose device or routes someone, perhaps we, changed.
func (a *agent) changedByKernel(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, cluster := range a.state.Clusters() {
		if naming.Device(cluster) == name {
			a.dirty.healing[cluster] = true
			a.poke()
		}
	}
}

// program keeps the node as it is wanted, until ctx ends.
func (a *agent) program(ctx context.Context) error {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	heal := time.NewTimer(0)
	defer heal.Stop()
	for {
		everything := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.wake:
		case <-heal.C:
		case <-tick.C:
			everything = true
		}
		if later := a.round(ctx, everything); later > 0 {
			heal.Reset(later)
		}
	}
}

// round does what waits. It returns after what time there is something to heal that was looked at only
// just now; 0 for nothing.
func (a *agent) round(ctx context.Context, everything bool) (later time.Duration) {
	todo, want, revision := a.take(everything, &later)
	for cluster := range todo.networks {
		a.whole(ctx, cluster, want[cluster])
	}
	for cluster, nodes := range todo.peers {
		if n := want[cluster]; n != nil && !todo.networks[cluster] {
			a.single(ctx, cluster, n, nodes)
		}
	}
	a.tell(revision)
	return later
}

// take takes what waits, with what is wanted of it.
func (a *agent) take(everything bool, later *time.Duration) (todo work, want map[string]*desired.Network, revision uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	todo, a.dirty = a.dirty, newWork()
	for cluster := range todo.healing {
		if n := a.networks[cluster]; n != nil && !todo.networks[cluster] {
			if since := time.Since(n.lookedAt); since < healGap {
				a.dirty.healing[cluster] = true
				*later = healGap - since
				continue
			}
		}
		todo.networks[cluster] = true
	}
	if everything {
		for _, cluster := range a.state.Clusters() {
			todo.networks[cluster] = true
		}
	}
	want = map[string]*desired.Network{}
	for _, cluster := range a.state.Clusters() {
		if todo.networks[cluster] || todo.peers[cluster] != nil {
			n := a.state.Network(cluster)
			// The stream goes on meanwhile; messages themselves never change.
			want[cluster] = &desired.Network{Device: n.Device, Peers: maps.Clone(n.Peers)}
		}
	}
	return todo, want, a.state.Revision()
}

// tell says to the broker what is done and how the devices stand, where that is news.
func (a *agent) tell(revision uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.attached || !a.state.Current() {
		return
	}
	a.programmed = true
	a.metrics.appliedRevision.Set(float64(revision))
	a.stream.Send(&semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Applied{Applied: &semaphorev1.Applied{Revision: revision}}})
	if report := a.report(); !proto.Equal(report, a.reported) {
		a.stream.Send(&semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Report{Report: report}})
		a.reported = report
	}
}

// report is how the devices stand. It is called with mu held.
func (a *agent) report() *semaphorev1.AgentReport {
	r := &semaphorev1.AgentReport{}
	for _, cluster := range a.state.Clusters() {
		if n := a.networks[cluster]; n != nil {
			r.Devices = append(r.Devices, n.report)
		}
	}
	return r
}

// ready is nil once the node stands as the broker wants it.
func (a *agent) ready() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.programmed {
		if a.lastError != "" {
			return fmt.Errorf("never attached to the broker: %s", a.lastError)
		}
		return errors.New("the broker has not said yet what it wants")
	}
	return nil
}
