package apply

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
)

// overlayFor is how long at most our own write is believed against the informer: long enough
// for any watch that works, and a bound for one that skipped the write.
const overlayFor = 10 * time.Second

// newest answers what is in the cluster, our own latest writes included: the informer learns of
// them only some milliseconds later, and without them the loop would write twice.
type newest[T Object] struct {
	// store is that of the informer; nil while there is none. It is read without the lock, which is held while others are
	// told of what is there.
	store atomic.Pointer[cache.Store]

	mu      sync.Mutex
	written map[string]written[T]
	now     func() time.Time
}

func (n *newest[T]) informed() cache.Store {
	if store := n.store.Load(); store != nil {
		return *store
	}
	return nil
}

// written is what we wrote last under a key, while the informer may not know it.
type written[T Object] struct {
	object  T
	deleted bool // object is what was deleted
	until   time.Time
}

func newNewest[T Object]() *newest[T] {
	return &newest[T]{written: map[string]written[T]{}, now: time.Now}
}

// reset begins anew with another informer.
func (n *newest[T]) reset(store cache.Store) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.store.Store(&store)
	n.written = map[string]written[T]{}
}

func (n *newest[T]) get(key string) (object T, there bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.getLocked(key)
}

func (n *newest[T]) getLocked(key string) (object T, there bool) {
	if w, ok := n.written[key]; ok {
		if n.now().Before(w.until) {
			return w.object, !w.deleted
		}
		delete(n.written, key)
	}
	store := n.informed()
	if store == nil {
		return object, false
	}
	if o, ok, err := store.GetByKey(key); err == nil && ok {
		return o.(T), true
	}
	return object, false
}

// believes is for how long yet a write of ours is believed against the informer. over says that it was believed until
// now: the informer, which did not tell of it in time, is then right, and nobody has heard what it has.
func (n *newest[T]) believes(key string) (left time.Duration, over bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w, ok := n.written[key]
	if !ok {
		return 0, false
	}
	if left = w.until.Sub(n.now()); left > 0 {
		return left, false
	}
	delete(n.written, key)
	return 0, true
}

// wrote notes the answer to a write of ours.
func (n *newest[T]) wrote(key string, o T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if seen, ok, _ := n.informed().GetByKey(key); ok && !older(seen.(T), o) {
		return // the watch was faster than the answer
	}
	n.written[key] = written[T]{object: o, until: n.now().Add(overlayFor)}
}

// deleted notes that a delete of ours was carried out.
func (n *newest[T]) deleted(key string, o T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	seen, ok, _ := n.informed().GetByKey(key)
	w, wrote := n.written[key]
	if !(ok && seen.(T).GetUID() == o.GetUID()) && !(wrote && w.object.GetUID() == o.GetUID()) {
		return // the watch was faster than the answer
	}
	n.written[key] = written[T]{object: o, deleted: true, until: n.now().Add(overlayFor)}
}

// forget drops what is believed of a key against the informer.
func (n *newest[T]) forget(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.written, key)
}

// saw notes what the informer tells: an object, or that it has gone.
func (n *newest[T]) saw(key string, o T, gone bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w, ok := n.written[key]
	switch {
	case !ok:
	case w.deleted && gone, // what we deleted
		w.deleted && o.GetUID() != w.object.GetUID(),
		!w.deleted && gone && o.GetUID() == w.object.GetUID(),
		!w.deleted && !gone && !older(o, w.object):
		delete(n.written, key)
	}
}

// older compares resource versions, which are revisions of etcd. What cannot be compared is not
// older: the informer is then believed.
func older[T Object](a, b T) bool {
	x, errX := strconv.ParseUint(a.GetResourceVersion(), 10, 64)
	y, errY := strconv.ParseUint(b.GetResourceVersion(), 10, 64)
	return errX == nil && errY == nil && x < y
}
