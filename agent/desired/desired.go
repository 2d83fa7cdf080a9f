// Package desired keeps what the broker wants on this node, as its streams tell it.
//
// It is pure: messages in, the wanted state and what of it has changed out. Like the
// broker's replica of a cluster it stages a whole state and takes it over at its end mark,
// so that a reconnect changes nothing on the node by itself. What of a cluster was not said again goes
// only once an end mark names the cluster as complete.
package desired

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/stream/digest"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Network is the wanted device to one remote cluster with its peers, by the name of the node.
type Network struct {
	Device *semaphorev1.Device
	Peers  map[string]*semaphorev1.Peer
	// Restored says that an earlier agent was told so, and that no broker has said since what it wants.
	Restored bool
	// Heard are the nodes of a permissive remote that are sent to through the tunnel. No broker says so: it is filled
	// in by whoever has looked at the device.
	Heard map[string]bool
}

// Equal says whether both want the same, whoever said so.
func (n *Network) Equal(other *Network) bool {
	return proto.Equal(n.Device, other.Device) && maps.Equal(n.Heard, other.Heard) &&
		maps.EqualFunc(n.Peers, other.Peers, func(a, b *semaphorev1.Peer) bool { return a == b || proto.Equal(a, b) })
}

// Dirty is what may differ from what was wanted before.
type Dirty struct {
	// Networks are clusters whose device has to be looked at as a whole.
	Networks map[string]bool
	// Peers are single peers that changed, by cluster and node.
	Peers map[string]map[string]bool
}

// NewDirty is the value for nothing.
func NewDirty() Dirty {
	return Dirty{Networks: map[string]bool{}, Peers: map[string]map[string]bool{}}
}

// Add adds what else may differ.
func (d Dirty) Add(other Dirty) {
	maps.Copy(d.Networks, other.Networks)
	for cluster, nodes := range other.Peers {
		if d.Peers[cluster] == nil {
			d.Peers[cluster] = map[string]bool{}
		}
		maps.Copy(d.Peers[cluster], nodes)
	}
}

// Empty says that nothing differs.
func (d Dirty) Empty() bool { return len(d.Networks) == 0 && len(d.Peers) == 0 }

// State is what the broker wants.
type State struct {
	// epoch and revision are those of networks: they change together, when a whole state is taken over.
	epoch    string
	revision uint64
	// synced says that a whole state was ever heard.
	synced   bool
	networks map[string]*Network
	// awaitingSync are clusters that no end mark of the epoch has named yet, with what was said of them
	// since: what they have besides is from before, and goes once they are named. One of which nothing
	// was known has no network before: its device may stand from before we began, with all its peers.
	awaitingSync map[string]*told
	// named are the clusters that an end mark of the epoch has named.
	named map[string]bool

	// attached says that the stream has begun, current that networks is what this stream says.
	attached, current bool
	// staging is a whole state that has not ended, and stagingEpoch its epoch; nil when none is under way.
	staging      map[string]*told
	stagingEpoch string
	// spoken are the clusters that this stream has told of.
	spoken map[string]bool
}

// told is what a stream has said of one cluster.
type told struct {
	// device is nil where none was named.
	device *semaphorev1.Device
	// peers holds nil for one that was deleted.
	peers map[string]*semaphorev1.Peer
	// removed says that the device was deleted, perhaps to be named again later: nothing from before counts.
	removed bool
}

func newTold() *told { return &told{peers: map[string]*semaphorev1.Peer{}} }

// New is the state in which nothing is known.
func New() *State {
	return &State{networks: map[string]*Network{}, awaitingSync: map[string]*told{}, named: map[string]bool{}, spoken: map[string]bool{}}
}

// Resume is what to tell the broker of what is held.
func (s *State) Resume() (epoch string, revision uint64) {
	if !s.synced {
		return "", 0
	}
	return s.epoch, s.revision
}

