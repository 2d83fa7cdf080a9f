// Package plans joins what the remotes export to what is written: it keeps the pure plans (mesh, mirror, policy)
// beside the lock that guards them. Changes of replicas go in (it is the federation server's Sink), the loops
// are woken for what they touch, and ask back what is wanted.
//
// It is also where fail-static is decided: something is gone only if it is wanted by nobody and the cluster
// it came from has been heard whole, or is no longer configured. It starts no goroutine and writes nothing.
package plans

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/drain"
	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Loop is a loop that writes objects of one type; see apply.Objects.
type Loop interface {
	// Mark asks for a name to be looked at, because of a change in cluster that was seen there at observedAt.
	Mark(name, cluster string, observedAt time.Time)
	// Wake asks for a name to be looked at.
	Wake(name string)
	// WakeOwned asks for all objects that came from cluster to be looked at.
	WakeOwned(cluster string)
	// WakeAll asks for all objects of ours, and all that are wanted, to be looked at.
	WakeAll()
	// Synced says whether what is there is known.
	Synced() bool
	// Owned are the names of all objects of ours that are there and came from cluster; ok is false while what is
	// there is not known.
	Owned(cluster string) (names []string, ok bool)
}

// Peers takes what changes of the meshes; see peering.State.
type Peers interface {
	Update(cluster string, c mesh.Changes, observedAt map[string]time.Time)
}

// Plans are those of one broker. Its methods may be called from any goroutine.
type Plans struct {
	features config.Features
	// configured are the remotes, and the own cluster where its exporter is taken; own is its name then, else empty.
	configured map[string]bool
	own        string
	peers      Peers
	warn       Warn
	now        func() time.Time

	guard *guard

	mu sync.RWMutex
	// complete counts the snapshots that were taken over, by cluster and kind.
	complete map[string]map[semaphorev1.Kind]int
	mesh     *mesh.Plan
	mirror   *mirror.Plan
	sets     []*sets
	// drains are as operators wrote them.
	drains drain.Set

	// peerProblems, serviceProblems and setProblems are what is wrong by the plans; readers take no lock.
	peerProblems, serviceProblems problem.Board

	// loops are woken, nil for features that are off.
	loops Loops
}

// Warn has an Event written about a remote: reason is a word, note a sentence. Of one topic one Event is written for a while.
type Warn func(cluster, topic, reason, note string)

// publish shows what is wrong by a plan, and warns of what is new.
func (p *Plans) publish(of *problem.Set, board *problem.Board) {
	added, changed := of.Take()
	board.Publish(changed)
	for _, is := range added {
		p.warn(is.Cluster, is.Reason+" "+is.Object+" "+is.Code, is.Reason, is.Text)
	}
}

// New makes the plans of a broker that has heard nothing yet. Refusals and collisions are told to warn, for a
// person to see: a reason of one word and a sentence.
// now is the clock, time.Now but in a simulation.
func New(cfg *config.Broker, peers Peers, warn Warn, now func() time.Time) *Plans {
	p := &Plans{
		now:        now,
		features:   cfg.Features,
		configured: map[string]bool{},
		peers:      peers,
		warn:       warn,
		guard:      newGuard(cfg.Brake, now, warn),
		complete:   map[string]map[semaphorev1.Kind]int{},
		mesh:       mesh.New(cfg.Remotes),
		mirror:     mirror.New(cfg),
		sets:       newSets(cfg),
	}
	for _, r := range cfg.Remotes {
		p.configured[r.Name] = true
		p.complete[r.Name] = map[semaphorev1.Kind]int{}
	}
	if own := cfg.Own(); own != nil {
		p.own = own.Name
		p.configured[own.Name] = true
		p.complete[own.Name] = map[semaphorev1.Kind]int{}
	}
	return p
}

// Loops are those that carry out the plans; nil for one whose feature is off.
type Loops struct{ Services, Slices, Sets, NetworkSets Loop }

// Wake says which loops to wake. It is called once, before anything runs: the loops themselves are made with what the
// plans want.
func (p *Plans) Wake(loops Loops) {
	p.loops = loops
	for _, s := range p.sets {
		if s.loop = loops.Sets; s.namespaced {
			s.loop = loops.NetworkSets
		}
	}
}

