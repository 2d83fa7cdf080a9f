package apply

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

// TestSharedCauses has writes of many objects fail for a cause that they share while the objects change all the time.
// Few writes are attempted meanwhile. After the recovery no object waits for a backoff of its own: until the last one
// is written, the time in which no write is under way is a second at most, all workers write at once, and each object
// takes one attempt.
// TestSharedCause (internal/kube/reconcile) asserts two seconds for a thousand, where a write takes 5 ms.
func TestSharedCauses(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets")
	admin := kubernetes.NewForConfigOrDie(kube.Protobuf(cfg))
	for _, c := range []struct {
		name    string
		objects int
		many    func(t *testing.T, s *sharedCause, n int) many
		// broken breaks something in a namespace of its own, and returns what repairs it.
		broken func(t *testing.T, s *sharedCause) (repair func())
		// all says that none is attempted but the one that probes.
		all bool
	}{
		{"the apiserver is away", 1000, manySlices, awayApiserver, true},
		{"the apiserver is away while addresses leave sets", 1000, manySets, awayApiserver, true},
		{"a webhook is down", 1000, manySlices, downWebhook, false},
		{"a quota is full", 300, manySlices, fullQuota, false},
		{"a right is missing", 300, manySlices, missingRight, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSharedCause(t, cfg, admin, "shared-"+strings.ReplaceAll(c.name, " ", "-"))
			repair := c.broken(t, s)
			seen := &seenWrites{written: map[string]bool{}, attempts: map[string]int{}, starved: map[string]bool{}}
			s.cfg.Wrap(seen.wrap)
			m := c.many(t, s, c.objects)
			stop := testkit.Run(t, m.objects.Run)
			eventually(t, "synced", func() (bool, string) { return m.objects.Synced(), "" })
			s.cut.Store(true)
			first := manyWorkers // that are under way when the first one fails
			if !c.all {
				first = c.objects
			}
			seen.outage(t, 5*time.Second, first, m.change)
			repair()
			idle := seen.recovery(t, c.objects)
			m.have(t)
			// The last answers may not have reached the loop.
			eventually(t, "no problem is left", func() (bool, string) {
				problems := finding.Texts(m.objects.Findings())
				return len(problems) == 0, fmt.Sprint(problems)
			})
			stop()
			t.Logf("%d are written, with no write under way for %s", c.objects, idle)
		})
	}
}

// manyWorkers is how many writes of the broker, or of a test in place of the broker, are under way.
const manyWorkers = 16

// many are objects of one kind that the broker writes.
type many struct {
	objects interface {
		Run(context.Context) error
		Synced() bool
		Findings() []finding.Finding
	}
	// change changes each object.
	change func()
	// have checks that each object is as it was changed last.
	have func(t *testing.T)
}

// manyAddress is an address of the objects after so many changes.
func manyAddress(version int) string { return fmt.Sprintf("10.2.%d.%d", version/200, version%200+1) }

// manySlices are slices that do not exist before the outage.
func manySlices(t *testing.T, s *sharedCause, n int) many {
	w, d := desired[*discoveryv1.EndpointSlice]()
	opts := options(t)
	opts.Workers = manyWorkers
	o := Slices(kubernetes.NewForConfigOrDie(kube.Protobuf(s.cfg)), writes.EndpointSlice, s.namespace, d, opts)
	api := s.admin.DiscoveryV1().EndpointSlices(s.namespace)
	version := 0
	return many{
		objects: o,
		change: func() {
			version++
			for i := range n {
				one := slice(fmt.Sprint("s", i), "c2", "IPv4", manyAddress(version))
				one.Namespace = s.namespace
				w.set(one)
				o.Mark(one.Name, "c2", time.Now())
			}
		},
		have: func(t *testing.T) {
			all := testkit.Value(api.List(t.Context(), metav1.ListOptions{}))(t)
			if len(all.Items) != n {
				t.Errorf("there are %d slices, want %d", len(all.Items), n)
			}
			for _, one := range all.Items {
				if want := manyAddress(version); len(one.Endpoints) != 1 || one.Endpoints[0].Addresses[0] != want {
					t.Errorf("%s has %v, want %s", one.Name, one.Endpoints, want)
				}
			}
		},
	}
}

