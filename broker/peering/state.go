package peering

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/internal/stream/digest"
	"github.com/kube-semaphore/semaphore/internal/stream/journal"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// tombstones is how many removed peers are remembered for agents that come back, those of the remote that has most the shortest.
	tombstones = 10_000
	// maxHistory is how many of its last updates are remembered of a remote, to know what agents have that come back.
	maxHistory = 1_000
)

// maxEntry is the most bytes that a peer may have. One with as many pod CIDRs as are taken of a node has less, and a message
// to an agent has room for several.
const maxEntry = 64 << 10

// key names a device (node is empty) or a peer.
type key struct{ cluster, node string }

// State is what every agent is to be told: the devices and peers of those remotes whose nodes are
// known whole, in the order of their last changes.
type State struct {
	// The values are built once and never changed: all streams share them.
	journal *journal.Journal[key, *record]
	// encodings counts the changes that were encoded, however many agents were told them.
	encodings atomic.Uint64

	// mu makes an update one step for whoever looks: between two, the journal's head, told and complete
	// belong together.
	mu       sync.Mutex
	told     map[string]*told // by cluster
	complete []string         // sorted
	// batchMost is how many changes a message has at most.
	batchMost int
	tooLarge  map[key]int   // peers that agents are not told of, and how many bytes each has
	changed   chan struct{} // closed and replaced by each update that changed something
}

// told is what agents are told of one cluster.
type told struct {
	// digest is that of the device and the peers.
	digest digest.Digest
	// first is the update that told of the cluster for the first time.
	first span
	// history are the last updates, in order.
	history []span
}

// had says whether a digest is that of the cluster at a revision, as far as that is remembered.
func (t *told) had(revision uint64, d digest.Digest) bool {
	i, found := slices.BinarySearchFunc(t.history, revision, func(s span, revision uint64) int { return cmp.Compare(s.upTo, revision) })
	if !found {
		// Between two updates, and not within one.
		if i--; i < 0 || i+1 < len(t.history) && t.history[i+1].after < revision {
			return false
		}
	}
	return t.history[i].digest == d
}

// span is one update in the journal: the revisions after one up to another, and the digest that a
// cluster had then.
type span struct {
	after, upTo uint64
	digest      digest.Digest
}

// NewState makes an empty state with an epoch of its own.
func NewState() *State { return NewStateOf(Sizes{}) }

// Sizes of a State, each 0 for what the product has. A simulation needs small ones, for few peers to reach the limits.
type Sizes struct {
	// Tombstones is how many removed peers are remembered.
	Tombstones int
	// Batch is how many changes a message to an agent has at most.
	Batch int
}

// NewStateOf makes an empty state of other sizes than the product's.
func NewStateOf(sizes Sizes) *State {
	return &State{
		journal:   journal.New[key, *record](cmp.Or(sizes.Tombstones, tombstones)).By(func(k key) string { return k.cluster }),
		batchMost: cmp.Or(sizes.Batch, maxBatch),
		told:      map[string]*told{}, tooLarge: map[key]int{},
		changed: make(chan struct{}),
	}
}

