package stream

import (
	"maps"

	"github.com/kube-semaphore/semaphore/agent/plan"
)

// Restore loads the state that an earlier agent saved, before the first stream begins. No broker can resume it: it
// sends the desired state again, for which it receives the digests of the agent's state. Everything restored is dirty.
func (s *State) Restore(networks map[string]*plan.Desired) Dirty {
	d := plan.NewChanges()
	for cluster, n := range networks {
		s.networks[cluster] = &plan.Desired{Device: n.Device, Peers: maps.Clone(n.Peers), Restored: true}
		d.Networks[cluster] = true
	}
	return d
}

// Snapshot returns the whole desired state, to be saved for a later agent; false before a whole state was received.
// Messages are immutable.
func (s *State) Snapshot() (map[string]*plan.Desired, bool) {
	if !s.synced {
		return nil, false
	}
	out := make(map[string]*plan.Desired, len(s.networks))
	for cluster, n := range s.networks {
		out[cluster] = &plan.Desired{Device: n.Device, Peers: maps.Clone(n.Peers)}
	}
	return out, true
}

// Proven reports whether the desired state of a cluster was sent by the present or the last stream.
func (s *State) Proven(cluster string) bool {
	return s.current && s.networks[cluster] != nil && s.awaitingSync[cluster] == nil
}
