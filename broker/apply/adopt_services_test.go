package apply

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/migrate"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// handover is a cluster with what semaphore-service-mirror left, and all that takes it over.
type handover struct {
	t     *testing.T
	admin kubernetes.Interface
	// endpoints are reached so as their type is deprecated.
	endpoints dynamic.ResourceInterface

	services  *wanted[*corev1.Service]
	slices    *wanted[*discoveryv1.EndpointSlice]
	ofService *Objects[*corev1.Service]
	ofSlice   *Objects[*discoveryv1.EndpointSlice]
	leftovers *migrate.Leftovers
	adopting  atomic.Pointer[config.Broker]

	mu        sync.Mutex
	completed map[string]bool
	empty     []string // Services that had no endpoint for a moment
}

func TestHandover(t *testing.T) {
	cfg := kubetest.Start(t)
	h := &handover{
		t: t, admin: kubernetes.NewForConfigOrDie(cfg), completed: map[string]bool{},
		endpoints: dynamic.NewForConfigOrDie(cfg).
			Resource(corev1.SchemeGroupVersion.WithResource("endpoints")).
			Namespace("mirrors"),
	}
	kubetest.Namespace(t, h.admin, "mirrors")
	const echo, global, old = "c2-shop-73736d-echo", "gl-shop-73736d-echo", "c2-shop-73736d-old"
	h.theirs(echo, "c2", "10.2.0.1")
	h.theirs(old, "c2", "10.2.0.9")
	h.theirs("c9-shop-73736d-echo", "c9", "10.9.0.1") // of no remote that is configured
	h.theirGlobal(global, map[string]string{"c2": "10.2.0.1", "c1": "10.1.0.1"})
	somebodys := kubetest.Create(t, h.admin.CoreV1().Services("mirrors"), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "c2-shop-73736d-mine", Labels: map[string]string{naming.LabelMirrored: "true",
			naming.LabelMirrorPrefixSync: "c2"}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "mine"}, Ports: []corev1.ServicePort{{Port: 80}}},
	})
	before := h.versions()
	addresses := map[string]string{echo: h.service(echo).Spec.ClusterIP, global: h.service(global).Spec.ClusterIP}

	// Without the setting nothing is touched, and the status says what to do.
	metadata := metadata.NewForConfigOrDie(cfg)
	stop, ended := h.start(nil, nil, metadata)
	h.want(echo, "c2", "10.2.0.1")
	reports(t, h.ofService, "set services.adoptFrom: [semaphore-service-mirror] to take it over")
	<-ended // there is nothing for it to do
	stop()
	if after := h.versions(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Fatalf("touched:\n%v\nwere\n%v", after, before)
	}

	// With it, what is theirs becomes ours, and stays as it is until the clusters have sent what they offer.
	local := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	h.services.unset(echo)
	h.slices.unset(echo + "-1")
	stop, ended = h.start([]string{config.ServiceMirror}, local, metadata)
	h.watch()
	for name, cluster := range map[string]string{echo: "c2", old: "c2", global: ""} {
		eventually(t, name+" is ours", func() (bool, string) {
			s := h.service(name)
			source, named := s.Labels[naming.LabelSourceCluster]
			return s.Labels[naming.LabelManagedBy] == naming.ManagedByBroker && source == cluster && named == (cluster != "") &&
				s.Annotations[naming.AnnotationSourceNamespace] == "shop", fmt.Sprint(s.Labels, s.Annotations)
		})
	}
	eventually(t, "they wait",
		h.says("2 objects of semaphore-service-mirror stay for now, such as endpoints c2-shop-73736d-",
			"c2 has not exported all its services", "not all clusters have exported"))

	// c2 exports objects that cannot be written: nothing is removed for them.
	h.want(echo, "c2", "none.such.address")
	h.tell("c2")
	eventually(t, "they wait for ours", h.says("not all EndpointSlices that replace it are written"))
	if names := h.endpointsLeft(); !slices.Contains(names, echo) {
		t.Errorf("the Endpoints are gone, and left are %v", names)
	}
	h.want(echo, "c2", "10.2.0.2")
	eventually(t, "the Endpoints are gone", func() (bool, string) {
		names := h.endpointsLeft()
		return !slices.Contains(names, echo), fmt.Sprint(names)
	})
	eventually(t, "a Service that is not offered is gone", func() (bool, string) {
		_, err := h.admin.CoreV1().Services("mirrors").Get(t.Context(), old, metav1.GetOptions{})
		return err != nil && !slices.Contains(h.endpointsLeft(), old), fmt.Sprint(h.endpointsLeft())
	})
	h.want(global, "c2", "10.2.0.2")
	h.tell("")
	eventually(t, "local endpoints are not given up",
		h.says("it has endpoints of this cluster, which no exporter sends to the broker"))
	if names := h.slicesLeft(); !slices.Equal(names, []string{"gl-echo-c1"}) {
		t.Errorf("left of the global service: %v", names)
	}
	stop()
	<-ended

	// An object that only the tool knows stays, until the operator has the own exporter taken.
	stop, ended = h.start([]string{config.ServiceMirror}, nil, metadata)
	eventually(t, "all is handed over", func() (bool, string) {
		return len(h.slicesLeft()) == 0, fmt.Sprint(h.slicesLeft(), h.leftovers.Problems())
	})
	<-ended // by itself
	if p := h.leftovers.Problems(); len(p) > 0 {
		t.Errorf("done, and still %q", p)
	}
	stop()

	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.empty) > 0 {
		t.Errorf("without endpoints for a moment: %v", h.empty)
	}
	for name, address := range addresses {
		if got := h.service(name).Spec.ClusterIP; got != address {
			t.Errorf("%s has the address %s, and had %s", name, got, address)
		}
	}
	after := h.versions()
	for _, name := range []string{"Service c9-shop-73736d-echo", "Endpoints c9-shop-73736d-echo", "Service " +
		somebodys.Name} {
		if after[name] != before[name] {
			t.Errorf("%s was touched", name)
		}
	}

	// The remote c9 is added: what is there of it becomes ours, too.
	h.adopting.Store(&config.Broker{Services: h.adopting.Load().Services,
		Remotes: []config.Remote{{Name: "c2", ServicePrefix: "c2"}, {Name: "c9", ServicePrefix: "c9"}}})
	h.ofService.AdoptAll(t.Context())
	if s := h.service("c9-shop-73736d-echo"); s.Labels[naming.LabelSourceCluster] != "c9" {
		t.Errorf("after c9 was added its Service has the labels %v", s.Labels)
	}
}

