package reconcile

// turns is a workqueue.Queue that returns the waiting keys of each owner in order, and takes owners in turn. An owner
// with thousands of keys thus delays a key of another owner by one key.
type turns[K comparable] struct {
	owner   func(K) string
	waiting map[K]bool
	lines   map[string]*line[K]
	// order lists the owners with waiting keys, in the order of their turns.
	order []string
}

// line has the keys of one owner. It still contains keys that were returned in another owner's turn.
type line[K comparable] struct {
	keys []K
	has  map[K]bool
}

func newTurns[K comparable](owner func(K) string) *turns[K] {
	return &turns[K]{owner: owner, waiting: map[K]bool{}, lines: map[string]*line[K]{}}
}

// Touch implements workqueue.Queue. A waiting key whose owner changed is returned in the first turn of either owner.
func (t *turns[K]) Touch(key K) { t.join(key) }

// Push implements workqueue.Queue.
func (t *turns[K]) Push(key K) {
	t.waiting[key] = true
	t.join(key)
}

func (t *turns[K]) join(key K) {
	owner := t.owner(key)
	l := t.lines[owner]
	if l == nil {
		l = &line[K]{has: map[K]bool{}}
		t.lines[owner] = l
		t.order = append(t.order, owner)
	}
	if !l.has[key] {
		l.has[key] = true
		l.keys = append(l.keys, key)
	}
}

// Len implements workqueue.Queue.
func (t *turns[K]) Len() int { return len(t.waiting) }

// Pop implements workqueue.Queue. It is called only if a key waits.
func (t *turns[K]) Pop() K {
	for {
		owner := t.order[0]
		t.order = t.order[1:]
		l := t.lines[owner]
		var key K
		found := false
		for !found && len(l.keys) > 0 {
			key = l.keys[0]
			l.keys[0] = *new(K)
			l.keys = l.keys[1:]
			delete(l.has, key)
			found = t.waiting[key]
		}
		if len(l.keys) > 0 {
			t.order = append(t.order, owner)
		} else {
			delete(t.lines, owner)
		}
		if found {
			delete(t.waiting, key)
			return key
		}
	}
}
