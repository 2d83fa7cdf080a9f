package explain

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// explainBed is a real apiserver with Calico's types, a pod default/db, and a broker that knows the set of c2/shop/web.
type explainBed struct {
	t                  *testing.T
	cfg                *rest.Config
	client             kubernetes.Interface
	socket, kubeconfig string
}

func newExplainBed(t *testing.T) *explainBed {
	t.Helper()
	cfg := kubetest.Start(t)
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworkpolicies", "networkpolicies", "globalnetworksets",
		"networksets")
	b := &explainBed{t: t, cfg: cfg, client: kubernetes.NewForConfigOrDie(cfg), kubeconfig: kubetest.Kubeconfig(t, cfg)}
	kubetest.Create(t, b.client.CoreV1().ServiceAccounts("default"),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	kubetest.Create(t, b.client.CoreV1().Pods("default"), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Labels: map[string]string{"app": "db"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "db", Image: "db",
			Ports: []corev1.ContainerPort{{Name: "sql", ContainerPort: 5432}}}}},
	})
	b.apply("globalnetworksets", `
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkSet
metadata: {name: c2-shop-web, labels: {semaphore.uw.systems/name: web,
  semaphore.uw.systems/namespace: shop, semaphore.uw.systems/cluster: c2}}
spec: {nets: [10.2.0.5/32]}`)
	b.socket = ctltest.BrokerWith(t, func(req *semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
		if req.GetPod() == "gone" || req.GetAddress() == "10.9.9.9" {
			return nil, nil
		}
		return []*semaphorev1.PolicySet{ctltest.WebSet()}, nil
	})
	return b
}

func (b *explainBed) resource(gv schema.GroupVersion, resource string) dynamic.NamespaceableResourceInterface {
	return dynamic.NewForConfigOrDie(b.cfg).Resource(gv.WithResource(resource))
}

func (b *explainBed) apply(resource, manifest string) {
	b.t.Helper()
	var o unstructured.Unstructured
	must(b.t, yaml.Unmarshal([]byte(manifest), &o.Object))
	kubetest.CreateObject(b.t, b.resource(o.GroupVersionKind().GroupVersion(), resource).Namespace(o.GetNamespace()), &o)
}

func (b *explainBed) explain(what string, want int, from string, port ...string) string {
	b.t.Helper()
	out, code, err := ctltest.Run(b.t, append([]string{"explain", "--socket", b.socket, "--kubeconfig", b.kubeconfig,
		"--from", from, "--to", "default/db"}, port...)...)
	if code == 1 {
		b.t.Fatalf("%s: %v", what, err)
	}
	if code != want {
		b.t.Errorf("%s: exit code %d", what, code)
	}
	return out
}

