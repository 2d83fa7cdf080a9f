package apply

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// following is which objects of one type are followed, and how.
type following[T Object] struct {
	// kind in metrics and messages.
	kind      string
	listWatch cache.ListerWatcher
	example   T
	// reduce leaves of an object what is asked of it. It may change what it gets.
	reduce func(T) T
	// saw is told each change: object is what it is now, or was at last when it is gone; before is what it was, nil for one that
	// is new.
	saw func(before, object T, gone bool)
	// failed, if not nil, is told why a list or a watch failed.
	failed func(error)
}

// informer is one that does so once it runs; see follow.
func (f following[T]) informer(opts Options) (cache.SharedIndexInformer, error) {
	informer := cache.NewSharedIndexInformerWithOptions(f.listWatch, f.example, cache.SharedIndexInformerOptions{ObjectDescription: f.kind})
	if err := informer.SetTransform(func(object any) (any, error) {
		if o, ok := object.(T); ok {
			return f.reduce(o), nil
		}
		return object, nil
	}); err != nil {
		return nil, err
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		opts.watchError(ctx, f.kind, err)
		if f.failed != nil {
			f.failed(err)
		}
	}); err != nil {
		return nil, err
	}
	see := func(before, object any, gone bool) {
		if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		was, _ := before.(T)
		if is, ok := object.(T); ok {
			f.saw(was, is, gone)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { see(nil, object, false) },
		UpdateFunc: func(before, object any) { see(before, object, false) },
		DeleteFunc: func(object any) { see(nil, object, true) },
	})
	return informer, err
}

// watchError logs what an informer cannot do, and counts it.
func (opts Options) watchError(ctx context.Context, kind string, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // it lists again by itself
	}
	opts.Metrics.watchErrors.WithLabelValues(kind).Inc()
	opts.Log.Warn("cannot list or watch; trying again", "kind", kind, "error", err)
}

// follow starts an informer, which runs until stop is called or ctx ends; stop waits for its end. The
// context returned ends with it.
func follow(ctx context.Context, informer cache.SharedIndexInformer) (_ context.Context, stop func()) {
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	return ctx, func() {
		cancel()
		<-done
	}
}

// lister is what the clients of Kubernetes' own types have.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// listWatch lists and watches those of a type that the selectors of which choose, of labels and of fields.
func listWatch[L runtime.Object](api lister[L], which metav1.ListOptions) *cache.ListWatch {
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
