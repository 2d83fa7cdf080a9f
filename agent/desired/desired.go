// Package desired keeps what the broker wants on this node, as its streams tell it.
//
// It is pure: messages in, the wanted state and what of it has changed out. Like the
// broker's replica of a cluster it stages a whole state and takes it over at its end mark,
// so that a reconnect changes nothing on the node by itself.
package desired

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Network is the wanted device to one remote cluster with its peers, by the name of the node.
type Network struct {
	Device *semaphorev1.Device
	Peers  map[string]*semaphorev1.Peer
}

// Dirty is what may differ from what was wanted before.
type Dirty struct {
	// Networks are clusters whose device has to be looked at as a whole.
	Networks map[string]bool
	// Peers are single peers that changed, by cluster and node.
	Peers map[string]map[string]bool
}

// State is what the broker wants.
type State struct {
	epoch    string
	revision uint64
	// synced says that a whole state was ever heard.
	synced   bool
	networks map[string]*Network
	// staging is a whole state that has not ended; nil when there is none under way.
	staging map[string]*Network
	// attached says that the stream has begun.
	attached bool
	// Node is who the broker takes us to be.
	Node string
}

// New is the state in which nothing is known.
func New() *State { return &State{networks: map[string]*Network{}} }

// Resume is what to tell the broker of what is held.
func (s *State) Resume() (epoch string, revision uint64) {
	if !s.synced {
		return "", 0
	}
	return s.epoch, s.revision
}

// Revision up to which changes were taken over.
func (s *State) Revision() uint64 { return s.revision }

// Synced says whether a whole state was ever heard.
func (s *State) Synced() bool { return s.synced }

// Network is what is wanted for a cluster; nil when nothing is known of it.
func (s *State) Network(cluster string) *Network { return s.networks[cluster] }

// Clusters are those for which a device is wanted, sorted.
func (s *State) Clusters() []string { return slices.Sorted(maps.Keys(s.networks)) }

// Begin is called before the first message of a stream.
func (s *State) Begin() { s.attached, s.staging = false, nil }

// Receive takes one message. An error ends the stream; what is wanted is then as before the message.
func (s *State) Receive(m *semaphorev1.AttachResponse) (Dirty, error) {
	d := Dirty{Networks: map[string]bool{}, Peers: map[string]map[string]bool{}}
	switch m := m.GetMessage().(type) {
	case *semaphorev1.AttachResponse_Attached:
		return d, s.begin(m.Attached)
	case *semaphorev1.AttachResponse_Changes:
		if !s.attached {
			return d, errors.New("the broker sends changes before it attached us")
		}
		for _, c := range m.Changes.GetChanges() {
			if err := s.change(c, d); err != nil {
				return d, err
			}
		}
	case *semaphorev1.AttachResponse_Synced:
		if !s.attached {
			return d, errors.New("the broker sends an end mark before it attached us")
		}
		s.end(m.Synced, d)
	}
	return d, nil
}

func (s *State) begin(m *semaphorev1.Attached) error {
	if s.attached {
		return errors.New("the broker attached us twice")
	}
	if m.GetResumed() && (m.GetEpoch() != s.epoch || !s.synced) {
		return fmt.Errorf("the broker goes on in epoch %q, of which we hold nothing", m.GetEpoch())
	}
	s.attached = true
	s.Node = m.GetNode()
	if !m.GetResumed() {
		s.staging = map[string]*Network{}
	}
	s.epoch = m.GetEpoch()
	return nil
}

func (s *State) change(c *semaphorev1.PeeringChange, d Dirty) error {
	into := s.networks
	if s.staging != nil {
		into = s.staging
	}
	switch change := c.GetChange().(type) {
	case *semaphorev1.PeeringChange_Device:
		cluster := change.Device.GetCluster()
		if n := into[cluster]; n != nil {
			n.Device = change.Device
		} else {
			into[cluster] = &Network{Device: change.Device, Peers: map[string]*semaphorev1.Peer{}}
		}
		d.Networks[cluster] = true
	case *semaphorev1.PeeringChange_DeleteDevice:
		delete(into, change.DeleteDevice)
		d.Networks[change.DeleteDevice] = true
	case *semaphorev1.PeeringChange_Peer:
		key := change.Peer.GetKey()
		n := into[key.GetCluster()]
		if n == nil {
			return fmt.Errorf("the broker sends peer %s of %s before the device", key.GetNode(), key.GetCluster())
		}
		n.Peers[key.GetNode()] = change.Peer
		d.peer(key)
	case *semaphorev1.PeeringChange_DeletePeer:
		if n := into[change.DeletePeer.GetCluster()]; n != nil {
			delete(n.Peers, change.DeletePeer.GetNode())
		}
		d.peer(change.DeletePeer)
	}
	if s.staging == nil {
		s.revision = c.GetRevision()
		return nil
	}
	// Nothing counts before the end mark.
	clear(d.Networks)
	clear(d.Peers)
	return nil
}

func (d Dirty) peer(key *semaphorev1.PeerKey) {
	if d.Peers[key.GetCluster()] == nil {
		d.Peers[key.GetCluster()] = map[string]bool{}
	}
	d.Peers[key.GetCluster()][key.GetNode()] = true
}

// end takes a staged state over. A cluster that the mark does not name as complete stays as it is: the
// broker itself does not know yet what it wants.
func (s *State) end(m *semaphorev1.Synced, d Dirty) {
	s.revision = m.GetRevision()
	s.synced = true
	if s.staging == nil {
		return
	}
	staged := s.staging
	s.staging = nil
	complete := map[string]bool{}
	for _, cluster := range m.GetClusters() {
		complete[cluster] = true
	}
	for cluster, n := range staged {
		old := s.networks[cluster]
		s.networks[cluster] = n
		// The device has to be looked at only where it differs; peers, one by one.
		if old == nil || !proto.Equal(old.Device, n.Device) {
			d.Networks[cluster] = true
			continue
		}
		for node, peer := range n.Peers {
			if !proto.Equal(old.Peers[node], peer) {
				d.peer(peer.GetKey())
			}
		}
		for node, peer := range old.Peers {
			if n.Peers[node] == nil {
				d.peer(peer.GetKey())
			}
		}
	}
	for cluster := range s.networks {
		if staged[cluster] == nil && complete[cluster] {
			delete(s.networks, cluster)
			d.Networks[cluster] = true
		}
	}
}
