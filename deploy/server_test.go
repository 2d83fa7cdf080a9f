package deploy_test

import (
	"bytes"
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
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
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
	t.Run("RightsByFeature", func(t *testing.T) { testRightsByFeature(t, s) })
	t.Run("Example", func(t *testing.T) { testExample(t, s) })
	t.Run("RemoteWrites", func(t *testing.T) { testRemoteWrites(t, s) })
	t.Run("NodeWrites", func(t *testing.T) { testNodeWrites(t, s) })
	t.Run("BrokersWrites", func(t *testing.T) { testBrokersWrites(t, s) })
	t.Run("ImportWrites", func(t *testing.T) { testImportWrites(t, s) })
	t.Run("OwnNameWrites", func(t *testing.T) { testOwnNameWrites(t, s) })
	t.Run("NodeTaint", func(t *testing.T) { testNodeTaint(t, s) })
	t.Run("OtherNamespaces", func(t *testing.T) { testOtherNamespaces(t, s) })
	t.Run("Platforms", func(t *testing.T) { testPlatforms(t, s) })
	t.Run("OpenShift", func(t *testing.T) { testOpenShift(t, s) })
	t.Run("Reader", func(t *testing.T) { testReader(t, s) })
	t.Run("ForeignExporter", func(t *testing.T) { testForeignExporter(t, s) })
	t.Run("Cleanup", func(t *testing.T) { testCleanup(t, s) })
}

// rights returns what RBAC allows a ServiceAccount in a namespace, a line for each resource, without what every user
// may do.
func rights(t *testing.T, s *server, account, namespace string) []string {
	t.Helper()
	of := func(user string) map[string]bool {
		review := testkit.Value(s.client(user).AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
			&authorizationv1.SelfSubjectRulesReview{
				Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
			}, metav1.CreateOptions{}))(t)
		if review.Status.Incomplete {
			t.Logf("rules of %s in %s: %s", user, namespace, review.Status.EvaluationError)
		}
		lines := map[string]bool{}
		for _, rule := range review.Status.ResourceRules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					if group != "" {
						resource += "." + group
					}
					verbs := slices.Sorted(slices.Values(rule.Verbs))
					line := resource + ": " + strings.Join(verbs, " ")
					if len(rule.ResourceNames) > 0 {
						line += fmt.Sprint(" only ", rule.ResourceNames)
					}
					lines[line] = true
				}
			}
		}
		return lines
	}
	mine, everyones := of(account), of("system:serviceaccount:semaphore:nobody")
	for line := range everyones {
		delete(mine, line)
	}
	return slices.Sorted(maps.Keys(mine))
}

const (
	reads  = "get list watch"
	writes = "create delete get list update watch"
)

// leads returns the permissions for the leader election of a part's replicas, which are the same with all features.
func leads(part string) []string {
	rights := []string{"leases.coordination.k8s.io: create", "leases.coordination.k8s.io: get update only [semaphore-" +
		part + "-leader]"}
	kept := map[string]string{"broker": "semaphore-broker-remotes",
		"exporter": "semaphore-exporter-remotes semaphore-remotes"}
	rights = append(rights, "configmaps: create", "configmaps: get update only ["+kept[part]+"]")
	if part == "broker" { // whose Services lead to the leader
		rights = append(rights, "endpointslices.discovery.k8s.io: create",
			"endpointslices.discovery.k8s.io: get update only "+
				"[semaphore-broker-leader-ipv4 semaphore-broker-leader-ipv6 semaphore-broker-federation-leader-ipv4 "+
				"semaphore-broker-federation-leader-ipv6]")
	}
	return rights
}