func (b *explainBed) says(out string, wants ...string) {
	b.t.Helper()
	for _, want := range wants {
		if !strings.Contains(out, want) {
			b.t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestExplain explains a real apiserver's objects, with Calico's types.
func TestExplain(t *testing.T) {
	b := newExplainBed(t)
	apply, explain, says, socket, kubeconfig := b.apply, b.explain, b.says, b.socket, b.kubeconfig
	out := explain("without a policy", 0, "c2/shop/web-1", "--port", "5432")
	says(out, "c2/shop/web-1 → default/db of c1, TCP port 5432", "c2/shop/web-1 is in set c2/shop/web, last update ",
		"from 10.2.0.5: ALLOWED. No policy selects the pod", "in GlobalNetworkSet c2-shop-web")

	apply("networkpolicies", `
apiVersion: crd.projectcalico.org/v1
kind: NetworkPolicy
metadata: {name: default.db, namespace: default}
spec:
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, source: {selector: "semaphore.uw.systems/name == 'web'"},
    destination: {ports: [sql, "6000:6010"]}}`)
	out = explain("with a policy that forgets global()", show.ExitWrong, "c2/shop/web-1", "--port", "5432")
	says(out, "from 10.2.0.5: DENIED", "policies that select default/db",
		"NetworkPolicy default/default.db of Calico says nothing: rule 1: it selects",
		"missing: NetworkPolicy default/default.db of Calico, ingress rule 1: add `namespaceSelector: global()`")

	apply("globalnetworkpolicies", `
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkPolicy
metadata: {name: default.open}
spec:
  order: 1
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, source: {selector: "semaphore.uw.systems/name == 'web'"},
    destination: {ports: [sql, "6000:6010"]}}`)
	out = explain("with a policy that allows", 0, "c2/shop/web-1", "--port", "6003")
	says(out, "from 10.2.0.5: ALLOWED. GlobalNetworkPolicy default.open allows it: ingress rule 1, by GlobalNetworkSet "+
		"c2-shop-web")
	out = explain("for any port", show.ExitWrong, "c2/shop/web-1")
	says(out, "from 10.2.0.5: DEPENDS", "the port: sql, 6000:6010")

	apply("globalnetworksets", `
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkSet
metadata: {name: partners, annotations: {projectcalico.org/metadata: '{"labels":{"role":"partner"}}'}}
spec: {nets: [10.2.0.0/16]}`)
	apply("globalnetworkpolicies", `
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkPolicy
metadata: {name: default.partners}
spec:
  order: 0
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: TCP, source: {selector: "role == 'partner'"}, destination: {ports: [6004]}}`)
	out = explain("with a set as calicoctl writes it", show.ExitWrong, "c2/shop/web-1", "--port", "6004")
	says(out, "from 10.2.0.5: DENIED. GlobalNetworkPolicy default.partners denies it: ingress rule 1, by "+
		"GlobalNetworkSet partners")

	out = explain("for a stranger", show.ExitWrong, "10.9.9.9", "--port", "5432")
	says(out, "no pod of a set has 10.9.9.9", "from 10.9.9.9: DENIED",
		"missing: 10.9.9.9 is in no network set of this cluster")
	out = explain("for a pod that nobody knows", show.ExitWrong, "c2/shop/gone", "--port", "5432")
	says(out, "c2 exports no such pod")
	out = explain("for a pod of an unknown cluster", show.ExitWrong, "c9/shop/gone", "--port", "5432")
	says(out, `the broker of c1 has no remote "c9"`)
	if _, code, err := ctltest.Run(t, "explain", "--socket", socket, "--kubeconfig", kubeconfig, "--from", "10.2.0.5",
		"--to", "default/nobody"); code != 1 || !strings.HasPrefix(err.Error(), "pod default/nobody: ") {
		t.Errorf("to a pod that is not there: %d, %v", code, err)
	}

	// On an operator's own machine, the output of the broker's pod comes from a file.
	doc, code, err := ctltest.Run(t, "get", "sets", "--socket", socket, "-o", "json")
	if code != 0 || err != nil {
		t.Fatal(code, err)
	}
	file := filepath.Join(t.TempDir(), "sets.json")
	must(t, os.WriteFile(file, []byte(doc), 0o600))
	out, code, err = ctltest.Run(t, "explain", "--sets", file, "--kubeconfig", kubeconfig, "--from", "c2/shop/web-1",
		"--to", "default/db", "--port", "5432")
	if code != 0 || err != nil {
		t.Errorf("with a file: %d, %v", code, err)
	}
	says(out, "c2/shop/web-1 is in set c2/shop/web", "ALLOWED")
	must(t, os.WriteFile(file, []byte("{}"), 0o600))
	if _, code, err := ctltest.Run(t, "explain", "--sets", file, "--kubeconfig", kubeconfig, "--from", "c2/shop/web-1",
		"--to", "default/db"); code != 1 || !strings.Contains(err.Error(), "no cluster in it") {
		t.Errorf("with a file of something else: %d, %v", code, err)
	}
}

// TestExplainNotRead: policies that the caller may not read, or that explain does not evaluate, could decide otherwise.
// A type without objects could not.
func TestExplainNotRead(t *testing.T) {
	b := newExplainBed(t)
	admin, gv := b.kubeconfig, schema.GroupVersion{Group: "policy.networking.k8s.io", Version: "v1alpha1"}
	tenant := rest.CopyConfig(b.cfg)
	tenant.Impersonate.UserName = "tenant"
	kubetest.AllowReading(t, b.client, "tenant", "", "namespaces", "pods", "serviceaccounts")
	kubetest.AllowReading(t, b.client, "tenant", "networking.k8s.io", "networkpolicies")
	kubetest.AllowReading(t, b.client, "tenant", kubetest.CalicoCRD.Group, "globalnetworksets", "networkpolicies",
		"networksets", "tiers")
	b.kubeconfig = kubetest.Kubeconfig(t, tenant)
	out := b.explain("without the right to read global policies", show.ExitWrong, "c2/shop/web-1", "--port", "5432")
	b.says(out, "from 10.2.0.5: DEPENDS. No policy selects the pod for ingress, as far as is known; not evaluated: "+
		"test: globalnetworkpolicies: ")

	b.kubeconfig = admin
	b.apply("customresourcedefinitions", `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: adminnetworkpolicies.policy.networking.k8s.io,
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/network-policy-api/pull/30"}}
spec:
  group: policy.networking.k8s.io
  scope: Cluster
  names: {kind: AdminNetworkPolicy, plural: adminnetworkpolicies, singular: adminnetworkpolicy}
  versions: [{name: v1alpha1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {
    type: object, properties: {spec: {type: object}}}}}]`)
	testkit.Eventually(t, 10*time.Second, "AdminNetworkPolicies are served", func() error {
		_, all, err := b.client.Discovery().ServerGroupsAndResources()
		if !slices.ContainsFunc(all, func(l *metav1.APIResourceList) bool { return l.GroupVersion == gv.String() }) {
			err = errors.Join(err, errors.New("no such type"))
		}
		return err
	})
	out = b.explain("with the type of AdminNetworkPolicies", 0, "c2/shop/web-1", "--port", "5432")
	if !strings.Contains(out, "ALLOWED") || strings.Contains(out, "not evaluated") {
		t.Error(out)
	}
	b.apply("adminnetworkpolicies", "apiVersion: "+gv.String()+"\nkind: AdminNetworkPolicy\nmetadata: {name: closed}")
	out = b.explain("with an AdminNetworkPolicy", show.ExitWrong, "c2/shop/web-1", "--port", "5432")
	b.says(out, "from 10.2.0.5: DEPENDS. No policy selects the pod for ingress, as far as is known; not evaluated: 1 "+
		"adminnetworkpolicies of policy.networking.k8s.io/v1alpha1, which may come before and after those of namespaces")
}

// TestLabelsThatNobodyAsksFor: without Calico no policy asks for labels of namespaces and ServiceAccounts, so that a
// tenant who may not list them has a verdict.
func TestLabelsThatNobodyAsksFor(t *testing.T) {
	cfg := kubetest.Start(t)
	client := kubernetes.NewForConfigOrDie(cfg)
	kubetest.Create(t, client.CoreV1().ServiceAccounts("default"),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	kubetest.Create(t, client.CoreV1().Pods("default"), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "db", Image: "db"}}}})
	kubetest.AllowReading(t, client, "tenant", "", "pods")
	kubetest.AllowReading(t, client, "tenant", "networking.k8s.io", "networkpolicies")
	tenant := rest.CopyConfig(cfg)
	tenant.Impersonate.UserName = "tenant"
	got, _, err := readFor(t.Context(), testkit.Value(fleet.New("c1", tenant))(t), "default", "db")
	must(t, err)
	if len(got.Unread) > 0 || len(got.Aside) != 3 || !strings.HasPrefix(got.Aside[0], "labels of ServiceAccounts: ") {
		t.Errorf("not read: %q, aside: %q", got.Unread, got.Aside)
	}
}
