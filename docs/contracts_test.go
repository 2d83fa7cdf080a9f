package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestReadersVersions: contracts.md names the versions of the readers whose code tests run, and kube-proxy is that of
// the testbed's nodes.
func TestReadersVersions(t *testing.T) {
	version := func(file, module string) string {
		t.Helper()
		data := testkit.Value(os.ReadFile("../tools/" + file + "/go.mod"))(t)
		m := regexp.MustCompile(`(?m)^\t` + regexp.QuoteMeta(module) + ` v(\S+)`).FindStringSubmatch(string(data))
		if m == nil {
			t.Fatalf("tools/%s does not require %s", file, module)
		}
		return m[1]
	}
	page := testkit.Value(os.ReadFile("contracts.md"))(t)
	text := strings.ReplaceAll(string(page), "\n", " ")
	engine := version("readers", "github.com/argoproj/argo-cd/gitops-engine")
	for _, want := range []string{
		"kube-proxy " + version("readers", "k8s.io/kubernetes") + " with IPVS",
		"Kubernetes " + version("components", "k8s.io/kubernetes"),
		"Traefik " + version("readers", "github.com/traefik/traefik/v3") + "'s providers",
		"Envoy Gateway " + version("envoygateway", "github.com/envoyproxy/gateway") + "'s translator",
		"Karpenter, which simulates without `startupTaints` until the node is initialized (" +
			version("readers", "sigs.k8s.io/karpenter"),
		"engine of Argo CD (commit " + engine[strings.LastIndex(engine, "-")+1:] + ")",
		"kstatus " + version("readers", "sigs.k8s.io/cli-utils"),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("contracts.md does not say %q", want)
		}
	}
	if of, nodes := version("readers", "k8s.io/kubernetes"), version("components", "k8s.io/kubernetes"); of != nodes {
		t.Errorf("kube-proxy %s is tested, and %s runs on nodes", of, nodes)
	}
}
