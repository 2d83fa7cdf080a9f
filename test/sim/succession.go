package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
)

// This file is a simulation of its own: brokers that lead one after the other, nodes that are withdrawn while the
// leader changes, and the peers that agents have meanwhile. Real: replica with admission and the brake, tunnels, mesh,
// peering.State. Simulated: the store in which a broker keeps its peers for the next one, which lags, and the nodes,
// which have what the State of a broker sends of complete remotes.

// succession is one run of it.
type succession struct {
	seed    uint64
	rng     *rand.Rand
	now     time.Time
	step    int
	failure *Failure
	config  *config.Broker
	// truth are the nodes of each remote, by name; exported means that its exporter reads them, and emptied that it
	// reads them without keys.
	truth             map[string]map[string]*semaphorev1.Node
	exported, emptied map[string]bool
	revision          uint64

	state    *peering.State
	engine   *mesh.Engine
	replicas map[string]*replica.Replica
	heard    map[string]bool
	// kept is what the store has for the next broker; began with what the current one began.
	kept, began map[string]map[string]*semaphorev1.Node
	// peers are those of the agents' devices: the public keys, by remote and node.
	peers map[string]map[string]string
	// doubts are peers that the first snapshot of the current broker withdrew with most of their remote's, and since
	// when.
	doubts map[string]map[string]bool
	since  map[string]time.Time
}

// Succession runs one seed of it.
func Succession(seed uint64) *Failure {
	s := &succession{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		config: successionConfig,
		truth:  map[string]map[string]*semaphorev1.Node{}, exported: map[string]bool{}, emptied: map[string]bool{},
		kept: map[string]map[string]*semaphorev1.Node{}, peers: map[string]map[string]string{},
	}
	for i, r := range s.config.Remotes {
		s.truth[r.Name], s.exported[r.Name], s.peers[r.Name] = map[string]*semaphorev1.Node{}, true, map[string]string{}
		for n := range 3 + s.rng.IntN(6) {
			s.truth[r.Name][fmt.Sprint("n", n)] = s.node(i, n)
		}
	}
	s.lead()
	for s.step = range 120 {
		s.act()
		if s.failure != nil {
			return s.failure
		}
	}
	s.settle()
	return s.failure
}

var successionConfig = func() *config.Broker {
	c, err := described.Broker([]byte(`
cluster: d1
localSubnets: [10.1.0.0/16]
brake: {percent: 50, atLeast: 3, hold: 20s}
remotes:
- {name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [172.18.2.0/24], wireguard: {listenPort: 51822}}
- {name: c3, podSubnets: [10.3.0.0/16], nodeSubnets: [172.18.3.0/24], wireguard: {listenPort: 51823}}
`))
	if err != nil {
		panic(fmt.Sprintf("the broker's configuration: %v", err))
	}
	return c
}()

// node is a node of a remote, with a key that no other node has.
func (s *succession) node(remote, n int) *semaphorev1.Node {
	key := make([]byte, 32)
	key[0], key[1], key[2] = 9, byte(remote), byte(n)
	return &semaphorev1.Node{
		PodCidrs:  []string{fmt.Sprintf("10.%d.%d.0/24", 2+remote, n)},
		Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: key, Address: fmt.Sprintf("172.18.%d.%d:51820", 2+remote, 1+n)},
	}
}

func (s *succession) fail(invariant, format string, args ...any) {
	if s.failure == nil {
		s.failure = &Failure{Seed: s.seed, Step: s.step, Invariant: invariant, Problem: fmt.Sprintf(format, args...)}
	}
}

// lead makes a new broker lead. It knows what the store has.
func (s *succession) lead() {
	s.state = peering.NewState()
	s.engine = mesh.NewEngine(s.config, s.state, func(_, _ string, _ finding.Code, _ string) bool { return true })
	s.replicas, s.heard = map[string]*replica.Replica{}, map[string]bool{}
	s.doubts, s.since = map[string]map[string]bool{}, map[string]time.Time{}
	s.began = map[string]map[string]*semaphorev1.Node{}
	for i := range s.config.Remotes {
		r := &s.config.Remotes[i]
		s.replicas[r.Name] = replica.New(r.Name, "d1", "sim", admission.New(r, s.config.LocalPrefixes).Check)
		s.replicas[r.Name].SetLimits(r.Limits, s.config.Brake)
		s.began[r.Name] = maps.Clone(s.kept[r.Name])
		s.engine.Take(replica.Part{Cluster: r.Name,
			Changes: s.replicas[r.Name].Restore(semaphorev1.Kind_KIND_NODE, objectsOf(s.began[r.Name]))})
	}
}

