package peering

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/internal/journal"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// tombstones is how many removed peers are remembered for agents that come back.
const tombstones = 10_000

// key names a device (node is empty) or a peer.
type key struct{ cluster, node string }

// State is what every agent is to be told: the devices and peers of those remotes whose nodes are
// known whole, in the order of their last changes.
type State struct {
	// The values are built once and never changed: all streams share them.
	journal *journal.Journal[key, *semaphorev1.PeeringChange]

	mu       sync.Mutex
	told     map[string]map[string]bool // cluster → nodes that are peers
	complete []string                   // sorted
	changed  chan struct{}              // closed and replaced when complete changes
}

// NewState makes an empty state with an epoch of its own.
func NewState() *State {
	return &State{
		journal: journal.New[key, *semaphorev1.PeeringChange](tombstones),
		told:    map[string]map[string]bool{},
		changed: make(chan struct{}),
	}
}

// Update makes the state of one remote that of a mesh, by difference. It is called only once the remote's
// nodes are known whole, and says so to the agents. observedAt is when the change of a node
// was seen in its cluster.
func (s *State) Update(cluster string, m mesh.Mesh, observedAt map[string]time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The device comes first: it holds back packets for pods whose node is not known yet.
	device := &semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Device{Device: m.Device}}
	if was, ok := s.journal.Get(key{cluster: cluster}); !ok || !proto.Equal(was.GetDevice(), m.Device) {
		s.journal.Put(key{cluster: cluster}, device, time.Time{})
	}
	before := s.told[cluster]
	now := make(map[string]bool, len(m.Peers))
	for _, p := range m.Peers {
		now[p.GetKey().GetNode()] = true
	}
	// Who leaves goes first, so that what it had is free for others.
	for node := range before {
		if !now[node] {
			s.journal.Delete(key{cluster, node}, observedAt[node])
		}
	}
	for _, p := range m.Peers {
		k := key{cluster, p.GetKey().GetNode()}
		if was, ok := s.journal.Get(k); ok && proto.Equal(was.GetPeer(), p) {
			continue
		}
		s.journal.Put(k, &semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Peer{Peer: p}}, observedAt[k.node])
	}
	s.told[cluster] = now
	if !slices.Contains(s.complete, cluster) {
		s.complete = append(slices.Clone(s.complete), cluster)
		slices.Sort(s.complete)
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// known are the remotes whose state is whole as of now, and a channel that is closed when there are more.
func (s *State) known() ([]string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.complete, s.changed
}