// theirs is a mirror as semaphore-service-mirror and Kubernetes make it.
func (h *handover) theirs(name, prefix string, addresses ...string) {
	h.t.Helper()
	labels := map[string]string{naming.LabelMirrored: "true", naming.LabelMirrorPrefixSync: prefix}
	h.create(name, labels)
	var subset []any
	for _, a := range addresses {
		subset = append(subset, map[string]any{"ip": a})
	}
	endpoints := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Endpoints", "metadata": map[string]any{"name": name},
		"subsets": []any{map[string]any{"addresses": subset,
			"ports": []any{map[string]any{"name": "web", "port": int64(80)}}}},
	}}
	endpoints.SetLabels(labels)
	kubetest.CreateObject(h.t, h.endpoints, endpoints)
	h.createSlice(name+"-x7", name, "endpointslicemirroring-controller.k8s.io", addresses...)
}

// theirGlobal is a global service as semaphore-service-mirror makes it, with a slice of each cluster.
func (h *handover) theirGlobal(name string, clusters map[string]string) {
	h.t.Helper()
	h.create(name, map[string]string{naming.LabelGlobal: "true"})
	for cluster, address := range clusters {
		h.createSlice("gl-echo-"+cluster, name, naming.ManagedByServiceMirror, address)
	}
}

func (h *handover) create(name string, labels map[string]string) {
	h.t.Helper()
	kubetest.Create(h.t, h.admin.CoreV1().Services("mirrors"), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "web", Port: 80}}},
	})
}

func (h *handover) createSlice(name, service, by string, addresses ...string) {
	h.t.Helper()
	s := slice(name, "", "IPv4", addresses...)
	s.Labels = map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: by}
	kubetest.Create(h.t, h.admin.DiscoveryV1().EndpointSlices("mirrors"), s)
}

// start runs the loops until stop is called; ended is closed when migrate.Leftovers has ended.
func (h *handover) start(from []string, local []netip.Prefix, meta metadata.Interface) (stop func(),
	ended chan struct{}) {
	h.t.Helper()
	opts := options(h.t)
	cfg := &config.Broker{Remotes: []config.Remote{{Name: "c2", ServicePrefix: "c2"}}}
	cfg.Services.AdoptFrom = from
	h.adopting.Store(cfg)
	adoption := &migrate.Services{Config: h.adopting.Load, API: h.admin.CoreV1().Services("mirrors"),
		Events: opts.Events, Log: opts.Log}
	if h.services == nil {
		h.services, _ = desired[*corev1.Service]()
		h.slices, _ = desired[*discoveryv1.EndpointSlice]()
	}
	h.ofService = Services(h.admin, "mirrors", adoption, desiredOf(h.services), opts)
	h.ofSlice = Slices(h.admin, writes.EndpointSlice, "mirrors", desiredOf(h.slices), opts)
	h.leftovers = migrate.NewLeftovers(h.admin, meta, "mirrors", adoption, h.ofService, h.ofSlice,
		func(cluster string) bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.completed[cluster]
		}, local)
	ended = make(chan struct{})
	stops := []func(){testkit.Run(h.t, h.ofService.Run), testkit.Run(h.t, h.ofSlice.Run),
		testkit.Run(h.t, func(ctx context.Context) error {
			err := h.leftovers.Run(ctx)
			close(ended)
			if err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}, ended
}

// want has a mirror of a cluster wanted.
func (h *handover) want(name, cluster string, addresses ...string) {
	s := service(name, cluster, 80, false)
	h.services.set(s)
	parts := slice(name+"-1", cluster, "IPv4", addresses...)
	parts.Labels[discoveryv1.LabelServiceName], parts.Labels[discoveryv1.LabelManagedBy] = name, naming.ManagedByBroker
	h.slices.set(parts)
	h.ofService.Wake(name)
	h.ofSlice.Wake(parts.Name)
}

// tell makes a cluster complete; all of them, for an empty name.
func (h *handover) tell(cluster string) {
	h.mu.Lock()
	h.completed[cluster] = true
	h.mu.Unlock()
	h.services.know(cluster)
	h.ofService.WakeOwned(cluster)
}

func (h *handover) says(want ...string) func() (bool, string) {
	return func() (bool, string) {
		said := strings.Join(h.leftovers.Problems(), "\n")
		return !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(said, w) }), said
	}
}

