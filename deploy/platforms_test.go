package deploy_test

import (
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

const openshift = "security.openshift.io/v1"

func platform(t *testing.T, components string) ([]runtime.Object, *appsv1.DaemonSet, []*unstructured.Unstructured,
	*corev1.ResourceQuota) {
	t.Helper()
	objects := build(t, overlay(t,
		"resources: [DEPLOY/namespace, DEPLOY/exporter, DEPLOY/broker, DEPLOY/agent]\ncomponents: ["+components+"]\n"))
	var foreign []*unstructured.Unstructured
	var quota *corev1.ResourceQuota
	for _, o := range objects {
		switch o := o.(type) {
		case *unstructured.Unstructured:
			foreign = append(foreign, o)
		case *corev1.ResourceQuota:
			quota = o
		}
	}
	return objects, find[*appsv1.DaemonSet](t, objects, "semaphore-agent"), foreign, quota
}

// TestBootGuardIsNotFlushed: the guard of a node that boots comes after nftables.service, whose file begins with "flush
// ruleset" on Debian. Both units come before the network, and have no other order.
func TestBootGuardIsNotFlushed(t *testing.T) {
	unit, err := os.ReadFile("boot-guard/semaphore-guard.service")
	if err != nil || !regexp.MustCompile(`(?m)^After=(.* )?nftables\.service( |$)`).Match(unit) {
		t.Errorf("the unit is not after nftables.service (%v):\n%s", err, unit)
	}
}

// TestPlatforms checks that the agent's pods have what each platform requires, and that no other pod has it.
func TestPlatforms(t *testing.T) {
	_, plain, foreign, quota := platform(t, "")
	pod := plain.Spec.Template.Spec
	if pod.SecurityContext.SELinuxOptions != nil || quota != nil || len(foreign) > 0 {
		t.Errorf("without a component there are SELinux options %v, a quota %v, of other kinds %v",
			pod.SecurityContext.SELinuxOptions, quota, foreign)
	}

	t.Run("GKE", func(t *testing.T) {
		objects, agent, _, quota := platform(t, "DEPLOY/features/gke")
		if quota == nil || quota.Namespace != agent.Namespace {
			t.Fatalf("the quota is %v", quota)
		}
		var classes []string
		for _, template := range templates(objects) {
			if class := template.Spec.PriorityClassName; class != "" {
				classes = append(classes, class)
			}
		}
		slices.Sort(classes)
		classes = slices.Compact(classes)
		scope := quota.Spec.ScopeSelector.MatchExpressions[0]
		if scope.ScopeName != corev1.ResourceQuotaScopePriorityClass ||
			!slices.Equal(scope.Values, classes) {
			t.Errorf("it is for %v; the pods have the priority classes %q", scope, classes)
		}
		if pods := quota.Spec.Hard.Pods(); pods.Value() < 15000 {
			t.Errorf("it admits %s pods", pods)
		}
	})
	t.Run("SELinux", func(t *testing.T) {
		_, agent, _, _ := platform(t, "DEPLOY/features/selinux, DEPLOY/features/userspace-wireguard")
		pod := agent.Spec.Template.Spec
		if o := pod.SecurityContext.SELinuxOptions; o == nil || o.Type != "spc_t" ||
			pod.SecurityContext.SeccompProfile == nil {
			t.Errorf("the pod's security context is %v", pod.SecurityContext)
		}
		for _, c := range pod.Containers {
			if c.SecurityContext.SELinuxOptions != nil || c.SecurityContext.Privileged != nil {
				t.Errorf("container %s has its own %v", c.Name, c.SecurityContext)
			}
		}
	})
	t.Run("OpenShift", func(t *testing.T) {
		_, agent, foreign, _ := platform(t, "DEPLOY/features/openshift, DEPLOY/features/userspace-wireguard")
		if len(foreign) != 1 || foreign[0].GetKind() != "SecurityContextConstraints" {
			t.Fatalf("there are %v", foreign)
		}
		scc, pod := foreign[0].Object, agent.Spec.Template.Spec
		is := func(field string) bool { v, _ := scc[field].(bool); return v }
		list := func(field string) (out []string) {
			for _, v := range scc[field].([]any) {
				out = append(out, v.(string))
			}
			return out
		}
		if is("allowHostNetwork") != pod.HostNetwork || is("allowHostPID") != pod.HostPID ||
			is("allowHostIPC") != pod.HostIPC ||
			is("allowPrivilegedContainer") || is("allowPrivilegeEscalation") {
			t.Errorf("the constraints are %v", scc)
		}
		context, _ := scc["seLinuxContext"].(map[string]any)
		options, _ := context["seLinuxOptions"].(map[string]any)
		if options["type"] != pod.SecurityContext.SELinuxOptions.Type ||
			options["level"] != pod.SecurityContext.SELinuxOptions.Level {
			t.Errorf("SELinux: allowed are %v, the pod has %v", options, pod.SecurityContext.SELinuxOptions)
		}
		var volumes []string
		for _, v := range pod.Volumes {
			for kind, is := range map[string]bool{"configMap": v.ConfigMap != nil, "emptyDir": v.EmptyDir != nil,
				"hostPath": v.HostPath != nil, "projected": v.Projected != nil} {
				if is {
					volumes = append(volumes, kind)
				}
			}
		}
		slices.Sort(volumes)
		if want := slices.Compact(volumes); !slices.Equal(want, list("volumes")) || len(volumes) != len(pod.Volumes) &&
			len(want) < 4 {
			t.Errorf("volumes %v; the pod has %v", list("volumes"), want)
		}
		for _, c := range pod.Containers {
			for _, added := range c.SecurityContext.Capabilities.Add {
				if !slices.Contains(list("allowedCapabilities"), string(added)) {
					t.Errorf("container %s adds %s", c.Name, added)
				}
			}
		}
	})
	t.Run("no /dev/net/tun but for the privileged", func(t *testing.T) {
		_, agent, _, _ := platform(t, "DEPLOY/features/userspace-wireguard-privileged")
		for _, c := range agent.Spec.Template.Spec.Containers {
			privileged := c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
			if privileged != (c.Name == "wireguard-go") || privileged && c.SecurityContext.AllowPrivilegeEscalation != nil {
				t.Errorf("container %s has %v", c.Name, c.SecurityContext)
			}
		}
	})
}

// testPlatforms checks that the apiserver accepts the agent's pods and the quota with each component. It does not serve
// OpenShift's types.
func testPlatforms(t *testing.T, s *server) {
	for _, components := range []string{"gke", "selinux", "userspace-wireguard-privileged", "network-policies",
		"selinux, DEPLOY/features/userspace-wireguard-privileged, DEPLOY/features/gke"} {
		t.Run(strings.ReplaceAll(components, "DEPLOY/features/", ""), func(t *testing.T) {
			dir := overlay(t, "resources: [DEPLOY/namespace, DEPLOY/agent]\ncomponents: [DEPLOY/features/"+components+"]\n")
			s.apply(t, dir)
			admitted(t, s, dir)
		})
	}
}

// testOpenShift: with the rights of the installation OpenShift's nonroot-v2 admits each pod that is not the agent's: of
// broker, exporter and cleanup, and of an exporter that reads another cluster, in any namespace.
func testOpenShift(t *testing.T, s *server) {
	kubetest.Temporary(t, s.client("").RbacV1().ClusterRoles(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "system:openshift:scc:nonroot-v2"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"security.openshift.io"}, Verbs: []string{"use"},
			Resources: []string{"securitycontextconstraints"}, ResourceNames: []string{"nonroot-v2"}}}})
	values := apply.Values{Cluster: "c1", Features: apply.AllFeatures, Components: []string{"openshift"}}
	foreign := apply.Foreign{Cluster: "c2", Reader: "c1", Features: apply.AllFeatures,
		Components: []string{"openshift/nonroot"}}
	for namespace, want := range map[string]string{foreign.Namespace(): "semaphore-exporter",
		"semaphore":  "semaphore-broker semaphore-cleanup semaphore-exporter",
		"federation": "semaphore-broker semaphore-cleanup semaphore-exporter"} {
		t.Run(namespace, func(t *testing.T) {
			values.Namespace = namespace
			installed := testkit.Value(apply.Build(values))(t)
			all := append(testkit.Value(apply.BuildCleanup(values))(t), installed...)
			if namespace == foreign.Namespace() {
				installed = testkit.Value(apply.BuildForeign(foreign))(t)
				all = installed
			}
			kubetest.Namespace(t, s.client(""), namespace)
			for _, o := range installed {
				if o.GetKind() == "RoleBinding" && o.GetName() == "semaphore-openshift" {
					binding := &rbacv1.RoleBinding{}
					must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, binding))
					kubetest.Temporary(t, s.client("").RbacV1().RoleBindings(namespace), binding)
				}
			}
			var accounts []string
			for _, o := range all {
				account, _, _ := unstructured.NestedString(o.Object, "spec", "template", "spec", "serviceAccountName")
				if account != "" && o.GetKind() != "DaemonSet" {
					accounts = append(accounts, account)
				}
			}
			slices.Sort(accounts)
			equal(t, "accounts", strings.Join(accounts, " "), want)
			for _, account := range accounts {
				eventually(t, account+" may use nonroot-v2", func() error {
					review, err := s.client("").AuthorizationV1().SubjectAccessReviews().Create(t.Context(),
						&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
							User: "system:serviceaccount:" + namespace + ":" + account,
							ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "use",
								Group: "security.openshift.io", Resource: "securitycontextconstraints", Name: "nonroot-v2"}}},
						metav1.CreateOptions{})
					if err == nil && !review.Status.Allowed {
						err = errors.New("refused")
					}
					return err
				})
			}
		})
	}
}

