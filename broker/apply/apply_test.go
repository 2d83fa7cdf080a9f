package apply

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// wanted is a table of answers that a test changes.
type wanted[T writes.Object] struct {
	mu      sync.Mutex
	objects map[string]T
	// gone are the clusters that are known whole.
	gone map[string]bool
}

func (w *wanted[T]) set(o T) { w.put(o.GetName(), o) }

func (w *wanted[T]) put(key string, o T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.objects[key] = o
}

func (w *wanted[T]) unset(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.objects, name)
}

func (w *wanted[T]) know(cluster string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone[cluster] = true
}

func desired[T writes.Object]() (*wanted[T], writes.Desired[T]) {
	w := &wanted[T]{objects: map[string]T{}, gone: map[string]bool{}}
	return w, desiredOf(w)
}

// desiredOf is desired of a table that there is.
func desiredOf[T writes.Object](w *wanted[T]) writes.Desired[T] {
	return writes.Desired[T]{
		Names: func() []string {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Collect(maps.Keys(w.objects))
		},
		Want: func(name, owner string) writes.Answer[T] {
			w.mu.Lock()
			defer w.mu.Unlock()
			if o, ok := w.objects[name]; ok {
				return writes.Answer[T]{Verdict: writes.Present, Object: o}
			}
			if w.gone[owner] {
				return writes.Answer[T]{Verdict: writes.Absent}
			}
			return writes.Answer[T]{Verdict: writes.Unknown}
		},
	}
}

// value is the sum of the samples of a metric whose labels' values are all of labels; of a histogram, of its
// observations.
func value(t *testing.T, m *Metrics, name string, labels ...string) float64 {
	t.Helper()
	sum, _ := testkit.Metric(t, m.reg.(*prometheus.Registry), name, labels...)
	return sum
}

func options(t *testing.T) Options {
	return Options{Metrics: NewMetrics(prometheus.NewRegistry()), Recorder: debug.NewRecorder("broker", "c1", ""),
		Log: slog.New(slog.DiscardHandler), Workers: 4}
}

// reset gives a loop the store of an informer that begins.
func (o *Objects[T]) reset(store cache.Indexer) {
	o.store.Set(store)
	o.machine.Reset()
}

// eventually waits for a condition that names what it last saw.
func eventually(t *testing.T, what string, f func() (bool, string)) {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, what, testkit.State(f))
}

// reports waits until one line of the findings has all words.
func reports[T writes.Object](t *testing.T, o *Objects[T], words ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%q is reported", words), func() (bool, string) {
		lines := finding.Texts(o.Findings())
		return slices.ContainsFunc(lines, func(line string) bool {
			return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
		}), fmt.Sprint(lines)
	})
}

func bearing(cluster string) map[string]string {
	return map[string]string{naming.LabelManagedBy: naming.ManagedByBroker, naming.LabelSourceCluster: cluster}
}

func service(name, cluster string, port int32, headless bool) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "mirrors", Labels: bearing(cluster)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyPreferDualStack),
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: port,
				TargetPort: intstr.FromInt32(port)}},
		},
	}
	if headless {
		s.Spec.ClusterIP = corev1.ClusterIPNone
	}
	return s
}

func slice(name, cluster, family string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Namespace: "mirrors", Labels: bearing(cluster)},
		AddressType: discoveryv1.AddressType(family),
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("web"), Protocol: ptr.To(corev1.ProtocolTCP),
			Port: ptr.To(int32(80))}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}})
	}
	return s
}

func TestApply(t *testing.T) {
	cfg := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(cfg)
	kubetest.Namespace(t, admin, "mirrors")
	t.Run("services", func(t *testing.T) { testServices(t, cfg, admin) })
	t.Run("slices", func(t *testing.T) { testSlices(t, cfg, admin) })
	t.Run("unanswered", func(t *testing.T) { testUnanswered(t, cfg, admin) })
	t.Run("newest state, once", func(t *testing.T) { testCoalescing(t, cfg, admin) })
}

