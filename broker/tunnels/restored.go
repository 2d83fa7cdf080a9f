package tunnels

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file is about the peers of the broker before: what is withdrawn while the broker changes is held back like anything else.

// Restore takes who was a peer of each remote under the broker before, by the names of nodes. It is called before anything is taken.
func (e *Engine) Restore(peers map[string]map[string]*semaphorev1.Node) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for cluster, nodes := range peers {
		e.plan.Restore(cluster, nodes)
	}
	e.plan.Update()
}

// heard decides what becomes of the peers that were restored and are not in a whole snapshot of a remote's nodes.
func (e *Engine) heard(cluster string) {
	if e.plan.Heard(cluster, e.brake, e.now()) {
		held := e.plan.HeldBack(cluster)
		e.warn(cluster, "HeldBack peers", "HeldBack", fmt.Sprintf("the first snapshot of cluster %s withdraws %d of %d peers: they stay until a snapshot in %s or later says so too, or `semaphorectl brake release %s`",
			cluster, held.Peers, held.Of, e.brake.Hold, cluster))
	}
}

// ResyncDue says whether another snapshot of a remote's nodes would let peers go that are held back.
func (e *Engine) ResyncDue(cluster string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	held := e.plan.HeldBack(cluster)
	return held.Peers > 0 && e.now().Sub(held.Since) >= e.brake.Hold.Duration
}

// Release lets go what the first snapshot of a remote withdrew and the brake holds, and returns how many peers go.
func (e *Engine) Release(cluster string, kinds ...semaphorev1.Kind) map[semaphorev1.Kind]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	released := map[semaphorev1.Kind]int{}
	if len(kinds) > 0 && !slices.Contains(kinds, kindNode) || e.plan.HeldBack(cluster).Peers == 0 {
		return released
	}
	released[kindNode] = e.plan.Release(cluster)
	e.update("", nil)
	return released
}

// heldPeers are the peers that are held back, a line for each remote.
func (e *Engine) heldPeers() (lines []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, cluster := range e.names {
		if held := e.plan.HeldBack(cluster); held.Peers > 0 {
			lines = append(lines, fmt.Sprintf("held back since %s: cluster %s exports no more %d of the %d peers that an earlier broker had of it; they go when a snapshot says so again, or by `semaphorectl brake release %s`",
				held.Since.UTC().Format(time.RFC3339), cluster, held.Peers, held.Of, cluster))
		}
	}
	return lines
}

var (
	heldPeersDesc = prometheus.NewDesc("semaphore_broker_peers_held_back",
		"Peers that an earlier broker had of a remote, that its first snapshot withdraws and the brake holds.", []string{"cluster"}, nil)
	nodeClaimsDesc = prometheus.NewDesc("semaphore_broker_node_claims",
		"Keys and addresses of peers that nodes of the own cluster claim for themselves and do not get: the ten nodes with most of them, and the rest as others.", []string{"node"}, nil)
)

// maxClaimants is how many nodes are shown by name: a kubelet decides what its node claims.
const maxClaimants = 10

// collectStanding writes the metrics of who had what first.
func (e *Engine) collectStanding(ch chan<- prometheus.Metric) {
	e.mu.Lock()
	held := map[string]int{}
	for _, cluster := range e.names {
		held[cluster] = e.plan.HeldBack(cluster).Peers
	}
	claims := e.plan.NodeClaims()
	e.mu.Unlock()
	for cluster, n := range held {
		ch <- prometheus.MustNewConstMetric(heldPeersDesc, prometheus.GaugeValue, float64(n), cluster)
	}
	nodes := slices.SortedFunc(maps.Keys(claims), func(a, b string) int { return cmp.Or(cmp.Compare(claims[b], claims[a]), cmp.Compare(a, b)) })
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