// testRightsByFeature checks the permissions of each feature, and that there are no others: in all namespaces, and in
// addition in the namespace of semaphore.
func testRightsByFeature(t *testing.T, s *server) {
	type want struct{ everywhere, inSemaphore []string }
	const events = "events.events.k8s.io: create"
	var names []string
	for i := range 16 {
		names = append(names, fmt.Sprintf("semaphore-tunnel-addresses-%x", i))
	}
	shards := strings.Join(names, " ")
	var check []string
	for _, group := range []string{"crd.projectcalico.org", "projectcalico.org"} {
		check = append(check, "ippools."+group+": list", "ipamconfigs."+group+": get only [default]",
			"ipamconfigurations."+group+": get only [default]")
	}
	blocks := []string{"blockaffinities.crd.projectcalico.org: " + reads, "blockaffinities.projectcalico.org: " + reads}
	tests := map[string]map[string]want{
		"none": {
			"broker": {inSemaphore: []string{events}},
		},
		"encryption": {
			"exporter": {everywhere: append([]string{"nodes: " + reads}, blocks...)},
			"broker": {
				everywhere: append([]string{"nodes: get list patch watch", "tokenreviews.authentication.k8s.io: create"},
					append(blocks, check...)...),
				inSemaphore: []string{
					events, "pods: " + reads, "daemonsets.apps: get", "configmaps: create",
					"configmaps: get update only [semaphore-peers-0 semaphore-peers-1 semaphore-peers-2 semaphore-peers-3]",
				},
			},
		},
		"services": {
			"exporter": {everywhere: []string{"services: " + reads, "endpointslices.discovery.k8s.io: " + reads, events}},
			"broker": {
				everywhere: []string{"configmaps: get only [coredns coredns-custom node-local-dns]"},
				inSemaphore: []string{
					events, "services: " + writes, "endpointslices.discovery.k8s.io: " + writes,
					"configmaps: create", "configmaps: get list update watch only [semaphore-drains]",
					"configmaps: get only [semaphore-dns]",
				},
			},
		},
		"adopt-services": {
			"broker": {inSemaphore: []string{events, "endpoints: delete list", "writes.semaphore.uw.io: adopt"}},
		},
		"service-status": {
			"exporter": {everywhere: []string{"services: get list patch", "writes.semaphore.uw.io: annotate"}},
			"broker":   {inSemaphore: []string{events}},
		},
		"dns": {
			"broker": {everywhere: []string{"configmaps: get update only [coredns coredns-custom]"},
				inSemaphore: []string{events}},
		},
		"mcs": {
			"exporter": {everywhere: []string{
				"serviceexports.multicluster.x-k8s.io: " + reads, "serviceexports/status.multicluster.x-k8s.io: update",
				"customresourcedefinitions.apiextensions.k8s.io: get only [serviceexports.multicluster.x-k8s.io " +
					"serviceimports.multicluster.x-k8s.io]",
			}},
			"broker": {everywhere: []string{
				"serviceimports.multicluster.x-k8s.io: " + writes, "serviceimports/status.multicluster.x-k8s.io: update",
				"endpointslices.discovery.k8s.io: " + writes, "namespaces: list watch",
				"clusterproperties.about.k8s.io: get only [cluster.clusterset.k8s.io]",
				"customresourcedefinitions.apiextensions.k8s.io: get only [serviceexports.multicluster.x-k8s.io " +
					"serviceimports.multicluster.x-k8s.io]",
			}, inSemaphore: []string{events}},
		},
		"own-names": {
			"broker": {everywhere: []string{"endpointslices.discovery.k8s.io: " + writes, events,
				"writes.semaphore.uw.io: own-names"}},
		},
		"policy": {
			"exporter": {everywhere: []string{"pods: " + reads}},
			"broker": {
				everywhere: []string{
					"globalnetworksets.crd.projectcalico.org: " + writes,
					"globalnetworksets.projectcalico.org: " + writes,
				},
				inSemaphore: []string{events},
			},
		},
		"networksets": {
			"broker": {
				everywhere: []string{
					"namespaces: list watch",
					"networksets.crd.projectcalico.org: " + writes, "networksets.projectcalico.org: " + writes,
				},
				inSemaphore: []string{events},
			},
		},
		"tunnel-addresses": {
			"broker": {
				everywhere: []string{
					"ipamblocks.crd.projectcalico.org: get", "ipamblocks.projectcalico.org: get",
					"ipreservations.crd.projectcalico.org: create", "ipreservations.projectcalico.org: create",
					"ipreservations.crd.projectcalico.org: delete get update only [" + shards + "]",
					"ipreservations.projectcalico.org: delete get update only [" + shards + "]",
				},
				inSemaphore: []string{events},
			},
		},
		"ippools": {
			"broker": {
				everywhere:  []string{"ippools.crd.projectcalico.org: " + writes, "ippools.projectcalico.org: " + writes},
				inSemaphore: []string{events},
			},
		},
	}
	for feature, parts := range tests {
		t.Run(feature, func(t *testing.T) {
			text := "resources: [DEPLOY/namespace, DEPLOY/exporter, DEPLOY/broker, DEPLOY/agent]\n"
			if feature != "none" {
				text += "components: [DEPLOY/features/" + feature + "]\n"
			}
			objects := build(t, overlay(t, text))
			s.createRBAC(t, objects)
			for _, part := range []string{"exporter", "broker", "agent"} {
				w := parts[part]
				if part != "agent" {
					// For watching RemoteClusters.
					w.everywhere = append(slices.Clone(w.everywhere), "remoteclusters.semaphore.uw.io: "+reads,
						"remoteclusters/status.semaphore.uw.io: patch",
						"customresourcedefinitions.apiextensions.k8s.io: get only ["+v1alpha1.CRDName+"]")
				}
				if part == "exporter" {
					// For identifying the cluster that it reads.
					w.everywhere = append(slices.Clone(w.everywhere), "namespaces: get only [kube-system]",
						"writes.semaphore.uw.io: named") // identifies it to the admission policies; grants nothing
				}
				if part == "broker" {
					// This identifies it to the admission policies and grants nothing.
					w.everywhere = append(slices.Clone(w.everywhere), "writes.semaphore.uw.io: confined untaint")
				}
				elsewhere := slices.Sorted(slices.Values(w.everywhere))
				here := append(slices.Clone(w.everywhere), w.inSemaphore...)
				if part != "agent" {
					here = append(here, leads(part)...)
				}
				slices.Sort(here)
				here = slices.Compact(here)
				eventually(t, "the rights of the "+part, func() error {
					if got := rights(t, s, account("semaphore-"+part), "kube-system"); !slices.Equal(got, elsewhere) {
						return fmt.Errorf("in other namespaces %q, want %q", got, elsewhere)
					}
					if got := rights(t, s, account("semaphore-"+part), "semaphore"); !slices.Equal(got, here) {
						return fmt.Errorf("in its own namespace %q, want %q", got, here)
					}
					return nil
				})
			}
		})
	}
}