// manySets are GlobalNetworkSets of two addresses, of which one leaves during the outage and others come and go.
func manySets(t *testing.T, s *sharedCause, n int) many {
	client := testkit.Value(kube.CalicoIn(s.own, kubetest.CalicoCRD))(t)
	const stays, leaves = "10.3.0.1/32", "10.3.0.2/32"
	w, d := desired[*calicov3.GlobalNetworkSet]()
	d.Urgent = func(string) bool { return true } // so is a leaving address
	var made errgroup.Group
	made.SetLimit(manyWorkers)
	for i := range n {
		one := globalSet(fmt.Sprint("s", i), stays, leaves)
		w.set(one)
		made.Go(func() error {
			_, err := client.GlobalNetworkSets().Create(t.Context(), one)
			return err
		})
	}
	testkit.Must(t, made.Wait())
	opts := options(t)
	opts.Workers = manyWorkers
	o := Sets(quickCalico(s.cfg), nil, d, opts)
	version := 0
	return many{
		objects: o,
		change: func() {
			version++
			for i := range n {
				one := globalSet(fmt.Sprint("s", i), stays, manyAddress(version)+"/32")
				w.set(one)
				o.Mark(one.Name, "c2", time.Now())
			}
		},
		have: func(t *testing.T) {
			all := testkit.Value(setsIn(t, client))(t)
			if len(all) != n {
				t.Fatalf("there are %d sets, want %d", len(all), n)
			}
			for _, one := range all {
				if want := []string{stays, manyAddress(version) + "/32"}; !slices.Equal(one.Spec.Nets, want) {
					t.Errorf("%s has %v, want %v", one.Name, one.Spec.Nets, want)
				}
			}
		},
	}
}

// seenWrites are the writes of a client.
type seenWrites struct {
	mu             sync.Mutex
	flying, failed int
	// most is how many were under way at once.
	most    int
	written map[string]bool
	// recovered is set when the cause is gone; attempts are those that began after that, by object, and again those of
	// them that failed.
	recovered bool
	attempts  map[string]int
	again     []string
	// starved are those for which the apiserver had no time: it may have done what it did not answer.
	starved map[string]bool
}

func (w *seenWrites) wrap(next http.RoundTripper) http.RoundTripper {
	return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet {
			return next.RoundTrip(r)
		}
		name := nameIn(r)
		w.mu.Lock()
		w.flying++
		w.most = max(w.most, w.flying)
		recovered := w.recovered
		if recovered {
			w.attempts[name]++
		}
		w.mu.Unlock()
		answer, err := next.RoundTrip(r)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.flying--
		if err == nil && answer.StatusCode < http.StatusMultipleChoices {
			w.written[name] = true
			return answer, nil
		}
		// An apiserver that starves is a cause of its own, with probes of its own.
		if err == nil &&
			(answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode == http.StatusGatewayTimeout) {
			w.starved[name] = true
			return answer, err
		}
		if w.failed++; recovered && !w.starved[name] {
			w.again = append(w.again, name)
		}
		return answer, err
	})
}

// nameIn is the name of the object that a request writes.
func nameIn(r *http.Request) string {
	body, err := r.GetBody()
	if err != nil {
		return err.Error()
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		return err.Error()
	}
	if bytes.HasPrefix(data, []byte("{")) { // Calico's types, which have no other encoding
		one := &metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(data, one); err != nil {
			return err.Error()
		}
		return one.Name
	}
	one := &discoveryv1.EndpointSlice{}
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, one); err != nil {
		return err.Error()
	}
	return one.Name
}

// outage changes all objects again and again for a time, and looks at how many writes were attempted: each of some
// first ones, and then one to probe.
func (w *seenWrites) outage(t *testing.T, long time.Duration, first int, change func()) {
	t.Helper()
	// A gate waits three quarters of 50, 100, 200 and then 400 ms at least before it lets another one probe.
	const early, between, least = 3, 300 * time.Millisecond, 5
	failed, passed := 0, time.Duration(0)
	for begin := time.Now(); passed < long || failed < least; time.Sleep(100 * time.Millisecond) {
		change()
		w.mu.Lock()
		failed = w.failed
		w.mu.Unlock()
		if passed = time.Since(begin); passed > 3*time.Minute {
			t.Fatalf("%d attempts in %s", failed, passed)
		}
	}
	t.Logf("%d attempts in %s", failed, passed.Round(time.Millisecond))
	if most := first + early + int(passed/between) + 1; failed > most {
		t.Errorf("%d attempts in %s, want %d at most", failed, passed, most)
	}
}

