package desired

import (
	"maps"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Restore takes over what an earlier agent was told, before the first stream begins. No broker can go on from
// it: it says anew what it wants, for which it is told what is held. All that is restored is dirty.
func (s *State) Restore(networks map[string]*Network) Dirty {
	d := NewDirty()
	for cluster, n := range networks {
		s.networks[cluster] = &Network{Device: n.Device, Peers: maps.Clone(n.Peers), Restored: true}
		if n.Peers == nil {
			s.networks[cluster].Peers = map[string]*semaphorev1.Peer{}
		}
		d.Networks[cluster] = true
	}
	return d
}

// confirm notes that the broker has said what it wants for a cluster. Less is done by what is restored than by what
// is wanted, so the device has to be looked at.
func (s *State) confirm(cluster string, d Dirty) {
	if n := s.networks[cluster]; n != nil && n.Restored {
		n.Restored = false
		d.Networks[cluster] = true
	}
}

// Snapshot is all that is wanted, to be kept for a later agent; false before a whole state was heard. Messages
// themselves never change.
func (s *State) Snapshot() (map[string]*Network, bool) {
	if !s.synced {
		return nil, false
	}
	out := make(map[string]*Network, len(s.networks))
	for cluster, n := range s.networks {
		out[cluster] = &Network{Device: n.Device, Peers: maps.Clone(n.Peers)}
	}
	return out, true
}

// Proven says whether what is wanted for a cluster is what the present stream, or the last one, says it is.
func (s *State) Proven(cluster string) bool {
	return s.current && s.networks[cluster] != nil && s.awaitingSync[cluster] == nil
}
