// Package tunnels is the engine of encryption: it takes what remotes export of their nodes, and says which WireGuard devices and peers the nodes of the
// own cluster need.
//
// In go changes of replicas, from a queue that takes the remotes in turn, and the nodes of the own cluster. Out goes what differs, to the streams of
// agents; and problems. An engine owns its state, behind one lock that is held for a part of a message at a time.
package tunnels

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/queue"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const kindNode = semaphorev1.Kind_KIND_NODE

// Peers takes what changes of the meshes; see peering.State.
type Peers interface {
	Update(cluster string, c mesh.Changes, observedAt map[string]time.Time)
}

// Engine is that of one broker. Its methods may be called from any goroutine.
type Engine struct {
	peers    Peers
	warn     apply.Warn
	brake    config.Brake
	now      func() time.Time
	queue    *queue.Queue
	problems problem.Board
	names    []string // of the remotes, sorted

	mu   sync.Mutex
	plan *mesh.Plan
	// complete are the remotes of which all nodes were heard.
	complete map[string]bool
}

// New makes the engine of a broker that has heard nothing yet. now is the clock, time.Now but in a simulation.
func New(cfg *config.Broker, peers Peers, warn apply.Warn, now func() time.Time) *Engine {
	e := &Engine{peers: peers, warn: warn, brake: cfg.Brake, now: now, queue: queue.New(cut, kindNode), plan: mesh.New(cfg.Remotes), complete: map[string]bool{}}
	for _, r := range cfg.Remotes {
		e.names = append(e.names, r.Name)
	}
	slices.Sort(e.names)
	return e
}

// cut takes the changes of one message apart: each part is published as one.
func cut(changes []replica.Change) [][]replica.Change {
	return slices.Collect(slices.Chunk(changes, 256))
}

// Queue is where what streams led to waits for the engine.
func (e *Engine) Queue() *queue.Queue { return e.queue }

// Run takes what waits until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	return e.queue.Run(ctx, e.Take, func() time.Time { return time.Time{} }, nil)
}

// Take applies a part of what a message led to.
func (e *Engine) Take(p queue.Part) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p.Completed == kindNode {
		e.complete[p.Cluster] = true
	}
	observedAt := map[string]time.Time{}
	for _, c := range p.Changes {
		observedAt[c.Key.Name] = c.ObservedAt
		e.plan.Set(p.Cluster, c.Key.Name, c.New.GetNode())
	}
	if p.Completed == kindNode {
		e.heard(p.Cluster)
	}
	e.update(p.Cluster, observedAt)
}

// LocalNode takes what the mesh must know of a node of the own cluster: the public keys of its devices and its
// addresses; none of either when it has gone.
func (e *Engine) LocalNode(name string, keys [][]byte, addresses []netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.plan.SetLocal(name, keys, addresses) {
		e.update("", nil)
	}
}

// update publishes what differs of the meshes. observedAt is of the nodes of one cluster, the source: what it changed of
// others was seen nowhere else. What differs of a remote that is not known whole waits until it is.
func (e *Engine) update(source string, observedAt map[string]time.Time) {
	changes := e.plan.Update()
	e.problems.Take(e.plan.Problems(), e.warn)
	for _, changed := range changes {
		if !e.complete[changed] {
			continue
		}
		if c := e.plan.Take(changed); changed == source {
			e.peers.Update(changed, c, observedAt)
		} else {
			e.peers.Update(changed, c, nil)
		}
	}
}

// Problems are what is held back, a line each, and some of what is wrong with each remote's nodes.
func (e *Engine) Problems() []string { return append(e.heldPeers(), e.problems.Lines()...) }

var peerProblems = prometheus.NewDesc("semaphore_broker_peer_problems",
	"What nodes of a remote claim (keys, pod CIDRs, addresses) and do not have, as it is another's, or lack.", []string{"cluster"}, nil)

// Describe implements prometheus.Collector.
func (e *Engine) Describe(ch chan<- *prometheus.Desc) {
	ch <- peerProblems
	ch <- heldPeersDesc
	ch <- nodeClaimsDesc
}

// Collect implements prometheus.Collector.
func (e *Engine) Collect(ch chan<- prometheus.Metric) {
	for _, cluster := range e.names { // also those of 0, so that it can be seen
		ch <- prometheus.MustNewConstMetric(peerProblems, prometheus.GaugeValue, float64(e.problems.Of(cluster).Counts[""]), cluster)
	}
	e.collectStanding(ch)
}
