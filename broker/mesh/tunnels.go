package mesh

// Engine is the engine of encryption: it decides which WireGuard devices and peers the own nodes need, from
// the nodes that remotes export.
//
// Its input are changes of replicas, from a queue that serves the remotes in turn, and the own cluster's nodes. It
// passes changes to the agents' streams, and reports problems. The engine owns its state, behind one lock that it holds
// for a part of a message at a time.

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const kindNode = semaphorev1.Kind_KIND_NODE

// Peers receives the changes of devices and peers; see peering.State.
type Peers interface {
	Update(cluster string, c Changes, observedAt map[string]time.Time)
	// Remove removes the device and all peers of a remote that is no longer configured.
	Remove(cluster string)
}

// Engine is the engine of one broker. Its methods are safe for concurrent use.
type Engine struct {
	peers    Peers
	warn     problem.Warn
	queue    *replica.Queue
	problems problem.Board

	mu   sync.Mutex
	plan *Plan
	// complete are the remotes whose nodes were complete once.
	complete map[string]bool
}

func NewEngine(cfg *config.Broker, peers Peers, warn problem.Warn) *Engine {
	return &Engine{peers: peers, warn: warn, queue: replica.NewQueue(split, kindNode), plan: New(cfg.Remotes),
		complete: map[string]bool{}}
}

// Follow replaces the configured remotes. The decisions about those that remain continue, a new remote begins without
// nodes, and the device of a missing one is removed.
func (e *Engine) Follow(remotes []config.Remote) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range e.plan.Follow(remotes) {
		delete(e.complete, name)
		e.peers.Remove(name)
	}
	e.update("", nil)
}

// split splits the changes of one message: each part is published separately.
func split(changes []replica.Change) [][]replica.Change {
	return slices.Collect(slices.Chunk(changes, 256))
}

func (e *Engine) Queue() *replica.Queue { return e.queue }

// Remind repeats the warnings about problems for which there was no room.
func (e *Engine) Remind() { e.problems.Remind(e.warn) }

func (e *Engine) Run(ctx context.Context) error {
	return e.queue.Run(ctx, e.Take, func() time.Time { return time.Time{} }, nil)
}

func (e *Engine) Take(p replica.Part) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.plan.index(p.Cluster) < 0 {
		return // it was removed with this in the queue
	}
	if p.Completed == kindNode {
		e.complete[p.Cluster] = true
	}
	observedAt := map[string]time.Time{}
	for _, c := range p.Changes {
		observedAt[c.Key.Name] = c.ObservedAt
		e.plan.SetNode(p.Cluster, c.Key.Name, c.New.GetNode())
	}
	e.update(p.Cluster, observedAt)
}

func (e *Engine) Nodes(cluster string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.plan.Nodes(cluster)
}

// LocalNode sets the public keys and addresses of an own node; none of either if it was deleted.
func (e *Engine) LocalNode(name string, keys [][]byte, addresses []netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.plan.SetOwnNode(name, keys, addresses) {
		e.update("", nil)
	}
}

// LocalCalls sets the remotes that an own node calls, none if it was deleted.
func (e *Engine) LocalCalls(name string, calls []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.plan.SetOwnCalls(name, calls) {
		e.update("", nil)
	}
}

func (e *Engine) LocalNodesKnown() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.plan.KnowOwnNodes()
	e.update("", nil)
}

// update publishes the changes of all remotes. observedAt belongs to the nodes of one cluster, the source; changes of
// others follow from it and were observed nowhere else. Changes of a remote wait until its nodes are complete.
func (e *Engine) update(source string, observedAt map[string]time.Time) {
	changes := e.plan.Update()
	e.problems.Take(e.plan.Problems(), e.warn)
	for _, changed := range changes {
		if !e.complete[changed] {
			continue
		}
		if c := e.plan.TakeChanges(changed); changed == source {
			e.peers.Update(changed, c, observedAt)
		} else {
			e.peers.Update(changed, c, nil)
		}
	}
}

// Findings are the nodes that lost something to another node.
func (e *Engine) Findings() []finding.Finding { return e.problems.Findings() }

var (
	peerProblems = prometheus.NewDesc("semaphore_broker_peer_problems",
		"Problems of a remote's nodes: keys, pod CIDRs and addresses that belong to another node, or are missing.",
		[]string{"cluster"}, nil)
	nodeClaimsDesc = prometheus.NewDesc("semaphore_broker_node_claims",
		"Keys and addresses of peers that own nodes claim without getting them: the ten nodes with most of them, and the "+
			"rest as others.", []string{"node"}, nil)
)

// maxClaimants is the number of nodes that the metric names: a kubelet decides what its node claims.
const maxClaimants = 10

func (e *Engine) Describe(ch chan<- *prometheus.Desc) {
	ch <- peerProblems
	ch <- nodeClaimsDesc
}

func (e *Engine) Collect(ch chan<- prometheus.Metric) {
	e.mu.Lock()
	names, claims := e.plan.Names(), e.plan.NodeClaims()
	e.mu.Unlock()
	for _, cluster := range names { // also zeros, so that the metric exists
		ch <- prometheus.MustNewConstMetric(peerProblems, prometheus.GaugeValue,
			float64(e.problems.Of(cluster).Counts[finding.PeerRefused]), cluster)
	}
	nodes := slices.SortedFunc(maps.Keys(claims),
		func(a, b string) int { return cmp.Or(cmp.Compare(claims[b], claims[a]), cmp.Compare(a, b)) })
	others := 0
	for i, node := range nodes {
		if i >= maxClaimants {
			others += claims[node]
			continue
		}
		ch <- prometheus.MustNewConstMetric(nodeClaimsDesc, prometheus.GaugeValue, float64(claims[node]), node)
	}
	ch <- prometheus.MustNewConstMetric(nodeClaimsDesc, prometheus.GaugeValue, float64(others), "others")
}
