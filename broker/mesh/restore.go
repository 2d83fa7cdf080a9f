package mesh

import (
	"maps"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// restored are the nodes of a remote that were peers under the previous broker, and that the remote has not confirmed.
// They keep their keys and pod CIDRs, so that a remote that connects first cannot take them, and so that the brake can
// compare the remote's first snapshot with them.
type restored struct {
	// nodes has the state that the remote sent instead, without a key or pod CIDR, by node; nil if it sent none.
	nodes map[string]*semaphorev1.Node
	// total is how many peers there were. since is when the brake began to retain them; zero if it does not.
	total int
	since time.Time
}

// Restore sets the peers of a remote under the previous broker, by node name. It must be called before SetNode.
func (p *Plan) Restore(cluster string, peers map[string]*semaphorev1.Node) {
	i := p.index(cluster)
	if i < 0 {
		return // it was removed from the configuration
	}
	for node, state := range peers {
		p.setNode(i, node, state)
	}
	p.remotes[i].restored = restored{nodes: make(map[string]*semaphorev1.Node, len(peers)), total: len(peers)}
	for node := range peers {
		p.remotes[i].restored.nodes[node] = nil
	}
}

// JudgeRestored drops the restored peers of a remote for which admitted is false.
func (p *Plan) JudgeRestored(cluster string, admitted func(node string, state *semaphorev1.Node) bool) {
	i := p.index(cluster)
	if i < 0 {
		return
	}
	r := p.remotes[i]
	for _, node := range slices.Sorted(maps.Keys(r.restored.nodes)) {
		if sent := r.restored.nodes[node]; !admitted(node, r.nodes[node]) {
			delete(r.restored.nodes, node)
			p.setNode(i, node, sent)
		}
	}
}

// retains reports whether a node keeps its restored state until NodesComplete decides, although the remote sent a
// different one.
func (r *restored) retains(node string, state *semaphorev1.Node) bool {
	if _, is := r.nodes[node]; !is {
		return false
	}
	if state.GetWireguard() != nil && len(state.GetPodCidrs()) > 0 {
		delete(r.nodes, node)
		return false
	}
	r.nodes[node] = state
	return true
}

// Retained are the peers of a remote that its first snapshot lacks and the brake retains.
type Retained struct {
	// Peers is the number of retained peers, of Total, since Since.
	Peers, Total int
	Since        time.Time
}

// NodesComplete must be called after SetNode was called for a complete snapshot of a remote's nodes. It removes
// restored peers that the snapshot lacks, unless they are most of the total. Then they are retained until a snapshot
// at least brake.Hold later, or Release. It reports whether the brake begins to retain with this call.
func (p *Plan) NodesComplete(cluster string, brake config.Brake, now time.Time) (begins bool) {
	i := p.index(cluster)
	if i < 0 {
		return false
	}
	r := &p.remotes[i].restored
	if brake.Brakes(len(r.nodes), r.total) && (r.since.IsZero() || now.Sub(r.since) < brake.Hold.Duration) {
		begins = r.since.IsZero()
		if begins {
			r.since = now
		}
		return begins
	}
	p.Release(cluster)
	return false
}

// Release removes the retained peers of a remote, and returns their number.
func (p *Plan) Release(cluster string) int {
	i := p.index(cluster)
	if i < 0 {
		return 0
	}
	all := p.remotes[i].restored.nodes
	p.remotes[i].restored = restored{}
	for _, node := range slices.Sorted(maps.Keys(all)) {
		p.setNode(i, node, all[node])
	}
	return len(all)
}

// Retained returns the retained peers of a remote.
func (p *Plan) Retained(cluster string) Retained {
	i := p.index(cluster)
	if i < 0 || p.remotes[i].restored.since.IsZero() {
		return Retained{}
	}
	r := p.remotes[i].restored
	return Retained{Peers: len(r.nodes), Total: r.total, Since: r.since}
}
