package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

func account(name string) string { return "system:serviceaccount:semaphore:" + name }

// TestOnServer runs all tests that share one apiserver, because its start takes seconds.
func TestOnServer(t *testing.T) {
	s := startServer(t)
	// Keep a policy with a ConfigMap as its parameter until the end: the apiserver stops watching ConfigMaps when the last
	// such policy is deleted, and does not start again (https://github.com/kubernetes/kubernetes/issues/130887).
	s.settled(t)
	t.Run("Example", func(t *testing.T) { testExample(t, s) })
	t.Run("RemoteWrites", func(t *testing.T) { testRemoteWrites(t, s) })
	t.Run("NodeWrites", func(t *testing.T) { testNodeWrites(t, s) })
	t.Run("BrokersWrites", func(t *testing.T) { testBrokersWrites(t, s) })
	t.Run("ImportWrites", func(t *testing.T) { testImportWrites(t, s) })
	t.Run("OwnNameWrites", func(t *testing.T) { testOwnNameWrites(t, s) })
	t.Run("NodeTaint", func(t *testing.T) { testNodeTaint(t, s) })
	t.Run("Platforms", func(t *testing.T) { testPlatforms(t, s) })
	t.Run("OpenShift", func(t *testing.T) { testOpenShift(t, s) })
	t.Run("ForeignExporter", func(t *testing.T) { testForeignExporter(t, s) })
	t.Run("Cleanup", func(t *testing.T) { testCleanup(t, s) })
}

// testForeignExporter checks that a stolen token of the exporter of a cluster that is read makes no Lease but its own:
// in another one's place it could keep the own parts from leading.
func testForeignExporter(t *testing.T, s *server) {
	const ns = "semaphore-c2"
	s.applied(t, "resources: [DEPLOY/example/c1]\n")
	s.applied(t, "namespace: "+ns+"\nresources: [DEPLOY/crds, DEPLOY/foreign-exporter]\n")
	stolen, _ := s.token(t, ns, "semaphore-exporter")
	lease := func(name string) func() error {
		return tries(t, stolen.CoordinationV1().Leases(ns),
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	s.settled(t)
	s.checkAll(t, []attempt{
		{"its Lease", lease("semaphore-exporter-leader"), nil},
		{"another Lease", lease("semaphore-broker-leader"),
			says{"may make only the leases that it may update, not semaphore-broker-leader"}},
	})
}

// applied applies an overlay, makes its policies warn too, and returns its objects. Its permissions and policies are
// deleted when the test ends, so that the next overlay is tested alone. Other objects stay, because no controller would
// complete the deletion of a namespace here.
func (s *server) applied(t *testing.T, text string) []runtime.Object {
	t.Helper()
	dir := overlay(t, text)
	objects := build(t, dir)
	s.apply(t, dir)
	t.Cleanup(func() {
		rbac, policies := s.client("").RbacV1(), s.client("").AdmissionregistrationV1()
		for _, o := range objects {
			var client interface {
				Delete(context.Context, string, metav1.DeleteOptions) error
			}
			switch o := o.(type) {
			case *rbacv1.ClusterRole:
				client = rbac.ClusterRoles()
			case *rbacv1.ClusterRoleBinding:
				client = rbac.ClusterRoleBindings()
			case *rbacv1.Role:
				client = rbac.Roles(o.Namespace)
			case *rbacv1.RoleBinding:
				client = rbac.RoleBindings(o.Namespace)
			case *admissionregistrationv1.ValidatingAdmissionPolicy:
				client = policies.ValidatingAdmissionPolicies()
			case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
				client = policies.ValidatingAdmissionPolicyBindings()
			default:
				continue
			}
			testkit.NoError(t, client.Delete(context.Background(), o.(metav1.Object).GetName(), metav1.DeleteOptions{}))
		}
	})
	s.warn(t, objects)
	return objects
}

// testExample checks that the apiserver accepts the example and admits its pods, and that it grants each part what
// granted says, so that the tests of rights need no apiserver.
func testExample(t *testing.T, s *server) {
	for _, dir := range []string{".", "example/c1"} { // the second time over the existing objects
		s.kubectl(t, "apply", "-k", dir)
	}
	admitted(t, s, "example/c1")
	objects := build(t, "example/c1")
	for _, part := range []string{"exporter", "broker", "agent"} {
		for _, namespace := range []string{"kube-system", "semaphore"} {
			user := account("semaphore-" + part)
			want := granted(t, objects, user, namespace)
			eventually(t, "the rights of "+user+" in "+namespace, func() error {
				if got := s.rights(t, user, namespace); !slices.Equal(got, want) {
					return fmt.Errorf("%q, want %q", got, want)
				}
				return nil
			})
		}
	}
}

// admitted checks that the apiserver admits a pod of each workload.
func admitted(t *testing.T, s *server, dir string) {
	t.Helper()
	for name, err := range tried(t, s, dir) {
		if err != nil {
			t.Errorf("pod of %s: %v", name, err)
		}
	}
}

// tried creates a pod of each workload with dry run, as the controllers would, and returns what the apiserver answered,
// by the workload's name.
func tried(t *testing.T, s *server, dir string) map[string]error {
	t.Helper()
	objects := build(t, dir)
	answers := map[string]error{}
	for name, template := range templates(objects) {
		find[*corev1.ServiceAccount](t, objects, template.Spec.ServiceAccountName)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "trial-", Labels: template.Labels},
			Spec: template.Spec}
		_, answers[name] = s.client("").CoreV1().Pods("semaphore").Create(t.Context(), pod, dry)
	}
	return answers
}

