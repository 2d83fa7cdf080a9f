package federation

import (
	"maps"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/broker/replica"
)

// Located is the state of an object of one cluster.
type Located struct {
	Cluster string
	Objects []replica.Located
	// Complete is true once a complete snapshot of the kind was applied: only then does an absent object not exist.
	Complete bool
	// Heard is when the sender last confirmed the kind; zero for never.
	Heard time.Time
}

// Locate returns the state of an object for each cluster that may send its kind, by cluster.
func (s *Server) Locate(key replica.Key) (found []Located) {
	links := s.all()
	for _, cluster := range slices.Sorted(maps.Keys(links)) {
		l := links[cluster]
		if !slices.Contains(l.kinds, key.Kind) {
			continue
		}
		l.mu.Lock()
		found = append(found, Located{Cluster: cluster, Objects: l.replica.Locate(key),
			Complete: l.replica.Complete(key.Kind), Heard: l.replica.LastHeard(key.Kind)})
		l.mu.Unlock()
	}
	return found
}