// testReader checks that a reader in another cluster may read what its features need, and nothing else in any
// namespace.
func testReader(t *testing.T, s *server) {
	s.applied(t, "resources: [DEPLOY/reader]\ncomponents: [DEPLOY/reader/services, DEPLOY/reader/policy]\n"+
		"nameSuffix: -c1\n")
	want := []string{"endpointslices.discovery.k8s.io: " + reads, "namespaces: get only [kube-system]", "pods: " + reads,
		"services: " + reads}
	for _, namespace := range []string{"kube-system", "semaphore-reader"} {
		eventually(t, "the rights of the reader in "+namespace, func() error {
			got := rights(t, s, "system:serviceaccount:semaphore-reader:semaphore-reader-c1", namespace)
			if !slices.Equal(got, want) {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
}

// testForeignExporter checks that the exporter of a cluster that is read has the right to its Lease, and none besides.
// A stolen token of it makes no other Lease, in whose place it could keep the own parts from leading.
func testForeignExporter(t *testing.T, s *server) {
	const ns = "semaphore-c2"
	s.applied(t, "resources: [DEPLOY/example/c1]\n")
	s.applied(t, "namespace: "+ns+"\nresources: [DEPLOY/crds, DEPLOY/foreign-exporter]\n")
	for namespace, want := range map[string][]string{
		ns: {"leases.coordination.k8s.io: create",
			"leases.coordination.k8s.io: get update only [semaphore-exporter-leader]"},
		"kube-system": {}, "semaphore": {},
	} {
		eventually(t, "the rights of the exporter in "+namespace, func() error {
			got := rights(t, s, "system:serviceaccount:"+ns+":semaphore-exporter", namespace)
			if !slices.Equal(got, want) {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
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

// createRBAC creates the permissions among objects until the test ends, and their namespace: kubectl needs seconds for
// all else.
func (s *server) createRBAC(t *testing.T, objects []runtime.Object) {
	t.Helper()
	client := s.client("")
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Namespace:
			_, err := client.CoreV1().Namespaces().Create(t.Context(), o, metav1.CreateOptions{})
			if !apierrors.IsAlreadyExists(err) {
				must(t, err)
			}
		case *rbacv1.ClusterRole:
			kubetest.Temporary(t, client.RbacV1().ClusterRoles(), o)
		case *rbacv1.ClusterRoleBinding:
			kubetest.Temporary(t, client.RbacV1().ClusterRoleBindings(), o)
		case *rbacv1.Role:
			kubetest.Temporary(t, client.RbacV1().Roles(o.Namespace), o)
		case *rbacv1.RoleBinding:
			kubetest.Temporary(t, client.RbacV1().RoleBindings(o.Namespace), o)
		}
	}
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

// testExample checks that the apiserver accepts the example and admits its pods, and that each part has the permissions
// that it needs and none that would be worth stealing its token for.
func testExample(t *testing.T, s *server) {
	for _, dir := range []string{".", "example/c1"} { // the second time over the existing objects
		s.kubectl(t, "apply", "-k", dir)
	}
	admitted(t, s, "example/c1")

	type review struct {
		account, verb, resource, namespace string
		allowed                            bool
	}
	var reviews []review
	add := func(allowed bool, part, namespace, verbs string, resources ...string) {
		for _, verb := range strings.Fields(verbs) {
			for _, resource := range resources {
				reviews = append(reviews, review{account("semaphore-" + part), verb, resource, namespace, allowed})
			}
		}
	}
	add(true, "exporter", "", "get list watch", "nodes", "pods", "services", "endpointslices.discovery.k8s.io")
	add(true, "broker", "", "get list watch patch", "nodes")
	add(true, "broker", "", "create", "tokenreviews.authentication.k8s.io")
	add(true, "broker", "semaphore", "get list watch", "pods")
	add(true, "broker", "semaphore", "get list watch create update delete", "services", "endpointslices.discovery.k8s.io")
	add(true, "broker", "semaphore", "create", "events.events.k8s.io", "configmaps")
	add(true, "broker", "", "get list watch create update delete", "globalnetworksets.projectcalico.org",
		"globalnetworksets.crd.projectcalico.org",
		"ippools.projectcalico.org", "ippools.crd.projectcalico.org")

	for _, part := range []string{"exporter", "broker", "agent"} {
		add(false, part, "semaphore", "get list watch create update patch delete", "secrets",
			"roles.rbac.authorization.k8s.io")
		add(false, part, "semaphore", "get list watch update patch delete", "configmaps") // of any name
		add(false, part, "semaphore", "create", "pods", "pods/exec", "serviceaccounts/token", "daemonsets.apps")
		add(false, part, "", "create update delete deletecollection", "nodes", "pods")
		add(false, part, "", "patch update", "nodes/status", "pods/status")
		add(false, part, "", "get", "nodes/proxy")
		add(false, part, "", "escalate bind impersonate", "clusterroles.rbac.authorization.k8s.io", "users",
			"serviceaccounts")
		add(false, part, "kube-system", "create update patch delete", "services", "endpointslices.discovery.k8s.io", "events")
		add(false, part, "kube-system", "get list watch update patch delete", "events.events.k8s.io")
	}
	add(true, "exporter", "", "create", "events.events.k8s.io") // on Services that are offered, wherever they are
	add(false, "broker", "kube-system", "create", "events.events.k8s.io")
	add(false, "agent", "kube-system", "create", "events.events.k8s.io")
	add(false, "broker", "", "get list watch", "pods", "services", "endpointslices.discovery.k8s.io")
	add(false, "broker", "kube-system", "get list watch", "pods", "services", "secrets")
	add(false, "broker", "semaphore", "delete patch", "pods")
	add(false, "exporter", "semaphore", "create update patch delete", "services", "endpointslices.discovery.k8s.io",
		"pods", "nodes")
	add(false, "agent", "semaphore", "get list watch", "nodes", "pods", "services")

	client := s.client("").AuthorizationV1()
	for _, r := range reviews {
		attributes := &authorizationv1.ResourceAttributes{Verb: r.verb, Namespace: r.namespace}
		resource, group, _ := strings.Cut(r.resource, ".")
		attributes.Group = group
		attributes.Resource, attributes.Subresource, _ = strings.Cut(resource, "/")
		answer := testkit.Value(client.SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: r.account, Groups: groups(r.account),
				ResourceAttributes: attributes},
		}, metav1.CreateOptions{}))(t)
		if answer.Status.Allowed != r.allowed {
			t.Errorf("%s: %s %s in %q: allowed %t, want %t (%s)", r.account, r.verb, r.resource, r.namespace,
				answer.Status.Allowed, r.allowed, answer.Status.Reason)
		}
	}
	t.Logf("%d access reviews", len(reviews))
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

// templates returns the pod template of each workload, by the workload's name.
func templates(objects []runtime.Object) map[string]corev1.PodTemplateSpec {
	all := map[string]corev1.PodTemplateSpec{}
	for _, o := range objects {
		switch o := o.(type) {
		case *appsv1.Deployment:
			all[o.Name] = o.Spec.Template
		case *appsv1.DaemonSet:
			all[o.Name] = o.Spec.Template
		case *batchv1.Job:
			all[o.Name] = o.Spec.Template
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
		{name: "more annotations than remotes", kind: merge, patch: annotations(many(769)),
			refusal: "at most 768 annotations"},
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

// many returns annotation keys of n remotes.
func many(n int) map[string]any {
	out := map[string]any{}
	for i := range n {
		out[fmt.Sprintf("r%d.wireguard.semaphore.uw.io/pubKey", i)] = "x"
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

// testOtherNamespaces checks that both namespaces can be changed as in docs/overlays.md: that of the parts, and by the
// patch that is printed there that of the mirrors, with what the broker stores in it.
func testOtherNamespaces(t *testing.T, s *server) {
	dir := overlay(t, `
namespace: federation
resources: [DEPLOY/all]
`)
	s.apply(t, dir)
	const broker = "system:serviceaccount:federation:semaphore-broker"
	eventually(t, "rights in the other namespace", func() error {
		got := rights(t, s, broker, "federation")
		for _, want := range append(leads("broker"), "services: "+writes) {
			if !slices.Contains(got, want) {
				return fmt.Errorf("%q", got)
			}
		}
		return nil
	})

	text := testkit.Value(os.ReadFile("../docs/overlays.md"))(t)
	_, text, _ = bytes.Cut(text, []byte("\n## Other namespaces\n"))
	_, text, _ = bytes.Cut(text, []byte("```yaml\n"))
	patch, _, _ := bytes.Cut(text, []byte("```"))
	dir = overlay(t, "resources: [DEPLOY/all]\ncomponents: [DEPLOY/features/adopt-services]\n"+string(patch))
	s.kubectl(t, "create", "namespace", "mirrors")
	s.apply(t, dir)
	eventually(t, "rights in the mirrors' namespace", func() error {
		got := rights(t, s, account("semaphore-broker"), "mirrors")
		for _, want := range []string{"services: " + writes, "events.events.k8s.io: create", "endpoints: delete list",
			"configmaps: get update only [semaphore-peers-0 semaphore-peers-1 semaphore-peers-2 semaphore-peers-3]"} {
			if !slices.Contains(got, want) {
				return fmt.Errorf("%q", got)
			}
		}
		// The Lease is in the namespace of the parts.
		here := rights(t, s, account("semaphore-broker"), "semaphore")
		for _, want := range leads("broker") {
			// ConfigMaps of drains are created in the mirror namespace too.
			if want != "configmaps: create" && slices.Contains(got, want) || !slices.Contains(here, want) {
				return fmt.Errorf("in mirrors %q, in semaphore %q", got, here)
			}
		}
		return nil
	})
}

// testCleanup checks that the cleanup overlay is accepted over an installation and has the permissions that it needs.
func testCleanup(t *testing.T, s *server) {
	s.apply(t, "example/c1-cleanup")
	admitted(t, s, "example/c1-cleanup")
	everywhere := []string{
		"globalnetworksets.crd.projectcalico.org: delete get list",
		"globalnetworksets.projectcalico.org: delete get list",
		"customresourcedefinitions.apiextensions.k8s.io: get only [serviceexports.multicluster.x-k8s.io " +
			"serviceimports.multicluster.x-k8s.io]",
		"serviceexports.multicluster.x-k8s.io: get list",
		"serviceexports/status.multicluster.x-k8s.io: update",
		"serviceimports.multicluster.x-k8s.io: delete get list",
		"endpointslices.discovery.k8s.io: delete get list",
		"ippools.crd.projectcalico.org: delete get list",
		"ippools.projectcalico.org: delete get list",
		"ipreservations.crd.projectcalico.org: delete get list",
		"ipreservations.projectcalico.org: delete get list",
		"networksets.crd.projectcalico.org: delete get list",
		"networksets.projectcalico.org: delete get list",
		"nodes: get list patch",
		"remoteclusters.semaphore.uw.io: list",
		"writes.semaphore.uw.io: confined",
	}
	slices.Sort(everywhere)
	here := slices.Sorted(slices.Values(append(slices.Clone(everywhere), "services: delete get list",
		"configmaps: delete get only [semaphore-drains semaphore-peers-0 semaphore-peers-1 semaphore-peers-2 "+
			"semaphore-peers-3]")))
	eventually(t, "the rights of the cleanup", func() error {
		if got := rights(t, s, account("semaphore-cleanup"), "kube-system"); !slices.Equal(got, everywhere) {
			return fmt.Errorf("in other namespaces %q, want %q", got, everywhere)
		}
		if got := rights(t, s, account("semaphore-cleanup"), "semaphore"); !slices.Equal(got, here) {
			return fmt.Errorf("in its own namespace %q, want %q", got, here)
		}
		return nil
	})
	s.kubectl(t, "delete", "-k", "example/c1-cleanup", "--wait=false")
}
