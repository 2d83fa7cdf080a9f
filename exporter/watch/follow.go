package watch

import (
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// follower is a store that a reflector fills, and whose changes are told one by one in the goroutine that makes them.
// A shared informer tells its handlers later, and nobody can say how far they have come; here that is read.
type follower struct {
	store      cache.Store
	queue      *cache.RealFIFO
	controller cache.Controller
	// changed is told the key of an object after the store has its newest state.
	changed func(key string)
	// came is told the resourceVersion up to which everything has been told.
	came func(resourceVersion string)
}

func follow(lw cache.ListerWatcher, example runtime.Object, trim cache.TransformFunc, onError cache.WatchErrorHandlerWithContext,
	changed func(key string), came func(resourceVersion string)) *follower {
	f := &follower{
		store: cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc),
		// With atomic events, a list is one step and bookmarks are steps too.
		queue:   cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{Transformer: trim, AtomicEvents: true, UnlockWhileProcessing: true, EmitDeltaTypeBookmark: true}),
		changed: changed, came: came,
	}
	f.controller = cache.New(&cache.Config{
		Queue: f.queue, ListerWatcher: lw, ObjectType: example, WatchErrorHandlerWithContext: onError,
		Process: func(o any, _ bool) error {
			deltas, ok := o.(cache.Deltas)
			if !ok {
				return fmt.Errorf("a %T came out of the queue of a watch", o)
			}
			for _, d := range deltas {
				if err := f.step(d); err != nil {
					return err
				}
			}
			return nil
		},
	})
	return f
}

// step takes one step of a list or a watch.
func (f *follower) step(d cache.Delta) error {
	switch d.Type {
	case cache.ReplacedAll:
		list, ok := d.Object.(cache.ReplacedAllInfo)
		if !ok {
			return fmt.Errorf("a list came as %T", d.Object)
		}
		return f.replace(list)
	case cache.Bookmark:
		if mark, ok := d.Object.(cache.BookmarkInfo); ok {
			f.came(mark.ResourceVersion)
		}
		return nil
	case cache.SyncAll:
		return nil // there are no resyncs
	}
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(d.Object)
	if err != nil {
		return fmt.Errorf("an object without a name; what is exported of it stays as it is: %w", err)
	}
	if d.Type == cache.Deleted {
		err = f.store.Delete(d.Object)
	} else {
		err = f.store.Update(d.Object)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	f.changed(key)
	if o, ok := d.Object.(metav1.Object); ok {
		f.came(o.GetResourceVersion())
	}
	return nil
}

// replace takes a list: what it lacks is gone.
func (f *follower) replace(list cache.ReplacedAllInfo) error {
	gone := map[string]bool{}
	for _, key := range f.store.ListKeys() {
		gone[key] = true
	}
	if err := f.store.Replace(list.Objects, list.ResourceVersion); err != nil {
		return fmt.Errorf("list at resourceVersion %s: %w", list.ResourceVersion, err)
	}
	for _, key := range f.store.ListKeys() {
		delete(gone, key)
	}
	for key := range gone {
		f.changed(key)
	}
	for _, key := range f.store.ListKeys() {
		f.changed(key)
	}
	f.came(list.ResourceVersion)
	return nil
}

// revision is a resourceVersion as a number, see KEP-5504; 0 for one that is none.
func revision(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