// Take implements federation.Sink.
func (p *Plans) Take(cluster string, r replica.Result) {
	for _, refused := range r.Refused {
		p.warn(cluster, "Refused "+refused.Key.String(), "Refused", fmt.Sprintf("%s of cluster %s: %s (%s)", refused.Key, cluster, refused.Reason, refused.Code))
	}
	for _, h := range r.HeldBack {
		if h.Objects == h.Total { // those that follow belong to the same withdrawal
			p.warn(cluster, "HeldBack "+semaphorev1.KindName(h.Kind), "HeldBack", fmt.Sprintf("cluster %s has withdrawn so many %ss that %d of %d stay until it says so again, or `semaphorectl brake release %s`",
				cluster, semaphorev1.KindName(h.Kind), h.Total, h.Of, cluster))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Contains(replica.Kinds, r.Completed) { // of others there are any number
		p.complete[cluster][r.Completed]++
	}
	if p.features.Has(config.Encryption) {
		p.takeNodes(cluster, r)
	}
	if p.features.Has(config.Services) {
		p.takeServices(cluster, r)
	}
	if p.features.Has(config.Policy) {
		p.takeSets(cluster, r)
	}
}

func (p *Plans) takeNodes(cluster string, r replica.Result) {
	observedAt := map[string]time.Time{}
	drained := false
	for _, c := range r.Changes {
		if c.Key.Kind == semaphorev1.Kind_KIND_NODE {
			observedAt[c.Key.Name] = c.ObservedAt
			p.mesh.Set(cluster, c.Key.Name, c.New.GetNode())
			drained = drained || p.drains.Node(cluster, c.Key.Name)
		}
	}
	if r.Completed == semaphorev1.Kind_KIND_NODE {
		p.heardNodes(cluster)
	}
	p.tellPeers(cluster, observedAt)
	if drained {
		p.drain()
	}
}

// LocalNode takes what the mesh must know of a node of the own cluster: the public keys of its devices and its
// addresses; none of either when it has gone.
func (p *Plans) LocalNode(name string, keys [][]byte, addresses []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mesh.SetLocal(name, keys, addresses)
	p.tellPeers("", nil)
}

// PodCIDRs are those that a remote says its node has; none for a node that is not known.
func (p *Plans) PodCIDRs(cluster, node string) []string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.mesh.PodCIDRs(cluster, node)
}

// tellPeers tells what differs of the meshes. observedAt is of the nodes of one cluster, the source: what it changed of
// others was seen nowhere else. What differs of a remote that is not known whole waits until it is.
func (p *Plans) tellPeers(source string, observedAt map[string]time.Time) {
	changes := p.mesh.Update()
	p.publish(p.mesh.Problems(), &p.peerProblems)
	for _, changed := range changes {
		if p.complete[changed][semaphorev1.Kind_KIND_NODE] == 0 {
			continue
		}
		c := p.mesh.Take(changed)
		if changed == source {
			p.peers.Update(changed, c, observedAt)
		} else {
			p.peers.Update(changed, c, nil)
		}
	}
}

// gone says whether what is not wanted of cluster can be known to be gone. An object of ours that does not say where it
// came from (its label was taken off by hand) is gone when it can be of no remote.
func (p *Plans) gone(cluster string, kinds ...semaphorev1.Kind) bool {
	if cluster == "" {
		for remote := range p.configured {
			if p.tells(remote, kinds[0]) && !p.gone(remote, kinds...) {
				return false
			}
		}
		return true
	}
	return !p.configured[cluster] || p.snapshots(cluster, kinds...) > 0
}

// tells says whether a cluster is asked of a kind: the own one of services only.
func (p *Plans) tells(cluster string, kind semaphorev1.Kind) bool {
	return cluster != p.own || kind == semaphorev1.Kind_KIND_SERVICE || kind == semaphorev1.Kind_KIND_ENDPOINT_SLICE
}

// snapshots is how many of cluster were taken over of each of the kinds.
func (p *Plans) snapshots(cluster string, kinds ...semaphorev1.Kind) int {
	n := p.complete[cluster][kinds[0]]
	for _, kind := range kinds[1:] {
		n = min(n, p.complete[cluster][kind])
	}
	return n
}

// held says whether what is there of a cluster and is not wanted has to stay; see guard. It is called without the lock.
func (p *Plans) held(cluster, kind string, loop Loop, wanted func() []string, kinds ...semaphorev1.Kind) bool {
	p.mu.RLock()
	ask := p.configured[cluster]
	snapshots := p.snapshots(cluster, kinds...)
	p.mu.RUnlock()
	if !ask {
		return false // the operator's word
	}
	return p.guard.holds(cluster, kind, snapshots, func() (int, int, bool) {
		there, ok := loop.Owned(cluster)
		if !ok {
			return 0, 0, false
		}
		p.mu.RLock()
		names := map[string]bool{}
		for _, name := range wanted() {
			names[name] = true
		}
		p.mu.RUnlock()
		withdrawn := 0
		for _, name := range there {
			if !names[name] {
				withdrawn++
			}
		}
		return withdrawn, len(there), true
	})
}

// answer is the three-valued answer of one name: what is wanted, if anything, and whose object is there.
func answer[T apply.Object](p *Plans, want T, wanted bool, owner string, held bool, kinds ...semaphorev1.Kind) apply.Answer[T] {
	known := !held && p.gone(owner, kinds...)
	switch {
	case wanted && (owner == "" || owner == want.GetLabels()[naming.LabelSourceCluster] || known):
		return apply.Answer[T]{Verdict: apply.Present, Object: want}
	case !wanted && known:
		return apply.Answer[T]{Verdict: apply.Absent}
	}
	// Either nothing is known of the name, or it is another remote's that may want it still.
	return apply.Answer[T]{Verdict: apply.Unknown}
}

// Due says whether another whole snapshot of a remote would let go what its first one seemed to withdraw.
func (p *Plans) Due(cluster string) bool {
	if p.peersDue(cluster) {
		return true
	}
	if !p.guard.due(cluster) {
		return false
	}
	// The loops ask for objects that are there; where a person has removed them all, nobody does.
	if p.features.Has(config.Services) {
		p.heldServices(cluster)
		p.heldSlices(cluster)
	}
	if p.features.Has(config.Policy) {
		for _, s := range p.sets {
			p.heldSets(s, cluster)
		}
	}
	return p.guard.due(cluster)
}

// Release lets go what the first snapshot of a remote withdrew and the brake holds, of some kinds or of all. It returns
// how many objects go, by the kind that they were made for.
func (p *Plans) Release(cluster string, kinds ...semaphorev1.Kind) map[semaphorev1.Kind]int {
	written := map[string]semaphorev1.Kind{
		"services":        semaphorev1.Kind_KIND_SERVICE,
		"endpointslices":  semaphorev1.Kind_KIND_ENDPOINT_SLICE,
		globalNetworkSets: semaphorev1.Kind_KIND_SET_MEMBER,
		networkSets:       semaphorev1.Kind_KIND_SET_MEMBER,
	}
	let := map[semaphorev1.Kind]int{}
	for name, n := range p.guard.release(cluster, func(name string) bool { return len(kinds) == 0 || slices.Contains(kinds, written[name]) }) {
		let[written[name]] += n
	}
	if n := p.releasePeers(cluster, kinds); n > 0 {
		let[semaphorev1.Kind_KIND_NODE] = n
	}
	for _, loop := range []Loop{p.loops.Services, p.loops.Slices, p.loops.Sets, p.loops.NetworkSets} {
		if loop != nil && len(let) > 0 {
			loop.WakeOwned(cluster)
		}
	}
	return let
}

// Problems are what is wrong by the state of the replicas, a line each.
func (p *Plans) Problems() []string {
	p.mu.RLock()
	lines := p.heldPeers()
	p.mu.RUnlock()
	lines = slices.Concat(p.guard.problems(), lines, p.peerProblems.Lines(), p.serviceProblems.Lines())
	for _, s := range p.sets {
		lines = append(lines, s.problems.Lines()...)
	}
	return lines
}
