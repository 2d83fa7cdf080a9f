package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testbed/proxy"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

const (
	mirrorLabel = "mirror.semaphore.uw.io/mirror-service"
	globalLabel = "mirror.semaphore.uw.io/global-service"
	setLabel    = naming.DefaultLabelDomain + "/name"
)

func newCatalog(t *testing.T, features ...config.Feature) *catalog.Catalog {
	t.Helper()
	mirror, err := labels.Parse(mirrorLabel + "=true")
	must(t, err)
	global, err := labels.Parse(globalLabel + "=true")
	must(t, err)
	return catalog.New(catalog.Rules{
		Features: features, Clusters: []string{"c2"}, Mirror: mirror, Global: global,
		LabelDomains:  []string{naming.DefaultLabelDomain},
		ServiceLabels: config.LabelKeys{"app.kubernetes.io/*"},
	})
}

// client speaks as the exporter does.
func client(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(kube.Protobuf(cfg))
	must(t, err)
	return c
}

// start runs a watcher until the test ends.
func start(t *testing.T, cfg *rest.Config, cat *catalog.Catalog) *Watcher {
	t.Helper()
	return startWith(t, client(t, cfg), kube.NewBlockAffinities(cfg), cat, WatcherOptions{})
}

func startWith(t *testing.T, c kubernetes.Interface, affinities *kube.BlockAffinities, cat *catalog.Catalog,
	o WatcherOptions, prepare ...func(*Watcher)) *Watcher {
	t.Helper()
	w, err := NewWatcher(c, affinities, cat, prometheus.NewRegistry(), o)
	must(t, err)
	for _, do := range prepare {
		do(w)
	}
	testkit.Run(t, w.Run)
	return w
}

// failed is the metric of requests that failed.
func failed(t *testing.T, w *Watcher, resource, verb string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(w.errors)
	n, found := testkit.Metric(t, reg, "semaphore_exporter_watch_errors_total", resource, verb)
	if !found {
		t.Fatalf("there is no metric of %s and %s", resource, verb)
	}
	return n
}

func exportedKeys(c *catalog.Catalog) string {
	var keys []string
	all, _ := c.Journal().Snapshot()
	for _, e := range all {
		keys = append(keys, e.Key.String())
	}
	slices.Sort(keys)
	return strings.Join(keys, ", ")
}

// eventually waits until what is exported is want, and then sees that it stays so.
func eventually(t *testing.T, c *catalog.Catalog, want ...string) {
	t.Helper()
	slices.Sort(want)
	text := strings.Join(want, ", ")
	soon(t, func() error {
		if got := exportedKeys(c); got != text {
			return fmt.Errorf("exported are %q, not %q", got, text)
		}
		return nil
	})
}

func soon(t *testing.T, check func() error) {
	t.Helper()
	// client-go waits up to half a minute before it tries again.
	testkit.Eventually(t, 3*time.Minute, "the watcher", check)
}

func waitForSync(t *testing.T, w *Watcher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := w.WaitForSync(ctx); err != nil {
		t.Fatalf("%v: %v", err, w.Synced())
	}
	must(t, w.Synced())
}

// waits waits until a watcher says what it lacks in these words, and checks that it publishes none of these kinds.
func waits(t *testing.T, w *Watcher, kinds []semaphorev1.Kind, words ...string) {
	t.Helper()
	soon(t, func() error {
		err := w.Synced()
		for _, text := range words {
			if err == nil || !strings.Contains(err.Error(), text) {
				return fmt.Errorf("it does not wait for %q: %v", text, err)
			}
		}
		if i := slices.IndexFunc(kinds, w.Ready); i >= 0 {
			return fmt.Errorf("kind %s is complete", kinds[i])
		}
		return nil
	})
}

func service(name string, labels map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

func slice(name, service string, labels map[string]string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.1.1"}}},
	}
	for k, v := range labels {
		s.Labels[k] = v
	}
	return s
}

func pod(name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
}

// TestWatch is one apiserver and what the watches make of it.
func TestWatch(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.NoLeaks(t, cfg)
	admin := client(t, cfg)
	t.Run("what is there and what changes", func(t *testing.T) { testFollow(t, cfg, admin) })
	t.Run("labels that come and go at random", func(t *testing.T) { testLabels(t, cfg, admin) })
	t.Run("rights that are missing", func(t *testing.T) { testRights(t, cfg, admin) })
	t.Run("an apiserver that is gone for a while", func(t *testing.T) { testOutage(t, cfg, admin) })
}

