package verify

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestVerifyMakesAndRemoves: with only the rights that docs/install.md lists, a real apiserver accepts everything that
// verify creates, without a Pod Security warning, and verify removes all of it. A missing right is named in the error.
func TestVerifyMakesAndRemoves(t *testing.T) {
	admin := kubetest.Start(t)
	kubetest.StartControllers(t, admin, "serviceaccount-controller")
	kubetest.EndNamespaces(t, admin)
	kubetest.InstallCalico(t, admin, kubetest.CalicoCRD, "networkpolicies", "globalnetworksets")
	clients := kubernetes.NewForConfigOrDie(admin)
	cfg, warned := rest.CopyConfig(admin), &warnings{}
	cfg.Impersonate, cfg.WarningHandler = rest.ImpersonationConfig{UserName: "verifier"}, warned
	own := testkit.Value(openForTest(t, cfg))(t)

	const namespace = "sem-verify-test"
	if err := own.create(t.Context(), namespace, "x"); err == nil || !strings.Contains(err.Error(),
		`cannot create resource "namespaces"`) {
		t.Errorf("without rights: %v", err)
	}
	var role rbacv1.ClusterRole
	must(t, yaml.UnmarshalStrict([]byte(verifyRole(t)), &role))
	kubetest.Create(t, clients.RbacV1().ClusterRoles(), &role)
	kubetest.Create(t, clients.RbacV1().ClusterRoleBindings(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "verifier"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "verifier"}},
	})
	// The apiserver learns of roles by a watch.
	testkit.Eventually(t, 3*time.Minute, "the rights", func() error {
		_, err := own.Objects.Client.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).List(t.Context(),
			metav1.ListOptions{})
		return err
	})
	must(t, own.create(t.Context(), namespace, "registry.example/semaphore:v1"))

	pods := testkit.Value(clients.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{}))(t)
	if len(pods.Items) != 3 {
		t.Fatalf("%d pods", len(pods.Items))
	}
	for _, p := range pods.Items {
		_, inSet := p.Labels[naming.DefaultLabelDomain+"/name"]
		if inSet != (p.Name == verifyClient) || p.Spec.Containers[0].Image != "registry.example/semaphore:v1" {
			t.Errorf("pod %s has labels %v, image %s", p.Name, p.Labels, p.Spec.Containers[0].Image)
		}
	}
	services := testkit.Value(clients.CoreV1().Services(namespace).List(t.Context(), metav1.ListOptions{}))(t)
	if len(services.Items) != 2 {
		t.Errorf("%d Services", len(services.Items))
	}
	policies := own.Objects.Client.Resource(kubetest.CalicoCRD.WithResource("networkpolicies")).Namespace(namespace)
	kubetest.CreateObject(t, policies, verifyPolicyObject(own.calico, namespace, []string{naming.DefaultLabelDomain},
		[]string{"c2", "c3"}))
	if _, err := own.mirrors(t.Context(), namespace); err != nil {
		t.Error(err)
	}
	if all := warned.all(); len(all) > 0 {
		t.Errorf("the apiserver warned: %q", all)
	}
	// A kubelet would end them.
	for _, p := range pods.Items {
		must(t, clients.CoreV1().Pods(namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{}))
	}
	must(t, removeNamespace(t.Context(), own.Applier, namespace))
	left, err := clients.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{LabelSelector: labelVerify})
	must(t, err)
	if len(left.Items) > 0 {
		t.Errorf("namespaces are left: %v", left.Items)
	}

	// The remains of a killed verify, and a user's own namespace with the label.
	for _, name := range []string{"sem-verify-killd", "mine"} {
		object := verifyNamespace(name)
		kubetest.Create(t, clients.CoreV1().Namespaces(), object)
	}
	kubeconfig := kubetest.Kubeconfig(t, admin)
	s := ctltest.NewSession(t)
	for range 2 {
		s.Call("check --traffic --clean", "--kubeconfig", kubeconfig)
	}
	s.Golden("traffic-clean", nil)
	if _, err := clients.CoreV1().Namespaces().Get(t.Context(), "mine", metav1.GetOptions{}); err != nil {
		t.Errorf("it removed another namespace: %v", err)
	}
	ctltest.Refuses(t, map[string]string{
		"check --traffic --kubeconfig " + kubeconfig:                        "give two or more clusters",
		"check --traffic --context a -o wide --kubeconfig " + kubeconfig:    "use table, json or yaml",
		"check --traffic --context a --context b --kubeconfig /nonexistent": "/nonexistent",
	})
}