// counted is a client whose requests are counted.
func counted(cfg *rest.Config) (kubernetes.Interface, *kubetest.Requests) {
	r := &kubetest.Requests{}
	cfg = kube.Protobuf(cfg)
	cfg.Wrap(r.Wrap)
	return kubernetes.NewForConfigOrDie(cfg), r
}

func testServices(t *testing.T, cfg *rest.Config, admin kubernetes.Interface) {
	ctx, api := t.Context(), admin.CoreV1().Services("mirrors")
	client, requests := counted(cfg)
	opts := options(t)
	w, d := desired[*corev1.Service]()
	o := Services(client, "mirrors", nil, d, opts)
	w.set(service("a", "c2", 80, false))
	w.set(service("h", "c2", 80, true))
	stop := testkit.Run(t, o.Run)
	get := func(name string) (*corev1.Service, error) { return api.Get(ctx, name, metav1.GetOptions{}) }
	eventually(t, "both are made", func() (bool, string) {
		_, errA := get("a")
		h, errH := get("h")
		return errA == nil && errH == nil && h.Spec.ClusterIP == "None", fmt.Sprint(errA, errH)
	})
	eventually(t, "synced", func() (bool, string) { return o.Synced() && len(o.store.All()) == 2, "" })
	if got := requests.Take(); !slices.Equal(withoutLists(got), []string{"POST /api/v1/namespaces/mirrors/services",
		"POST /api/v1/namespaces/mirrors/services"}) {
		t.Errorf("requests %v: two creates, no reads", got)
	}

	t.Run("nothing to do, nothing done", func(t *testing.T) {
		for range 20 {
			o.Mark("a", "c2", time.Now())
			o.Mark("h", "c2", time.Now())
			time.Sleep(5 * time.Millisecond)
		}
		if got := requests.Take(); len(got) > 0 {
			t.Errorf("requests %v", got)
		}
	})
	t.Run("a restart writes nothing", func(t *testing.T) {
		stop()
		client, requests := counted(cfg)
		o := Services(client, "mirrors", nil, d, options(t))
		stop := testkit.Run(t, o.Run)
		eventually(t, "synced", func() (bool, string) { return o.Synced(), "" })
		time.Sleep(200 * time.Millisecond)
		stop()
		if got := withoutLists(requests.Take()); len(got) > 0 {
			t.Errorf("requests %v", got)
		}
	})
	opts = options(t)
	o = Services(client, "mirrors", nil, d, opts)
	testkit.Run(t, o.Run)
	eventually(t, "synced", func() (bool, string) { return o.Synced(), "" })
	requests.Take()
	t.Run("becomes headless", func(t *testing.T) {
		w.set(service("a", "c2", 80, true))
		o.Mark("a", "c2", time.Now())
		eventually(t, "headless", func() (bool, string) {
			s, err := get("a")
			return err == nil && s.Spec.ClusterIP == "None", fmt.Sprint(s, err)
		})
		w.set(service("a", "c2", 80, false))
		o.Mark("a", "c2", time.Now())
		eventually(t, "not headless", func() (bool, string) {
			s, err := get("a")
			return err == nil && s.Spec.ClusterIP != "None", fmt.Sprint(s, err)
		})
	})
	t.Run("not wanted", func(t *testing.T) {
		w.unset("a")
		o.Mark("a", "c2", time.Now())
		time.Sleep(200 * time.Millisecond)
		if _, err := get("a"); err != nil {
			t.Fatalf("removed before its cluster was known: %v", err)
		}
		w.know("c2")
		o.WakeOwned("c3")
		time.Sleep(100 * time.Millisecond)
		if _, err := get("a"); err != nil {
			t.Fatalf("removed for another cluster's sake: %v", err)
		}
		o.WakeOwned("c2")
		eventually(t, "removed", func() (bool, string) {
			_, err := get("a")
			return apierrors.IsNotFound(err),
				fmt.Sprint(err)
		})
		if _, err := get("h"); err != nil {
			t.Error(err)
		}
	})
	t.Run("denied", func(t *testing.T) {
		bad := service("denied", "c2", 80, false)
		bad.Spec.Ports[0].Name = "NOT A NAME"
		w.set(bad)
		w.set(service("good", "c2", 80, false))
		o.Mark("denied", "c2", time.Now())
		o.Mark("good", "c2", time.Now())
		eventually(t, "the other one is made", func() (bool, string) {
			_, err := get("good")
			return err == nil,
				fmt.Sprint(err)
		})
		eventually(t, "reported", func() (bool, string) {
			p := finding.Texts(o.Findings())
			return len(p) == 1 && strings.Contains(p[0], "denied"), fmt.Sprint(p)
		})
		w.unset("denied")
		o.Mark("denied", "c2", time.Now())
		eventually(t, "no problem left", func() (bool, string) {
			return len(finding.Texts(o.Findings())) == 0, fmt.Sprint(finding.Texts(o.Findings()))
		})
	})
}

