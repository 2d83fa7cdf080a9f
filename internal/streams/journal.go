package streams

// A Journal keeps the newest state of each object in the order of last change, so that any number of readers can follow
// it, each at its own pace.
//
// A reader is nothing but a revision: it asks for what changed after it. A change to an object supersedes the earlier
// one, so what waits for the slowest reader is bounded by the number of objects and never by the number of changes, and
// one slow reader costs the others nothing. The exporter's catalog and the broker's peer lists are journals.
//
// A Digest compares the sets of objects at both ends of a stream.
//
// It has a lock and no I/O. It knows nothing of streams or Kubernetes.

import (
	"crypto/rand"
	"math"
	"sort"
	"sync"
	"time"
)

// Entry is one step of one object's life. Entries are immutable once returned.
type Entry[K comparable, V any] struct {
	// Revision grows by one with each change; gaps are superseded changes.
	Revision uint64
	Key      K
	// Value is the newest state, or for a deleted object the last one.
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
	// tombstones are the revisions of the remembered deletions, and of some superseded ones, in order.
	tombstones []uint64
	live, dead int
	head       uint64
	oldest     uint64         // a reader at this revision or later misses nothing
	snapshot   []*Entry[K, V] // nil after a change
	// changed is closed and replaced at every change.
	changed chan struct{}
}

type slot[K comparable, V any] struct {
	revision uint64
	entry    *Entry[K, V]
}

// NewJournal returns an empty journal with an epoch of its own. It remembers the last maxTombstones deletions for
// readers that come back; one that has been away for longer starts again from a snapshot.
func NewJournal[K comparable, V any](maxTombstones int) *Journal[K, V] {
	return &Journal[K, V]{
		epoch:         rand.Text(),
		maxTombstones: max(0, maxTombstones),
		byKey:         make(map[K]*Entry[K, V]),
		changed:       make(chan struct{}),
	}
}

// Epoch names the life of this journal: revisions of two epochs cannot be compared.
func (j *Journal[K, V]) Epoch() string { return j.epoch }

func (j *Journal[K, V]) Head() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.head
}

// Oldest returns the oldest revision from which a reader can continue without a snapshot.
func (j *Journal[K, V]) Oldest() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.oldest
}

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

// Last returns the last remembered step of an object's life, which may be its deletion.
func (j *Journal[K, V]) Last(key K) (*Entry[K, V], bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.byKey[key]
	return e, ok
}

// Put records the newest state of an object. The caller decides whether anything relevant has changed: Put always makes
// a new revision.
func (j *Journal[K, V]) Put(key K, value V, observedAt time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.append(&Entry[K, V]{Key: key, Value: value, ObservedAt: observedAt})
}

// Delete records the deletion of an object, if there is one, with the part of its last value that readers of the
// deletion need. Thousands of deletions are remembered.
func (j *Journal[K, V]) Delete(key K, last V, observedAt time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if old, ok := j.byKey[key]; ok && !old.Deleted {
		j.append(&Entry[K, V]{Key: key, Value: last, Deleted: true, ObservedAt: observedAt})
	}
}

func (j *Journal[K, V]) append(e *Entry[K, V]) {
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
		j.tombstones = append(j.tombstones, e.Revision)
	}
	if j.dead > j.maxTombstones {
		j.forgetOldest()
	}
	if len(j.log) > 2*(j.live+j.dead)+64 {
		j.compact()
	}
	close(j.changed)
	j.changed = make(chan struct{})
}

func (j *Journal[K, V]) count(e *Entry[K, V], by int) {
	if e.Deleted {
		j.dead += by
	} else {
		j.live += by
	}
}

// find returns the index of the first slot at or after revision.
func (j *Journal[K, V]) find(revision uint64) int {
	return sort.Search(len(j.log), func(i int) bool { return j.log[i].revision >= revision })
}

func (j *Journal[K, V]) forgetOldest() {
	for {
		// A revision in tombstones has a slot, since compact drops both; it is empty if a later change superseded it.
		s := &j.log[j.find(j.tombstones[0])]
		j.tombstones = j.tombstones[1:]
		if s.entry == nil {
			continue
		}
		delete(j.byKey, s.entry.Key)
		s.entry = nil
		j.dead--
		j.oldest = s.revision
		return
	}
}

// compact drops the empty slots, and the tombstones that had them.
func (j *Journal[K, V]) compact() {
	kept, tombstones := make([]slot[K, V], 0, j.live+j.dead), make([]uint64, 0, j.dead)
	for _, s := range j.log {
		if s.entry == nil {
			continue
		}
		kept = append(kept, s)
		if s.entry.Deleted {
			tombstones = append(tombstones, s.revision)
		}
	}
	j.log, j.tombstones = kept, tombstones
}

// Snapshot returns every object at one revision, and that revision. Callers share the slice, which must not be changed.
func (j *Journal[K, V]) Snapshot() ([]*Entry[K, V], uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.snapshot == nil {
		j.snapshot = make([]*Entry[K, V], 0, j.live)
		for _, s := range j.log {
			if s.entry != nil && !s.entry.Deleted {
				j.snapshot = append(j.snapshot, s.entry)
			}
		}
	}
	return j.snapshot, j.head
}

// Since returns up to limit changes after revision, oldest first, and the revision to continue from. ok is false if
// deletions after revision are no longer remembered, or if this journal never had that revision: the reader then needs
// a Snapshot.
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

// Count returns the number of changes after revision that match. It examines at most limit of them; of those after
// that, all count, superseded ones too.
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

func (j *Journal[K, V]) Pending(revision uint64) int {
	return j.Count(revision, math.MaxInt, func(*Entry[K, V]) bool { return true })
}

// Changed returns a channel that is closed at the first change after revision; immediately if there has been one
// already.
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
