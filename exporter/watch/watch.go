// Package watch fills a catalog from a cluster's apiserver, and keeps it filled. It reads
// (get, list, watch) and never writes.
//
// What is exported is the catalog's to decide; this package knows which objects it has to
// see for that, and asks for no others: selectors are the apiserver's work.
package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
)

// Watcher follows what a catalog needs to see.
type Watcher struct {
	catalog   *catalog.Catalog
	resources []*resource
	errors    *prometheus.CounterVec
}

// resource is one kind of object and the watches that find those of it that matter.
type resource struct {
	kind
	watches []*watched
	// mu makes looking at the watches' stores and telling the catalog one step: an event of one
	// watch must not undo what another's has told meanwhile.
	mu sync.Mutex
}

// New makes the watches that the catalog's rules ask for. Nothing is read before Run.
func New(client kubernetes.Interface, c *catalog.Catalog, reg prometheus.Registerer) (*Watcher, error) {
	w := &Watcher{
		catalog: c,
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_exporter_watch_errors_total",
			Help: "Requests to list or watch that failed.",
		}, []string{"resource", "verb"}),
	}
	rules := c.Rules()
	if rules.Features.Has(config.Encryption) {
		w.resources = append(w.resources, &resource{kind: nodes(client)})
	}
	if rules.Features.Has(config.Services) {
		// The endpointslice controller copies a Service's labels to its slices, so one selector finds both.
		// An apiserver cannot be asked for "this or that selector": each has its watch.
		selectors := []string{rules.Mirror.String(), rules.Global.String()}
		slices.Sort(selectors)
		selectors = slices.Compact(selectors)
		w.resources = append(w.resources,
			&resource{kind: services(client, selectors)},
			&resource{kind: endpointSlices(client, selectors)})
	}
	if rules.Features.Has(config.Policy) {
		w.resources = append(w.resources, &resource{kind: pods(client, rules.LabelDomain+"/name", rules.SelectedLabels())})
	}
	for _, r := range w.resources {
		for _, selector := range r.selectors {
			if err := w.add(client, r, selector); err != nil {
				return nil, err
			}
		}
	}
	if err := reg.Register(w.errors); err != nil {
		return nil, fmt.Errorf("metrics of the watches: %w", err)
	}
	return w, nil
}

func (w *Watcher) add(client kubernetes.Interface, r *resource, selector string) error {
	it := &watched{what: r.name, resource: r.name, errors: w.errors}
	if selector != "" {
		it.what = fmt.Sprintf("%s (%s)", r.name, selector)
	}
	for _, verb := range []string{list, watching} {
		w.errors.WithLabelValues(r.name, verb) // so that 0 can be seen
	}
	lw := cache.NewFilteredListWatchFromClient(r.client, r.name, metav1.NamespaceAll, func(o *metav1.ListOptions) { o.LabelSelector = selector })
	noted := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			objects, err := lw.ListWithContextFunc(ctx, o)
			it.note(ctx, list, err)
			return objects, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := lw.WatchFuncWithContext(ctx, o)
			if isEmpty(events) {
				it.note(ctx, watching, errBroken)
			} else {
				it.note(ctx, watching, err)
			}
			return events, err
		},
	}
	it.informer = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(noted, client), r.example, 0, nil)
	event := func(o any) { w.event(r, o) }
	handler, err := it.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: event, UpdateFunc: func(_, o any) { event(o) }, DeleteFunc: event,
	})
	if err != nil {
		return fmt.Errorf("watch on %s: %w", it.what, err)
	}
	it.synced = handler.HasSynced
	if err := errors.Join(
		it.informer.SetTransform(r.trim),
		it.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			// Failed requests are noted where they are made. What else ends a watch is everyday.
			slog.Debug("watch ended; beginning again", "resource", it.what, "reason", err)
		}),
	); err != nil {
		return fmt.Errorf("watch on %s: %w", it.what, err)
	}
	r.watches = append(r.watches, it)
	return nil
}

// event tells the catalog of one object as the stores have it, whatever the event was: the watches of
// one resource are not in step, and an object that one of them no longer selects may still be
// another's.
func (w *Watcher) event(r *resource, o any) {
	// A tombstone, where the watch missed the object's end.
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o)
	if err != nil {
		slog.Error("an object without a name; what is exported of it stays as it is", "resource", r.name, "error", err)
		return
	}
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		slog.Error("an object's name makes no sense; what is exported of it stays as it is", "resource", r.name, "key", key, "error", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if newest := r.newest(key); newest != nil {
		r.put(w.catalog, newest, time.Now())
	} else {
		r.remove(w.catalog, namespace, name, time.Now())
	}
}

// newest is the newest state of an object that any watch holds, nil where none does.
func (r *resource) newest(key string) metav1.Object {
	var newest metav1.Object
	for _, it := range r.watches {
		held, ok, err := it.informer.GetStore().GetByKey(key)
		if err != nil || !ok {
			continue
		}
		object, ok := held.(metav1.Object)
		if ok && (newest == nil || later(object, newest)) {
			newest = object
		}
	}
	return newest
}

// later compares as KEP-5504 says resource versions may be compared.
func later(a, b metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}

// Run follows the cluster until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	var g errgroup.Group
	for _, r := range w.resources {
		for _, it := range r.watches {
			g.Go(func() error {
				it.informer.RunWithContext(ctx)
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// Synced is nil once the catalog holds all there is, and until then says what is missing.
func (w *Watcher) Synced() error {
	var missing []string
	for _, r := range w.resources {
		for _, it := range r.watches {
			if it.synced() {
				continue
			}
			line := it.what
			if failure := it.failure(); failure != "" {
				line += ": " + failure
			}
			missing = append(missing, line)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not read yet: %s", strings.Join(missing, "; "))
	}
	return nil
}

// Problems are the watches that fail now, though they worked before: what is exported grows stale. A
// line each.
func (w *Watcher) Problems() []string {
	var lines []string
	for _, r := range w.resources {
		for _, it := range r.watches {
			if failure := it.failure(); failure != "" && it.synced() {
				lines = append(lines, fmt.Sprintf("%s: not followed: %s", it.what, failure))
			}
		}
	}
	return lines
}

// WaitForSync returns when the catalog holds all there is, or with the context's error.
func (w *Watcher) WaitForSync(ctx context.Context) error {
	var synced []cache.InformerSynced
	for _, r := range w.resources {
		for _, it := range r.watches {
			synced = append(synced, it.synced)
		}
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	return nil
}
