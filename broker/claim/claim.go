// Package claim decides which of several claimants gets a name, by the state alone: the first in order of those that
// claim it now. The order of arrival does not matter, so that two brokers, or one broker before and after a restart,
// decide alike.
//
// It is pure and imports no other package of semaphore.
//
// It may import no other package of the broker.
package claim

import "slices"

// Table records who claims which name. It is optimized for names with one claimant, which nearly all are.
type Table[C comparable] struct {
	compare func(a, b C) int
	one     map[string]C
	several map[string][]C // sorted, at least two
}

// New makes an empty table. compare orders claimants; the first gets the name.
func New[C comparable](compare func(a, b C) int) *Table[C] {
	return &Table[C]{compare: compare, one: map[string]C{}, several: map[string][]C{}}
}

// Add claims name for c. A second claim has no effect.
func (t *Table[C]) Add(name string, c C) {
	if all, ok := t.several[name]; ok {
		if i, found := slices.BinarySearchFunc(all, c, t.compare); !found {
			t.several[name] = slices.Insert(all, i, c)
		}
		return
	}
	first, ok := t.one[name]
	switch {
	case !ok:
		t.one[name] = c
	case first != c:
		delete(t.one, name)
		both := []C{first, c}
		slices.SortFunc(both, t.compare)
		t.several[name] = both
	}
}

// Remove removes c's claim of name.
func (t *Table[C]) Remove(name string, c C) {
	if all, ok := t.several[name]; ok {
		if i, found := slices.BinarySearchFunc(all, c, t.compare); found {
			all = slices.Delete(all, i, i+1)
		}
		if len(all) == 1 {
			delete(t.several, name)
			t.one[name] = all[0]
		} else {
			t.several[name] = all
		}
		return
	}
	if first, ok := t.one[name]; ok && first == c {
		delete(t.one, name)
	}
}

// Winner returns the claimant that gets the name.
func (t *Table[C]) Winner(name string) (C, bool) {
	if all, ok := t.several[name]; ok {
		return all[0], true
	}
	c, ok := t.one[name]
	return c, ok
}

// Losers returns the other claimants of the name, in order. The slice must not be modified.
func (t *Table[C]) Losers(name string) []C {
	if all, ok := t.several[name]; ok {
		return all[1:]
	}
	return nil
}

// Names iterates over all names, in no order.
func (t *Table[C]) Names(yield func(string) bool) {
	for name := range t.one {
		if !yield(name) {
			return
		}
	}
	for name := range t.several {
		if !yield(name) {
			return
		}
	}
}
