package problem

import "slices"

// This file decides which of several claimants gets a name, by the state alone: the first in order of those that claim
// it now. The order of arrival does not matter, so that two brokers, or one broker before and after a restart, decide
// alike.

// Claims records who claims which name. It is optimized for names with one claimant, which nearly all are.
type Claims[C comparable] struct {
	compare func(a, b C) int
	one     map[string]C
	several map[string][]C // sorted, at least two
}

// NewClaims makes an empty table. compare orders claimants; the first gets the name.
func NewClaims[C comparable](compare func(a, b C) int) *Claims[C] {
	return &Claims[C]{compare: compare, one: map[string]C{}, several: map[string][]C{}}
}

// Add claims name for c. A second claim has no effect.
func (t *Claims[C]) Add(name string, c C) {
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
func (t *Claims[C]) Remove(name string, c C) {
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
func (t *Claims[C]) Winner(name string) (C, bool) {
	if all, ok := t.several[name]; ok {
		return all[0], true
	}
	c, ok := t.one[name]
	return c, ok
}

// Losers returns the other claimants of the name, in order. The slice must not be modified.
func (t *Claims[C]) Losers(name string) []C {
	if all, ok := t.several[name]; ok {
		return all[1:]
	}
	return nil
}

// Names iterates over all names, in no order.
func (t *Claims[C]) Names(yield func(string) bool) {
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
