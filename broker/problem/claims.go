package problem

import (
	"maps"
	"slices"
)

// This file decides which of several claimants gets a name, by the state alone: the first in order of those that claim
// it now. The order of arrival does not matter, so that two brokers, or one broker before and after a restart, decide
// alike.

type Claims[C comparable] struct {
	compare func(a, b C) int
	of      map[string][]C // sorted, never empty
}

// NewClaims makes an empty table. compare orders claimants; the first gets the name.
func NewClaims[C comparable](compare func(a, b C) int) *Claims[C] {
	return &Claims[C]{compare: compare, of: map[string][]C{}}
}

// Add claims name for c. A second claim has no effect.
func (t *Claims[C]) Add(name string, c C) {
	all := t.of[name]
	if i, found := slices.BinarySearchFunc(all, c, t.compare); !found {
		t.of[name] = slices.Insert(all, i, c)
	}
}

func (t *Claims[C]) Remove(name string, c C) {
	all := t.of[name]
	i, found := slices.BinarySearchFunc(all, c, t.compare)
	switch {
	case !found:
	case len(all) == 1:
		delete(t.of, name)
	default:
		t.of[name] = slices.Delete(all, i, i+1)
	}
}

// All returns the claimants of the name, in order. The slice must not be modified.
func (t *Claims[C]) All(name string) []C { return t.of[name] }

func (t *Claims[C]) Winner(name string) (winner C, ok bool) {
	if all := t.of[name]; len(all) > 0 {
		return all[0], true
	}
	return winner, false
}

// Losers returns the other claimants of the name, in order. The slice must not be modified.
func (t *Claims[C]) Losers(name string) []C {
	all := t.of[name]
	return all[min(1, len(all)):]
}

// Names iterates over all names, in no order.
func (t *Claims[C]) Names(yield func(string) bool) { maps.Keys(t.of)(yield) }