// withoutLists leaves out the lists of informers, which are reads of nothing in particular.
func withoutLists(all []string) []string {
	var out []string
	for _, r := range all {
		if !strings.HasPrefix(r, "GET ") {
			out = append(out, r)
		}
	}
	return out
}

func testSlices(t *testing.T, cfg *rest.Config, admin kubernetes.Interface) {
	ctx, api := t.Context(), admin.DiscoveryV1().EndpointSlices("mirrors")
	client, requests := counted(cfg)
	opts := options(t)
	w, d := desired[*discoveryv1.EndpointSlice]()
	o := Slices(client, writes.EndpointSlice, "mirrors", d, opts)
	w.set(slice("s", "c2", "IPv4", "10.2.0.1"))
	w.set(slice("empty", "c2", "IPv4"))
	testkit.Run(t, o.Run)
	addresses := func(name string) string {
		s, err := api.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		var out []string
		for _, e := range s.Endpoints {
			out = append(out, e.Addresses...)
		}
		return string(s.AddressType) + " " + strings.Join(out, " ")
	}
	is := func(want string) func() (bool, string) {
		return func() (bool, string) { got := addresses("s"); return got == want, got }
	}
	eventually(t, "made", is("IPv4 10.2.0.1"))
	eventually(t, "empty one made", func() (bool, string) { got := addresses("empty"); return got == "IPv4 ", got })
	// An event of the watch about them has a name reconciled, too, and a write for its sake counts as nobody's
	// propagation.
	eventually(t, "both delivered by the watch",
		func() (bool, string) { n := len(o.store.All()); return n == 2, fmt.Sprint(n) })
	time.Sleep(50 * time.Millisecond)
	requests.Take()
	w.set(slice("s", "c2", "IPv4", "10.2.0.1", "10.2.0.2"))
	o.Mark("s", "c2", time.Now())
	eventually(t, "updated", is("IPv4 10.2.0.1 10.2.0.2"))
	eventually(t, "measured", func() (bool, string) {
		n := value(t, opts.Metrics, "semaphore_broker_propagation_seconds", "c2", "endpointslice")
		return n == 1, fmt.Sprint(n)
	})
	if got := withoutLists(requests.Take()); !slices.Equal(got,
		[]string{"PUT /apis/discovery.k8s.io/v1/namespaces/mirrors/endpointslices/s"}) {
		t.Errorf("requests %v", got)
	}
	w.set(slice("s", "c2", "IPv6", "fd02::1"))
	o.Mark("s", "c2", time.Now())
	eventually(t, "of the other family", is("IPv6 fd02::1"))
}