// TestCriticalPodsNeedAQuota: an apiserver that limits both critical priority classes, as GKE's, refuses the pods of
// every part, and admits them under the quota of the component gke. Kubernetes' own controller counts for the quota.
func TestCriticalPodsNeedAQuota(t *testing.T) {
	cfg := kubetest.StartAdmitting(t, `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ResourceQuota
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: ResourceQuotaConfiguration
      limitedResources:
        - resource: pods
          matchScopes:
            - {scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}
`)
	s := &server{admin: cfg, kubeconfig: kubetest.Kubeconfig(t, cfg), refused: &refusals{}}
	kubetest.StartControllers(t, cfg, "resourcequota-controller")
	const resources = "resources: [DEPLOY/namespace, DEPLOY/exporter, DEPLOY/broker, DEPLOY/agent]\n"
	without, with := overlay(t, resources), overlay(t, resources+"components: [DEPLOY/features/gke]\n")
	s.apply(t, without)
	refused := tried(t, s, without)
	for name, err := range refused {
		if err == nil || !strings.Contains(err.Error(), "insufficient quota to match these scopes") {
			t.Errorf("without the component, pod of %s: %v", name, err)
		}
	}
	if len(refused) != 3 {
		t.Errorf("pods of %d workloads; want exporter, broker and agent", len(refused))
	}
	s.apply(t, with)
	eventually(t, "with the component, all pods are admitted", func() error {
		return errors.Join(slices.Collect(maps.Values(tried(t, s, with)))...)
	})
}