// keep stores what agents receive of a remote, once the remote is complete.
func (s *succession) keep(remote string) {
	if !s.heard[remote] {
		return
	}
	s.kept[remote] = map[string]*semaphorev1.Node{}
	for _, p := range s.state.PeersOf(remote) {
		s.kept[remote][p.GetKey().GetNode()] = &semaphorev1.Node{PodCidrs: p.GetAllowedIps(), Wireguard: p.GetWireguard()}
	}
}

// exports returns the nodes as the exporter of a remote sends them now.
func (s *succession) exports(remote string) map[string]*semaphorev1.Node {
	if !s.exported[remote] {
		return nil
	}
	if !s.emptied[remote] {
		return s.truth[remote]
	}
	all := map[string]*semaphorev1.Node{}
	for name, n := range s.truth[remote] {
		all[name] = &semaphorev1.Node{PodCidrs: n.GetPodCidrs()}
	}
	return all
}

// tell sends the broker a complete snapshot of a remote's nodes.
func (s *succession) tell(remote string) {
	s.revision += 100
	all := s.exports(remote)
	if !s.heard[remote] {
		s.doubt(remote, all)
	}
	result, err := tellNodes(s.replicas[remote], remote, s.revision, s.now, objectsOf(all))
	if err != nil {
		s.fail("protocol", "the broker refuses a snapshot of %s: %v", remote, err)
		return
	}
	s.take(remote, result)
	s.heard[remote] = true
	// A snapshot that is repeated after the hold counts; a node that returns is no longer in doubt.
	if since := s.since[remote]; !since.IsZero() && s.now.Sub(since) >= s.config.Brake.Hold.Duration {
		delete(s.doubts, remote)
	}
	for name := range s.doubts[remote] {
		if all[name].GetWireguard() != nil {
			delete(s.doubts[remote], name)
		}
	}
	n, had := withKeys(all), len(s.began[remote])
	if !s.config.Brake.Brakes(had-n, had) && !s.config.Brake.Brakes(len(s.doubts[remote]), n+len(s.doubts[remote])) {
		delete(s.doubts, remote) // enough nodes returned that the rest is no mass withdrawal
	}
	s.follow()
}

// objectsOf are nodes as they are sent, in the order of their names.
func objectsOf(nodes map[string]*semaphorev1.Node) (all []*semaphorev1.Object) {
	for _, name := range sortedKeys(nodes) {
		all = append(all, &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_NODE, Name: name},
			Spec: &semaphorev1.Object_Node{Node: nodes[name]}})
	}
	return all
}

// tellNodes sends a replica a complete snapshot of a remote's nodes, in an epoch of its own, and returns what its end
// mark leads to.
func tellNodes(to *replica.Replica, remote string, revision uint64, now time.Time,
	nodes []*semaphorev1.Object) (result replica.Result, err error) {
	kind := semaphorev1.Kind_KIND_NODE
	changes := &semaphorev1.Changes{}
	for i, o := range nodes {
		changes.Changes = append(changes.Changes, &semaphorev1.Change{Revision: uint64(i + 1),
			Change: &semaphorev1.Change_Upsert{Upsert: o}})
	}
	session := to.Open()
	for _, m := range []*semaphorev1.PublishRequest{
		{Message: &semaphorev1.PublishRequest_Hello{Hello: &semaphorev1.Hello{Cluster: remote, ProtocolVersion: 1,
			MinProtocolVersion: 1,
			Epoch:              fmt.Sprint("e", revision), HeadRevision: revision, Kinds: []semaphorev1.Kind{kind}}}},
		{Message: &semaphorev1.PublishRequest_SnapshotBegin{SnapshotBegin: &semaphorev1.SnapshotBegin{Kind: kind,
			Revision: revision}}},
		{Message: &semaphorev1.PublishRequest_Changes{Changes: changes}},
		{Message: &semaphorev1.PublishRequest_SnapshotEnd{SnapshotEnd: &semaphorev1.SnapshotEnd{Kind: kind,
			Revision: revision, Objects: uint64(len(nodes))}}},
	} {
		if result, err = session.Receive(now, m); err != nil {
			return result, err
		}
	}
	return result, nil
}