func testFollow(t *testing.T, cfg *rest.Config, admin kubernetes.Interface) {
	ctx, del := t.Context(), *metav1.NewDeleteOptions(0)
	kubetest.Namespace(t, admin, "shop")
	core := admin.CoreV1()
	mirror := map[string]string{mirrorLabel: "true"}
	set := map[string]string{setLabel: "front"}

	// Before the watcher, and after: both must be found.
	kubetest.Create(t, core.Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Spec: corev1.NodeSpec{PodCIDR: "10.1.1.0/24"}})
	kubetest.Create(t, core.Services("shop"), service("echo", mirror))
	kubetest.Create(t, core.Services("shop"), service("private", nil))
	kubetest.Create(t, core.Pods("shop"), pod("private", nil))
	web := kubetest.Create(t, core.Pods("shop"), pod("web", set))

	c := newCatalog(t, config.Encryption, config.Services, config.Policy)
	w := start(t, cfg, c)
	if w.Synced() == nil {
		t.Error("nothing can have been read yet, and the watcher says that all is")
	}
	waitForSync(t, w)
	eventually(t, c, "node n1 for c2", "service shop/echo")
	if got := len(stored(w, "pods")); got != 1 {
		t.Errorf("%d pods are in memory; only one has the label", got)
	}
	if got := len(stored(w, "services")); got != 1 {
		t.Errorf("%d services are in memory; only one is offered", got)
	}

	slices := admin.DiscoveryV1().EndpointSlices("shop")
	kubetest.Create(t, slices, slice("echo-1", "echo", mirror))
	kubetest.Create(t, slices, slice("unlabelled", "private", nil))
	web.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.1.1.7"}}, PodIP: "10.1.1.7"}
	web = kubetest.UpdateStatus(t, core.Pods("shop"), web)
	eventually(t, c, "node n1 for c2", "service shop/echo", "endpointslice shop/echo-1", "setmember shop/web")

	for _, o := range stored(w, "pods") {
		p := o.(*corev1.Pod)
		if len(p.Spec.Containers) > 0 || len(p.ManagedFields) > 0 {
			t.Errorf("memory is spent on what is not exported: %+v", p)
		}
	}

	// An object that is not exported makes no revision.
	head := c.Journal().Head()
	web.Annotations = map[string]string{"unrelated": "true"}
	web = kubetest.Update(t, core.Pods("shop"), web)
	n1 := kubetest.Get(t, core.Nodes(), "n1")
	n1.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	kubetest.UpdateStatus(t, core.Nodes(), n1)

	// The end of a set's member, of a slice, and a new node; what was asked for before has been seen then.
	web.Status.Phase = corev1.PodSucceeded
	kubetest.UpdateStatus(t, core.Pods("shop"), web)
	must(t, slices.Delete(ctx, "echo-1", del))
	kubetest.Create(t, core.Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	eventually(t, c, "node n1 for c2", "node n2 for c2", "service shop/echo")
	if got := c.Journal().Head() - head; got != 3 {
		t.Errorf("three changes made %d revisions", got)
	}
	must(t, core.Nodes().Delete(ctx, "n2", del))
	must(t, core.Services("shop").Delete(ctx, "echo", del))
	eventually(t, c, "node n1 for c2")
	if p := finding.Texts(w.Findings()); len(p) > 0 {
		t.Errorf("problems: %q", p)
	}
}

func stored(w *Watcher, resource string) []any {
	for _, r := range w.resources {
		if r.name == resource {
			var all []any
			for _, it := range r.watches {
				all = append(all, it.store.List()...)
			}
			return all
		}
	}
	return nil
}

