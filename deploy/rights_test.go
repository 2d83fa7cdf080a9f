package deploy_test

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// lines returns what rules allow, a line for each resource of a rule.
func lines(rules []rbacv1.PolicyRule) map[string]bool {
	lines := map[string]bool{}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				if group != "" {
					resource += "." + group
				}
				line := resource + ": " + strings.Join(slices.Sorted(slices.Values(rule.Verbs)), " ")
				if len(rule.ResourceNames) > 0 {
					line += fmt.Sprint(" only ", rule.ResourceNames)
				}
				lines[line] = true
			}
		}
	}
	return lines
}

// granted returns what the roles and bindings among objects allow a ServiceAccount in a namespace.
func granted(t *testing.T, objects []runtime.Object, user, namespace string) []string {
	t.Helper()
	roles := map[string][]rbacv1.PolicyRule{}
	for _, o := range objects {
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			roles["ClusterRole /"+o.Name] = o.Rules
		case *rbacv1.Role:
			roles["Role "+o.Namespace+"/"+o.Name] = o.Rules
		}
	}
	var rules []rbacv1.PolicyRule
	bound := func(in string, subjects []rbacv1.Subject, ref rbacv1.RoleRef) {
		if ref.APIGroup != rbacv1.GroupName {
			t.Errorf("the binding to %s has the group %q", ref.Name, ref.APIGroup)
		}
		for _, s := range subjects {
			if s.Kind != "ServiceAccount" || s.APIGroup != "" {
				t.Errorf("the %s %s is bound to %s", s.Kind, s.Name, ref.Name)
			}
			if s.Kind != "ServiceAccount" || user != "system:serviceaccount:"+cmp.Or(s.Namespace, in)+":"+s.Name {
				continue
			}
			role := ref.Kind + " /" + ref.Name
			if ref.Kind == "Role" {
				role = "Role " + in + "/" + ref.Name
			}
			if roles[role] == nil {
				t.Errorf("%s is bound to the %s, which is not there", user, role)
			}
			rules = append(rules, roles[role]...)
		}
	}
	for _, o := range objects {
		switch o := o.(type) {
		case *rbacv1.ClusterRoleBinding:
			bound("", o.Subjects, o.RoleRef)
		case *rbacv1.RoleBinding:
			if o.Namespace == namespace {
				bound(namespace, o.Subjects, o.RoleRef)
			}
		}
	}
	return slices.Sorted(maps.Keys(lines(rules)))
}

// rights returns what RBAC allows a ServiceAccount in a namespace of a server, without what every user may do.
func (s *server) rights(t *testing.T, user, namespace string) []string {
	t.Helper()
	of := func(user string) map[string]bool {
		review := testkit.Value(s.client(user).AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
			&authorizationv1.SelfSubjectRulesReview{
				Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
			}, metav1.CreateOptions{}))(t)
		var rules []rbacv1.PolicyRule
		for _, r := range review.Status.ResourceRules {
			rules = append(rules, rbacv1.PolicyRule{Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources,
				ResourceNames: r.ResourceNames})
		}
		return lines(rules)
	}
	mine, everyones := of(user), of("system:serviceaccount:semaphore:nobody")
	maps.DeleteFunc(mine, func(line string, _ bool) bool { return everyones[line] })
	return slices.Sorted(maps.Keys(mine))
}

const (
	reads  = "get list watch"
	writes = "create delete get list update watch"
)

// leads returns the rights for the leader election of a part's replicas, which are the same with all features.
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

// TestRightsByFeature checks the rights of each part with each feature alone and with those of the example, and that
// there are no others: in all namespaces, and in addition in the namespace of semaphore.
func TestRightsByFeature(t *testing.T) {
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
	compare := func(objects []runtime.Object, features ...string) {
		for _, part := range []string{"exporter", "broker", "agent"} {
			var elsewhere, here []string
			for _, feature := range features {
				elsewhere = append(elsewhere, tests[feature][part].everywhere...)
				here = append(here, tests[feature][part].inSemaphore...)
			}
			if part != "agent" {
				// For watching RemoteClusters.
				elsewhere = append(elsewhere, "remoteclusters.semaphore.uw.io: "+reads,
					"remoteclusters/status.semaphore.uw.io: patch",
					"customresourcedefinitions.apiextensions.k8s.io: get only ["+v1alpha1.CRDName+"]")
				here = append(here, leads(part)...)
			}
			if part == "exporter" {
				// For identifying the cluster that it reads.
				elsewhere = append(elsewhere, "namespaces: get only [kube-system]",
					"writes.semaphore.uw.io: named") // identifies it to the admission policies; grants nothing
			}
			if part == "broker" {
				// This identifies it to the admission policies and grants nothing.
				elsewhere = append(elsewhere, "writes.semaphore.uw.io: confined untaint")
			}
			for namespace, want := range map[string][]string{"kube-system": elsewhere,
				"semaphore": append(here, elsewhere...)} {
				slices.Sort(want)
				want = slices.Compact(want)
				if got := granted(t, objects, account("semaphore-"+part), namespace); !slices.Equal(got, want) {
					t.Errorf("%s: rights of the %s in %s: %q, want %q", features, part, namespace, got, want)
				}
			}
		}
	}
	for feature := range tests {
		text := "resources: [DEPLOY/namespace, DEPLOY/exporter, DEPLOY/broker, DEPLOY/agent]\n"
		if feature != "none" {
			text += "components: [DEPLOY/features/" + feature + "]\n"
		}
		compare(build(t, overlay(t, text)), feature)
	}
	compare(build(t, "example/c1"), "encryption", "services", "policy", "ippools")
}

