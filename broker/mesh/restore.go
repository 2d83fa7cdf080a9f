package mesh

import (
	"maps"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// restored are the nodes of a remote that were peers under the broker before, and of which the remote has not told anything yet that
// makes them peers again. They have their keys and pod CIDRs, so that nobody takes these who happens to be heard first, and they are
// the measure of what the remote's first snapshot withdraws.
type restored struct {
	// nodes lead to what the remote has told of them instead: that they have no key or no pod CIDR; nil for nothing.
	nodes map[string]*semaphorev1.Node
	// stood is how many peers there were, since when the brake holds those that are left; zero for not.
	stood int
	since time.Time
}

// Restore takes who was a peer of a remote under the broker before, by the names of the nodes. It is called before anything is Set.
func (p *Plan) Restore(cluster string, peers map[string]*semaphorev1.Node) {
	i := p.index(cluster)
	if i < 0 {
		return // it was taken out of the configuration
	}
	for node, state := range peers {
		p.set(i, node, state)
	}
	p.remotes[i].restored = restored{nodes: make(map[string]*semaphorev1.Node, len(peers)), stood: len(peers)}
	for node := range peers {
		p.remotes[i].restored.nodes[node] = nil
	}
}

// keeps says whether a node stays as it was restored though the remote tells something else of it, until Heard decides on that.
func (r *restored) keeps(node string, state *semaphorev1.Node) bool {
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

// HeldBack are the peers of a remote that its first snapshot would take away and that stay for now.
type HeldBack struct {
	// Peers that stay, Of as many as there were, Since when.
	Peers, Of int
	Since     time.Time
}

// Heard says that a whole snapshot of a remote's nodes was Set: what was restored and is not in it has gone, unless that is most of what
// there was. Then it stays until a snapshot that comes brake.Hold later, or Release. It returns whether that has begun just now.
func (p *Plan) Heard(cluster string, brake config.Brake, now time.Time) (begins bool) {
	i := p.index(cluster)
	if i < 0 {
		return false
	}
	r := &p.remotes[i].restored
	if brake.Brakes(len(r.nodes), r.stood) && (r.since.IsZero() || now.Sub(r.since) < brake.Hold.Duration) {
		begins = r.since.IsZero()
		if begins {
			r.since = now
		}
		return begins
	}
	p.Release(cluster)
	return false
}

// Release lets go what was restored of a remote and is held back, and returns how many peers that are.
func (p *Plan) Release(cluster string) int {
	i := p.index(cluster)
	if i < 0 {
		return 0
	}
	all := p.remotes[i].restored.nodes
	p.remotes[i].restored = restored{}
	for _, node := range slices.Sorted(maps.Keys(all)) {
		p.set(i, node, all[node])
	}
	return len(all)
}

// HeldBack is what is held back of a remote.
func (p *Plan) HeldBack(cluster string) HeldBack {
	i := p.index(cluster)
	if i < 0 || p.remotes[i].restored.since.IsZero() {
		return HeldBack{}
	}
	r := p.remotes[i].restored
	return HeldBack{Peers: len(r.nodes), Of: r.stood, Since: r.since}
}
