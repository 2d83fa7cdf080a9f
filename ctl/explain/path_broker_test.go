package explain

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/ctl/dns"
	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestBrokerThatDoesNotKnow: a standby, and a broker that does not work yet, have no links to remotes. That is no
// reason to say that a cluster is no remote, or that no set holds a pod: it is not known, and the chain says why, once.
func TestBrokerThatDoesNotKnow(t *testing.T) {
	cfg := kubetest.Start(t)
	objects := testkit.Value(fleet.New("c1", cfg))(t)
	kubetest.Namespace(t, kubernetes.NewForConfigOrDie(cfg), "shop")
	link := []*semaphorev1.LinkStatus{{Cluster: "c2"}}
	for _, c := range []struct {
		what    string
		broker  *semaphorev1.GetStatusResponse
		err     error
		verdict policy.LinkVerdict
		says    string
	}{
		{"a leader", &semaphorev1.GetStatusResponse{Ready: true, Links: link}, nil, policy.Unknown, ""},
		{"a leader without the remote", &semaphorev1.GetStatusResponse{Ready: true}, nil, policy.Broken, ""},
		{"a leader that does not work yet", &semaphorev1.GetStatusResponse{}, nil, policy.Unknown, "does not work yet"},
		{"a standby", &semaphorev1.GetStatusResponse{Standby: true}, nil, policy.Unknown, "is a standby"},
		{"a standby without its leader", &semaphorev1.GetStatusResponse{Standby: true}, errors.New("only a standby answers"),
			policy.Unknown, "only a standby answers"},
		{"none", nil, errors.New("no pod of the broker runs"), policy.Unknown, "no pod of the broker runs"},
	} {
		if c.broker != nil {
			c.broker.Part, c.broker.Cluster = "broker", "c1"
		}
		s := &side{name: "c1", cluster: &fleet.Cluster{Objects: objects}, objects: objects}
		s.heard(c.broker, c.err)
		if c.broker != nil && s.name != "c1" {
			t.Errorf("%s: it is of %q", c.what, s.name)
		}
		s.name = "c1"
		e := &explainer{target: fleet.Target{Access: &fleet.Access{Namespace: "semaphore"}}, coredns: dns.NoCorefile}
		g := &pathGatherer{explainer: e, sides: []*side{s}, source: s,
			facts: &policy.Facts{NotRead: map[finding.Code][]string{},
				Source: policy.Pod{Cluster: "c1", IP: netip.MustParseAddr("10.1.0.9")}}}
		must(t, g.findTarget(t.Context(), testkit.Value(parseEnd("echo.shop.svc.cluster.c2"))(t)))
		if c.says == "" {
			if link := policy.Judge(*g.facts).Links[0]; link.Verdict != c.verdict {
				t.Errorf("%s: %+v", c.what, link)
			}
			continue
		}
		g.along(t.Context())
		chain := policy.Judge(*g.facts)
		for _, link := range []string{"name", "slices, preference and drain"} {
			lines := slices.DeleteFunc(slices.Clone(chain.NotRead), func(line string) bool {
				return !strings.HasPrefix(line, link+": the broker of c1: ") || !strings.Contains(line, c.says)
			})
			if chain.Links[0].Verdict != c.verdict || len(lines) != 1 {
				t.Errorf("%s: %+v, not read: %q", c.what, chain.Links[0], chain.NotRead)
			}
		}
		if _, err := s.sets(t.Context(), netip.MustParseAddr("10.1.0.9")); err == nil ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: its sets: %v", c.what, err)
		}
	}
}

// webPod makes a pod web in a namespace of its own.
func webPod(t *testing.T, admin kubernetes.Interface, namespace string) *corev1.Pod {
	t.Helper()
	kubetest.Namespace(t, admin, namespace)
	return kubetest.Create(t, admin.CoreV1().Pods(namespace), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}}})
}

// TestPoliciesThatAreForbidden: policies that may not be read are not open, on either side.
func TestPoliciesThatAreForbidden(t *testing.T) {
	cfg := kubetest.Start(t)
	pod := webPod(t, kubernetes.NewForConfigOrDie(cfg), "forbidden")
	nobody := rest.CopyConfig(cfg)
	nobody.Impersonate.UserName = "nobody"
	var sides []*side
	for _, name := range []string{"c1", "c2"} {
		objects := testkit.Value(fleet.New(name, nobody))(t)
		sides = append(sides, &side{name: name, cluster: &fleet.Cluster{Objects: objects}, objects: objects})
	}
	at := policy.Pod{Cluster: "c1", Namespace: pod.Namespace, Name: pod.Name, IP: netip.MustParseAddr("10.1.0.9")}
	to := at
	to.Cluster, to.IP = "c2", netip.MustParseAddr("10.2.0.9")
	g := &pathGatherer{sides: sides, source: sides[0], target: sides[1], sourcePod: pod,
		facts: &policy.Facts{NotRead: map[finding.Code][]string{}, Source: at, Target: to}}
	g.policies(t.Context())
	if got := chainVerdict(policy.Judge(*g.facts)); !strings.HasPrefix(got, "not known: policies of the client's side") {
		t.Error(got)
	}
	for _, r := range []*policy.Result{g.facts.Egress, g.facts.Ingress} {
		if r == nil || r.Verdict != policy.Depends || !strings.Contains(r.Why, "forbidden") {
			t.Errorf("%+v", r)
		}
	}
}

// TestPodBySecondIP: a pod is found by each of its IPs, and all pods are read only where no cluster selects one.
func TestPodBySecondIP(t *testing.T) {
	cfg := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(cfg)
	pod := webPod(t, admin, "dual")
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.2.0.9",
		PodIPs: []corev1.PodIP{{IP: "10.2.0.9"}, {IP: "fd00:2::9"}}}
	testkit.Value(admin.CoreV1().Pods("dual").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}))(t)
	var lists atomic.Int32
	counted := rest.CopyConfig(cfg)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/pods") && r.URL.Query().Get("fieldSelector") == "" {
				lists.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	objects := testkit.Value(fleet.New("c1", counted))(t)
	sides := []*side{{name: "c1", objects: objects}, {name: "c2", objects: objects}}
	service := kubetest.Create(t, admin.CoreV1().Services("dual"), &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Name: "own"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
	for ip, want := range map[string]struct {
		pod   bool
		lists int32
	}{"10.2.0.9": {true, 0}, "fd00:2::9": {true, 1}, "fd00:2::a": {false, 2}, service.Spec.ClusterIP: {false, 0}} {
		lists.Store(0)
		g := &pathGatherer{sides: sides, source: &side{name: "c3", objects: objects},
			facts: &policy.Facts{NotRead: map[finding.Code][]string{}}}
		err := g.findTarget(t.Context(), end{text: ip, address: netip.MustParseAddr(ip)})
		if found := g.facts.Target.Name == "web"; found != want.pod || lists.Load() != want.lists {
			t.Errorf("%s: %v, %v, %d lists of all pods", ip, g.facts.Target, err, lists.Load())
		}
	}
}