// testLabels changes labels faster than two watches of one resource can stay in step.
func testLabels(t *testing.T, cfg *rest.Config, admin kubernetes.Interface) {
	kubetest.Namespace(t, admin, "labels")
	services := admin.CoreV1().Services("labels")
	c := newCatalog(t, config.Services)
	w := start(t, cfg, c)
	waitForSync(t, w)
	ctx := t.Context()
	want := map[string]string{}
	rnd := rand.New(rand.NewPCG(1, 3))
	for i := range 400 {
		name := fmt.Sprint("s", rnd.IntN(4))
		labels := []map[string]string{
			nil, {mirrorLabel: "true"}, {globalLabel: "true"}, {mirrorLabel: "true", globalLabel: "true"},
		}[rnd.IntN(4)]
		s, err := services.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, err = services.Create(ctx, service(name, labels), metav1.CreateOptions{})
		case err == nil && rnd.IntN(5) == 0:
			labels = nil
			err = services.Delete(ctx, name, metav1.DeleteOptions{})
		case err == nil:
			s.Labels = labels
			_, err = services.Update(ctx, s, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatalf("change %d: %v", i, err)
		}
		if delete(want, name); labels != nil {
			want[name] = fmt.Sprint(labels[mirrorLabel] == "true", labels[globalLabel] == "true")
		}
		if i%100 != 99 {
			continue
		}
		soon(t, func() error {
			got := map[string]string{}
			all, _ := c.Journal().Snapshot()
			for _, e := range all {
				got[e.Key.Name] = fmt.Sprint(e.Value.Object.GetService().GetMirror(), e.Value.Object.GetService().GetGlobal())
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("after %d changes: exported (mirror, global) are %v, not %v", i+1, got, want)
			}
			return nil
		})
	}
}

func testRights(t *testing.T, cfg *rest.Config, admin kubernetes.Interface) {
	limited := rest.CopyConfig(cfg)
	limited.Impersonate.UserName = "exporter"
	ctx := t.Context()
	grant := func(resources ...string) {
		t.Helper()
		kubetest.AllowReading(t, admin, "exporter", "", resources...)
	}
	grant("nodes")
	// The apiserver's authorizer follows what was written.
	soon(t, func() error {
		_, err := client(t, limited).CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	})

	// A feature that is off asks for nothing.
	nodes := start(t, limited, newCatalog(t, config.Encryption))
	waitForSync(t, nodes)
	for _, verb := range []string{list, watching} {
		if n := failed(t, nodes, "nodes", verb); n != 0 {
			t.Errorf("%v errors on %s", n, verb)
		}
	}

	w := startWith(t, client(t, limited), kube.NewBlockAffinities(limited),
		newCatalog(t, config.Encryption, config.Policy), WatcherOptions{},
		func(w *Watcher) { w.identifyForbiddenRetry = time.Second })
	soon(t, func() error {
		err := w.Synced()
		if err == nil {
			t.Fatal("pods may not be read, and the watcher says that all is")
		}
		for _, part := range []string{"not read yet", "pods (" + setLabel + ")", "cannot list",
			`"exporter" cannot list resource "pods"`} {
			if !strings.Contains(err.Error(), part) {
				return fmt.Errorf("%w: does not say %q", err, part)
			}
		}
		if strings.Contains(err.Error(), "nodes") {
			return err
		}
		return nil
	})
	if n := failed(t, w, "pods", list); n == 0 {
		t.Error("the errors are not counted")
	}
	// A source that may be read is ready, also where the apiserver is unknown.
	soon(t, func() error {
		if !w.Ready(semaphorev1.Kind_KIND_NODE) {
			return errors.New("nodes may be read and are not ready")
		}
		return nil
	})
	if w.Ready(semaphorev1.Kind_KIND_SET_MEMBER) || w.Read(semaphorev1.Kind_KIND_NODE) == 0 {
		t.Errorf("nodes are read up to %d; pods are ready: %v", w.Read(semaphorev1.Kind_KIND_NODE),
			w.Ready(semaphorev1.Kind_KIND_SET_MEMBER))
	}
	if p := finding.Texts(w.Findings()); len(p) != 1 ||
		!strings.Contains(p[0], "the exporter cannot detect an apiserver that lags") ||
		w.ID() != "" {
		t.Errorf("the source is %q, and problems are %q", w.ID(), p)
	}
	grant("pods", "namespaces")
	waitForSync(t, w)
	soon(t, func() error {
		if p := finding.Texts(w.Findings()); len(p) > 0 {
			return fmt.Errorf("the rights are there, and problems are %q", p)
		}
		return nil
	})
	ns := kubetest.Get(t, admin.CoreV1().Namespaces(), metav1.NamespaceSystem)
	if w.ID() != string(ns.UID) || !w.Ready(semaphorev1.Kind_KIND_SET_MEMBER) {
		t.Errorf("the source is %q, not %q", w.ID(), ns.UID)
	}
}

