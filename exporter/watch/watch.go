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
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
)

// Watcher follows what a catalog needs to see.
type Watcher struct {
	catalog *catalog.Catalog
	watches []*watched
	errors  *prometheus.CounterVec
}

// watched is one watch on the apiserver.
type watched struct {
	// what is such as "services (mirror.semaphore.uw.io/mirror-service=true)".
	resource, what string
	informer       cache.SharedIndexInformer
	synced         cache.InformerSynced

	mu      sync.Mutex
	failure error // of the last attempt to list or watch; nil when it works
}

// New makes the watches that the catalog's rules ask for. Nothing is read before Run.
func New(client kubernetes.Interface, c *catalog.Catalog, reg prometheus.Registerer) (*Watcher, error) {
	w := &Watcher{
		catalog: c,
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_exporter_watch_errors_total",
			Help: "Lists and watches that the apiserver refused or broke.",
		}, []string{"resource"}),
	}
	reg.MustRegister(w.errors)
	rules := c.Rules()
	if rules.Features.Has(config.Encryption) {
		if err := w.add(client, "nodes", "", nodes); err != nil {
			return nil, err
		}
	}
	if rules.Features.Has(config.Services) {
		// The endpointslice controller copies a Service's labels to its slices, so one selector finds both.
		// An apiserver cannot be asked for "this or that selector": each has its watch.
		selectors := []string{rules.Mirror.String(), rules.Global.String()}
		slices.Sort(selectors)
		for _, selector := range slices.Compact(selectors) {
			if err := errors.Join(
				w.add(client, "services", selector, services),
				w.add(client, "endpointslices", selector, endpointSlices),
			); err != nil {
				return nil, err
			}
		}
	}
	if rules.Features.Has(config.Policy) {
		if err := w.add(client, "pods", rules.LabelDomain+"/name", pods); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// resource is how one kind of object goes from its informer into the catalog.
type resource struct {
	informer  func(informers.SharedInformerFactory) cache.SharedIndexInformer
	transform cache.TransformFunc
	put       func(*catalog.Catalog, any, time.Time)
	remove    func(c *catalog.Catalog, namespace, name string, now time.Time)
}

func (w *Watcher) add(client kubernetes.Interface, name, selector string, r resource) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTransform(r.transform),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector }))
	it := &watched{resource: name, what: name, informer: r.informer(factory)}
	if selector != "" {
		it.what = fmt.Sprintf("%s (%s)", name, selector)
	}
	handler, err := it.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			it.works()
			r.put(w.catalog, o, time.Now())
		},
		UpdateFunc: func(_, o any) {
			it.works()
			r.put(w.catalog, o, time.Now())
		},
		DeleteFunc: func(o any) {
			it.works()
			w.removed(name, o, r)
		},
	})
	if err != nil {
		return fmt.Errorf("watch on %s: %w", it.what, err)
	}
	it.synced = handler.HasSynced
	if err := it.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		w.failed(it, err)
	}); err != nil {
		return fmt.Errorf("watch on %s: %w", it.what, err)
	}
	w.watches = append(w.watches, it)
	return nil
}

// removed takes an object out, unless another watch of the resource still selects it. The object can be
// a tombstone, when the watch missed its end.
func (w *Watcher) removed(name string, o any, r resource) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o)
	if err != nil {
		slog.Error("a deleted object has no name; it stays exported until the next start", "resource", name, "error", err)
		return
	}
	for _, other := range w.watches {
		if other.resource != name {
			continue
		}
		if still, ok, err := other.informer.GetStore().GetByKey(key); err == nil && ok {
			r.put(w.catalog, still, time.Now())
			return
		}
	}
	namespace, object, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		slog.Error("a deleted object's name makes no sense; it stays exported until the next start", "key", key, "error", err)
		return
	}
	r.remove(w.catalog, namespace, object, time.Now())
}

