package problem

import (
	"maps"
	"sync"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Board shows the latest summary of each remote, and warns about problems. It is safe for concurrent use and does not
// block. The zero value is empty.
type Board struct {
	summaries sync.Map // of *Summary, by cluster

	mu sync.Mutex
	// untold are existing problems whose warnings had no room.
	untold map[Problem]bool
}

// Warn writes an Event about a remote ("" for none). reason is one word, note a sentence. Within a time, Warn writes
// one Event for each topic. It does not accept an Event while too many of the remote wait.
type Warn = func(cluster, topic string, reason finding.Code, note string) (accepted bool)

// Take publishes what changed in a set, and warns about new problems. Within a time, one Event is written for each
// topic. Remind repeats the warnings that were not accepted.
func (b *Board) Take(s *Set, warn Warn) {
	ended := s.ended
	added, changed := s.Take()
	for cluster, summary := range changed {
		b.summaries.Store(cluster, summary)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range ended {
		delete(b.untold, p)
	}
	for _, p := range added {
		if p.warn(warn) || ended[p] {
			continue
		}
		if b.untold == nil {
			b.untold = map[Problem]bool{}
		}
		b.untold[p] = true
	}
}

// Remind repeats the warnings that were not accepted, about problems that still exist.
func (b *Board) Remind(warn Warn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	full := map[string]bool{}
	maps.DeleteFunc(b.untold, func(p Problem, _ bool) bool {
		full[p.Cluster] = full[p.Cluster] || !p.warn(warn)
		return !full[p.Cluster]
	})
}

func (p Problem) warn(warn Warn) (accepted bool) {
	return warn(p.Cluster, string(p.Code)+" "+p.Object, p.Code, p.Text)
}

// Of returns the summary of a remote, which is immutable.
func (b *Board) Of(cluster string) *Summary {
	if s, ok := b.summaries.Load(cluster); ok {
		return s.(*Summary)
	}
	return &Summary{}
}