// testOutage: what was deleted while the apiserver could not be reached is gone once it can be.
func testOutage(t *testing.T, cfg *rest.Config, admin kubernetes.Interface) {
	kubetest.Namespace(t, admin, "outage")
	services := admin.CoreV1().Services("outage")
	for _, name := range []string{"stays", "goes"} {
		kubetest.Create(t, services, service(name, map[string]string{globalLabel: "true"}))
	}
	through, network := kubetest.Through(t, cfg)
	c := newCatalog(t, config.Services)
	w := start(t, through, c)
	waitForSync(t, w)
	mine := func() string {
		var keys []string
		all, _ := c.Journal().Snapshot()
		for _, e := range all {
			if e.Key.Namespace == "outage" {
				keys = append(keys, e.Key.Name)
			}
		}
		slices.Sort(keys)
		return strings.Join(keys, " ")
	}
	if got := mine(); got != "goes stays" {
		t.Fatalf("exported are %q", got)
	}
	network.Set(proxy.Conditions{Refuse: true})
	network.Reset()
	must(t, services.Delete(t.Context(), "goes", metav1.DeleteOptions{}))
	soon(t, func() error {
		if p := strings.Join(finding.Texts(w.Findings()), "\n"); !strings.Contains(p, "the watch fails: cannot ") {
			return fmt.Errorf("the apiserver is out of reach, and problems are %q", p)
		}
		return nil
	})
	if err := w.Synced(); err != nil {
		t.Errorf("what was read remains, and the watcher says: %v", err)
	}
	if got := mine(); got != "goes stays" {
		t.Errorf("an outage changed what is exported to %q", got)
	}
	network.Set(proxy.Conditions{})
	soon(t, func() error {
		if got := mine(); got != "stays" {
			return fmt.Errorf("exported are %q, not %q", got, "stays")
		}
		if p := finding.Texts(w.Findings()); len(p) > 0 {
			return fmt.Errorf("all is well again, and problems are %q", p)
		}
		return nil
	})
}

// TestSteps: what a list lacks is gone, and how far the source is read is what the catalog received.
func TestSteps(t *testing.T) {
	c := newCatalog(t, config.Encryption)
	unused, err := kubernetes.NewForConfig(&rest.Config{Host: "https://127.0.0.1:1"})
	must(t, err)
	w, err := NewWatcher(unused, kube.NewBlockAffinities(nil), c, prometheus.NewRegistry(), WatcherOptions{})
	must(t, err)
	node := func(name, version string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
	}
	it := w.resources[0].watches[0]
	for _, step := range []struct {
		delta cache.Delta
		want  string
		read  uint64
	}{
		{cache.Delta{Type: cache.ReplacedAll, Object: cache.ReplacedAllInfo{ResourceVersion: "5",
			Objects: []any{node("n1", "3"), node("n2", "4")}}}, "node n1 for c2, node n2 for c2", 5},
		{cache.Delta{Type: cache.Added, Object: node("n3", "6")}, "node n1 for c2, node n2 for c2, node n3 for c2", 6},
		{cache.Delta{Type: cache.Deleted, Object: node("n1", "7")}, "node n2 for c2, node n3 for c2", 7},
		{cache.Delta{Type: cache.Bookmark, Object: cache.BookmarkInfo{ResourceVersion: "11"}},
			"node n2 for c2, node n3 for c2", 11},
		{cache.Delta{Type: cache.Deleted, Object: cache.DeletedFinalStateUnknown{Key: "n2"}}, "node n3 for c2", 11},
		{cache.Delta{Type: cache.ReplacedAll, Object: cache.ReplacedAllInfo{ResourceVersion: "20",
			Objects: []any{node("n4", "19")}}}, "node n4 for c2", 20},
		// An apiserver that was put back to an earlier state.
		{cache.Delta{Type: cache.ReplacedAll, Object: cache.ReplacedAllInfo{ResourceVersion: "2"}}, "", 2},
		{cache.Delta{Type: cache.Updated, Object: node("n5", "no number")}, "node n5 for c2", 0},
	} {
		must(t, it.process(step.delta))
		if got, read := exportedKeys(c), w.Read(semaphorev1.Kind_KIND_NODE); got != step.want || read != step.read {
			t.Errorf("after %v: exported are %q, read is up to %d; not %q and %d", step.delta, got, read, step.want, step.read)
		}
	}
	if err := it.process(cache.Delta{Type: cache.Added, Object: "nonsense"}); err == nil {
		t.Error("an object without a name is taken")
	}
}

