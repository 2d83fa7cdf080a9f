package kubetest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// TestReuse: a test gets the apiserver of the one before, and nothing of what that one made, changed or removed:
// objects, rights, node ports and types. It gets another apiserver after a change that the apiserver remembers for
// long.
func TestReuse(t *testing.T) {
	tier.OnlyAll(t, "each package on an apiserver reuses it so")
	if testing.Short() {
		t.Skip("needs a kube-apiserver, which -short leaves out")
	}
	sets := CalicoCRD.WithResource("globalnetworksets")
	var hosts []string
	var last *server
	test := func(name string, f func(*testing.T, *rest.Config)) {
		t.Run(name, func(t *testing.T) {
			last = reused(t)
			hosts = append(hosts, last.cfg.Host)
			f(t, last.cfg)
		})
	}
	t.Cleanup(func() {
		for s := takeIdle(); s != nil; s = takeIdle() {
			s.life.end()
		}
	})
	changes := func(t *testing.T, cfg *rest.Config) {
		client := kubernetes.NewForConfigOrDie(cfg)
		guest := rest.CopyConfig(cfg)
		guest.Impersonate.UserName = "guest"
		pods := kubernetes.NewForConfigOrDie(guest).CoreV1().Pods("shop")
		if _, err := pods.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("the guest lists pods before it has the right: %v", err)
		}
		if served(cfg, CalicoCRD, sets.Resource) {
			t.Errorf("%s is served before it is defined", sets)
		}
		InstallCalico(t, cfg, CalicoCRD, sets.Resource)
		set := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "one"}}}
		set.SetGroupVersionKind(CalicoCRD.WithKind("GlobalNetworkSet"))
		CreateObject(t, dynamic.NewForConfigOrDie(cfg).Resource(sets), set)
		shop := metav1.ObjectMeta{Name: "shop"}
		Create(t, client.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: shop})
		Create(t, client.CoreV1().Services("shop"), &corev1.Service{ObjectMeta: shop,
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.7.7",
				Ports: []corev1.ServicePort{{Port: 80, NodePort: 30777}}}})
		testkit.Value(client.CoreV1().Namespaces().Patch(t.Context(), "default", types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"changed":"true"}}}`), metav1.PatchOptions{}))(t)
		testkit.NoError(t, client.RbacV1().ClusterRoles().Delete(t.Context(), "view", metav1.DeleteOptions{}))
		Create(t, client.RbacV1().Roles("shop"), &rbacv1.Role{ObjectMeta: shop,
			Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}}})
		Create(t, client.RbacV1().RoleBindings("shop"), &rbacv1.RoleBinding{ObjectMeta: shop,
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "guest"}},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "shop"}})
		// The namespace stays in this state, because no controller runs.
		testkit.NoError(t, client.CoreV1().Namespaces().Delete(t.Context(), "shop", metav1.DeleteOptions{}))
	}
	for range 3 {
		test("changes", changes)
	}
	test("stores", func(t *testing.T, cfg *rest.Config) {
		other := &server{life: &lasting{TB: t}}
		other.cfg, other.store = startWith(other.life, defaultRange)
		t.Cleanup(other.life.end)
		want := testkit.Value(other.settled(t.Context()))(t)
		got := testkit.Value(last.store.content(t.Context(), registry))(t)
		keys := func(content map[string][]byte) string {
			return strings.Join(slices.DeleteFunc(slices.Sorted(maps.Keys(content)),
				func(key string) bool { return isOf(key, own...) && !isOf(key, services) }), "\n")
		}
		if keys(got) != keys(want) {
			t.Errorf("stored after other tests:\n%s\nstored by a new apiserver:\n%s", keys(got), keys(want))
		}
	})
	test("a quota", func(t *testing.T, cfg *rest.Config) {
		Create(t, kubernetes.NewForConfigOrDie(cfg).CoreV1().ResourceQuotas("default"),
			&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "none"}})
	})
	test("after the quota", func(*testing.T, *rest.Config) {})
	if len(hosts) < 6 {
		return // skipped, or failed
	}
	if same := slices.Compact(slices.Clone(hosts[:5])); len(same) != 1 || hosts[5] == same[0] {
		t.Errorf("apiservers of the tests: %v; want one for all up to the quota, and another after it", hosts)
	}
}
