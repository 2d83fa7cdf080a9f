package peering

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// After an order, agents watch their peers closely for closelyFor. The order is repeated every closelyAgain while a
// client requests the state of the tunnels.
const closelyFor, closelyAgain = 30 * time.Second, 10 * time.Second

// watchClosely makes all agents watch their peers closely for a while, because a client currently requests the state of
// the tunnels. It may be called at any rate.
func (s *Server) WatchClosely() {
	now := s.now()
	s.mu.Lock()
	if now.Sub(s.closelyAt) < closelyAgain {
		s.mu.Unlock()
		return
	}
	s.closelyAt = now
	s.mu.Unlock()
	order := &semaphorev1.WatchClosely{For: durationpb.New(closelyFor)}
	for _, a := range s.attachments() {
		a.mu.Lock()
		a.session.watchClosely(order)
		a.mu.Unlock()
		a.wake()
	}
}
