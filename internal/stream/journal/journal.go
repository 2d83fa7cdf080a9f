// Package journal keeps the newest state of each object in the order of last change,
// so that any number of readers can follow it, each at its own pace.
//
// A reader is nothing but a revision: it asks for what changed after it. A change to
// an object supersedes the earlier one, so what waits for the slowest reader is bounded
// by the number of objects and never by the number of changes, and one slow reader
// costs the others nothing. The exporter's catalog and the broker's peer lists are
// journals.
//
// The package knows nothing of streams or Kubernetes and imports nothing of ours.
package journal

import (
	"context"
	"crypto/rand"
	"slices"
	"sort"
	"sync"
	"time"
)

// Entry is one step of one object's life. Entries are immutable once returned.
type Entry[K comparable, V any] struct {
	// Revision grows by one with each change; gaps are superseded changes.
	Revision uint64
	Key      K
	// Value is the newest state, or for a deleted object the last one before its end.
	Value   V
	Deleted bool
	// ObservedAt is when the source of the change was seen.
	ObservedAt time.Time
}

// Journal is a set of objects with the order of their last changes. Its zero value is
// not usable; see New. All methods may be called from any goroutine.
type Journal[K comparable, V any] struct {
	epoch         string
	maxTombstones int

	mu sync.Mutex
	// entries by key, tombstones too.
	byKey map[K]*Entry[K, V]
	// log is in the order of revisions. A slot whose entry was superseded or forgotten is
	// nil; when half of the slots are, log is compacted.
	log []slot[K, V]
	// owner is whose a key is, and owners what is kept of each.
	owner    func(K) string
	owners   map[string]*owner
	live     int
	dead     int
	head     uint64
	oldest   uint64 // a reader at this revision or later misses nothing
	snapshot []*Entry[K, V]
	// snapshotAt is the revision of the cached snapshot.
	snapshotAt uint64
	// changed is closed and replaced at every change.
	changed chan struct{}
}

// owner is what is kept of one owner of keys.
type owner struct {
	// tombstones are the revisions of those that are remembered, and of some that were superseded, in order; dead is how many are remembered.
	tombstones []uint64
	dead       int
	// oldest is the revision from which a reader misses nothing of the owner's.
	oldest uint64
}

type slot[K comparable, V any] struct {
	revision uint64
	entry    *Entry[K, V]
}

// New makes an empty journal with an epoch of its own. It remembers the last
// maxTombstones deletions for readers that come back; one that has been away for longer
// starts anew from a snapshot.
func New[K comparable, V any](maxTombstones int) *Journal[K, V] {
	return &Journal[K, V]{
		epoch:         rand.Text(),
		maxTombstones: max(0, maxTombstones),
		byKey:         make(map[K]*Entry[K, V]),
		owner:         func(K) string { return "" },
		owners:        make(map[string]*owner),
		changed:       make(chan struct{}),
	}
}

// By says whose a key is, for good, before anything is recorded. Who has most tombstones has the oldest of them forgotten, so that one owner's
// deletions do not make readers forget another's; see Rest.
func (j *Journal[K, V]) By(owner func(K) string) *Journal[K, V] {
	j.owner = owner
	return j
}

// Epoch names the life of this journal: revisions of two epochs cannot be compared.
func (j *Journal[K, V]) Epoch() string { return j.epoch }

// Head is the newest revision.
func (j *Journal[K, V]) Head() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.head
}

// Oldest is the oldest revision from which a reader can go on without a snapshot.
func (j *Journal[K, V]) Oldest() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.oldest
}

// Len is the number of objects, deleted ones not counted.
func (j *Journal[K, V]) Len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.live
}

// Get returns the newest state of an object.
func (j *Journal[K, V]) Get(key K) (V, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e, ok := j.byKey[key]; ok && !e.Deleted {
		return e.Value, true
	}
	var none V
	return none, false
}

// Last returns the last step of an object's life that is remembered, be it its end.
func (j *Journal[K, V]) Last(key K) (*Entry[K, V], bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.byKey[key]
	return e, ok
}

// Put records the newest state of an object. The caller decides beforehand whether
// anything that matters has changed: Put always makes a new revision.
func (j *Journal[K, V]) Put(key K, value V, observedAt time.Time) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.append(&Entry[K, V]{Key: key, Value: value, ObservedAt: observedAt})
}

// Delete records the end of an object, and reports whether there was one.
func (j *Journal[K, V]) Delete(key K, observedAt time.Time) (uint64, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	old, ok := j.byKey[key]
	if !ok || old.Deleted {
		return j.head, false
	}
	return j.append(&Entry[K, V]{Key: key, Value: old.Value, Deleted: true, ObservedAt: observedAt}), true
}

func (j *Journal[K, V]) append(e *Entry[K, V]) uint64 {
	j.head++
	e.Revision = j.head
	if old, ok := j.byKey[e.Key]; ok {
		j.count(old, -1)
		j.log[j.find(old.Revision)].entry = nil
	}
	j.byKey[e.Key] = e
	j.count(e, +1)
	j.log = append(j.log, slot[K, V]{e.Revision, e})
	j.snapshot = nil
	if e.Deleted {
		o := j.of(e.Key)
		o.tombstones = append(o.tombstones, e.Revision)
	}
	if j.dead > j.maxTombstones {
		j.forgetOldest()
	}
	if len(j.log) > 2*(j.live+j.dead)+64 {
		j.compact()
	}
	close(j.changed)
	j.changed = make(chan struct{})
	return e.Revision
}

