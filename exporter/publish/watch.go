package publish

import (
	"cmp"
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
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Watcher watches the objects that a catalog needs. It requests no others: the apiserver applies the selectors.
type Watcher struct {
	client    kubernetes.Interface
	catalog   *catalog.Catalog
	resources []*resource
	errors    *prometheus.CounterVec
	// storeEvery is the interval at which the revision of the cluster's store is read, and identifyForbiddenRetry the
	// wait before the cluster's identity is read again where the right to read it was missing.
	storeEvery, identifyForbiddenRetry time.Duration

	mu sync.Mutex
	// id identifies the source after identify has finished, and is empty if identify was refused; unidentified is the
	// last error. restores is how often the cluster's etcd was restored from a backup.
	restores     int
	id           string
	identified   bool
	unidentified error
}

// resource is one resource and the watches that select the objects to export.
type resource struct {
	kind
	watches []*watched
	// mu makes reading the watches' stores and updating the catalog atomic: an event of one watch must not undo a
	// newer update of another.
	mu sync.Mutex
	// shared are the newest states of objects that several watches held, while one still does: once the others no longer
	// select an object, that one may be behind what they showed.
	shared map[string]metav1.Object
}

// contributesTo reports whether exported objects of a kind depend on this resource.
func (r *resource) contributesTo(kind semaphorev1.Kind) bool { return slices.Contains(r.kinds, kind) }

// comparable reports whether the resourceVersions of this resource are those of the cluster's own storage: no others
// can be compared.
func (r *resource) comparable() bool { return r.ownVersions == nil || !r.ownVersions() }

// versionsComparable reports whether the resourceVersions of this resource count for a kind.
func (r *resource) versionsComparable(kind semaphorev1.Kind) bool {
	return r.contributesTo(kind) && r.comparable()
}

func (r *resource) synced() bool {
	return !slices.ContainsFunc(r.watches, func(it *watched) bool { return !it.synced() })
}

// otherSlices selects the slices that neither the EndpointSlice controller nor semaphore made. They have the labels
// that their author gave them: those of an Endpoints object (a database operator's), or what a person wrote. The
// catalog leaves out those whose Service is not offered. A cluster has few of them, and most of its slices are the
// controller's (docs/adr/0009-services.md).
const otherSlices = discoveryv1.LabelManagedBy + " notin (endpointslice-controller.k8s.io," + naming.ManagedByBroker +
	"," + naming.ManagedByServiceMirror + ")"

// WatcherOptions are what watchers may lack.
type WatcherOptions struct {
	// Restores is how often the cluster's etcd was restored from a backup: resourceVersions before and after a restore
	// belong to different sources.
	Restores int
	// StoreEvery is the interval at which the revision of the cluster's store is read; kube.StoreEvery if it is zero.
	StoreEvery time.Duration
	// Exports reads ServiceExports; needed if the rules have MultiCluster.
	Exports func(*kube.Unread) *cache.ListWatch
}

// NewWatcher makes the watches that the catalog's rules need; affinities are read if the rules use Calico's blocks.
// Nothing is read before Run. It fails if reg has the metric already.
func NewWatcher(client kubernetes.Interface, affinities *kube.BlockAffinities, c *catalog.Catalog,
	reg prometheus.Registerer, o WatcherOptions) (*Watcher, error) {
	w := &Watcher{
		client: client, catalog: c, restores: o.Restores, storeEvery: cmp.Or(o.StoreEvery, kube.StoreEvery),
		identifyForbiddenRetry: 15 * time.Second,
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
				blocks.unserved = kube.ErrNoBlocks // a cluster without Calico's IPAM has none; it may be installed later
			}
			w.resources = append(w.resources, &resource{kind: blocks})
		}
	}
	if rules.Features.Has(config.Services) {
		// A label selector cannot express "or": each selector has a watch.
		selectors := []string{rules.Mirror.String(), rules.Global.String()}
		slices.Sort(selectors)
		selectors = slices.Compact(selectors)
		// The EndpointSlice controller copies a Service's labels to its slices, so the same selectors select these.
		ofSlices := append(slices.Clone(selectors), otherSlices)
		if rules.MultiCluster {
			// A Service that a ServiceExport exports has no label, nor have its slices.
			selectors, ofSlices = []string{""}, []string{""}
		}
		w.resources = append(w.resources,
			&resource{kind: services(client, selectors)},
			&resource{kind: endpointSlices(client, ofSlices)})
	}
	if rules.Features.Has(config.Policy) {
		w.resources = append(w.resources,
			&resource{kind: pods(client, rules.LabelDomains)})
	}
	if o.Exports != nil {
		w.resources = append(w.resources, &resource{kind: serviceExports(o.Exports)})
	}
	for _, r := range w.resources {
		r.shared = map[string]metav1.Object{}
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
	it := &watched{description: r.name, resource: r.name, errors: w.errors, unserved: r.unserved}
	if selector != "" {
		it.description = fmt.Sprintf("%s (%s)", r.name, selector)
	}
	for _, verb := range []string{list, watching} {
		w.errors.WithLabelValues(r.name, verb) // exports the counter with 0
	}
	it.unread.Earlier = it.known
	it.unread.Changed = func(bad *kube.Unreadable) { slog.Warn("an object cannot be read", "error", bad) }
	var lw *cache.ListWatch
	if r.lister != nil {
		lw = r.lister(&it.unread)
	} else {
		lw = cache.NewFilteredListWatchFromClient(r.client, r.name, metav1.NamespaceAll,
			func(o *metav1.ListOptions) { o.LabelSelector = selector })
	}
	noted := kube.Asking(lw, func(ctx context.Context, verb string, request func() error) {
		switch err := request(); {
		case errors.Is(err, kube.ErrListFirst):
		case errors.Is(err, kube.ErrNoAnswer):
			it.recordResult(ctx, verb, errBroken)
		default:
			it.recordResult(ctx, verb, err)
		}
	})
	it.follower = follow(cache.ToListWatcherWithWatchListSemantics(kube.RetryWhileAway(noted, nil), client),
		r.example, r.trim,
		func(_ context.Context, _ *cache.Reflector, err error) {
			// Failed requests are recorded where they are made. Watches end for other reasons regularly.
			slog.Debug("a watch ended and starts again", "resource", it.description, "reason", err)
		},
		func(key string) { w.update(r, key) },
		func(resourceVersion string) { it.read.Store(revision(resourceVersion)) },
	)
	it.list = lw.ListWithContextFunc
	if r.lister != nil {
		it.list = r.lister(&kube.Unread{}).ListWithContextFunc
	}
	r.watches = append(r.watches, it)
}

