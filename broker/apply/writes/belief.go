package writes

import (
	"strconv"
	"sync"
	"time"
)

// BeliefFor bounds how long an own write counts against the informer: long enough for any working watch, and a bound
// for a watch that skipped the write.
const BeliefFor = 10 * time.Second

// goneFor is how long the report of a deletion counts against a response that comes after it: longer than the apiserver
// takes to answer.
const goneFor = time.Minute

// Belief is what the informer has reported, overlaid with the broker's own latest writes: the informer reports a write
// some milliseconds later, and without the overlay the broker would repeat it. It holds the reported objects itself,
// because an informer's store is ahead of its reports: an object that is not in the store may be one whose deletion is
// about to be reported, which its writer must know. It is safe for concurrent use.
type Belief[T Object] struct {
	mu       sync.Mutex
	reported map[string]T
	written  map[string]written[T]
	// gone are the objects whose deletion was reported since turned, and wasGone those of the time before.
	gone, wasGone map[string]T
	turned        time.Time
}

// written is the last own write under a name, until the informer reports it.
type written[T Object] struct {
	object  T
	deleted bool // the deleted object
	until   time.Time
}

func NewBelief[T Object]() *Belief[T] {
	return &Belief[T]{reported: map[string]T{}, written: map[string]written[T]{}, gone: map[string]T{}}
}

// Reset drops everything, because another informer starts.
func (b *Belief[T]) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.reported)
	clear(b.written)
	clear(b.gone)
	clear(b.wasGone)
}

// Get returns the newest object under a name. Only Expire drops an own write, so that its caller notices.
func (b *Belief[T]) Get(now time.Time, name string) (object T, there bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.turned) >= goneFor {
		b.gone, b.wasGone, b.turned = map[string]T{}, b.gone, now
	}
	if w, ok := b.written[name]; ok && now.Before(w.until) {
		return w.object, !w.deleted
	}
	object, there = b.reported[name]
	return object, there
}

// Left returns for how long an own write under a name still counts against the informer; 0 for none.
func (b *Belief[T]) Left(now time.Time, name string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w, ok := b.written[name]; ok {
		return max(w.until.Sub(now), 0)
	}
	return 0
}

// Expire drops an own write that the informer did not report in time. From then on the informer is right, and the
// caller must observe its object. object is the written one.
func (b *Belief[T]) Expire(now time.Time, name string) (object T, expired bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, ok := b.written[name]
	if !ok || now.Before(w.until) {
		return object, false
	}
	delete(b.written, name)
	return w.object, true
}

// Wrote records the apiserver's answer to a create or an update. It returns whether the object may still be there: the
// watch may be faster than the response, and report that it is gone.
func (b *Belief[T]) Wrote(now time.Time, name string, object T) (remains bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, all := range []map[string]T{b.gone, b.wasGone} {
		if was, ok := all[name]; ok && was.GetUID() == object.GetUID() && !older(was, object) {
			return false
		}
	}
	if seen, ok := b.reported[name]; !ok || older(seen, object) { // else the watch was faster
		b.written[name] = written[T]{object: object, until: now.Add(BeliefFor)}
	}
	return true
}

func (b *Belief[T]) Deleted(now time.Time, name string, object T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen, ok := b.reported[name]
	w, wrote := b.written[name]
	if !(ok && seen.GetUID() == object.GetUID()) && !(wrote && w.object.GetUID() == object.GetUID()) {
		return // the watch was faster than the response
	}
	b.written[name] = written[T]{object: object, deleted: true, until: now.Add(BeliefFor)}
}

func (b *Belief[T]) Forget(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.written, name)
}

// Informed records a report of the informer: an object, or its deletion. It returns whether that is the own deletion.
func (b *Belief[T]) Informed(name string, object T, gone bool) (ours bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reported[name] = object; gone {
		delete(b.reported, name)
		b.gone[name] = object
	}
	w, ok := b.written[name]
	same := ok && object.GetUID() == w.object.GetUID()
	switch {
	case !ok:
	case w.deleted && gone, // the object that we deleted
		w.deleted && !same,
		!w.deleted && gone && same,
		!w.deleted && !gone && !older(object, w.object):
		delete(b.written, name)
		return w.deleted && gone && same
	}
	return false
}

// older compares resource versions, which are revisions of etcd. Versions that cannot be compared count as not older:
// the informer is right.
func older[T Object](a, b T) bool {
	x, errX := strconv.ParseUint(a.GetResourceVersion(), 10, 64)
	y, errY := strconv.ParseUint(b.GetResourceVersion(), 10, 64)
	return errX == nil && errY == nil && x < y
}
