package mesh

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file handles peers that an earlier broker had: the brake also covers what a remote withdraws while brokers
// change.

// Restore sets the peers of each remote under the previous broker, by node name. It must be called before Take.
func (e *Engine) Restore(peers map[string]map[string]*semaphorev1.Node) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for cluster, nodes := range peers {
		e.plan.Restore(cluster, nodes)
	}
	e.plan.Update()
}

// Judge drops the peers of a remote under the previous broker that the remote has not confirmed and that are no longer
// admitted, as its bounds have changed.
func (e *Engine) Judge(cluster string, admitted func(node string, state *semaphorev1.Node) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.plan.JudgeRestored(cluster, admitted)
	e.update("", nil)
}

// nodesComplete decides which restored peers remain after a complete snapshot of a remote's nodes lacks them.
func (e *Engine) nodesComplete(cluster string) {
	if e.plan.NodesComplete(cluster, e.brake, e.now()) {
		retained := e.plan.Retained(cluster)
		e.warn(cluster, "HeldBack peers", finding.HeldBack, fmt.Sprintf("the first snapshot of cluster %s withdraws %d of "+
			"%d peers: the broker retains them %s", cluster, retained.Peers, retained.Total, e.brake.Until(cluster)))
	}
}

// ResyncDue reports whether another snapshot of a remote's nodes would release retained peers.
func (e *Engine) ResyncDue(cluster string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	retained := e.plan.Retained(cluster)
	return retained.Peers > 0 && e.now().Sub(retained.Since) >= e.brake.Hold.Duration
}

// Release removes the retained peers of a remote, and returns their number.
func (e *Engine) Release(cluster string, kinds ...semaphorev1.Kind) map[semaphorev1.Kind]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	released := map[semaphorev1.Kind]int{}
	if len(kinds) > 0 && !slices.Contains(kinds, kindNode) || e.plan.Retained(cluster).Peers == 0 {
		return released
	}
	released[kindNode] = e.plan.Release(cluster)
	e.update("", nil)
	return released
}

// retainedFindings returns one finding for each remote with retained peers.
func (e *Engine) retainedFindings() (found []finding.Finding) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, cluster := range e.names {
		if retained := e.plan.Retained(cluster); retained.Peers > 0 {
			found = append(found, finding.Line(finding.HeldBack, cluster, fmt.Sprintf(
				"retained since %s, %s: cluster %s no longer exports %d of the %d peers that an earlier broker had of it",
				retained.Since.UTC().Format(time.RFC3339), e.brake.Until(cluster), cluster, retained.Peers,
				retained.Total))...)
		}
	}
	return found
}

var (
	retainedDesc = prometheus.NewDesc("semaphore_broker_peers_held_back",
		"Peers that an earlier broker had of a remote, which its first snapshot withdraws and the brake retains.",
		[]string{"cluster"}, nil)
	nodeClaimsDesc = prometheus.NewDesc("semaphore_broker_node_claims",
		"Keys and addresses of peers that own nodes claim without getting them: the ten nodes with most of them, and the "+
			"rest as others.", []string{"node"}, nil)
)

// maxClaimants is the number of nodes that the metric names: a kubelet decides what its node claims.
const maxClaimants = 10

// collectRetained collects the metrics of retained peers and of nodes' claims.
func (e *Engine) collectRetained(ch chan<- prometheus.Metric) {
	e.mu.Lock()
	held := map[string]int{}
	for _, cluster := range e.names {
		held[cluster] = e.plan.Retained(cluster).Peers
	}
	claims := e.plan.NodeClaims()
	e.mu.Unlock()
	for cluster, n := range held {
		ch <- prometheus.MustNewConstMetric(retainedDesc, prometheus.GaugeValue, float64(n), cluster)
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