// Held is what to tell the broker of what is held of each remote, in case it cannot go on from Resume. What
// it says of it counts on the stream that begins with this only.
func (s *State) Held() []*semaphorev1.HeldCluster {
	var held []*semaphorev1.HeldCluster
	for _, cluster := range s.Clusters() {
		n := s.networks[cluster]
		d := digest.Of(n.Device)
		for _, p := range n.Peers {
			d.Add(digest.Of(p))
		}
		held = append(held, &semaphorev1.HeldCluster{Cluster: cluster, Digest: d.Bytes()})
	}
	return held
}

// Revision up to which changes were taken over, in the epoch of Resume.
func (s *State) Revision() uint64 { return s.revision }

// Current says whether what is wanted is what the present stream says: it went on from what was
// held, or its whole state has been heard. Revisions may be told to the broker only then.
func (s *State) Current() bool { return s.current }

// Network is what is wanted for a cluster; nil when nothing is known of it.
func (s *State) Network(cluster string) *Network { return s.networks[cluster] }

// Clusters are those for which a device is wanted, sorted.
func (s *State) Clusters() []string { return slices.Sorted(maps.Keys(s.networks)) }

// Begin is called before the first message of a stream.
func (s *State) Begin() {
	s.attached, s.current, s.staging = false, false, nil
	clear(s.spoken)
}

// Receive takes one message. An error ends the stream; what is wanted is then as before the message.
func (s *State) Receive(m *semaphorev1.AttachResponse) (Dirty, error) {
	d := NewDirty()
	switch m := m.GetMessage().(type) {
	case *semaphorev1.AttachResponse_Attached:
		return d, s.begin(m.Attached)
	case *semaphorev1.AttachResponse_Changes:
		if !s.attached {
			return d, errors.New("the broker sends changes before it attached us")
		}
		if err := s.check(m.Changes.GetChanges()); err != nil {
			return d, err
		}
		for _, c := range m.Changes.GetChanges() {
			s.spoken[clusterOf(c)] = true
			if s.staging != nil {
				record(s.staging, c)
			} else {
				s.change(c, d)
			}
		}
	case *semaphorev1.AttachResponse_Synced:
		if !s.attached {
			return d, errors.New("the broker sends an end mark before it attached us")
		}
		s.end(m.Synced, d)
	case *semaphorev1.AttachResponse_Unchanged:
		return d, s.keep(m.Unchanged.GetCluster())
	}
	// A message of no known kind is a later protocol's, and may be passed over.
	return d, nil
}

// keep takes all that is held of a cluster for said. It comes before anything else is said of the cluster: what
// is held is then still what the stream began with, which is what the broker speaks of.
func (s *State) keep(cluster string) error {
	n := s.networks[cluster]
	switch {
	case !s.attached:
		return errors.New("the broker speaks of what we hold before it attached us")
	case n == nil:
		return fmt.Errorf("the broker says that %q is unchanged, of which we hold nothing", cluster)
	}
	in := s.staging
	if in == nil {
		in = s.awaitingSync
		if in[cluster] == nil {
			return nil // known whole already
		}
	}
	if s.spoken[cluster] {
		return fmt.Errorf("the broker says that %q is unchanged after it told of it", cluster)
	}
	s.spoken[cluster] = true
	in[cluster] = &told{device: n.Device, peers: maps.Clone(n.Peers)}
	return nil
}

func (s *State) begin(m *semaphorev1.Attached) error {
	if s.attached {
		return errors.New("the broker attached us twice")
	}
	if m.GetResumed() && (m.GetEpoch() != s.epoch || !s.synced) {
		return fmt.Errorf("the broker goes on in epoch %q, of which we hold nothing", m.GetEpoch())
	}
	s.attached = true
	s.current = m.GetResumed()
	if !m.GetResumed() {
		s.staging, s.stagingEpoch = map[string]*told{}, m.GetEpoch()
	}
	return nil
}

