package peering

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Agents watch their peers closely for closelyFor after an order, which is repeated every closelyAgain while somebody
// looks.
const closelyFor, closelyAgain = 30 * time.Second, 10 * time.Second

// WatchClosely has all agents watch their peers closely for a while, as somebody looks at the tunnels now. It may be
// called at any rate.
func (s *Server) WatchClosely() {
	now := s.now()
	s.mu.Lock()
	if now.Sub(s.closelyAt) < closelyAgain {
		s.mu.Unlock()
		return
	}
	s.closelyAt = now
	attached := slices.Collect(maps.Values(s.attached))
	s.mu.Unlock()
	order := &semaphorev1.WatchClosely{For: durationpb.New(closelyFor)}
	for _, a := range attached {
		a.mu.Lock()
		a.session.WatchClosely(order)
		a.mu.Unlock()
		a.wake()
	}
}