// withKeys is how many nodes can be peers.
func withKeys(all map[string]*semaphorev1.Node) (n int) {
	for _, node := range all {
		if node.GetWireguard() != nil {
			n++
		}
	}
	return n
}

// doubt computes which peers the first snapshot of a remote must not remove: all that it lacks, if it has far fewer
// nodes than there were peers. Nodes that are replaced by others are not withdrawn.
func (s *succession) doubt(remote string, all map[string]*semaphorev1.Node) {
	missing := map[string]bool{}
	for name := range s.began[remote] {
		if all[name].GetWireguard() == nil {
			missing[name] = true
		}
	}
	if n := len(s.began[remote]); s.config.Brake.Brakes(n-withKeys(all), n) {
		s.doubts[remote], s.since[remote] = missing, s.now
	}
}

func (s *succession) take(remote string, result replica.Result) {
	s.engine.Queue().Push(remote, result)
	for s.engine.Queue().Turn(s.engine.Take) {
	}
}

// follow sets the agents' devices as the broker sends them for complete remotes, and checks what that removes.
func (s *succession) follow() {
	for remote := range s.heard {
		told := map[string]string{}
		for _, p := range s.state.PeersOf(remote) {
			told[p.GetKey().GetNode()] = fmt.Sprintf("%x %v", p.GetWireguard().GetPublicKey(), p.GetAllowedIps())
		}
		for name, had := range s.peers[remote] {
			switch now, there := told[name]; {
			case !there && s.doubts[remote][name]:
				s.fail("peers",
					"the peer %s/%s goes: the first snapshot of this broker withdraws most of the peers that the one before had",
					remote, name)
			case there && now != had:
				s.fail("I3", "the peer %s/%s is %q, and was %q", remote, name, now, had)
			case !there && s.exports(remote)[name].GetWireguard() != nil:
				s.fail("I2", "the peer %s/%s goes, and its remote exports it", remote, name)
			}
		}
		s.peers[remote] = told
	}
}

// act is one random event.
func (s *succession) act() {
	r := s.config.Remotes[s.rng.IntN(len(s.config.Remotes))].Name
	switch s.rng.IntN(10) {
	case 0: // the broker ends, and the next one leads; its last write to the store may be missing
		s.lead()
	case 1, 2:
		s.keep(r)
	case 3, 4, 5:
		s.tell(r)
	case 6:
		s.exported[r] = !s.exported[r] // its exporter lost a right, or got it back
	case 7:
		s.emptied[r] = !s.emptied[r]
	case 8:
		s.now = s.now.Add(time.Duration(s.rng.IntN(30)) * time.Second)
	case 9:
		n := s.rng.IntN(9)
		if name := fmt.Sprint("n", n); s.truth[r][name] != nil {
			delete(s.truth[r], name)
		} else {
			s.truth[r][name] = s.node(slices.IndexFunc(s.config.Remotes, func(c config.Remote) bool { return c.Name == r }), n)
		}
	}
}

// settle lets everything come to rest, and compares the peers with the nodes.
func (s *succession) settle() {
	for _, r := range s.config.Remotes {
		s.exported[r.Name], s.emptied[r.Name] = true, false
		for range 4 {
			s.tell(r.Name)
			s.now = s.now.Add(90 * time.Second)
		}
		want := map[string]string{}
		for name, n := range s.truth[r.Name] {
			want[name] = fmt.Sprintf("%x %v", n.GetWireguard().GetPublicKey(), n.GetPodCidrs())
		}
		if got := s.peers[r.Name]; !maps.Equal(got, want) {
			s.fail("I1", "the peers of %s are %s, and its nodes are %s", r.Name,
				strings.Join(slices.Sorted(maps.Keys(got)), " "), strings.Join(slices.Sorted(maps.Keys(want)), " "))
		}
	}
}
