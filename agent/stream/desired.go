package stream

// A State holds the state that the broker desires on this node, as its streams send it.
//
// It is pure: it takes messages, and returns the desired state and its changes. Like the broker's replica it stages a
// whole state and applies it at its end mark, so that a reconnect alone changes nothing on the node. An object that is
// not sent again is removed only when an end mark names the cluster as complete.

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type Dirty = plan.Changes

type State struct {
	// epoch and revision are the position of what was received; both are set when a whole state is applied. applied is
	// that of networks: it stays behind while the changes of clusters wait for an end mark.
	epoch             string
	revision, applied uint64
	waiting           map[string]bool
	// synced means that a whole state was received at least once.
	synced   bool
	networks map[string]*plan.Desired
	// awaitingSync are clusters that no end mark of the epoch has named yet, with the objects received of them since.
	// Anything else that they have is older, and is removed once they are named. A cluster that was unknown has no network
	// before: its device may exist from an earlier agent, with all its peers.
	awaitingSync map[string]*staged
	// named are the clusters that an end mark of the epoch has named.
	named map[string]bool

	// attached means that the stream has begun, current that networks is the state of this stream.
	attached, current bool
	// staging is a whole state in progress, and stagingEpoch its epoch; nil if there is none.
	staging      map[string]*staged
	stagingEpoch string
	// received are the clusters whose objects this stream has sent.
	received map[string]bool
}

type staged struct {
	// device is nil if none was sent.
	device *semaphorev1.Device
	// peers maps to nil for a deleted one.
	peers map[string]*semaphorev1.Peer
	// removed means that the device was deleted, possibly to be sent again later: nothing older counts.
	removed bool
}

func newStaged() *staged { return &staged{peers: map[string]*semaphorev1.Peer{}} }

func NewState() *State {
	return &State{networks: map[string]*plan.Desired{}, awaitingSync: map[string]*staged{}, named: map[string]bool{},
		received: map[string]bool{}, waiting: map[string]bool{}}
}

// Resume returns the position to resume from; none before a whole state was received, which sets it.
func (s *State) Resume() (epoch string, revision uint64) { return s.epoch, s.revision }

// Held returns the digests of each remote's state, for a broker that cannot resume. The broker's answer is valid on the
// stream that begins with them.
func (s *State) Held() []*semaphorev1.HeldCluster {
	var held []*semaphorev1.HeldCluster
	for _, cluster := range s.Clusters() {
		n := s.networks[cluster]
		d := streams.DigestOf(n.Device)
		for _, p := range n.Peers {
			d.Add(streams.DigestOf(p))
		}
		held = append(held, &semaphorev1.HeldCluster{Cluster: cluster, Digest: d.Bytes()})
	}
	return held
}

// Revision returns the revision up to which changes were applied, in the epoch of Resume.
func (s *State) Revision() uint64 { return s.applied }

// Current reports whether the state is that of the present stream: it resumed, or its whole state was received. Only
// then revisions may be sent to the broker.
func (s *State) Current() bool { return s.current }

func (s *State) Network(cluster string) *plan.Desired { return s.networks[cluster] }

func (s *State) Clusters() []string { return slices.Sorted(maps.Keys(s.networks)) }

// Begin takes the begin of a stream: unfinished messages of the one before do not count.
func (s *State) Begin() {
	s.attached, s.current, s.staging = false, false, nil
	clear(s.received)
}