// recovery waits until all objects are written, and returns how long none was under way meanwhile: in steps that this
// process lives through, so that the time in which the machine has no processor for it does not count.
func (w *seenWrites) recovery(t *testing.T, objects int) (idle time.Duration) {
	t.Helper()
	const step, most = 5 * time.Millisecond, time.Second
	w.mu.Lock()
	w.recovered, w.most = true, 0
	w.mu.Unlock()
	tick := time.NewTicker(step)
	defer tick.Stop()
	for range tick.C {
		w.mu.Lock()
		written, flying := len(w.written), w.flying
		w.mu.Unlock()
		if written == objects {
			break
		}
		if flying > 0 {
			continue
		}
		if idle += step; idle > most {
			t.Fatalf("%d of %d are written, and for %s none was under way", written, objects, idle)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.most < manyWorkers {
		t.Errorf("%d writes at most were under way at once, want %d", w.most, manyWorkers)
	}
	if len(w.again) > 0 {
		t.Errorf("%d attempts failed after the recovery, such as that of %s", len(w.again), w.again[0])
	}
	for name, n := range w.attempts {
		if n > 1 && !w.starved[name] {
			t.Errorf("%s: %d attempts after the recovery", name, n)
		}
	}
	return idle
}

type sharedCause struct {
	admin kubernetes.Interface
	// cfg is the broker's, and own the test's.
	cfg, own  *rest.Config
	namespace string
	cut       atomic.Bool
}

// newSharedCause makes a namespace.
func newSharedCause(t *testing.T, cfg *rest.Config, admin kubernetes.Interface, namespace string) *sharedCause {
	t.Helper()
	kubetest.Namespace(t, admin, namespace)
	return &sharedCause{admin: admin, cfg: rest.CopyConfig(cfg), own: cfg, namespace: namespace}
}

// attempt is the answer to a write of a slice that is not kept.
func (s *sharedCause) attempt(ctx context.Context, admin kubernetes.Interface) error {
	one := slice("probe", "c2", "IPv4", "10.2.0.1")
	one.Namespace = s.namespace
	_, err := admin.DiscoveryV1().EndpointSlices(s.namespace).Create(ctx, one,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// until waits until writes are answered with something, or taken when it is empty.
func (s *sharedCause) until(t *testing.T, admin kubernetes.Interface, text string) {
	t.Helper()
	eventually(t, "writes are answered with "+text, func() (bool, string) {
		err := s.attempt(t.Context(), admin)
		return text == "" && err == nil || text != "" && err != nil && strings.Contains(err.Error(), text), fmt.Sprint(err)
	})
}

func awayApiserver(_ *testing.T, s *sharedCause) func() {
	s.cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if s.cut.Load() && r.Method != http.MethodGet {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
			}
			return next.RoundTrip(r)
		})
	})
	return func() { s.cut.Store(false) }
}

func downWebhook(t *testing.T, s *sharedCause) func() {
	s.webhook(t, "https://"+loopback.Address(t), nil)
	s.until(t, s.admin, "failed calling webhook")
	ctx := context.WithoutCancel(t.Context())
	return func() {
		testkit.Must(t, s.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, s.namespace,
			metav1.DeleteOptions{}))
		s.until(t, s.admin, "")
	}
}

// webhook has the apiserver ask a webhook, w.example.org, about the slices of the namespace.
func (s *sharedCause) webhook(t *testing.T, url string, authority []byte) {
	t.Helper()
	kubetest.Create(t, s.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations(),
		&admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
			Webhooks: []admissionv1.ValidatingWebhook{{
				Name: "w.example.org", ClientConfig: admissionv1.WebhookClientConfig{URL: &url, CABundle: authority},
				FailurePolicy: ptr.To(admissionv1.Fail),
				SideEffects:   ptr.To(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.namespace}},
				Rules: []admissionv1.RuleWithOperations{{
					Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
					Rule: admissionv1.Rule{APIGroups: []string{"discovery.k8s.io"}, APIVersions: []string{"v1"},
						Resources: []string{"endpointslices"}},
				}},
			}},
		})
}

// TestRefusedWithoutReason: what a webhook refuses without a reason or a code, as Kyverno does, fails alone.
func TestRefusedWithoutReason(t *testing.T) {
	cfg := kubetest.Start(t)
	s := newSharedCause(t, cfg, kubernetes.NewForConfigOrDie(kube.Protobuf(cfg)), "refused")
	w := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := map[string]any{}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
			return
		}
		review["response"] = map[string]any{"uid": review["request"].(map[string]any)["uid"], "allowed": false,
			"status": map[string]any{"message": "no"}}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	defer w.Close()
	s.webhook(t, w.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.Certificate().Raw}))
	s.until(t, s.admin, `denied the request: no`)
	want := reconcile.Cause{Name: "webhook w.example.org"}
	if got := CauseOf(s.attempt(t.Context(), s.admin)); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func fullQuota(t *testing.T, s *sharedCause) func() {
	ctx, api := t.Context(), s.admin.CoreV1().ResourceQuotas(s.namespace)
	const counted = "count/endpointslices.discovery.k8s.io"
	quota := kubetest.Create(t, api, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{counted: resource.MustParse("0")}},
	})
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard,
		Used: corev1.ResourceList{counted: resource.MustParse("0")}}
	kubetest.UpdateStatus(t, api, quota)
	s.until(t, s.admin, "exceeded quota: none,")
	return func() {
		testkit.Must(t, api.Delete(ctx, "none", metav1.DeleteOptions{}))
		s.until(t, s.admin, "")
	}
}

func missingRight(t *testing.T, s *sharedCause) func() {
	s.cfg.Impersonate = rest.ImpersonationConfig{UserName: "broker"}
	client := kubernetes.NewForConfigOrDie(s.cfg)
	grant := func(verbs ...string) {
		t.Helper()
		kubetest.Allow(t, s.admin, "broker",
			rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: verbs})
	}
	grant("get", "list", "watch")
	s.until(t, client, "cannot create resource")
	return func() {
		grant("create", "update", "delete")
		s.until(t, client, "")
	}
}
