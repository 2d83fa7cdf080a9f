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

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// tombstones is the number of removed peers that the journal keeps for agents that return. One that missed more gets
// the remotes again whose digest has changed.
const tombstones = 10_000

// maxEntry is the limit of a peer in bytes. A peer with the maximal number of pod CIDRs is smaller, and several peers
// fit into a message.
const maxEntry = 64 << 10

// key names a device (node is empty) or a peer.
type key struct{ cluster, node string }

// State is what every agent receives: the devices and peers of the remotes whose nodes are complete, in the order of
// their last changes.
type State struct {
	// The values are built once and never changed: all streams share them.
	journal *streams.Journal[key, *record]
	// encodings counts the changes that were encoded, however many agents received them.
	encodings atomic.Uint64

	// mu makes an update atomic for readers: between two updates the journal's head, remotes and complete are
	// consistent.
	mu         sync.Mutex
	remotes    map[string]*remoteState // by cluster
	complete   []string                // sorted
	maxChanges int
	tooLarge   map[key]int // peers that are too large to be sent, and their bytes
}

// remoteState is what agents receive of one remote.
type remoteState struct {
	digest streams.Digest
	first  span
}

// span is one update in the journal: it has the revisions after < r ≤ upTo. digest is that of the remote after the
// update.
type span struct {
	after, upTo uint64
	digest      streams.Digest
}

// NewState makes an empty state with its own epoch.
func NewState() *State { return NewStateOf(Sizes{}) }

// Sizes of a State; 0 stands for the product's value. A simulation needs small sizes, so that few peers reach the
// limits.
type Sizes struct {
	Tombstones int
	Batch      int
}

func NewStateOf(sizes Sizes) *State {
	return &State{
		journal:    streams.NewJournal[key, *record](cmp.Or(sizes.Tombstones, tombstones)),
		maxChanges: cmp.Or(sizes.Batch, maxBatch),
		remotes:    map[string]*remoteState{}, tooLarge: map[key]int{},
	}
}

// Update applies the changes of one remote, which must be complete: its first update announces that to the agents.
// observedAt is when a node's change was observed in its cluster. It costs time proportional to the changes.
func (s *State) Update(cluster string, c mesh.Changes, observedAt map[string]time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.journal.Head()
	t, known := s.remotes[cluster]
	if !known {
		t = &remoteState{}
		s.remotes[cluster] = t
	}
	// The device comes first: its routes and guard drop packets to pods whose node is unknown.
	device := &semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Device{Device: c.Device}}
	if was, ok := s.journal.Get(key{cluster: cluster}); !ok || !proto.Equal(was.change.GetDevice(), c.Device) {
		s.put(t, key{cluster: cluster}, device, c.Device, time.Time{})
	}
	// Removed peers come first, then peers that give something up, so that others can take it.
	var losing, others []string
	for _, node := range slices.Sorted(maps.Keys(c.Peers)) {
		k, is := key{cluster, node}, c.Peers[node]
		was, there := s.journal.Get(k)
		if is != nil && proto.Size(is) > maxEntry {
			// An agent could not read the message, nor anything after it.
			if s.tooLarge[k] = proto.Size(is); there {
				s.remove(t, k, observedAt[node])
			}
			continue
		}
		delete(s.tooLarge, k)
		switch {
		case is == nil:
			s.remove(t, k, observedAt[node])
		case there && givesUp(was.change.GetPeer(), is):
			losing = append(losing, node)
		case !there || !proto.Equal(was.change.GetPeer(), is):
			others = append(others, node)
		}
	}
	for _, node := range slices.Concat(losing, others) {
		p := c.Peers[node]
		s.put(t, key{cluster, node}, &semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Peer{Peer: p}}, p,
			observedAt[node])
	}
	if !known {
		t.first = span{before, s.journal.Head(), t.digest}
		s.complete = slices.Sorted(maps.Keys(s.remotes))
	}
}