// Receive handles one message. It fails for a message that breaks the protocol, which ends the stream; the state is as
// before the message.
func (s *State) Receive(m *semaphorev1.AttachResponse) (Dirty, error) {
	d := plan.NewChanges()
	switch m := m.GetMessage().(type) {
	case *semaphorev1.AttachResponse_Attached:
		return d, s.handleAttached(m.Attached)
	case *semaphorev1.AttachResponse_Changes:
		if !s.attached {
			return d, errors.New("the broker sends changes before it attached this agent")
		}
		if err := s.check(m.Changes.GetChanges()); err != nil {
			return d, err
		}
		for _, message := range m.Changes.GetChanges() {
			c := changeOf(message)
			s.received[c.cluster] = true
			if s.staging == nil {
				s.revision = message.GetRevision()
			}
			switch {
			case c.kind == unknown:
			case s.staging != nil:
				record(s.staging, c)
			default:
				s.applyChange(c, d)
			}
			if len(s.waiting) == 0 {
				s.applied = s.revision
			}
		}
	case *semaphorev1.AttachResponse_Synced:
		if !s.attached {
			return d, errors.New("the broker sends an end mark before it attached this agent")
		}
		s.applySynced(m.Synced, d)
	case *semaphorev1.AttachResponse_Unchanged:
		return d, s.handleUnchanged(m.Unchanged.GetCluster())
	}
	// An unknown message belongs to a later protocol version, and may be ignored.
	return d, nil
}

// handleUnchanged treats everything that is held of a cluster as received. The broker sends it before anything else of
// the cluster, so that the held state is still that of the stream's begin, which the broker means.
func (s *State) handleUnchanged(cluster string) error {
	n := s.networks[cluster]
	switch {
	case !s.attached:
		return errors.New("the broker sends Unchanged before it attached this agent")
	case n == nil:
		return fmt.Errorf("the broker sends Unchanged for %q, but the agent holds nothing of it", cluster)
	}
	in := s.staging
	if in == nil {
		in = s.awaitingSync
		if in[cluster] == nil {
			return nil // complete already
		}
	}
	if s.received[cluster] {
		return fmt.Errorf("the broker sends Unchanged for %q after other messages about it", cluster)
	}
	s.received[cluster] = true
	in[cluster] = &staged{device: n.Device, peers: maps.Clone(n.Peers)}
	return nil
}

func (s *State) handleAttached(m *semaphorev1.Attached) error {
	if s.attached {
		return errors.New("the broker attached this agent twice")
	}
	if m.GetResumed() && (m.GetEpoch() != s.epoch || !s.synced) {
		return fmt.Errorf("the broker resumes epoch %q, but the agent holds nothing of it", m.GetEpoch())
	}
	s.attached = true
	s.current = m.GetResumed()
	if !m.GetResumed() {
		s.staging, s.stagingEpoch = map[string]*staged{}, m.GetEpoch()
	}
	return nil
}

// check validates a message before any of it is applied.
func (s *State) check(changes []*semaphorev1.PeeringChange) error {
	have := map[string]bool{}
	known := func(cluster string) bool {
		if have, said := have[cluster]; said {
			return have
		}
		if s.staging != nil {
			t := s.staging[cluster]
			return t != nil && t.device != nil
		}
		t := s.awaitingSync[cluster]
		return s.networks[cluster] != nil || t != nil && t.device != nil
	}
	for _, message := range changes {
		switch c := changeOf(message); {
		case c.kind == aDevice:
			have[c.cluster] = c.device != nil
		case c.peer != nil && !known(c.cluster):
			return fmt.Errorf("the broker sends peer %q of %q before the device", c.node, c.cluster)
		}
	}
	return nil
}

// change is a message's state of a device, or of a peer: nil for a deleted one.
type change struct {
	kind          changeKind
	cluster, node string
	device        *semaphorev1.Device
	peer          *semaphorev1.Peer
}

type changeKind int

const (
	unknown changeKind = iota // of a later protocol version
	aDevice
	aPeer
)

func changeOf(m *semaphorev1.PeeringChange) change {
	switch m := m.GetChange().(type) {
	case *semaphorev1.PeeringChange_Device:
		return change{kind: aDevice, cluster: m.Device.GetCluster(), device: m.Device}
	case *semaphorev1.PeeringChange_DeleteDevice:
		return change{kind: aDevice, cluster: m.DeleteDevice}
	case *semaphorev1.PeeringChange_Peer:
		// A message without content is one of a peer without a name.
		peer := cmp.Or(m.Peer, &semaphorev1.Peer{})
		return change{kind: aPeer, cluster: peer.GetKey().GetCluster(), node: peer.GetKey().GetNode(), peer: peer}
	case *semaphorev1.PeeringChange_DeletePeer:
		return change{kind: aPeer, cluster: m.DeletePeer.GetCluster(), node: m.DeletePeer.GetNode()}
	}
	return change{}
}

