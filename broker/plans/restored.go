package plans

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Restore takes who was a peer of each remote under the broker before, by the names of nodes. It is called before anything is Taken.
func (p *Plans) Restore(peers map[string]map[string]*semaphorev1.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for cluster, nodes := range peers {
		p.mesh.Restore(cluster, nodes)
	}
	p.mesh.Update()
}

// heardNodes decides what becomes of the peers that were restored and are not in a whole snapshot of a remote's nodes.
func (p *Plans) heardNodes(cluster string) {
	if p.mesh.Heard(cluster, p.guard.brake, p.now()) {
		held := p.mesh.HeldBack(cluster)
		p.warn(cluster, "HeldBack peers", "HeldBack", fmt.Sprintf("the first snapshot of cluster %s withdraws %d of %d peers: they stay until a snapshot in %s or later says so too, or `semaphorectl brake release %s`",
			cluster, held.Peers, held.Of, p.guard.brake.Hold, cluster))
	}
}

// peersDue says whether another snapshot of a remote's nodes would let peers go that are held back.
func (p *Plans) peersDue(cluster string) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	held := p.mesh.HeldBack(cluster)
	return held.Peers > 0 && p.now().Sub(held.Since) >= p.guard.brake.Hold.Duration
}

// releasePeers lets go what the first snapshot of a remote withdrew and the brake holds.
func (p *Plans) releasePeers(cluster string, kinds []semaphorev1.Kind) int {
	if len(kinds) > 0 && !slices.Contains(kinds, semaphorev1.Kind_KIND_NODE) {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mesh.HeldBack(cluster).Peers == 0 {
		return 0
	}
	n := p.mesh.Release(cluster)
	p.tellPeers("", nil)
	return n
}

// heldPeers are the peers that are held back, a line for each remote.
func (p *Plans) heldPeers() (lines []string) {
	for cluster := range p.configured {
		if held := p.mesh.HeldBack(cluster); held.Peers > 0 {
			lines = append(lines, fmt.Sprintf("held back since %s: cluster %s exports no more %d of the %d peers that an earlier broker had of it; they go when a snapshot says so again, or by `semaphorectl brake release %s`",
				held.Since.UTC().Format(time.RFC3339), cluster, held.Peers, held.Of, cluster))
		}
	}
	slices.Sort(lines)
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
func (p *Plans) collectStanding(ch chan<- prometheus.Metric) {
	p.mu.RLock()
	held := map[string]int{}
	for cluster := range p.configured {
		if cluster != p.own {
			held[cluster] = p.mesh.HeldBack(cluster).Peers
		}
	}
	claims := p.mesh.NodeClaims()
	p.mu.RUnlock()
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