// Remove removes the device and the peers of a remote that is no longer configured. Agents remove them when they
// receive it.
func (s *State) Remove(cluster string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.tooLarge, func(k key, _ int) bool { return k.cluster == cluster })
	t, known := s.remotes[cluster]
	if !known {
		return
	}
	entries, _ := s.journal.Snapshot()
	for _, e := range entries {
		if e.Key.cluster == cluster && e.Key.node != "" {
			s.remove(t, e.Key, time.Time{})
		}
	}
	s.remove(t, key{cluster: cluster}, time.Time{}) // after its peers
	delete(s.remotes, cluster)
	s.complete = slices.Sorted(maps.Keys(s.remotes))
}

// changed returns a channel that is closed at the next update, which a reader sees once it is complete. The caller
// holds mu.
func (s *State) changed() <-chan struct{} { return s.journal.Changed(s.journal.Head()) }

// givesUp reports whether a peer gives up a key or allowed IP that another peer may have now.
func givesUp(was, is *semaphorev1.Peer) bool {
	return !bytes.Equal(was.GetWireguard().GetPublicKey(), is.GetWireguard().GetPublicKey()) ||
		slices.ContainsFunc(was.GetAllowedIps(), func(ip string) bool { return !slices.Contains(is.GetAllowedIps(), ip) })
}

func (s *State) put(t *remoteState, k key, change *semaphorev1.PeeringChange, object proto.Message,
	observedAt time.Time) {
	if was, ok := s.journal.Get(k); ok {
		t.digest.Remove(was.digest)
	}
	r := &record{change: change, digest: streams.DigestOf(object)}
	t.digest.Add(r.digest)
	s.journal.Put(k, r, observedAt)
}

func (s *State) remove(t *remoteState, k key, observedAt time.Time) {
	if was, ok := s.journal.Get(k); ok {
		t.digest.Remove(was.digest)
		s.journal.Delete(k, &record{}, observedAt)
	}
}

// Digests returns the digest of each complete remote, and a channel that is closed when something changes.
func (s *State) Digests() (map[string]streams.Digest, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]streams.Digest, len(s.remotes))
	for cluster, t := range s.remotes {
		out[cluster] = t.digest
	}
	return out, s.changed()
}

// PeersOf returns the peers of a remote sorted by node name. They must not be modified.
func (s *State) PeersOf(cluster string) []*semaphorev1.Peer {
	entries, _ := s.journal.Snapshot()
	var peers []*semaphorev1.Peer
	for _, e := range entries {
		if p := e.Value.change.GetPeer(); e.Key.cluster == cluster && p != nil {
			peers = append(peers, p)
		}
	}
	slices.SortFunc(peers, func(a, b *semaphorev1.Peer) int {
		return cmp.Compare(a.GetKey().GetNode(), b.GetKey().GetNode())
	})
	return peers
}

// Published returns the peers of a remote with the revisions of their last changes; complete is false before the
// remote's nodes are known.
func (s *State) Published(cluster string) (peers []choice.Peer, complete bool) {
	s.mu.Lock()
	_, complete = s.remotes[cluster]
	s.mu.Unlock()
	if !complete {
		return nil, false
	}
	entries, _ := s.journal.Snapshot()
	for _, e := range entries {
		if p := e.Value.change.GetPeer(); e.Key.cluster == cluster && p != nil {
			peers = append(peers, choice.Peer{Node: e.Key.node, AllowedIPs: p.GetAllowedIps(), Revision: e.Revision})
		}
	}
	return peers, true
}

// Findings returns the peers that are not sent to agents, by cluster.
func (s *State) Findings() (found []finding.Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var set problem.Set
	clusters := map[string]bool{}
	for k, n := range s.tooLarge {
		clusters[k.cluster] = true
		set.Replace(k.cluster+"/"+k.node, []problem.Problem{{Cluster: k.cluster, Object: k.node, Code: finding.PeerTooLarge,
			Text: fmt.Sprintf("peer %s/%s has %d bytes, more than the limit of %d: no agent receives it", k.cluster, k.node, n,
				maxEntry)}})
	}
	for _, cluster := range slices.Sorted(maps.Keys(clusters)) {
		found = append(found, set.Summary(cluster).Findings(cluster)...)
	}
	return found
}