// failed notes that a list or watch did not work; client-go tries again, backing off.
func (w *Watcher) failed(it *watched, err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // the ordinary end of a watch: it lists again
	}
	w.errors.WithLabelValues(it.resource).Inc()
	it.mu.Lock()
	told := it.failure != nil && it.failure.Error() == err.Error()
	it.failure = err
	it.mu.Unlock()
	if told {
		return
	}
	if apierrors.IsForbidden(err) {
		slog.Error("the apiserver does not let us watch; apply the feature's rights from deploy/", "resource", it.what, "error", err)
		return
	}
	slog.Warn("watch failed; trying again", "resource", it.what, "error", err)
}

func (it *watched) works() {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.failure = nil
}

// Run follows the cluster until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	var g errgroup.Group
	for _, it := range w.watches {
		g.Go(func() error {
			it.informer.RunWithContext(ctx)
			return nil
		})
	}
	g.Wait()
	return ctx.Err()
}

// Synced is nil once the catalog holds all there is, and until then says what is missing.
func (w *Watcher) Synced() error {
	var missing []string
	for _, it := range w.watches {
		if it.synced() {
			continue
		}
		line := it.what
		it.mu.Lock()
		if it.failure != nil {
			line += ": " + it.failure.Error()
		}
		it.mu.Unlock()
		missing = append(missing, line)
	}
	if len(missing) > 0 {
		return fmt.Errorf("not read yet: %s", strings.Join(missing, "; "))
	}
	return nil
}

// WaitForSync returns when the catalog holds all there is, or with the context's error.
func (w *Watcher) WaitForSync(ctx context.Context) error {
	var synced []cache.InformerSynced
	for _, it := range w.watches {
		synced = append(synced, it.synced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	return nil
}

var nodes = resource{
	informer: func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Core().V1().Nodes().Informer()
	},
	transform: trimmed(func(n *corev1.Node) {
		n.Status = corev1.NodeStatus{}
		n.Labels = nil
	}),
	put:    func(c *catalog.Catalog, o any, now time.Time) { c.PutNode(o.(*corev1.Node), now) },
	remove: func(c *catalog.Catalog, _, name string, now time.Time) { c.DeleteNode(name, now) },
}

var services = resource{
	informer: func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Core().V1().Services().Informer()
	},
	transform: trimmed(func(s *corev1.Service) {
		s.Annotations = nil
		s.Status = corev1.ServiceStatus{}
	}),
	put:    func(c *catalog.Catalog, o any, now time.Time) { c.PutService(o.(*corev1.Service), now) },
	remove: (*catalog.Catalog).DeleteService,
}

var endpointSlices = resource{
	informer: func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Discovery().V1().EndpointSlices().Informer()
	},
	transform: trimmed(func(s *discoveryv1.EndpointSlice) {
		s.Annotations = nil
		for i := range s.Endpoints {
			s.Endpoints[i].TargetRef, s.Endpoints[i].NodeName = nil, nil
		}
	}),
	put:    func(c *catalog.Catalog, o any, now time.Time) { c.PutSlice(o.(*discoveryv1.EndpointSlice), now) },
	remove: (*catalog.Catalog).DeleteSlice,
}

var pods = resource{
	informer: func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Core().V1().Pods().Informer()
	},
	transform: trimmed(func(p *corev1.Pod) {
		p.Annotations = nil
		p.Spec = corev1.PodSpec{HostNetwork: p.Spec.HostNetwork}
		p.Status = corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs}
	}),
	put:    func(c *catalog.Catalog, o any, now time.Time) { c.PutPod(o.(*corev1.Pod), now) },
	remove: (*catalog.Catalog).DeletePod,
}

// trimmed is a transform that keeps in memory only what the catalog looks at.
func trimmed[T metav1.Object](trim func(T)) cache.TransformFunc {
	return func(o any) (any, error) {
		if object, ok := o.(T); ok {
			object.SetManagedFields(nil)
			object.SetOwnerReferences(nil)
			trim(object)
		}
		return o, nil
	}
}