// An object that was made, and whose making was not answered, or with 5xx by a proxy or an apiserver that did not wait
// for its storage, is the broker's: nothing is reported as somebody else's.
func testUnanswered(t *testing.T, cfg *rest.Config, admin kubernetes.Interface) {
	for name, answer := range map[string]*http.Response{
		"unanswered": nil,
		"proxy":      {StatusCode: http.StatusBadGateway, Header: http.Header{"Content-Type": {"text/html"}}},
		"storage":    {StatusCode: http.StatusInternalServerError, Header: http.Header{"Content-Type": {"application/json"}}},
	} {
		t.Run(name, func(t *testing.T) {
			cut := false
			cfg := rest.CopyConfig(cfg)
			cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
					response, err := next.RoundTrip(r)
					if err != nil || r.Method != http.MethodPost || cut {
						return response, err
					}
					cut = true
					response.Body.Close()
					if answer == nil {
						return nil, io.ErrUnexpectedEOF
					}
					answer.Body = io.NopCloser(strings.NewReader(
						`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"etcdserver: request timed out","code":500}`))
					return answer, nil
				})
			})
			w, d := desired[*corev1.Service]()
			w.set(service(name, "c2", 80, false))
			opts := options(t)
			o := Services(kubernetes.NewForConfigOrDie(cfg), "mirrors", nil, d, opts)
			// Until the second attempt the informer has nothing to say.
			connection := testkit.Value(o.kind.connect(t.Context()))(t)
			o.connection = connection
			o.reset(cache.NewIndexer(cache.MetaNamespaceKeyFunc, clusterIndex))
			o.synced.Store(true)
			if err := o.reconcile(t.Context(), name); err == nil {
				t.Fatal("a write that was not answered is no error")
			}
			if err := done(o.reconcile(t.Context(), name)); err != nil {
				t.Errorf("what we made ourselves: %v", err)
			}
			if n := value(t, opts.Metrics, "semaphore_broker_writes_total", "foreign"); n != 0 {
				t.Errorf("%v objects of others, want none", n)
			}
			if err := o.reconcile(t.Context(), name); !errors.As(err, new(writes.NotOurs)) {
				t.Errorf("what is there still, and not to be seen as ours: %v", err)
			}
			if err := admin.CoreV1().Services("mirrors").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// done is the error of a reconcile that is one.
func done(err error) error {
	if errors.Is(err, reconcile.ErrIdle) {
		return nil
	}
	return err
}

// However many changes come while a write is under way, they are one write of the newest state.
// testCoalescing holds the first write until all changes are marked.
func testCoalescing(t *testing.T, cfg *rest.Config, admin kubernetes.Interface) {
	ctx := t.Context()
	requests := &kubetest.Requests{}
	begun, release := make(chan struct{}, 1), make(chan struct{})
	cfg = kube.Protobuf(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method != http.MethodGet {
				select {
				case begun <- struct{}{}:
				default:
				}
				<-release
			}
			return next.RoundTrip(req)
		})
	})
	cfg.Wrap(requests.Wrap)
	w, d := desired[*discoveryv1.EndpointSlice]()
	o := Slices(kubernetes.NewForConfigOrDie(cfg), writes.EndpointSlice, "mirrors", d, options(t))
	testkit.Run(t, o.Run)
	eventually(t, "synced", func() (bool, string) { return o.Synced(), "" })
	requests.Take()
	const changes = 500
	for i := range changes {
		w.set(slice("many", "c2", "IPv4", fmt.Sprintf("10.2.%d.%d", i/250, i%250)))
		o.Mark("many", "c2", time.Now())
		if i == 0 {
			<-begun
		}
	}
	close(release)
	eventually(t, "the last one is written", func() (bool, string) {
		s, err := admin.DiscoveryV1().EndpointSlices("mirrors").Get(ctx, "many", metav1.GetOptions{})
		return err == nil && s.Endpoints[0].Addresses[0] == "10.2.1.249", fmt.Sprint(s, err)
	})
	// A change of another object comes last: what would be written of this one is written before.
	w.set(slice("last", "c2", "IPv4", "10.2.2.1"))
	o.Mark("last", "c2", time.Now())
	eventually(t, "another object is made", func() (bool, string) {
		_, err := admin.DiscoveryV1().EndpointSlices("mirrors").Get(ctx, "last", metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	})
	if writes := withoutLists(requests.Take()); len(writes) != 3 {
		t.Errorf("%d changes of an object and one of another, writes %v: want two and one", changes, writes)
	}
}