// Update takes what differs of one remote. It is called only once the remote's nodes are known whole, and says so to
// the agents. observedAt is when the change of a node was seen in its cluster. It costs what differs, whatever there is.
func (s *State) Update(cluster string, c mesh.Changes, observedAt map[string]time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.journal.Head()
	t, known := s.told[cluster]
	if !known {
		t = &told{}
		s.told[cluster] = t
	}
	// The device comes first: it holds back packets for pods whose node is not known yet.
	device := &semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Device{Device: c.Device}}
	if was, ok := s.journal.Get(key{cluster: cluster}); !ok || !proto.Equal(was.change.GetDevice(), c.Device) {
		s.put(t, key{cluster: cluster}, device, c.Device, time.Time{})
	}
	// Who leaves goes first, then who loses something, so that what they had is free for others.
	var losing, others []string
	for _, node := range slices.Sorted(maps.Keys(c.Peers)) {
		k, is := key{cluster, node}, c.Peers[node]
		was, there := s.journal.Get(k)
		if is != nil && proto.Size(is) > maxEntry {
			// An agent that cannot read one message is told of nothing after it.
			if s.tooLarge[k] = proto.Size(is); there {
				s.remove(t, k, observedAt[node])
			}
			continue
		}
		delete(s.tooLarge, k)
		switch {
		case is == nil:
			s.remove(t, k, observedAt[node])
		case there && loses(was.change.GetPeer(), is):
			losing = append(losing, node)
		case !there || !proto.Equal(was.change.GetPeer(), is):
			others = append(others, node)
		}
	}
	for _, node := range slices.Concat(losing, others) {
		p := c.Peers[node]
		s.put(t, key{cluster, node}, &semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Peer{Peer: p}}, p, observedAt[node])
	}
	if !known {
		t.first = span{before, s.journal.Head(), t.digest}
		s.complete = append(slices.Clone(s.complete), cluster)
		slices.Sort(s.complete)
	}
	if s.journal.Head() != before {
		if t.history = append(t.history, span{before, s.journal.Head(), t.digest}); len(t.history) > 2*maxHistory {
			t.history = slices.Clone(t.history[maxHistory:])
		}
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// loses says whether a peer lets go of something that another may have now.
func loses(was, is *semaphorev1.Peer) bool {
	return !bytes.Equal(was.GetWireguard().GetPublicKey(), is.GetWireguard().GetPublicKey()) ||
		slices.ContainsFunc(was.GetAllowedIps(), func(ip string) bool { return !slices.Contains(is.GetAllowedIps(), ip) })
}

func (s *State) put(t *told, k key, change *semaphorev1.PeeringChange, object proto.Message, observedAt time.Time) {
	if was, ok := s.journal.Get(k); ok {
		t.digest.Remove(was.digest)
	}
	r := &record{change: change, digest: digest.Of(object)}
	t.digest.Add(r.digest)
	s.journal.Put(k, r, observedAt)
}

func (s *State) remove(t *told, k key, observedAt time.Time) {
	if was, ok := s.journal.Get(k); ok {
		t.digest.Remove(was.digest)
		s.journal.Delete(k, observedAt)
	}
}

// Standing are the digests of what agents are told of each remote that was heard whole, and a channel that is closed when something has
// changed.
func (s *State) Standing() (map[string]digest.Digest, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]digest.Digest, len(s.told))
	for cluster, t := range s.told {
		out[cluster] = t.digest
	}
	return out, s.changed
}

// PeersOf are the peers that agents are told of a remote, by the names of their nodes. Nobody changes them.
func (s *State) PeersOf(cluster string) []*semaphorev1.Peer {
	entries, _ := s.journal.Snapshot()
	var peers []*semaphorev1.Peer
	for _, e := range entries {
		if p := e.Value.change.GetPeer(); e.Key.cluster == cluster && p != nil {
			peers = append(peers, p)
		}
	}
	slices.SortFunc(peers, func(a, b *semaphorev1.Peer) int { return cmp.Compare(a.GetKey().GetNode(), b.GetKey().GetNode()) })
	return peers
}

// Problems are the peers that agents are not told of, a line each, in order.
func (s *State) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var set problem.Set
	clusters := map[string]bool{}
	for k, n := range s.tooLarge {
		clusters[k.cluster] = true
		set.Replace(k.cluster+"/"+k.node, []problem.Problem{{Cluster: k.cluster, Object: k.node,
			Text: fmt.Sprintf("peer %s/%s has %d bytes, and %d is the most: no agent is told of it", k.cluster, k.node, n, maxEntry)}})
	}
	var lines []string
	for _, cluster := range slices.Sorted(maps.Keys(clusters)) {
		lines = append(lines, set.Summary(cluster).Lines(cluster)...)
	}
	return lines
}