// check finds what makes no sense in a message before any of it counts.
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
	for _, c := range changes {
		switch change := c.GetChange().(type) {
		case *semaphorev1.PeeringChange_Device:
			have[change.Device.GetCluster()] = true
		case *semaphorev1.PeeringChange_DeleteDevice:
			have[change.DeleteDevice] = false
		case *semaphorev1.PeeringChange_Peer:
			if key := change.Peer.GetKey(); !known(key.GetCluster()) {
				return fmt.Errorf("the broker sends peer %q of %q before the device", key.GetNode(), key.GetCluster())
			}
		}
	}
	return nil
}

// clusterOf is the cluster that a change is of.
func clusterOf(c *semaphorev1.PeeringChange) string {
	switch change := c.GetChange().(type) {
	case *semaphorev1.PeeringChange_Device:
		return change.Device.GetCluster()
	case *semaphorev1.PeeringChange_DeleteDevice:
		return change.DeleteDevice
	case *semaphorev1.PeeringChange_Peer:
		return change.Peer.GetKey().GetCluster()
	case *semaphorev1.PeeringChange_DeletePeer:
		return change.DeletePeer.GetCluster()
	}
	return ""
}

// record notes a change among what was said of clusters.
func record(in map[string]*told, c *semaphorev1.PeeringChange) {
	of := func(cluster string) *told {
		if in[cluster] == nil {
			in[cluster] = newTold()
		}
		return in[cluster]
	}
	switch change := c.GetChange().(type) {
	case *semaphorev1.PeeringChange_Device:
		of(change.Device.GetCluster()).device = change.Device
	case *semaphorev1.PeeringChange_DeleteDevice:
		in[change.DeleteDevice] = newTold()
		in[change.DeleteDevice].removed = true
	case *semaphorev1.PeeringChange_Peer:
		of(change.Peer.GetKey().GetCluster()).peers[change.Peer.GetKey().GetNode()] = change.Peer
	case *semaphorev1.PeeringChange_DeletePeer:
		of(change.DeletePeer.GetCluster()).peers[change.DeletePeer.GetNode()] = nil
	}
}

// change takes a single change over.
func (s *State) change(c *semaphorev1.PeeringChange, d Dirty) {
	s.revision = c.GetRevision()
	switch change := c.GetChange().(type) {
	case *semaphorev1.PeeringChange_Device:
		cluster := change.Device.GetCluster()
		n := s.networks[cluster]
		if n == nil && !s.named[cluster] {
			// More of it may follow in other messages, so it counts at the end mark.
			if s.awaitingSync[cluster] == nil {
				s.awaitingSync[cluster] = newTold()
			}
			record(s.awaitingSync, c)
			return
		}
		if n == nil {
			n = &Network{Peers: map[string]*semaphorev1.Peer{}}
			s.networks[cluster] = n
		}
		if !proto.Equal(n.Device, change.Device) {
			d.Networks[cluster] = true
		}
		n.Device = change.Device
		s.prove(cluster, c)
	case *semaphorev1.PeeringChange_DeleteDevice:
		// Also where nothing is known of it: a device that stands may be from before we began.
		delete(s.networks, change.DeleteDevice)
		delete(s.awaitingSync, change.DeleteDevice)
		d.Networks[change.DeleteDevice] = true
	case *semaphorev1.PeeringChange_Peer:
		key := change.Peer.GetKey()
		if n := s.networks[key.GetCluster()]; n != nil {
			if !proto.Equal(n.Peers[key.GetNode()], change.Peer) {
				d.peer(key)
			}
			n.Peers[key.GetNode()] = change.Peer
		}
		s.prove(key.GetCluster(), c)
	case *semaphorev1.PeeringChange_DeletePeer:
		if n := s.networks[change.DeletePeer.GetCluster()]; n != nil && n.Peers[change.DeletePeer.GetNode()] != nil {
			delete(n.Peers, change.DeletePeer.GetNode())
			d.peer(change.DeletePeer)
		}
		s.prove(change.DeletePeer.GetCluster(), c)
	}
}