// TestRightsOfOthers checks that a reader in another cluster may read what its features need, and nothing else in any
// namespace; that the exporter of a cluster that is read has the right to its Lease alone; and the rights of a cleanup.
func TestRightsOfOthers(t *testing.T) {
	reader := build(t, overlay(t, "resources: [DEPLOY/reader]\n"+
		"components: [DEPLOY/reader/services, DEPLOY/reader/policy]\nnameSuffix: -c1\n"))
	ofReader := []string{"endpointslices.discovery.k8s.io: " + reads, "namespaces: get only [kube-system]",
		"pods: " + reads, "services: " + reads}
	foreign := build(t, overlay(t, "namespace: semaphore-c2\nresources: [DEPLOY/crds, DEPLOY/foreign-exporter]\n"))
	cleanup := build(t, "example/c1-cleanup")
	ofCleanup := []string{
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
	for _, c := range []struct {
		objects         []runtime.Object
		user, namespace string
		want            []string
	}{
		{reader, "system:serviceaccount:semaphore-reader:semaphore-reader-c1", "kube-system", ofReader},
		{reader, "system:serviceaccount:semaphore-reader:semaphore-reader-c1", "semaphore-reader", ofReader},
		{foreign, "system:serviceaccount:semaphore-c2:semaphore-exporter", "kube-system", nil},
		{foreign, "system:serviceaccount:semaphore-c2:semaphore-exporter", "semaphore", nil},
		{foreign, "system:serviceaccount:semaphore-c2:semaphore-exporter", "semaphore-c2", []string{
			"leases.coordination.k8s.io: create", "leases.coordination.k8s.io: get update only [semaphore-exporter-leader]"}},
		{cleanup, account("semaphore-cleanup"), "kube-system", ofCleanup},
		{cleanup, account("semaphore-cleanup"), "semaphore", append(slices.Clone(ofCleanup), "services: delete get list",
			"configmaps: delete get only [semaphore-drains semaphore-peers-0 semaphore-peers-1 semaphore-peers-2 "+
				"semaphore-peers-3]")},
	} {
		slices.Sort(c.want)
		if got := granted(t, c.objects, c.user, c.namespace); !slices.Equal(got, c.want) {
			t.Errorf("%s in %s: %q, want %q", c.user, c.namespace, got, c.want)
		}
	}
}

// TestOtherNamespaces checks that both namespaces can be changed as in docs/overlays.md: that of the parts, and by the
// patch that is printed there that of the mirrors, with what the broker stores in it.
func TestOtherNamespaces(t *testing.T) {
	objects := build(t, overlay(t, "namespace: federation\nresources: [DEPLOY/all]\n"))
	got := granted(t, objects, "system:serviceaccount:federation:semaphore-broker", "federation")
	for _, want := range append(leads("broker"), "services: "+writes) {
		if !slices.Contains(got, want) {
			t.Errorf("in the other namespace %q, without %q", got, want)
		}
	}

	text := testkit.Value(os.ReadFile("../docs/overlays.md"))(t)
	_, text, _ = bytes.Cut(text, []byte("\n## Other namespaces\n"))
	_, text, _ = bytes.Cut(text, []byte("```yaml\n"))
	patch, _, _ := bytes.Cut(text, []byte("```"))
	objects = build(t, overlay(t,
		"resources: [DEPLOY/all]\ncomponents: [DEPLOY/features/adopt-services]\n"+string(patch)))
	got = granted(t, objects, account("semaphore-broker"), "mirrors")
	for _, want := range []string{"services: " + writes, "events.events.k8s.io: create", "endpoints: delete list",
		"configmaps: get update only [semaphore-peers-0 semaphore-peers-1 semaphore-peers-2 semaphore-peers-3]"} {
		if !slices.Contains(got, want) {
			t.Errorf("in the mirrors' namespace %q, without %q", got, want)
		}
	}
	// The Lease is in the namespace of the parts.
	here := granted(t, objects, account("semaphore-broker"), "semaphore")
	for _, want := range leads("broker") {
		// ConfigMaps of drains are created in the mirror namespace too.
		if want != "configmaps: create" && slices.Contains(got, want) || !slices.Contains(here, want) {
			t.Errorf("in mirrors %q, in semaphore %q", got, here)
		}
	}
}