// templates returns the pod template of each workload, by the workload's type and name.
func templates(objects []runtime.Object) map[string]corev1.PodTemplateSpec {
	all := map[string]corev1.PodTemplateSpec{}
	for _, o := range objects {
		name := fmt.Sprintf("%T %s", o, o.(metav1.Object).GetName())
		switch o := o.(type) {
		case *appsv1.Deployment:
			all[name] = o.Spec.Template
		case *appsv1.DaemonSet:
			all[name] = o.Spec.Template
		case *batchv1.Job:
			all[name] = o.Spec.Template
		}
	}
	return all
}

// testNodeWrites checks that the broker, with any permissions, changes only its own annotations on Nodes.
func testNodeWrites(t *testing.T, s *server) {
	s.apply(t, "example/c1")
	admin := s.client("")
	const ours = "c2.wireguard.semaphore.uw.io/pubKey"
	kubetest.Create(t, admin.CoreV1().Nodes(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "n1",
			Labels:      map[string]string{"kubernetes.io/hostname": "n1"},
			Annotations: map[string]string{"example.org/foreign": "kept", ours: "old"},
			Finalizers:  []string{"example.org/finalizer"},
		},
		Spec: corev1.NodeSpec{PodCIDR: "10.1.1.0/24", PodCIDRs: []string{"10.1.1.0/24"}},
	})
	// Grant more than its roles do, to show that the policy does not depend on them.
	users := []string{account("semaphore-broker"), account("semaphore-cleanup"),
		"system:serviceaccount:elsewhere:semaphore-broker", account("other")}
	bind(t, admin, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes", "nodes/status"},
		Verbs: []string{"get", "update", "patch"}}, users...)

	type patch struct {
		name        string
		kind        types.PatchType
		patch       any
		subresource []string
		refusal     string // empty: passes
	}
	annotations := func(a map[string]any) any { return map[string]any{"metadata": map[string]any{"annotations": a}} }
	metadata := func(key string, value any) any { return map[string]any{"metadata": map[string]any{key: value}} }
	merge := types.MergePatchType
	tests := []patch{
		{name: "own annotations are set", kind: merge,
			patch: annotations(map[string]any{ours: "new", "c2.wireguard.semaphore.uw.io/endpoint": "192.0.2.9:51820"})},
		{name: "for another cluster", kind: merge,
			patch: annotations(map[string]any{"a-b-3.wireguard.semaphore.uw.io/pubKey": "x"})},
		{name: "candidates", kind: merge,
			patch: annotations(map[string]any{"c2.wireguard.semaphore.uw.io/candidates": strings.Repeat("x", 256)})},
		{name: "no candidates", kind: merge,
			patch: annotations(map[string]any{"c2.wireguard.semaphore.uw.io/candidates": nil})},
		{name: "own annotation is removed", kind: merge,
			patch: annotations(map[string]any{"c2.wireguard.semaphore.uw.io/endpoint": nil})},
		{name: "own annotations by a strategic patch", kind: types.StrategicMergePatchType,
			patch: annotations(map[string]any{ours: "again"})},
		{name: "nothing changes", kind: merge, patch: metadata("labels", map[string]any{"kubernetes.io/hostname": "n1"})},

		{name: "new annotation", kind: merge, patch: annotations(map[string]any{"example.org/new": "x"}),
			refusal: "semaphore may change only the annotations CLUSTER.wireguard.semaphore.uw.io/pubKey, /endpoint and " +
				"/candidates of a node, not example.org/new"},
		{name: "a long annotation", kind: merge, patch: annotations(map[string]any{ours: strings.Repeat("x", 257)}),
			refusal: "at most 256 printable ASCII characters"},
		{name: "an annotation of long characters", kind: merge,
			patch:   annotations(map[string]any{ours: strings.Repeat("ü", 200)}),
			refusal: "at most 256 printable ASCII characters"},
		{name: "a long key", kind: merge,
			patch:   annotations(map[string]any{strings.Repeat("x", 101) + ".wireguard.semaphore.uw.io/pubKey": "x"}),
			refusal: "at most 256 printable ASCII characters"},
		{name: "more annotations than remotes", kind: merge, patch: annotations(many(769, "r%d", "x")),
			refusal: "at most 768 annotations"},
		{name: "annotations that leave the others no room", kind: merge,
			patch: annotations(many(680, "%095d", strings.Repeat("x", 255))), refusal: "at most 192 KiB of annotations"},
		{name: "foreign annotation changes beside an own one", kind: merge,
			patch: annotations(map[string]any{"example.org/foreign": "x", ours: "y"}), refusal: "not example.org/foreign"},
		{name: "foreign annotation goes", kind: merge, patch: annotations(map[string]any{"example.org/foreign": nil}),
			refusal: "not example.org/foreign"},
		{name: "all annotations go", kind: merge, patch: metadata("annotations", nil), refusal: "not example.org/foreign"},
		{name: "annotation that only resembles", kind: merge,
			patch: annotations(map[string]any{"c2.wireguard.semaphore.uw.io/pubKey2": "x"}), refusal: "not c2.wireguard"},
		{name: "annotation of Calico", kind: merge,
			patch:   annotations(map[string]any{"projectcalico.org/IPv4Address": "192.0.2.66"}),
			refusal: "not projectcalico.org/IPv4Address"},
		{name: "new label", kind: merge, patch: metadata("labels", map[string]any{"example.org/x": "y"}),
			refusal: "may not change the labels"},
		{name: "label goes", kind: merge, patch: metadata("labels", nil), refusal: "may not change the labels"},
		{name: "finalizer goes", kind: merge, patch: metadata("finalizers", nil), refusal: "may not change the finalizers"},
		{name: "owner", kind: merge,
			patch: metadata("ownerReferences",
				[]any{map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}}),
			refusal: "may not change the owners"},
		{name: "taint", kind: merge,
			patch:   map[string]any{"spec": map[string]any{"taints": []any{map[string]any{"key": "x", "effect": "NoExecute"}}}},
			refusal: "may not change the spec of a node, such as its taints"},
		{name: "cordon", kind: types.StrategicMergePatchType,
			patch: map[string]any{"spec": map[string]any{"unschedulable": true}}, refusal: "may not change the spec"},
		{name: "provider", kind: types.JSONPatchType,
			patch:   []any{map[string]any{"op": "add", "path": "/spec/providerID", "value": "x"}},
			refusal: "may not change the spec"},
		{name: "status", kind: merge, subresource: []string{"status"},
			patch: map[string]any{"status": map[string]any{"phase": "Terminated"}}, refusal: "may not change the status"},
		{name: "label by way of the status", kind: merge, subresource: []string{"status"},
			patch: metadata("labels", map[string]any{"example.org/x": "y"}), refusal: "may not change the labels"},
		{name: "for the cluster with the longest name", kind: merge,
			patch: annotations(map[string]any{strings.Repeat("c", 55) + ".example.wireguard.semaphore.uw.io/endpoint": "x",
				strings.Repeat("c", 55) + ".example.wireguard.semaphore.uw.io/pubKey": "x"})},
		{name: "and not for it any more", kind: merge,
			patch: annotations(map[string]any{strings.Repeat("c", 55) + ".example.wireguard.semaphore.uw.io/endpoint": nil,
				strings.Repeat("c", 55) + ".example.wireguard.semaphore.uw.io/pubKey": nil})},
	}
	apply := func(user string, p patch) error {
		data, err := json.Marshal(p.patch)
		must(t, err)
		_, err = s.client(user).CoreV1().Nodes().Patch(t.Context(), "n1", p.kind, data, metav1.PatchOptions{},
			p.subresource...)
		return err
	}
	s.settled(t)
	for _, user := range users[:3] {
		for _, p := range tests {
			t.Run(user+"/"+p.name, func(t *testing.T) {
				err := apply(user, p)
				switch {
				case p.refusal == "" && err != nil:
					t.Errorf("refused: %v", err)
				case p.refusal != "" && err == nil:
					t.Error("passed")
				case p.refusal != "" && (!apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) ||
					!strings.Contains(err.Error(), p.refusal)):
					t.Errorf("error %q does not say %q", err, p.refusal)
				}
			})
		}
	}
	for _, user := range []string{"", account("other")} {
		if err := apply(user, patch{kind: merge,
			patch: metadata("labels", map[string]any{"example.org/by-others": "yes"})}); err != nil {
			t.Errorf("%q is confined too: %v", user, err)
		}
	}
	node := kubetest.Get(t, admin.CoreV1().Nodes(), "n1")
	want := map[string]string{"example.org/foreign": "kept", ours: "again", "a-b-3.wireguard.semaphore.uw.io/pubKey": "x"}
	if !maps.Equal(node.Annotations, want) {
		t.Errorf("annotations at the end: %v, want %v", node.Annotations, want)
	}
}