func (h *handover) service(name string) *corev1.Service {
	h.t.Helper()
	return kubetest.Get(h.t, h.admin.CoreV1().Services("mirrors"), name)
}

func (h *handover) endpointsLeft() (names []string) {
	list, err := h.endpoints.List(h.t.Context(), metav1.ListOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	for _, e := range list.Items {
		names = append(names, e.GetName())
	}
	return names
}

func (h *handover) slicesLeft() (names []string) {
	list, err := h.admin.DiscoveryV1().EndpointSlices("mirrors").List(h.t.Context(),
		metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + naming.ManagedByServiceMirror})
	if err != nil {
		return []string{err.Error()}
	}
	for _, s := range list.Items {
		names = append(names, s.Name)
	}
	return names
}

// versions are those of all objects in the namespace.
func (h *handover) versions() map[string]string {
	h.t.Helper()
	out := map[string]string{}
	services := testkit.Value(h.admin.CoreV1().Services("mirrors").List(h.t.Context(), metav1.ListOptions{}))(h.t)
	for _, s := range services.Items {
		out["Service "+s.Name] = s.ResourceVersion
	}
	endpoints := testkit.Value(h.endpoints.List(h.t.Context(), metav1.ListOptions{}))(h.t)
	for _, e := range endpoints.Items {
		out["Endpoints "+e.GetName()] = e.GetResourceVersion()
	}
	parts := testkit.Value(h.admin.DiscoveryV1().EndpointSlices("mirrors").List(h.t.Context(),
		metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "!=" + naming.ManagedByBroker}))(h.t)
	for _, s := range parts.Items {
		out["EndpointSlice "+s.Name] = s.ResourceVersion
	}
	return out
}

// watch notes each Service, of those that are offered, that has no ready endpoint after some event. It also does what
// Kubernetes' own controller does: slices that were made from Endpoints go with them.
func (h *handover) watch() {
	h.t.Helper()
	list := testkit.Value(h.admin.DiscoveryV1().EndpointSlices("mirrors").List(h.t.Context(), metav1.ListOptions{}))(h.t)
	ready := map[string]map[string]int{} // by Service and slice
	note := func(s *discoveryv1.EndpointSlice, gone bool) {
		of := s.Labels[discoveryv1.LabelServiceName]
		if ready[of] == nil {
			ready[of] = map[string]int{}
		}
		ready[of][s.Name] = 0
		for _, e := range s.Endpoints {
			if !gone && ptr.Deref(e.Conditions.Ready, true) {
				ready[of][s.Name]++
			}
		}
	}
	for i := range list.Items {
		note(&list.Items[i], false)
	}
	sliceEvents := testkit.Value(h.admin.DiscoveryV1().EndpointSlices("mirrors").Watch(h.t.Context(),
		metav1.ListOptions{ResourceVersion: list.ResourceVersion}))(h.t)
	endpointEvents := testkit.Value(h.endpoints.Watch(h.t.Context(), metav1.ListOptions{}))(h.t)
	done := make(chan struct{})
	h.t.Cleanup(func() {
		sliceEvents.Stop()
		endpointEvents.Stop()
		<-done
	})
	go func() {
		defer close(done)
		slicesOpen, endpointsOpen := sliceEvents.ResultChan(), endpointEvents.ResultChan()
		for slicesOpen != nil || endpointsOpen != nil {
			select {
			case e, ok := <-endpointsOpen:
				if !ok {
					endpointsOpen = nil
				} else if e.Type == watch.Deleted {
					name := e.Object.(*unstructured.Unstructured).GetName()
					if err := h.admin.DiscoveryV1().EndpointSlices("mirrors").Delete(context.Background(), name+"-x7",
						metav1.DeleteOptions{}); err != nil {
						h.t.Error(err)
					}
				}
			case e, ok := <-slicesOpen:
				if !ok {
					slicesOpen = nil
					continue
				}
				s, is := e.Object.(*discoveryv1.EndpointSlice)
				if !is {
					continue
				}
				note(s, e.Type == watch.Deleted)
				of, all := s.Labels[discoveryv1.LabelServiceName], 0
				for _, n := range ready[of] {
					all += n
				}
				if all == 0 && strings.HasSuffix(of, "-echo") {
					h.mu.Lock()
					h.empty = append(h.empty, of)
					h.mu.Unlock()
				}
			}
		}
	}()
}