// prove notes what was said of a cluster that is not known whole.
func (s *State) prove(cluster string, c *semaphorev1.PeeringChange) {
	if s.awaitingSync[cluster] != nil {
		record(s.awaitingSync, c)
	}
}

func (d Dirty) peer(key *semaphorev1.PeerKey) {
	if d.Peers[key.GetCluster()] == nil {
		d.Peers[key.GetCluster()] = map[string]bool{}
	}
	d.Peers[key.GetCluster()][key.GetNode()] = true
}

// end takes a staged state over, and lets go of what clusters had that are complete now and did not
// name it. A cluster that the mark does not name keeps what it has: the broker itself does not know yet
// what it wants.
func (s *State) end(m *semaphorev1.Synced, d Dirty) {
	s.revision, s.synced, s.current = m.GetRevision(), true, true
	if s.staging != nil {
		s.epoch, s.awaitingSync = s.stagingEpoch, s.staging
		s.staging = nil
		clear(s.named)
		for cluster := range s.networks {
			if s.awaitingSync[cluster] == nil {
				s.awaitingSync[cluster] = newTold()
			}
		}
		for cluster, t := range s.awaitingSync {
			s.merge(cluster, t, d)
			if t.device != nil {
				s.confirm(cluster, d)
			}
		}
	}
	for _, cluster := range m.GetClusters() {
		s.named[cluster] = true
		if t := s.awaitingSync[cluster]; t != nil {
			if s.networks[cluster] == nil {
				s.merge(cluster, t, d)
			}
			s.prune(cluster, t, d)
			s.confirm(cluster, d)
			delete(s.awaitingSync, cluster)
		}
	}
}

// merge adds what was staged for a cluster to what it has.
func (s *State) merge(cluster string, t *told, d Dirty) {
	if t.removed && t.device == nil {
		delete(s.networks, cluster)
		delete(s.awaitingSync, cluster)
		d.Networks[cluster] = true
		return
	}
	if t.device == nil {
		return
	}
	n := s.networks[cluster]
	if n == nil {
		n = &Network{Peers: map[string]*semaphorev1.Peer{}}
		s.networks[cluster] = n
	}
	// The device has to be looked at only where it differs; peers, one by one.
	if !proto.Equal(n.Device, t.device) {
		d.Networks[cluster] = true
	}
	n.Device = t.device
	for node, peer := range t.peers {
		if !proto.Equal(n.Peers[node], peer) {
			d.peer(&semaphorev1.PeerKey{Cluster: cluster, Node: node})
		}
		if peer == nil {
			delete(n.Peers, node)
		} else {
			n.Peers[node] = peer
		}
	}
	if t.removed {
		s.dropUnsaid(cluster, t, d)
	}
}

// prune makes what a cluster has what was said of it.
func (s *State) prune(cluster string, t *told, d Dirty) {
	switch {
	case s.networks[cluster] == nil:
	case t.device == nil:
		delete(s.networks, cluster)
		d.Networks[cluster] = true
	default:
		s.dropUnsaid(cluster, t, d)
	}
}

func (s *State) dropUnsaid(cluster string, t *told, d Dirty) {
	n := s.networks[cluster]
	for node := range n.Peers {
		if t.peers[node] == nil {
			delete(n.Peers, node)
			d.peer(&semaphorev1.PeerKey{Cluster: cluster, Node: node})
		}
	}
}

// Endpoints are the addresses of the first peers, by the names of their nodes.
func Endpoints(peers map[string]*semaphorev1.Peer, most int) (to []netip.Addr) {
	for _, node := range slices.Sorted(maps.Keys(peers)) {
		if len(to) == most {
			break
		}
		if at, err := netip.ParseAddrPort(peers[node].GetWireguard().GetAddress()); err == nil {
			to = append(to, at.Addr())
		}
	}
	return to
}
