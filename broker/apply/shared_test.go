package apply

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/informers"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/testkit"
	"github.com/kube-semaphore/semaphore/internal/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/internal/testkit/loopback"
)

// TestSharedCauses has writes of many objects fail for a cause that they share while the objects change all the time.
// Few writes are attempted meanwhile, and the last of all is written within two seconds of the recovery; where the
// machine alone takes more than one of them for so many writes, within a second more than it takes.
func TestSharedCauses(t *testing.T) {
	cfg := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(kube.Protobuf(cfg))
	for _, c := range []struct {
		name    string
		objects int
		// broken breaks something in a namespace of its own, and returns what repairs it.
		broken func(t *testing.T, s *sharedCause) (repair func())
		// all says that none is attempted but the one that probes.
		all bool
	}{
		{"the apiserver is away", 1000, awayApiserver, true},
		{"a webhook is down", 1000, downWebhook, false},
		{"a quota is full", 300, fullQuota, false},
		{"a right is missing", 300, missingRight, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := t.Context()
			s := &sharedCause{admin: admin, cfg: rest.CopyConfig(cfg), namespace: "shared-" +
				strings.ReplaceAll(c.name, " ", "-")}
			_, err := admin.CoreV1().Namespaces().Create(ctx,
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			direct := s.direct(t, "before", c.objects)
			repair := c.broken(t, s)
			w, d := desired[*discoveryv1.EndpointSlice]()
			opts := options(t)
			opts.Workers = 16
			o := EndpointSlices(kubernetes.NewForConfigOrDie(kube.Protobuf(s.cfg)), s.namespace, d, opts)
			testkit.Run(t, o.Run)
			eventually(t, "synced", func() (bool, string) { return o.Synced(), "" })
			version, objects := 0, c.objects
			change := func() {
				version++
				for i := range objects {
					one := slice(fmt.Sprint("s", i), "c2", "IPv4", fmt.Sprintf("10.2.%d.%d", version/200, version%200+1))
					one.Namespace = s.namespace
					w.set(one)
					o.Mark(one.Name, "c2", time.Now())
				}
			}
			s.cut.Store(true)
			const outage = 5 * time.Second
			for begin := time.Now(); time.Since(begin) < outage; time.Sleep(100 * time.Millisecond) {
				change()
			}
			attempts := value(t, opts.Metrics, "semaphore_broker_writes_total", "endpointslice", "error")
			most := float64(20 + 16)
			if !c.all {
				most += float64(objects)
			}
			if attempts > most || attempts < 5 {
				t.Errorf("%v attempts in %s, want %v at most", attempts, outage, most)
			}
			repair()
			begin := time.Now()
			newest := fmt.Sprintf("10.2.%d.%d", version/200, version%200+1)
			last := s.followed(t, objects, newest)
			took := last.Sub(begin)
			// What a machine needs for as many writes that nothing keeps.
			direct = max(direct, s.direct(t, "after", objects))
			t.Logf("%v attempts in %s; the last of %d is written after %s; directly they take %s", attempts, outage, objects,
				took.Round(time.Millisecond), direct.Round(time.Millisecond))
			if limit := max(2*time.Second, time.Second+direct); took > limit {
				t.Errorf("the last of %d is written %s after the recovery, want %s at most", objects, took, limit)
			}
			if problems := finding.Texts(o.Findings()); len(problems) > 0 {
				t.Errorf("%d problems, such as %s", len(problems), problems[0])
			}
		})
	}
}

// followed is when the last of so many slices was seen, by a watch, with an address.
func (s *sharedCause) followed(t *testing.T, objects int, address string) (last time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := map[string]bool{}
	all := make(chan time.Time, 1)
	saw := func(object any) {
		if one := object.(*discoveryv1.EndpointSlice); len(one.Endpoints) == 1 && one.Endpoints[0].Addresses[0] == address {
			if seen[one.Name] = true; len(seen) == objects {
				all <- time.Now()
				cancel()
			}
		}
	}
	api := s.admin.DiscoveryV1().EndpointSlices(s.namespace)
	informer := cache.NewSharedIndexInformer(informers.ListWatch(api, metav1.ListOptions{}),
		&discoveryv1.EndpointSlice{}, 0, nil)
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: saw,
		UpdateFunc: func(_, object any) { saw(object) }})
	if err != nil {
		t.Fatal(err)
	}
	informer.RunWithContext(ctx)
	select {
	case last = <-all:
	default:
		t.Fatalf("%d of %d are written within a minute", len(seen), objects)
	}
	return last
}

type sharedCause struct {
	admin     kubernetes.Interface
	cfg       *rest.Config
	namespace string
	cut       atomic.Bool
}

// direct is how long so many writes take, 16 at a time.
func (s *sharedCause) direct(t *testing.T, when string, n int) time.Duration {
	t.Helper()
	begin := time.Now()
	var g errgroup.Group
	g.SetLimit(16)
	for i := range n {
		g.Go(func() error {
			one := slice(fmt.Sprint("direct-", when, "-", i), "c2", "IPv4", "10.2.0.1")
			one.Namespace, one.Labels = s.namespace, nil
			_, err := s.admin.DiscoveryV1().EndpointSlices(s.namespace).Create(t.Context(), one, metav1.CreateOptions{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin)
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
	ctx, api := context.WithoutCancel(t.Context()), s.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	url := "https://" + loopback.Address(t)
	_, err := api.Create(ctx, &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "down.example.org", ClientConfig: admissionv1.WebhookClientConfig{URL: &url},
			FailurePolicy: ptr.To(admissionv1.Fail),
			SideEffects:   ptr.To(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.namespace}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule: admissionv1.Rule{APIGroups: []string{"discovery.k8s.io"}, APIVersions: []string{"v1"},
					Resources: []string{"endpointslices"}},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.until(t, s.admin, "failed calling webhook")
	return func() {
		if err := api.Delete(ctx, s.namespace, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.until(t, s.admin, "")
	}
}

func fullQuota(t *testing.T, s *sharedCause) func() {
	ctx, api := t.Context(), s.admin.CoreV1().ResourceQuotas(s.namespace)
	const counted = "count/endpointslices.discovery.k8s.io"
	quota, err := api.Create(ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{counted: resource.MustParse("0")}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard,
		Used: corev1.ResourceList{counted: resource.MustParse("0")}}
	if _, err := api.UpdateStatus(ctx, quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(t, s.admin, "exceeded quota: none,")
	return func() {
		if err := api.Delete(ctx, "none", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.until(t, s.admin, "")
	}
}

func missingRight(t *testing.T, s *sharedCause) func() {
	ctx := t.Context()
	s.cfg.Impersonate = rest.ImpersonationConfig{UserName: "broker"}
	client := kubernetes.NewForConfigOrDie(s.cfg)
	grant := func(name string, verbs ...string) {
		t.Helper()
		_, err := s.admin.RbacV1().Roles(s.namespace).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: verbs},
			}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.admin.RbacV1().RoleBindings(s.namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role",
				Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "broker"}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	grant("read", "get", "list", "watch")
	s.until(t, client, "cannot create resource")
	return func() {
		grant("write", "create", "update", "delete")
		s.until(t, client, "")
	}
}
