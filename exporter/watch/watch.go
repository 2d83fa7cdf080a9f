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
	"github.com/kube-semaphore/semaphore/internal/kube"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Watcher follows what a catalog needs to see.
type Watcher struct {
	client    kubernetes.Interface
	catalog   *catalog.Catalog
	resources []*resource
	errors    *prometheus.CounterVec

	mu sync.Mutex
	// id names the source once it is identified, where it could be; unidentified is why it is not.
	// restores is how often the cluster's etcd was put back.
	restores     int
	id           string
	identified   bool
	unidentified error
}

// resource is one kind of object and the watches that find those of it that matter.
type resource struct {
	kind
	watches []*watched
	// mu makes looking at the watches' stores and telling the catalog one step: an event of one
	// watch must not undo what another's has told meanwhile.
	mu sync.Mutex
}

// decides reports whether what is exported of a kind follows from this resource.
func (r *resource) decides(kind semaphorev1.Kind) bool { return slices.Contains(r.kinds, kind) }

// dates reports whether how far this resource has been read says so of a kind: only resourceVersions of the cluster's own
// storage can be compared.
func (r *resource) dates(kind semaphorev1.Kind) bool {
	return r.decides(kind) && (r.foreign == nil || !r.foreign())
}

func (r *resource) synced() bool {
	return !slices.ContainsFunc(r.watches, func(it *watched) bool { return !it.synced() })
}

// New makes the watches that the catalog's rules ask for; affinities are read where they ask for Calico's blocks. Nothing is
// read before Run.
func New(client kubernetes.Interface, affinities *kube.BlockAffinities, c *catalog.Catalog, reg prometheus.Registerer) (*Watcher, error) {
	w := &Watcher{
		client: client, catalog: c,
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_exporter_watch_errors_total",
			Help: "Requests to list or watch that failed.",
		}, []string{"resource", "verb"}),
	}
	rules := c.Rules()
	if rules.Features.Has(config.Encryption) {
		w.resources = append(w.resources, &resource{kind: nodes(client)})
		if rules.AllowedIPs != config.NodePodCIDRs {
			blocks := blocks(affinities)
			if rules.AllowedIPs != config.CalicoBlocks {
				blocks.unserved = kube.ErrNoBlocks // a cluster without Calico's IPAM has none, and may get some
			}
			w.resources = append(w.resources, &resource{kind: blocks})
		}
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
		w.resources = append(w.resources, &resource{kind: pods(client, rules.LabelDomains, rules.SelectedLabels())})
	}
	for _, r := range w.resources {
		for _, selector := range r.selectors {
			w.add(client, r, selector)
		}
	}
	if err := reg.Register(w.errors); err != nil {
		return nil, fmt.Errorf("metrics of the watches: %w", err)
	}
	return w, nil
}

func (w *Watcher) add(client kubernetes.Interface, r *resource, selector string) {
	it := &watched{what: r.name, resource: r.name, errors: w.errors, unserved: r.unserved}
	if selector != "" {
		it.what = fmt.Sprintf("%s (%s)", r.name, selector)
	}
	for _, verb := range []string{list, watching} {
		w.errors.WithLabelValues(r.name, verb) // so that 0 can be seen
	}
	lw := r.lister
	if lw == nil {
		lw = cache.NewFilteredListWatchFromClient(r.client, r.name, metav1.NamespaceAll, func(o *metav1.ListOptions) { o.LabelSelector = selector })
	}
	noted := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			objects, err := lw.ListWithContextFunc(ctx, o)
			it.note(ctx, list, err)
			return objects, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := lw.WatchFuncWithContext(ctx, o)
			switch {
			case errors.Is(err, kube.ErrListFirst):
			case isEmpty(events):
				it.note(ctx, watching, errBroken)
			default:
				it.note(ctx, watching, err)
			}
			return events, err
		},
	}
	it.follower = follow(cache.ToListWatcherWithWatchListSemantics(noted, client), r.example, r.trim,
		func(_ context.Context, _ *cache.Reflector, err error) {
			// Failed requests are noted where they are made. What else ends a watch is everyday.
			slog.Debug("watch ended; beginning again", "resource", it.what, "reason", err)
		},
		func(key string) { w.event(r, key) },
		func(resourceVersion string) { it.read.Store(revision(resourceVersion)) },
	)
	it.list = lw.ListWithContextFunc
	r.watches = append(r.watches, it)
}

// event tells the catalog of one object as the stores have it, whatever the event was: the watches of
// one resource are not in step, and an object that one of them no longer selects may still be
// another's.
func (w *Watcher) event(r *resource, key string) {
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
		held, ok, err := it.store.GetByKey(key)
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

// Run follows the cluster until ctx ends, or with a kube.ErrPutBack.
func (w *Watcher) Run(ctx context.Context) error {
	outer := ctx
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		w.identify(ctx)
		return nil
	})
	g.Go(func() error { return w.followStore(ctx) })
	for _, r := range w.resources {
		for _, it := range r.watches {
			g.Go(func() error {
				it.controller.RunWithContext(ctx)
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return outer.Err()
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

// Problems are the watches that fail now, though they worked before: what is exported grows stale. A line
// each, and one where the source cannot be named.
func (w *Watcher) Problems() []string {
	var lines []string
	w.mu.Lock()
	if w.unidentified != nil {
		lines = append(lines, fmt.Sprintf("an apiserver that lags would not be noticed: cannot read the UID of namespace %s: %v", sourceNamespace, w.unidentified))
	}
	w.mu.Unlock()
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
		synced = append(synced, r.synced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	return nil
}