func (j *Journal[K, V]) count(e *Entry[K, V], by int) {
	if e.Deleted {
		j.dead += by
		j.of(e.Key).dead += by
	} else {
		j.live += by
	}
}

// find is the index of the first slot at or after revision.
func (j *Journal[K, V]) find(revision uint64) int {
	return sort.Search(len(j.log), func(i int) bool { return j.log[i].revision >= revision })
}

// of is what is kept of the owner of a key.
func (j *Journal[K, V]) of(key K) *owner {
	name := j.owner(key)
	o := j.owners[name]
	if o == nil {
		o = &owner{}
		j.owners[name] = o
	}
	return o
}

// forgetOldest drops the oldest tombstone of the owner that has most; of those that have as many, the oldest of all.
func (j *Journal[K, V]) forgetOldest() {
	var most *owner
	for _, o := range j.owners {
		if o.dead == 0 {
			continue
		}
		if most == nil || o.dead > most.dead || o.dead == most.dead && o.tombstones[0] < most.tombstones[0] {
			most = o
		}
	}
	for {
		revision := most.tombstones[0]
		most.tombstones = most.tombstones[1:]
		at := j.find(revision)
		if at == len(j.log) || j.log[at].revision != revision || j.log[at].entry == nil {
			continue // superseded
		}
		delete(j.byKey, j.log[at].entry.Key)
		j.log[at].entry = nil
		j.dead--
		most.dead--
		most.oldest = revision
		j.oldest = max(j.oldest, revision)
		return
	}
}

// compact drops the empty slots.
func (j *Journal[K, V]) compact() {
	kept := make([]slot[K, V], 0, j.live+j.dead)
	for _, s := range j.log {
		if s.entry != nil {
			kept = append(kept, s)
		}
	}
	j.log = kept
	for _, o := range j.owners {
		if len(o.tombstones) <= 2*o.dead+64 {
			continue
		}
		o.tombstones = slices.DeleteFunc(o.tombstones, func(revision uint64) bool {
			at := j.find(revision)
			return at == len(j.log) || j.log[at].revision != revision
		})
	}
}

// Snapshot returns every object as of one moment, and the revision of that moment. The
// slice is shared between callers and must not be changed.
func (j *Journal[K, V]) Snapshot() ([]*Entry[K, V], uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.snapshot == nil || j.snapshotAt != j.head {
		all := make([]*Entry[K, V], 0, j.live)
		for _, s := range j.log {
			if s.entry != nil && !s.entry.Deleted {
				all = append(all, s.entry)
			}
		}
		j.snapshot, j.snapshotAt = all, j.head
	}
	return j.snapshot, j.head
}

// Since returns up to limit changes after revision, oldest first, and the revision to go
// on from. ok is false when deletions after revision are no longer remembered, or when
// revision is none that this journal has had: the reader then needs a Snapshot.
func (j *Journal[K, V]) Since(revision uint64, limit int) (changes []*Entry[K, V], next uint64, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if revision < j.oldest || revision > j.head {
		return nil, revision, false
	}
	if limit <= 0 {
		return nil, revision, true
	}
	for _, s := range j.log[j.find(revision+1):] {
		if s.entry == nil {
			continue
		}
		if len(changes) == limit {
			return changes, changes[limit-1].Revision, true
		}
		changes = append(changes, s.entry)
	}
	return changes, j.head, true
}

// Misses says whether deletions of an owner after revision are no longer remembered, or revision is none that this journal has had.
func (j *Journal[K, V]) Misses(owner string, revision uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	o := j.owners[owner]
	return revision > j.head || o != nil && revision < o.oldest
}

// Rest returns what a reader at revision has to be told that goes on with what it has of some owners, and starts anew with others: the
// changes of the former after revision, and every object of the latter, oldest first; and the revision to go on from. Of who goes on nothing may
// be missed.
func (j *Journal[K, V]) Rest(revision uint64, goesOn func(owner string) bool) ([]*Entry[K, V], uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var rest []*Entry[K, V]
	for _, s := range j.log {
		switch {
		case s.entry == nil:
		case goesOn(j.owner(s.entry.Key)) && s.revision > revision, !goesOn(j.owner(s.entry.Key)) && !s.entry.Deleted:
			rest = append(rest, s.entry)
		}
	}
	return rest, j.head
}

// Count is the number of changes after revision that match. It looks at no more than limit of them; of what
// comes after these, all count, superseded ones too.
func (j *Journal[K, V]) Count(revision uint64, limit int, match func(*Entry[K, V]) bool) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	if revision >= j.head {
		return 0
	}
	n := 0
	after := j.log[j.find(revision+1):]
	for _, s := range after[:min(limit, len(after))] {
		if s.entry != nil && match(s.entry) {
			n++
		}
	}
	return n + len(after) - min(limit, len(after))
}

// Pending is the number of changes after revision.
func (j *Journal[K, V]) Pending(revision uint64) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	if revision >= j.head {
		return 0
	}
	n := 0
	for _, s := range j.log[j.find(revision+1):] {
		if s.entry != nil {
			n++
		}
	}
	return n
}

// Changed returns a channel that is closed at the first change after revision; at once
// when there has been one already.
func (j *Journal[K, V]) Changed(revision uint64) <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.head > revision {
		done := make(chan struct{})
		close(done)
		return done
	}
	return j.changed
}

// Wait returns when there is a change after revision, or with the context's error.
func (j *Journal[K, V]) Wait(ctx context.Context, revision uint64) error {
	select {
	case <-j.Changed(revision):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