func record(in map[string]*staged, c change) {
	deleted := c.kind == aDevice && c.device == nil
	if in[c.cluster] == nil || deleted {
		in[c.cluster] = newStaged()
		in[c.cluster].removed = deleted
	}
	switch {
	case c.kind == aPeer:
		in[c.cluster].peers[c.node] = c.peer
	case !deleted:
		in[c.cluster].device = c.device
	}
}

func (s *State) applyChange(c change, d Dirty) {
	n := s.networks[c.cluster]
	switch {
	case c.kind == aDevice && c.device == nil:
		// This also applies to an unknown cluster: its device may exist from an earlier agent.
		s.forget(c.cluster, d)
		return
	case c.kind == aDevice && n == nil && !s.named[c.cluster]:
		s.waiting[c.cluster] = true
		record(s.awaitingSync, c) // more of it may follow in other messages, so it is applied at the end mark
		return
	case c.kind == aDevice:
		s.setDevice(c.cluster, c.device, d)
	case n != nil:
		setPeer(n, c.cluster, c.node, c.peer, d)
	}
	if s.awaitingSync[c.cluster] != nil {
		record(s.awaitingSync, c)
	}
}

func (s *State) forget(cluster string, d Dirty) {
	delete(s.networks, cluster)
	delete(s.awaitingSync, cluster)
	delete(s.waiting, cluster)
	d.Networks[cluster] = true
}

// setDevice sets the device of a cluster, which is reconciled as a whole only if it differs, and returns the network.
func (s *State) setDevice(cluster string, device *semaphorev1.Device, d Dirty) *plan.Desired {
	n := s.networks[cluster]
	if n == nil {
		n = &plan.Desired{Peers: map[string]*semaphorev1.Peer{}}
		s.networks[cluster] = n
	}
	if !proto.Equal(n.Device, device) {
		d.Networks[cluster] = true
	}
	n.Device = device
	return n
}

func setPeer(n *plan.Desired, cluster, node string, peer *semaphorev1.Peer, d Dirty) {
	if !proto.Equal(n.Peers[node], peer) {
		d.Peer(cluster, node)
	}
	if n.Peers[node] = peer; peer == nil {
		delete(n.Peers, node)
	}
}

// applySynced applies a staged state, and removes objects that complete clusters did not send again. A cluster that the
// mark does not name keeps its objects: the broker does not know its desired state yet.
func (s *State) applySynced(m *semaphorev1.Synced, d Dirty) {
	s.revision, s.applied, s.synced, s.current = m.GetRevision(), m.GetRevision(), true, true
	clear(s.waiting)
	if s.staging != nil {
		s.epoch, s.awaitingSync, s.staging = s.stagingEpoch, s.staging, nil
		clear(s.named)
		for cluster := range s.networks {
			if s.awaitingSync[cluster] == nil {
				s.awaitingSync[cluster] = newStaged()
			}
		}
		for cluster, t := range s.awaitingSync {
			s.apply(cluster, t, t.removed, d)
		}
	}
	for _, cluster := range m.GetClusters() {
		s.named[cluster] = true
		if t := s.awaitingSync[cluster]; t != nil {
			s.apply(cluster, t, true, d)
			delete(s.awaitingSync, cluster)
		}
	}
}

// apply adds the staged objects of a cluster to its state, or replaces that. Restored networks are applied to the node
// only in part, so that a device which the broker has sent must be reconciled.
func (s *State) apply(cluster string, t *staged, replace bool, d Dirty) {
	if t.device == nil {
		if replace && (t.removed || s.networks[cluster] != nil) {
			s.forget(cluster, d)
		}
		return
	}
	n := s.setDevice(cluster, t.device, d)
	for node, peer := range t.peers {
		setPeer(n, cluster, node, peer, d)
	}
	for node := range n.Peers {
		if replace && t.peers[node] == nil {
			setPeer(n, cluster, node, nil, d)
		}
	}
	if n.Restored {
		n.Restored = false
		d.Networks[cluster] = true
	}
}
