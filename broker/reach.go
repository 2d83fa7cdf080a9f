package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// reachEvery is how often it is decided whether peers are everywhere, while one is not.
const reachEvery = 250 * time.Millisecond

// reaching tells the engine of Services to which pods tunnels lead. It exists where services and encryption are both
// on.
type reaching struct {
	services *services.Engine
	tunnels  *mesh.Engine
	state    *peering.State
	applied  func() []uint64

	mu      sync.Mutex
	remotes map[string]*reached
}

type reached struct {
	strict bool
	gate   choice.Gate
	// known is set once SetReach was called, for peers with this digest and with nodes or without.
	known   bool
	digest  streams.Digest
	nodes   bool
	waiting []string
	// applied is the least revision of all agents when it was last decided, at lookedAt, whether peers are everywhere.
	applied  uint64
	lookedAt time.Time
}

func newReaching(cfg *config.Broker, e engines, state *peering.State, applied func() []uint64) *reaching {
	r := &reaching{services: e.services, tunnels: e.tunnels, state: state, applied: applied}
	r.follow(cfg)
	return r
}

// follow takes the configured remotes. Those without strict encryption are reached without a tunnel, too. No agent has
// had a peer of a remote that is added while the broker works.
func (r *reaching) follow(cfg *config.Broker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.remotes
	r.remotes = map[string]*reached{}
	for _, remote := range cfg.Remotes {
		of := was[remote.Name]
		if of == nil || of.strict != (remote.Encryption == config.Strict) {
			added := was != nil && of == nil
			of = &reached{strict: remote.Encryption == config.Strict}
			var set *choice.Reachable
			if added && of.strict {
				set, _, _ = of.gate.Update(nil, nil, time.Now())
			}
			r.services.SetReach(remote.Name, set)
		}
		r.remotes[remote.Name] = of
	}
}

// restore takes the peers that the previous broker had of a remote, so that this one uses the same endpoints from the
// start. The tunnels of a remote of which none are stored are not known: all of its endpoints are used until they are.
func (r *reaching) restore(cluster string, peers []replica.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if of := r.remotes[cluster]; of != nil && of.strict && len(peers) > 0 {
		var all []choice.Peer
		for _, p := range peers {
			all = append(all, choice.Peer{Node: p.Key.Name, AllowedIPs: p.New.GetNode().GetPodCidrs()})
		}
		set, _, _ := of.gate.Update(all, nil, time.Now())
		r.services.SetReach(cluster, set)
	}
}

func (r *reaching) run(ctx context.Context) error {
	tick := time.NewTicker(reachEvery)
	defer tick.Stop()
	for {
		digests, changed := r.state.Digests()
		r.look(digests, time.Now())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-tick.C:
		}
	}
}

// look passes on what has changed. Without a change it costs a comparison for each remote.
func (r *reaching) look(digests map[string]streams.Digest, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var applied []uint64
	var least uint64
	for cluster, of := range r.remotes {
		is, complete := digests[cluster]
		nodes := r.tunnels.Nodes(cluster) > 0 // in the engine that completes them
		same := of.known && is == of.digest && nodes == of.nodes
		if !of.strict || !complete || same && len(of.waiting) == 0 {
			continue
		}
		if applied == nil {
			if applied = r.applied(); len(applied) > 0 {
				least = slices.Min(applied)
			}
		}
		if same && least == of.applied && now.Sub(of.lookedAt) < time.Second {
			continue // thousands of peers cost milliseconds
		}
		of.applied, of.lookedAt = least, now
		peers, complete := r.state.Published(cluster)
		if !complete {
			continue
		}
		set, changed, waiting := of.gate.Update(peers, applied, now)
		if len(peers) == 0 && !nodes {
			set = nil // it exports no nodes, so it has no encryption: it is reached without tunnels, or not at all
		}
		if changed || !of.known || nodes != of.nodes {
			r.services.SetReach(cluster, set)
		}
		of.known, of.digest, of.nodes, of.waiting = true, is, nodes, waiting
	}
}

const maxUnreachedNodes = 5

// findings names the nodes whose ready endpoints are not used, and why no tunnel leads to them. refused returns why
// nodes of a remote were refused.
func (r *reaching) findings(refused func(cluster string) map[string]string) (found []finding.Finding) {
	r.mu.Lock()
	waiting := map[string][]string{}
	for cluster, of := range r.remotes {
		if of.strict {
			waiting[cluster] = of.waiting
		}
	}
	r.mu.Unlock()
	all := r.services.Unreached()
	for _, cluster := range slices.Sorted(maps.Keys(waiting)) {
		nodes, keyless := all[cluster].Nodes, all[cluster].Keyless
		if len(nodes) == 0 {
			continue
		}
		var parts []string
		var total int
		why := refused(cluster)
		for _, node := range slices.Sorted(maps.Keys(nodes)) {
			if total += nodes[node]; len(parts) < maxUnreachedNodes {
				parts = append(parts, unreachedNode(node, why[node], keyless[node], slices.Contains(waiting[cluster], node)))
			}
		}
		if more := len(nodes) - len(parts); more > 0 {
			parts = append(parts, fmt.Sprintf("%d more", more))
		}
		found = append(found, finding.Line(finding.NoTunnel, cluster, fmt.Sprintf("%d ready endpoints of cluster %s are not "+
			"used, because no tunnel leads to them: %s", total, cluster, strings.Join(parts, "; ")))...)
	}
	return found
}

func unreachedNode(node, refused string, keyless, waits bool) string {
	switch {
	case node == "":
		return "addresses in no node's subnets"
	case refused != "":
		return fmt.Sprintf("node %s: it is refused: %s", node, refused)
	case keyless:
		return fmt.Sprintf("node %s: it has published no key: no agent runs there, or it has no InternalIP", node)
	case waits:
		return fmt.Sprintf("node %s: its peer is not set on every node here yet", node)
	}
	return fmt.Sprintf("node %s: it is no peer here: another node has its key, address or subnet", node)
}

// refusedNodes returns why nodes of a remote are refused, completely or in part.
func (b *broker) refusedNodes(cluster string) map[string]string {
	out := map[string]string{}
	for _, r := range b.Federation.RefusedOf(cluster) {
		if r.Key.Kind == semaphorev1.Kind_KIND_NODE {
			out[r.Key.Name] = fmt.Sprintf("%s (%s)", r.Reason, r.Code)
		}
	}
	return out
}
