package problem

import (
	"sync"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Board shows the latest summary of each remote. It is safe for concurrent use and does not block. The zero value is
// empty.
type Board struct {
	summaries sync.Map // of *Summary, by cluster
}

// Publish replaces the summaries of some remotes.
func (b *Board) Publish(changed map[string]*Summary) {
	for cluster, s := range changed {
		b.summaries.Store(cluster, s)
	}
}

// Take publishes what changed in a set, and warns about new problems. Within a time, one Event is written for each
// topic.
func (b *Board) Take(s *Set, warn func(cluster, topic string, reason finding.Code, note string)) {
	added, changed := s.Take()
	b.Publish(changed)
	for _, is := range added {
		warn(is.Cluster, string(is.Reason)+" "+is.Object+" "+string(is.Code), is.Reason, is.Text)
	}
}

// Of returns the summary of a remote, which is immutable.
func (b *Board) Of(cluster string) *Summary {
	if s, ok := b.summaries.Load(cluster); ok {
		return s.(*Summary)
	}
	return &Summary{}
}