// Of an object, only what decides on its export is kept in memory; what is exported of it is as of the whole object.
func TestAServiceIsExportedWhole(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.NoLeaks(t, cfg)
	admin := client(t, cfg)
	kubetest.Namespace(t, admin, "shop")
	full := kubetest.Create(t, admin.CoreV1().Services("shop"), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: "echo",
			Labels: map[string]string{mirrorLabel: "true", globalLabel: "true", naming.LabelRouting: naming.RoutingLocalFirst,
				"app.kubernetes.io/name": "echo"},
			Annotations: map[string]string{
				naming.AnnotationPreferClusters: "c2,c3", naming.AnnotationMinReady: "2", naming.AnnotationWhenGone: "withdraw",
				naming.AnnotationExportTo: "c2", "other": "x",
			},
		},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "echo"}, PublishNotReadyAddresses: true,
			SessionAffinity: corev1.ServiceAffinityClientIP,
			SessionAffinityConfig: &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](60)},
			},
			TrafficDistribution: ptr.To(corev1.ServiceTrafficDistributionPreferClose),
			Ports:               []corev1.ServicePort{{Name: "http", Port: 80, AppProtocol: ptr.To("http")}},
		},
	})
	whole := newCatalog(t, config.Services)
	whole.PutService(full, time.Now())
	c := newCatalog(t, config.Services)
	waitForSync(t, start(t, cfg, c))
	key := catalog.Key{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: "shop", Name: "echo"}
	got, _ := c.Journal().Get(key)
	want, _ := whole.Journal().Get(key)
	if !proto.Equal(got.Object, want.Object) || got.To != want.To {
		t.Errorf("exported is\n%v\nfor %s, not\n%v\nfor %s", got.Object, got.To, want.Object, want.To)
	}
	for _, text := range []string{"client_ip_affinity_seconds:60", "PreferClose", "IPv4", "c3", "min_ready:2",
		"WHEN_GONE_WITHDRAW",
		"local_first:true", "app.kubernetes.io/name"} {
		if !strings.Contains(strings.ReplaceAll(fmt.Sprint(got.Object), " ", ""), text) {
			t.Errorf("%v lacks %s", got.Object, text)
		}
	}
}

// TestServicesWithoutSelector: what an operator writes for a Service without selector is exported, as an Endpoints
// object that Kubernetes mirrors or as a slice, whatever its labels; and of the slices that Kubernetes makes only
// those of offered Services are read.
func TestServicesWithoutSelector(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.StartControllers(t, cfg, "endpointslice-controller", "endpointslice-mirroring-controller")
	admin, ctx := client(t, cfg), t.Context()
	kubetest.Namespace(t, admin, "shop")
	create := func(s *corev1.Service) {
		t.Helper()
		kubetest.Create(t, admin.CoreV1().Services("shop"), s)
	}
	offered := map[string]string{mirrorLabel: "true"}
	selecting := func(s *corev1.Service) *corev1.Service {
		s.Spec.Selector = map[string]string{"app": s.Name}
		return s
	}
	create(service("db", offered))              // its Endpoints are written below
	create(service("external", offered))        // its slice is
	create(service("unoffered", nil))           // so are its Endpoints
	create(selecting(service("pods", offered))) // its slices are Kubernetes'
	create(selecting(service("private", nil)))  // and so are these
	for _, name := range []string{"db", "unoffered"} {
		//lint:ignore SA1019 database operators write them
		kubetest.Create(t, admin.CoreV1().Endpoints("shop"), &corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"cluster-name": name}},
			//lint:ignore SA1019 as above
			Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "10.1.1.7"}},
				Ports: []corev1.EndpointPort{{Name: "http", Port: 80}}}},
		})
	}
	kubetest.Create(t, admin.DiscoveryV1().EndpointSlices("shop"), slice("by-hand", "external", nil))
	all := func() (of map[string]int) {
		of = map[string]int{}
		list, err := admin.DiscoveryV1().EndpointSlices("shop").List(ctx, metav1.ListOptions{})
		must(t, err)
		for _, s := range list.Items {
			of[s.Labels[discoveryv1.LabelServiceName]]++
		}
		return of
	}
	soon(t, func() error {
		if got := all(); len(got) != 5 {
			return fmt.Errorf("slices of %v", got)
		}
		return nil
	})
	c := newCatalog(t, config.Services)
	w := start(t, cfg, c)
	waitForSync(t, w)
	soon(t, func() error {
		got := map[string]bool{}
		objects, _ := c.Journal().Snapshot()
		for _, e := range objects {
			if s := e.Value.Object.GetEndpointSlice(); s != nil {
				got[s.GetService()] = len(s.GetEndpoints()) > 0
			}
		}
		if want := map[string]bool{"db": true, "external": true, "pods": false}; !maps.Equal(got, want) {
			return fmt.Errorf("slices of %v are exported, want %v", got, want)
		}
		return nil
	})
	for _, r := range w.resources {
		if r.name != "endpointslices" {
			continue
		}
		for _, key := range r.keys() {
			if strings.HasPrefix(key, "shop/private") {
				t.Errorf("%s is read, which Kubernetes made for a Service that is not offered", key)
			}
		}
	}
	must(t, admin.CoreV1().Services("shop").Delete(ctx, "external", metav1.DeleteOptions{}))
	soon(t, func() error {
		if text := exportedKeys(c); strings.Contains(text, "by-hand") {
			return errors.New(text)
		}
		return nil
	})
}

