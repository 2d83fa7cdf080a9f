package explain

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestExplain explains a real apiserver's objects, with Calico's types.
func TestExplain(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworkpolicies", "networkpolicies", "globalnetworksets",
		"networksets")
	client := kubernetes.NewForConfigOrDie(cfg)
	kubetest.Create(t, client.CoreV1().ServiceAccounts("default"),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	kubetest.Create(t, client.CoreV1().Pods("default"), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Labels: map[string]string{"app": "db"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "db", Image: "db",
			Ports: []corev1.ContainerPort{{Name: "sql", ContainerPort: 5432}}}}},
	})
	apply := func(resource, manifest string) {
		t.Helper()
		var o unstructured.Unstructured
		must(t, yaml.Unmarshal([]byte(manifest), &o.Object))
		r := dynamic.NewForConfigOrDie(cfg).Resource(schema.GroupVersionResource{Group: "crd.projectcalico.org",
			Version: "v1", Resource: resource})
		kubetest.CreateObject(t, r.Namespace(o.GetNamespace()), &o)
	}
	apply("globalnetworksets", `
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkSet
metadata: {name: c2-shop-web, labels: {semaphore.uw.systems/name: web,
  semaphore.uw.systems/namespace: shop, semaphore.uw.systems/cluster: c2}}
spec: {nets: [10.2.0.5/32]}`)
	kubeconfig := kubetest.Kubeconfig(t, cfg)
	socket := ctltest.BrokerWith(t, func(req *semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
		if req.GetPod() == "gone" || req.GetAddress() == "10.9.9.9" {
			return nil, nil
		}
		return []*semaphorev1.PolicySet{ctltest.WebSet()}, nil
	})
	explain := func(what string, want int, from string, port ...string) string {
		t.Helper()
		out, code, err := ctltest.Run(t, append([]string{"explain", "--socket", socket, "--kubeconfig", kubeconfig,
			"--from", from, "--to", "default/db"}, port...)...)
		if code == 1 {
			t.Fatalf("%s: %v", what, err)
		}
		if code != want {
			t.Errorf("%s: exit code %d", what, code)
		}
		return out
	}
	says := func(out string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
	}
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

	out = explain("for a stranger", show.ExitWrong, "10.9.9.9", "--port", "5432")
	says(out, "no pod of a set has 10.9.9.9", "from 10.9.9.9: DENIED",
		"missing: 10.9.9.9 is in no network set of this cluster")
	out = explain("for a pod that nobody knows", show.ExitWrong, "c2/shop/gone", "--port", "5432")
	says(out, "c2 exports no such pod")
	out = explain("for a pod of an unknown cluster", show.ExitWrong, "c9/shop/gone", "--port", "5432")
	says(out, `the broker of c1 has no remote "c9"`)
	if _, code, err := ctltest.Run(t, "explain", "--socket", socket, "--kubeconfig", kubeconfig, "--from", "10.2.0.5",
		"--to", "default/nobody"); code != 1 || !strings.Contains(err.Error(), "default/nobody") {
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