// openForTest opens a cluster without parts.
func openForTest(t *testing.T, cfg *rest.Config) (*verified, error) {
	t.Helper()
	c, err := fleet.NewCluster("c1", "semaphore", cfg)
	if err != nil {
		return nil, err
	}
	calico, err := kube.Calico(cfg)
	if err != nil {
		return nil, err
	}
	return &verified{Applier: apply.New(c, io.Discard), calico: calico.GroupVersion,
		pods: map[string]Pod{}}, nil
}

// verifyRole returns the role in docs/install.md.
func verifyRole(t *testing.T) string {
	t.Helper()
	text := testkit.Value(os.ReadFile("../../docs/install.md"))(t)
	_, after, found := strings.Cut(string(text), "## Check the traffic\n")
	_, role, hasRole := strings.Cut(after, "```yaml\n")
	role, _, _ = strings.Cut(role, "```\n")
	if !found || !hasRole || !strings.Contains(role, "semaphore-verify") {
		t.Fatal("docs/install.md has no role of check --traffic")
	}
	return role
}

type warnings struct {
	mu   sync.Mutex
	said []string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

func (w *warnings) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.said
}

// TestServes: a name is queried only if a server block answers it, in whatever form the block is written.
func TestServes(t *testing.T) {
	for corefile, want := range map[string]bool{
		"cluster.c2 {\n}\n": true, "dns://Cluster.C2.:53 {\n}\n": true, "cluster.c3, cluster.c2 {\n}\n": true,
		"": false, "# cluster.c2 {\n": false, "cluster.c22 {\n}\n": false, "cluster.c2.example.com {\n}\n": false,
		".:53 {\n    forward cluster.c2 10.0.0.1\n}\n": false,
	} {
		if got := serves(corefile, coredns.Block{Cluster: "c2", Prefix: "c2"}); got != want {
			t.Errorf("%q: %t", corefile, got)
		}
	}
}

// TestMirrorAndGlobalAreAwaitedAtOnce: if neither Service appears, verify waits for the timeout once, and reports both.
func TestMirrorAndGlobalAreAwaitedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		c, err := fleet.NewCluster("c1", "", &rest.Config{Host: "https://c1", Transport: kubetest.RoundTripper(
			func(r *http.Request) (*http.Response, error) {
				looks++
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
					Request: r, Body: io.NopCloser(strings.NewReader(`{"apiVersion":"v1","kind":"ServiceList","items":[]}`))}, nil
			})})
		must(t, err)
		w := &way{&verified{name: "c1", noCorefile: errors.New("it is not asked for"), Applier: apply.New(c, io.Discard)},
			&verified{name: "c2"}, map[Name]Check{PodIP: {Result: Passed}}}
		v := &verifier{Traffic: Traffic{Timeout: 20 * time.Second}, namespace: "sem-verify-test",
			progress: &progress{w: io.Discard, began: time.Now()}}
		began := time.Now()
		must(t, v.checkServices(t.Context(), w, Pod{}))
		if took := time.Since(began); took < v.Timeout || took > v.Timeout+time.Second {
			t.Errorf("it waited %s, not %s", took, v.Timeout)
		}
		for _, name := range []Name{Mirror, Global} {
			if c := w.checks[name]; c.Code != finding.MirrorMissing || !strings.Contains(c.Detail, "20") {
				t.Errorf("%+v", c)
			}
		}
		if looks < 20 {
			t.Errorf("it looked %d times", looks)
		}
	})
}

// TestIsReady: a pod is asked once it is ready and has an IP.
func TestIsReady(t *testing.T) {
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	for _, test := range []struct {
		want   bool
		status corev1.PodStatus
	}{
		{true, corev1.PodStatus{Conditions: []corev1.PodCondition{ready}, PodIPs: []corev1.PodIP{{IP: "10.1.1.1"}}}},
		{false, corev1.PodStatus{Conditions: []corev1.PodCondition{ready}}},
		{false, corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.1.1.1"}}}},
	} {
		if got := isReady(&corev1.Pod{Status: test.status}); got != test.want {
			t.Errorf("%+v: %t", test.status, got)
		}
	}
}