// testNodeTaint checks that the broker can remove its own taint, with any effect, and change nothing else in a Node's
// spec. No other part of semaphore can do even that.
func testNodeTaint(t *testing.T, s *server) {
	s.apply(t, "example/c1")
	admin := s.client("")
	taint := func(key, effect string) corev1.Taint {
		return corev1.Taint{Key: key, Effect: corev1.TaintEffect(effect)}
	}
	ours, oursToo := taint("semaphore.uw.io/agent-not-ready", "NoSchedule"),
		taint("startup-taint.cluster-autoscaler.kubernetes.io/semaphore-agent-not-ready", "NoExecute")
	foreign, other := taint("example.org/agent-not-ready", "NoSchedule"), taint("example.org/b", "NoSchedule")
	before := corev1.NodeSpec{
		PodCIDR: "10.1.2.0/24", PodCIDRs: []string{"10.1.2.0/24"}, ProviderID: "p",
		Taints: []corev1.Taint{foreign, ours, other, oursToo},
	}
	kubetest.Temporary(t, admin.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Spec: before})
	bind(t, admin, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes", "nodes/status"},
		Verbs: []string{"get", "update", "patch"}},
		account("semaphore-broker"), account("semaphore-cleanup"), "system:serviceaccount:elsewhere:semaphore-broker")

	patch := func(user string, spec map[string]any, subresources ...string) error {
		data, err := json.Marshal(map[string]any{"spec": spec})
		must(t, err)
		_, err = s.client(user).CoreV1().Nodes().Patch(t.Context(), "n2", types.MergePatchType, data, metav1.PatchOptions{},
			subresources...)
		return err
	}
	// Admission has added the not-ready taint to the new node.
	must(t, patch("", map[string]any{"taints": before.Taints}))
	taints := func(all ...corev1.Taint) map[string]any { return map[string]any{"taints": all} }
	also := func(spec map[string]any, key string, value any) map[string]any { spec[key] = value; return spec }
	broker := account("semaphore-broker")
	s.settled(t)
	changed := foreign
	changed.Effect = "NoExecute"
	for name, c := range map[string]struct {
		user string
		spec map[string]any
	}{
		"a foreign one goes too":    {broker, taints(foreign)},
		"only a foreign one goes":   {broker, taints(foreign, ours, oursToo)},
		"all go":                    {broker, map[string]any{"taints": nil}},
		"a foreign one changes too": {broker, taints(changed, other)},
		"a foreign one comes too":   {broker, taints(foreign, other, taint("x", "NoSchedule"))},
		"another order":             {broker, taints(other, foreign)},
		"one of ours stays, as another": {broker,
			taints(foreign, other, taint("semaphore.uw.io/agent-not-ready", "PreferNoSchedule"))},
		"cordoned too":         {broker, also(taints(foreign, other), "unschedulable", true)},
		"another provider too": {broker, also(taints(foreign, other), "providerID", nil)},
		"by the cleanup":       {account("semaphore-cleanup"), taints(foreign, other)},
	} {
		t.Run(name, func(t *testing.T) {
			err := patch(c.user, c.spec)
			want := "may not change the spec of a node, such as its taints, but for taking semaphore.uw.io/agent-not-ready or " +
				"PREFIX/semaphore-agent-not-ready away"
			if _, provider := c.spec["providerID"]; provider {
				want = "node updates may not change providerID" // refused for every user
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v", err)
			}
		})
	}
	stands := func() corev1.NodeSpec {
		n := kubetest.Get(t, admin.CoreV1().Nodes(), "n2")
		for i := range n.Spec.Taints {
			n.Spec.Taints[i].TimeAdded = nil
		}
		return n.Spec
	}
	if got := stands(); !reflect.DeepEqual(got, before) {
		t.Fatalf("something passed: %+v", got)
	}
	for _, user := range []string{broker, "system:serviceaccount:elsewhere:semaphore-broker"} {
		if err := patch(user, taints(foreign, other)); err != nil {
			t.Errorf("%s: ours alone: %v", user, err)
		}
		if got := stands(); !slices.Equal(got.Taints, []corev1.Taint{foreign, other}) {
			t.Errorf("%s: %v", user, got.Taints)
		}
		if err := patch(user, taints(foreign, other, ours)); err == nil {
			t.Errorf("%s may put it back", user)
		}
		must(t, patch("", taints(foreign, ours, other, oursToo)))
	}
}