// Pods of all domains are found, and one with two labels once.
func TestPodsOfSeveralDomains(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.NoLeaks(t, cfg)
	admin := client(t, cfg)
	kubetest.Namespace(t, admin, "shop")
	c := catalog.New(catalog.Rules{
		Features: config.Features{config.Policy}, Clusters: []string{"c2"},
		LabelDomains: []string{naming.DefaultLabelDomain, naming.PolicyLabelDomain},
	})
	const other = naming.PolicyLabelDomain + "/name"
	create := func(name string, labels map[string]string) {
		p := kubetest.Create(t, admin.CoreV1().Pods("shop"), pod(name, labels))
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.1.5", PodIPs: []corev1.PodIP{{IP: "10.1.1.5"}}}
		kubetest.UpdateStatus(t, admin.CoreV1().Pods("shop"), p)
	}
	create("first", map[string]string{setLabel: "a"})
	create("second", map[string]string{other: "a"})
	create("neither", nil)
	w := start(t, cfg, c)
	waitForSync(t, w)
	create("both", map[string]string{setLabel: "a", other: "a"})
	eventually(t, c, "setmember shop/both", "setmember shop/first", "setmember shop/second")
	p := kubetest.Get(t, admin.CoreV1().Pods("shop"), "both")
	delete(p.Labels, setLabel)
	kubetest.Update(t, admin.CoreV1().Pods("shop"), p)
	// Each watch reports a pod that comes later.
	create("third", map[string]string{setLabel: "a"})
	create("fourth", map[string]string{other: "a"})
	eventually(t, c, "setmember shop/both", "setmember shop/first", "setmember shop/fourth", "setmember shop/second",
		"setmember shop/third")
}

// TestALaggingWatchBringsNothingBack: of two watches that select an object one is behind. The state that the other one
// showed stays after the object lost its label, also when the rules change, until the first one shows a newer state.
func TestALaggingWatchBringsNothingBack(t *testing.T) {
	c := catalog.New(catalog.Rules{Features: config.Features{config.Services}, Clusters: []string{"c2"},
		Mirror: labels.SelectorFromSet(labels.Set{"offer": "yes"}), Global: labels.Nothing()})
	w := &Watcher{catalog: c}
	r := &resource{kind: services(kubernetes.NewForConfigOrDie(&rest.Config{}), nil), shared: map[string]metav1.Object{}}
	w.resources = []*resource{r}
	for range 2 {
		r.watches = append(r.watches, &watched{follower: &follower{store: cache.NewStore(cache.MetaNamespaceKeyFunc)}})
	}
	behind, ahead := r.watches[0].store, r.watches[1].store
	service := func(version, exportTo string) *corev1.Service {
		s := echoAt(80)
		s.ResourceVersion, s.Labels = version, map[string]string{"offer": "yes"}
		s.Annotations = map[string]string{naming.AnnotationExportTo: exportTo}
		return s
	}
	exported := func(want bool, what string) {
		t.Helper()
		w.update(r, "shop/echo")
		for range 2 {
			if _, is := c.Journal().Get(serviceKey("echo")); is != want {
				t.Errorf("%s: exported is %v, want %v", what, is, want)
			}
			w.Replay()
		}
	}
	must(t, behind.Add(service("5", "c2")))
	must(t, ahead.Add(service("5", "c2")))
	exported(true, "both show it")
	must(t, ahead.Update(service("10", "none")))
	exported(false, "one shows that its owner withholds it")
	must(t, ahead.Delete(service("12", "none")))
	exported(false, "that one no longer selects it")
	must(t, behind.Update(service("13", "c2")))
	exported(true, "the other one shows a newer state")
	must(t, behind.Delete(service("14", "c2")))
	if exported(false, "nobody selects it"); len(r.shared) > 0 {
		t.Errorf("kept of what is gone: %v", r.shared)
	}
}
