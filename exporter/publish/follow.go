package publish

import (
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
)

// follower is a store that a reflector fills. It calls back in the reflector's goroutine for each change. A shared
// informer notifies its handlers later, and does not report how far they are.
type follower struct {
	store      cache.Store
	queue      *cache.RealFIFO
	controller cache.Controller
	// changed is called with the key of an object after the store has its newest state.
	changed func(key string)
	// advanced is called with the resourceVersion up to which changed was called for everything.
	advanced func(resourceVersion string)
}

func follow(lw cache.ListerWatcher, example runtime.Object, trim cache.TransformFunc,
	onError cache.WatchErrorHandlerWithContext, changed func(key string), came func(resourceVersion string)) *follower {
	f := &follower{
		store: cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc),
		// With AtomicEvents a list is one delta, and bookmarks are deltas too.
		queue: cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{Transformer: trim, AtomicEvents: true,
			UnlockWhileProcessing: true, EmitDeltaTypeBookmark: true}),
		changed: changed, advanced: came,
	}
	f.controller = cache.New(&cache.Config{
		Queue: f.queue, ListerWatcher: lw, ObjectType: example, WatchErrorHandlerWithContext: onError,
		Process: func(o any, _ bool) error {
			deltas, ok := o.(cache.Deltas)
			if !ok {
				return fmt.Errorf("the queue of a watch returned a %T", o)
			}
			for _, d := range deltas {
				if err := f.process(d); err != nil {
					return err
				}
			}
			return nil
		},
	})
	return f
}

func (f *follower) process(d cache.Delta) error {
	switch d.Type {
	case cache.ReplacedAll:
		list, ok := d.Object.(cache.ReplacedAllInfo)
		if !ok {
			return fmt.Errorf("a list has type %T", d.Object)
		}
		return f.replace(list)
	case cache.Bookmark:
		if mark, ok := d.Object.(cache.BookmarkInfo); ok {
			f.advanced(mark.ResourceVersion)
		}
		return nil
	case cache.SyncAll:
		return nil // there are no resyncs
	}
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(d.Object)
	if err != nil {
		return fmt.Errorf("a watch returned an object without a name; its export remains unchanged: %w", err)
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
		f.advanced(o.GetResourceVersion())
	}
	return nil
}

// replace handles a list: an object that it lacks was deleted.
func (f *follower) replace(list cache.ReplacedAllInfo) error {
	deleted := sets.New(f.store.ListKeys()...)
	if err := f.store.Replace(list.Objects, list.ResourceVersion); err != nil {
		return fmt.Errorf("list at resourceVersion %s: %w", list.ResourceVersion, err)
	}
	for key := range deleted.Delete(f.store.ListKeys()...) {
		f.changed(key)
	}
	for _, key := range f.store.ListKeys() {
		f.changed(key)
	}
	f.advanced(list.ResourceVersion)
	return nil
}

// revision parses a resourceVersion as a number, which KEP-5504 allows; 0 if it is none.
func revision(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
