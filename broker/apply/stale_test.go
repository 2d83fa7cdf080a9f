package apply

import (
	"strings"
	"testing"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// A broker that was stopped when it led, and continues after another has taken over, makes the writes that it was
// about to make: of what it saw before. None of them may take hold.
func TestStaleWriter(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets", "ippools")
	admin := kubernetes.NewForConfigOrDie(cfg)
	kubetest.Namespace(t, admin, "mirrors")
	calico := NewCalico(cfg, options(t).Log)
	t.Run("service", func(t *testing.T) {
		w, d := desired[*corev1.Service]()
		stale(t, Services(admin, "mirrors", nil, d, options(t)), w,
			service("m", "c2", 80, false), service("m", "c2", 81, false), service("m", "c2", 82, false))
	})
	t.Run("service of another kind", func(t *testing.T) {
		w, d := desired[*corev1.Service]()
		stale(t, Services(admin, "mirrors", nil, d, options(t)), w,
			service("h", "c2", 80, false), service("h", "c2", 81, false), service("h", "c2", 82, true))
	})
	t.Run("endpointslice", func(t *testing.T) {
		w, d := desired[*discoveryv1.EndpointSlice]()
		stale(t, Slices(admin, writes.EndpointSlice, "mirrors", d, options(t)), w,
			slice("m", "c2", "IPv4", "10.2.0.1"), slice("m", "c2", "IPv4", "10.2.0.2"), slice("m", "c2", "IPv4", "10.2.0.3"))
	})
	t.Run("globalnetworkset", func(t *testing.T) {
		w, d := desired[*calicov3.GlobalNetworkSet]()
		stale(t, Sets(calico, nil, d, options(t)), w,
			globalSet("m", "10.2.0.1/32"), globalSet("m", "10.2.0.2/32"), globalSet("m", "10.2.0.3/32"))
	})
	t.Run("ippool", func(t *testing.T) {
		pool := func(selector string) *calicov3.IPPool {
			return &calicov3.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: bearing("c2")}, Spec: calicov3.IPPoolSpec{
				CIDR: "10.2.0.0/16", Disabled: true, IPIPMode: calicov3.IPIPModeNever, VXLANMode: calicov3.VXLANModeNever,
				NodeSelector: selector,
			}}
		}
		w, d := desired[*calicov3.IPPool]()
		stale(t, Pools(calico, d, options(t)), w, pool("all()"), pool("has(x)"), pool("has(y)"))
	})
}

// stale has o, which saw first, write what it wants of it after a successor wrote theirs.
func stale[T writes.Object](t *testing.T, o *Objects[T], w *wanted[T], first, theirs, mine T) {
	ctx, name := t.Context(), first.GetName()
	connection := testkit.Value(o.kind.connect(ctx))(t)
	o.connection = connection
	o.synced.Store(true)
	// The store of an informer that no longer receives anything.
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, clusterIndex)
	o.reset(store)
	look := func(object T) {
		t.Helper()
		o.reset(store)
		o.machine.Informed(name, object, false)
	}
	unharmed := func(what string, want T) {
		t.Helper()
		list := testkit.Value(cache.ToListerWatcherWithContext(connection.listWatch).ListWithContext(ctx,
			metav1.ListOptions{FieldSelector: "metadata.name=" + name}))(t)
		objects := cache.NewIndexer(cache.MetaNamespaceKeyFunc, clusterIndex)
		for _, item := range testkit.Value(meta.ExtractList(list))(t) {
			testkit.Must(t, objects.Add(item))
		}
		got, ok, _ := objects.GetByKey(writes.KeyOf(want))
		if !ok {
			t.Fatalf("%s: the object is gone", what)
		}
		if g := got.(T); g.GetUID() != want.GetUID() || g.GetResourceVersion() != want.GetResourceVersion() {
			t.Fatalf("%s: the object was written: version %s, uid %s; want %s, %s", what, g.GetResourceVersion(), g.GetUID(),
				want.GetResourceVersion(), want.GetUID())
		}
	}

	seen := testkit.Value(connection.client.Create(ctx, first))(t)
	newer := testkit.Value(connection.client.Update(ctx, o.kind.Merge(seen, theirs)))(t)
	look(seen)
	w.set(mine)
	if err := done(o.reconcile(ctx, name)); err != nil {
		t.Errorf("update: %v", err)
	}
	unharmed("update", newer)

	look(seen)
	w.unset(name)
	w.know("c2")
	if err := done(o.reconcile(ctx, name)); err != nil {
		t.Errorf("delete: %v", err)
	}
	unharmed("delete", newer)

	o.reset(store)
	w.set(mine)
	if err := o.reconcile(ctx, name); err == nil || !strings.Contains(err.Error(), "did not create") {
		t.Errorf("create: %v", err)
	}
	unharmed("create", newer)

	// And under the name of something new.
	testkit.Must(t, connection.client.Delete(ctx, newer))
	another := testkit.Value(connection.client.Create(ctx, theirs))(t)
	for _, then := range []func(){func() { w.set(mine) }, func() { w.unset(name) }} {
		look(seen)
		then()
		if err := done(o.reconcile(ctx, name)); err != nil {
			t.Errorf("of an object that was made again: %v", err)
		}
		unharmed("an object that was made again", another)
	}
	if n := value(t, o.options.Metrics, "semaphore_broker_writes_total", string(o.kind.Name), "conflict"); n != 4 {
		t.Errorf("%v conflicts counted, want 4", n)
	}
}
