// Package claim decides who has a name that several want, by the state alone: of those who
// claim it now, the first in order. It does not matter who came first, so that two
// brokers, or one broker before and after a restart, decide alike.
//
// It is pure and imports nothing of ours.
package claim

import "slices"

// Table is who claims which name. Nearly every name has one claimant, so that is what it
// is built for.
type Table[C comparable] struct {
	compare func(a, b C) int
	one     map[string]C
	several map[string][]C // sorted, at least two
}

// New makes an empty table. compare orders claimants; the first has the name.
func New[C comparable](compare func(a, b C) int) *Table[C] {
	return &Table[C]{compare: compare, one: map[string]C{}, several: map[string][]C{}}
}

// Add claims name for c. Claiming twice is claiming once.
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

// Remove ends c's claim of name.
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

// Winner is who has the name.
func (t *Table[C]) Winner(name string) (C, bool) {
	if all, ok := t.several[name]; ok {
		return all[0], true
	}
	c, ok := t.one[name]
	return c, ok
}

// Losers are those who claim the name and do not have it, in order. The slice must not be changed.
func (t *Table[C]) Losers(name string) []C {
	if all, ok := t.several[name]; ok {
		return all[1:]
	}
	return nil
}

// Contested ranges over the names that several claim, in no order.
func (t *Table[C]) Contested(yield func(name string, all []C) bool) {
	for name, all := range t.several {
		if !yield(name, all) {
			return
		}
	}
}

// Names ranges over all names, in no order.
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
