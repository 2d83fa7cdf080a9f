package peering

import "time"

// maxUnapplied bounds the pending changes that are remembered for an agent that applies nothing: this number, and one
// more for each remote that is not among them.
const maxUnapplied = 64

// lag records the changes that were sent to one agent and that it has not applied. It is pure, and belongs to one
// stream.
type lag struct{ pending []pendingChange }

type Propagated struct {
	Cluster string
	// ObservedAt is when the change was observed there, on the clock of that cluster.
	ObservedAt time.Time
}

// pendingChange is a change, or all later changes of its remote. In the latter case ObservedAt is that of the oldest.
type pendingChange struct {
	revision uint64 // the newest
	Propagated
}

// sent records a change that was sent after the whole state; revisions grow.
func (l *lag) sent(revision uint64, cluster string, observedAt time.Time) {
	if observedAt.IsZero() {
		return
	}
	if len(l.pending) >= maxUnapplied {
		for i := len(l.pending) - 1; i >= 0; i-- {
			if have := &l.pending[i]; have.Cluster == cluster {
				have.revision = revision
				if observedAt.Before(have.ObservedAt) {
					have.ObservedAt = observedAt
				}
				return
			}
		}
	}
	l.pending = append(l.pending, pendingChange{revision, Propagated{cluster, observedAt}})
}

// applied returns the changes up to revision, which the agent has applied now.
func (l *lag) applied(revision uint64) []Propagated {
	var done []Propagated
	kept := l.pending[:0]
	for _, u := range l.pending {
		if u.revision <= revision {
			done = append(done, u.Propagated)
		} else {
			kept = append(kept, u)
		}
	}
	l.pending = kept
	return done
}