// TestPolicyNamesNodeSpec checks that the policy lists all fields of a Node's spec except the taints. A field of a
// later API must be added.
func TestPolicyNamesNodeSpec(t *testing.T) {
	text := testkit.Value(os.ReadFile("broker/node-writes.yaml"))(t)
	spec := reflect.TypeFor[corev1.NodeSpec]()
	for i := range spec.NumField() {
		name, _, _ := strings.Cut(spec.Field(i).Tag.Get("json"), ",")
		if want := fmt.Sprintf("object.spec.?%[1]s == oldObject.spec.?%[1]s", name); name != "taints" &&
			!strings.Contains(string(text), want) {
			t.Errorf("spec.%s may change beside the taint", name)
		}
	}
}

// many returns annotations of n remotes, with names in a format.
func many(n int, name, value string) map[string]any {
	out := map[string]any{}
	for i := range n {
		out[fmt.Sprintf(name, i)+".wireguard.semaphore.uw.io/pubKey"] = value
	}
	return out
}

// bind gives users a cluster-wide permission until the test ends.
func bind(t *testing.T, client kubernetes.Interface, rule rbacv1.PolicyRule, users ...string) {
	t.Helper()
	role := kubetest.Temporary(t, client.RbacV1().ClusterRoles(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Rules: []rbacv1.PolicyRule{rule},
	})
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
	}
	for _, u := range users {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: u})
	}
	kubetest.Temporary(t, client.RbacV1().ClusterRoleBindings(), binding)
}

// testCleanup checks that the cleanup overlay is accepted over an installation.
func testCleanup(t *testing.T, s *server) {
	s.apply(t, "example/c1-cleanup")
	admitted(t, s, "example/c1-cleanup")
	s.kubectl(t, "delete", "-k", "example/c1-cleanup", "--wait=false")
}