// update updates the catalog with the newest state of one object in the stores, whatever the event was: the watches of
// one resource are independent, and an object that one no longer selects may be selected by another.
func (w *Watcher) update(r *resource, key string) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		slog.Warn("an object has an invalid name; its export remains unchanged", "resource", r.name, "key", key,
			"error", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	newest, held := r.newest(key)
	if held > 1 {
		r.shared[key] = newest
	} else if newest != r.shared[key] {
		delete(r.shared, key)
	}
	if newest != nil {
		r.put(w.catalog, newest, time.Now())
	} else {
		r.remove(w.catalog, namespace, name, time.Now())
	}
}

// Replay passes all known objects to the catalog again, because its rules changed.
func (w *Watcher) Replay() {
	for _, r := range w.resources {
		for _, key := range r.keys() {
			w.update(r, key)
		}
	}
}

func (r *resource) keys() []string {
	keys := sets.New[string]()
	for _, it := range r.watches {
		keys.Insert(it.store.ListKeys()...)
	}
	return sets.List(keys)
}

// Known returns an object of which something of a kind is exported, as it was last read; nil for none.
func (w *Watcher) Known(kind semaphorev1.Kind, namespace, name string) metav1.Object {
	for _, r := range w.resources {
		if r.of == kind {
			r.mu.Lock()
			defer r.mu.Unlock()
			newest, _ := r.newest(cache.NewObjectName(namespace, name).String())
			return newest
		}
	}
	return nil
}

// newest returns the newest known state of an object, nil if no watch's store has it, and how many have it. The caller
// must hold mu.
func (r *resource) newest(key string) (newest metav1.Object, held int) {
	for _, it := range r.watches {
		stored, ok, err := it.store.GetByKey(key)
		if err != nil || !ok {
			continue
		}
		object, ok := stored.(metav1.Object)
		if held++; ok && (newest == nil || newer(object, newest)) {
			newest = object
		}
	}
	if was := r.shared[key]; was != nil && newest != nil && newer(was, newest) {
		newest = was
	}
	return newest, held
}

// newer compares resourceVersions as KEP-5504 specifies.
func newer(a, b metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}

// Run watches the cluster until ctx ends. It returns a kube.ErrPutBack when etcd was restored.
func (w *Watcher) Run(ctx context.Context) error {
	outer := ctx
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		w.identify(ctx)
		return nil
	})
	g.Go(func() error { return w.detectRestore(ctx) })
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

// Synced returns nil if the catalog is complete, else an error that lists the resources that are missing.
func (w *Watcher) Synced() error {
	var missing []string
	var causes []finding.Finding
	for _, r := range w.resources {
		for _, it := range r.watches {
			if it.synced() {
				continue
			}
			line := it.description
			if failure := it.failure(); failure != "" {
				line += ": " + failure
				causes = append(causes, finding.New(finding.WatchFailed, "", 1, line))
			}
			missing = append(missing, line)
		}
	}
	if len(missing) > 0 {
		return finding.Because(fmt.Errorf("not read yet: %s", strings.Join(missing, "; ")), causes...)
	}
	return nil
}

// Findings are the watches that fail, so that exports become stale or are incomplete, and a source that cannot be
// identified.
func (w *Watcher) Findings() (found []finding.Finding) {
	w.mu.Lock()
	if w.unidentified != nil {
		found = append(found, finding.Line(finding.NoSource, "", fmt.Sprintf("the exporter cannot detect an apiserver "+
			"that lags: cannot read the UID of namespace %s: %v", sourceNamespace, w.unidentified))...)
	}
	w.mu.Unlock()
	for _, r := range w.resources {
		for _, it := range r.watches {
			switch failure := it.failure(); {
			case failure == "":
			case it.synced():
				found = append(found, finding.Line(finding.WatchFailed, "",
					fmt.Sprintf("%s: the watch fails: %s", it.description, failure))...)
			default: // the text of the missing resources has it
				found = append(found, finding.New(finding.WatchFailed, "", 1, it.description+": "+failure))
			}
			found = append(found, finding.Lines(finding.Unreadable, "", it.unread.Lines())...)
		}
	}
	return found
}

// WaitForSync returns when the catalog is complete, or with the context's error.
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
