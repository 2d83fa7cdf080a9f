package reconcile

import "time"

// item is a key that waits, is being reconciled, or fails.
type item[K comparable] struct {
	key K
	// in is where it waits for its turn: among the keys that are ready, or in a gate; nil for neither. line is the owner
	// in whose line it waits, or was.
	in   *lines[K]
	line string
	// running is set while it is reconciled, and again if it was enqueued meanwhile.
	running, again bool
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

// wait is why the item waits.
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

// lines are keys that wait in lines of their owners. Owners take turns, so that one with thousands of keys delays a key
// of another owner by one key.
type lines[K comparable] struct {
	of map[string][]*item[K]
	// order lists the owners with a line, in the order of their turns.
	order []string
	// n is the number of keys. A line may still have some that were taken in another owner's turn.
	n int
}

func newLines[K comparable]() *lines[K] { return &lines[K]{of: map[string][]*item[K]{}} }

// push appends a key to an owner's line. A key whose owner changed is taken in the first turn of either owner.
func (s *lines[K]) push(it *item[K], owner string) {
	if it.in == s && it.line == owner {
		return
	}
	if it.in != s {
		s.n++
	}
	it.in, it.line = s, owner
	line, there := s.of[owner]
	if s.of[owner] = append(line, it); !there {
		s.order = append(s.order, owner)
	}
}

// pop takes the first key of the owner whose turn it is, leaving out owners that have enough; nil for none.
func (s *lines[K]) pop(enough func(owner string) bool) *item[K] {
	for range len(s.order) {
		owner := s.order[0]
		s.order = s.order[1:]
		line := s.of[owner]
		var found *item[K]
		for found == nil && len(line) > 0 && !enough(owner) {
			if it := line[0]; it.in == s {
				found = it
			}
			line[0] = nil
			line = line[1:]
		}
		if s.of[owner] = line; len(line) > 0 {
			s.order = append(s.order, owner)
		} else {
			delete(s.of, owner)
		}
		if found != nil {
			found.in, found.line = nil, owner
			s.n--
			return found
		}
	}
	return nil
}
