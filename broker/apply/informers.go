package apply

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// This file watches objects of the own cluster: it sets up lists and watches, decides which fields of each object are
// kept, and reports changes.
//
// It owns informers and their stores. Inputs are a type's list and watch and a function that reduces its objects;
// outputs are changes. It writes nothing.

type InformerOptions struct {
	// Errors counts failed lists and watches, by kind of object.
	Errors *prometheus.CounterVec
	// Failing has those that fail now.
	Failing *Failing
	Log     *slog.Logger
}

// Failing are the lists and watches of the own cluster that fail now: what they would report is not known, and objects
// that others changed cannot be written.
type Failing struct {
	mu sync.Mutex
	// lines have the kind and the last error of each, by its Store.
	lines map[any]string
}

func (f *Failing) set(of any, kind writes.ObjectKind, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.lines, of)
		return
	}
	f.lines[of] = fmt.Sprintf("%s: the watch fails: %v", kind.Plural(), err)
}

func (f *Failing) Findings() []finding.Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	return finding.Lines(finding.WatchFailed, "", slices.Sorted(maps.Values(f.lines)))
}

// Watch describes which objects of one type are watched, and how.
type Watch[T writes.Object] struct {
	// Kind in metrics and messages.
	Kind      writes.ObjectKind
	ListWatch cache.ListerWatcher
	Example   T
	// Reduce keeps of an object what its readers need. It may change its argument.
	Reduce func(T) T
	// Indexers are those of the store; nil for none.
	Indexers cache.Indexers
	// Saw receives each change: object is the new state, or the last one of a deleted object; before is the previous
	// state, nil for a new object.
	Saw func(before, object T, gone bool)
	// Failed, if not nil, reports failures in place of InformerOptions.Failing: it receives the error of each failed
	// attempt to list or to watch, and nil after one that succeeds.
	Failed func(error)
	// Unserved, if not nil, is called when the cluster does not serve the type.
	Unserved func()
}

// Run watches into a store until ctx ends, and returns ctx's error. Once Saw has received all that there was, it calls
// synced, and returns that error. It fails if client-go refuses a handler.
func (f Watch[T]) Run(ctx context.Context, opts InformerOptions, into *Store[T],
	synced func(context.Context) error) error {
	if f.Failed == nil {
		f.Failed = func(err error) { opts.Failing.set(into, f.Kind, err) }
		defer f.Failed(nil)
	}
	informer, saw, err := f.informer(opts)
	if err != nil {
		return err
	}
	into.Set(informer.GetIndexer())
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		informer.RunWithContext(ctx)
	}()
	defer func() { stop(); <-ended }()
	if !cache.WaitForCacheSync(ctx.Done(), saw.HasSynced) {
		return ctx.Err()
	}
	return synced(ctx)
}

// informer is an informer that has not started, and whether Saw has received its first list.
func (f Watch[T]) informer(opts InformerOptions) (cache.SharedIndexInformer, cache.ResourceEventHandlerRegistration,
	error) {
	failed := func(ctx context.Context, _ string, attempt int, err error) {
		if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return // the informer lists again without our help
		}
		opts.watchError(string(f.Kind), attempt, err)
		f.Failed(err)
		if f.Unserved != nil && apierrors.IsNotFound(err) {
			f.Unserved()
		}
	}
	watched := cache.ToListWatcherWithWatchListSemantics(f.answered(kube.RetryWhileAway(f.ListWatch, failed)),
		f.ListWatch)
	informer := cache.NewSharedIndexInformerWithOptions(watched, f.Example,
		cache.SharedIndexInformerOptions{ObjectDescription: string(f.Kind), Indexers: f.Indexers})
	if err := informer.SetTransform(func(object any) (any, error) {
		if o, ok := object.(T); ok {
			return f.Reduce(o), nil
		}
		return object, nil
	}); err != nil {
		return nil, nil, err
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		failed(ctx, "", 1, err)
	}); err != nil {
		return nil, nil, err
	}
	see := func(before, object any, gone bool) {
		if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		was, _ := before.(T)
		if is, ok := object.(T); ok {
			f.Saw(was, is, gone)
		}
	}
	saw, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { see(nil, object, false) },
		UpdateFunc: func(before, object any) { see(before, object, false) },
		DeleteFunc: func(object any) { see(nil, object, true) },
	})
	return informer, saw, err
}

// answered passes to Failed what an informer does not report: that a list or a watch succeeds, or comes too often.
func (f Watch[T]) answered(lw *cache.ListWatch) *cache.ListWatch {
	return kube.Asking(lw, func(_ context.Context, _ string, request func() error) {
		if err := request(); err == nil || apierrors.IsTooManyRequests(err) {
			f.Failed(err)
		}
	})
}

// watchError counts errors of an informer, and logs the first of several.
func (opts InformerOptions) watchError(kind string, attempt int, err error) {
	opts.Errors.WithLabelValues(kind).Inc()
	if attempt == 1 {
		opts.Log.Warn("cannot list or watch; the broker retries", "kind", kind, "error", err)
	}
}

// lister are the methods that the clients of Kubernetes' own types have.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// ListWatch lists and watches the objects of a type that the selectors of which choose, of labels and of fields.
func ListWatch[L runtime.Object](api lister[L], which metav1.ListOptions) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector, o.FieldSelector = which.LabelSelector, which.FieldSelector
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector, o.FieldSelector = which.LabelSelector, which.FieldSelector
			return api.Watch(ctx, o)
		},
	}
}

// Store is an informer's cache, by names; empty while there is none.
type Store[T writes.Object] struct {
	store atomic.Pointer[cache.Indexer]
	// KeyOf, if not nil, returns the store's key of a name. It is set before the first use.
	KeyOf func(name string) string
}

func (i *Store[T]) Set(store cache.Indexer) { i.store.Store(&store) }

func (i *Store[T]) Get(name string) (object T, there bool) {
	store := i.store.Load()
	if store == nil {
		return object, false
	}
	if i.KeyOf != nil {
		name = i.KeyOf(name)
	}
	if o, ok, err := (*store).GetByKey(name); err == nil && ok {
		return o.(T), true
	}
	return object, false
}

func (i *Store[T]) All() []T {
	store := i.store.Load()
	if store == nil {
		return nil
	}
	return onlyOf[T]((*store).List())
}

// In returns the objects that an index of the informer has under a value; ok is false without informer or index.
func (i *Store[T]) In(index, value string) (found []T, ok bool) {
	store := i.store.Load()
	if store == nil {
		return nil, false
	}
	objects, err := (*store).ByIndex(index, value)
	return onlyOf[T](objects), err == nil
}

func onlyOf[T any](objects []any) (all []T) {
	for _, object := range objects {
		if object, ok := object.(T); ok {
			all = append(all, object)
		}
	}
	return all
}

func (i *Store[T]) Keys() []string {
	if store := i.store.Load(); store != nil {
		return (*store).ListKeys()
	}
	return nil
}
