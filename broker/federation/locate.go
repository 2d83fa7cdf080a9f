package federation

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/broker/replica"
)

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

// Accepted returns the objects of a cluster that were accepted, sorted: of a kind, of a namespace unless that is empty,
// and with names that begin like that name.
func (s *Server) Accepted(cluster string, like replica.Key) (found []replica.Key) {
	l, ok := s.all()[cluster]
	if !ok {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.replica.All(like.Kind) {
		if (like.Namespace == "" || key.Namespace == like.Namespace) && strings.HasPrefix(key.Name, like.Name) {
			found = append(found, key)
		}
	}
	slices.SortFunc(found, replica.Key.Compare)
	return found
}
