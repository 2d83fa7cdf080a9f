package peering

import "time"

// maxUnapplied bounds what is remembered of an agent that applies nothing: so many changes, and one more of each
// remote that is not among them.
const maxUnapplied = 64

// lag follows which changes one agent was sent and has not applied. It is pure, and belongs to one stream.
type lag struct{ unapplied []unapplied }

// Propagated is a change that has come through to one node.
type Propagated struct {
	// Cluster is the remote it is of.
	Cluster string
	// ObservedAt is when it was seen there, on the clock there.
	ObservedAt time.Time
}

// unapplied is a change, or what follows the last one of its remote that is remembered singly: then observedAt is
// the oldest's, which has waited longest.
type unapplied struct {
	revision uint64 // the newest
	Propagated
}

// sent notes a change that the agent is sent after it has heard the whole state; revisions grow.
func (l *lag) sent(revision uint64, cluster string, observedAt time.Time) {
	if observedAt.IsZero() {
		return
	}
	if len(l.unapplied) >= maxUnapplied {
		for i := len(l.unapplied) - 1; i >= 0; i-- {
			if have := &l.unapplied[i]; have.Cluster == cluster {
				have.revision = revision
				if observedAt.Before(have.ObservedAt) {
					have.ObservedAt = observedAt
				}
				return
			}
		}
	}
	l.unapplied = append(l.unapplied, unapplied{revision, Propagated{cluster, observedAt}})
}

// applied returns what the agent has applied now, with everything up to revision.
func (l *lag) applied(revision uint64) []Propagated {
	var done []Propagated
	kept := l.unapplied[:0]
	for _, u := range l.unapplied {
		if u.revision <= revision {
			done = append(done, u.Propagated)
		} else {
			kept = append(kept, u)
		}
	}
	l.unapplied = kept
	return done
}
