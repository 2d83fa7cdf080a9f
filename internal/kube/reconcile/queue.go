package reconcile

import (
	"time"

	"github.com/kube-semaphore/semaphore/internal/waiting"
)

// item is a key that waits, is being reconciled, or fails.
type item[K comparable] struct {
	key K
	// in is where it waits for its turn: among the keys that are ready, or in a gate; nil for neither. line is the owner
	// in whose line it waits, or was.
	in   *lines[K]
	line string
	// running is set while it is reconciled, again if it was enqueued meanwhile, and news if its desired state changed.
	running, again, news bool
	// began is when it became ready, or when its reconciliation began.
	began time.Time
	// held is the time before which it is not tried after a failure, and planned when it is enqueued. Zero for none.
	held, planned time.Time
	// timer rings when it is due; nil until it was due later.
	timer *time.Timer
	// probes is the gate that released it; nil for none.
	probes *gate[K]
	// failure is its last one, nil for none.
	failure *failure
	// why it waits, and since when; empty for no reason.
	why   Reason
	since time.Time
}

// due is when the item's wait ends; zero for never.
func (it *item[K]) due() time.Time {
	if !it.held.IsZero() {
		return it.held
	}
	return it.planned
}

func (it *item[K]) wait() Wait {
	if it.why == "" {
		return Wait{}
	}
	w := Wait{Reason: it.why, Since: it.since, Until: it.due()}
	if it.failure != nil {
		w.Err = it.failure.Err
	}
	return w
}

// lines are keys that wait in lines of their owners.
type lines[K comparable] struct {
	waiting.Lines[*item[K]]
	// n is the number of keys. A line may still have some that were taken in another owner's turn.
	n int
}

// push appends a key to an owner's line. A key whose owner changed is taken in the first turn of either owner.
func (s *lines[K]) push(it *item[K], owner string) {
	if it.in == s && it.line == owner {
		return
	}
	if it.in != s {
		s.n++
	}
	it.in, it.line = s, owner
	s.Push(owner, it)
}

// pop takes the first key of the owner whose turn it is, leaving out owners that have enough; nil for none.
func (s *lines[K]) pop(enough func(owner string) bool) *item[K] {
	owner, it, ok := s.Pop(enough, func(it *item[K]) bool { return it.in != s })
	if !ok {
		return nil
	}
	it.in, it.line = nil, owner
	s.n--
	return it
}
