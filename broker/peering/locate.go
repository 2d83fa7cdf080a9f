package peering

import (
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Located is the state of a remote node in the agents.
type Located struct {
	// Peer is the peer that agents receive; nil for none.
	Peer *semaphorev1.Peer
	// Revision and ObservedAt are those of the node's last change; 0 if none is remembered.
	Revision   uint64
	ObservedAt time.Time
	// Attached is the number of attached agents, and Applied the number of those that have programmed the change.
	// Waiting names some nodes of the others.
	Attached, Applied int
	Waiting           []string
}

const maxWaiting = 3

func (s *Server) Locate(cluster, node string) (l Located) {
	if e, ok := s.options.State.journal.Last(key{cluster, node}); ok {
		l.Revision, l.ObservedAt = e.Revision, e.ObservedAt
		if !e.Deleted {
			l.Peer = e.Value.change.GetPeer()
		}
	}
	for _, a := range s.attachments() {
		a.mu.Lock()
		applied := a.session.Applied()
		a.mu.Unlock()
		l.Attached++
		switch {
		case applied >= l.Revision:
			l.Applied++
		case len(l.Waiting) < maxWaiting:
			l.Waiting = append(l.Waiting, a.agent.Node)
		}
	}
	return l
}
