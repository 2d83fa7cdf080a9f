package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// expected lists who passes under each example of docs/policies.md: the pods of shop in c2, and front in c1, as clients
// of the database.
var expected = map[string]outcome{
	"one-set":        {[]string{"web"}, []string{"admin", "stranger", "front"}},
	"whole-cluster":  {[]string{"web", "admin"}, []string{"stranger", "front"}},
	"own-and-remote": {[]string{"web", "front"}, []string{"admin", "stranger"}},
	"all-namespaces": {[]string{"web"}, []string{"admin", "stranger", "front"}},
	"but-one":        {[]string{"web", "stranger", "front"}, []string{"admin"}},
	"tenant":         {[]string{"web"}, []string{"admin", "stranger", "front"}},
	"kubernetes":     {[]string{"web", "admin", "stranger"}, []string{"front"}},
}

// expectedEgress lists whom front reaches under each example for egress: pods of c2 by IP, the database by IP, and the
// mirrors of the Services web and orders by their names. The pod of orders is stranger, which is in no set.
var expectedEgress = map[string]outcome{
	"egress-set":     {[]string{"web", mirrorOf("web")}, []string{"admin", "stranger", "db", mirrorOf("orders")}},
	"egress-service": {[]string{"stranger", mirrorClusterIP}, []string{"web", "admin", "db"}},
	"egress-only":    {[]string{"web", "db", mirrorOf("web")}, []string{"admin", "stranger", mirrorOf("orders")}},
}

type outcome struct{ passes, stopped []string }

// mirrorOf is the name of the mirror in c1 of a Service of shop in c2.
func mirrorOf(name string) string { return "c2-shop-73736d-" + name + ".semaphore.svc.cluster.local" }

// mirrorClusterIP is the mirror of orders by its ClusterIP, for a policy that does not let questions to the DNS out.
const mirrorClusterIP = "ClusterIP of orders"

// policyBed is c1 with a database, and c2 with client pods.
type policyBed struct {
	*Scenario
	repo string
	db   *corev1.Pod
}

// TestPolicies applies the examples of docs/policies.md as printed through the Calico API server, and changes pods in
// every way that changes a set. Each time it checks packets through a real Felix.
func TestPolicies(t *testing.T) {
	tier.OnlyAll(t, "TestFeatures has two examples and all transitions")
	ctx := needsBed(t)
	b := newPolicyBed(ctx, t)
	b.examples(ctx, t, slices.Sorted(maps.Keys(expected))...)
	t.Run("egress", func(t *testing.T) { b.egress(ctx, t) })
	t.Run("transitions", func(t *testing.T) { b.transitions(ctx, t) })
}

// examples applies examples of docs/policies.md, which has those of expected and no others.
func (b *policyBed) examples(ctx context.Context, t *testing.T, names ...string) {
	t.Helper()
	manifests := b.manifests(t)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			b.example(ctx, t, manifests[name], expected[name].passes, expected[name].stopped)
		})
	}
}

// manifests are the examples of docs/policies.md by their names, all of which are expected to have an effect.
func (b *policyBed) manifests(t *testing.T) map[string]string {
	t.Helper()
	page := testkit.Value(os.ReadFile(filepath.Join(b.repo, "docs", "policies.md")))(t)
	manifests := map[string]string{}
	example := regexp.MustCompile("(?s)<!-- policy: ([a-z-]+) -->\n```yaml\n(.*?)```\n")
	for _, found := range example.FindAllStringSubmatch(string(page), -1) {
		_, in := expected[found[1]]
		if _, out := expectedEgress[found[1]]; !in && !out {
			t.Errorf("nobody says who passes under example %q", found[1])
		}
		manifests[found[1]] = found[2]
	}
	if all := len(expected) + len(expectedEgress); len(manifests) != all {
		t.Errorf("docs/policies.md has %d of %d examples", len(manifests), all)
	}
	return manifests
}

// egress applies the examples for egress, each alone, and has front ask everybody.
func (b *policyBed) egress(ctx context.Context, t *testing.T) {
	for _, s := range []struct{ name, selector string }{{"web", setLabel + ": web"}, {"orders", "app: stranger"}} {
		must(t, b.c2.ApplyYAML(ctx, fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop, labels: {mirror.semaphore.uw.io/mirror-service: "true"}}
spec: {selector: {%s}, ports: [{port: 8080}]}
`, s.name, s.selector)))
	}
	all := []string{"web", "admin", "stranger", "db", mirrorOf("web"), mirrorOf("orders"), mirrorClusterIP}
	for _, to := range all {
		must(t, until(ctx, settle, func() error { return b.reaches(ctx, to) }))
	}
	manifests := b.manifests(t)
	for _, name := range slices.Sorted(maps.Keys(expectedEgress)) {
		t.Run(name, func(t *testing.T) {
			must(t, b.c1.ApplyYAML(ctx, manifests[name]))
			defer func() {
				_, err := b.c1.Kubectl(context.WithoutCancel(ctx), strings.NewReader(manifests[name]), "delete", "-f", "-")
				testkit.NoError(t, err)
			}()
			b.isOnlyReached(ctx, t, name)
		})
		// The policy is gone from the kernel before the next one is examined.
		for _, to := range all {
			must(t, until(ctx, settle, func() error { return b.reaches(ctx, to) }))
		}
	}
}

// isOnlyReached checks whom front reaches, and that explain says the same of pods of c2, or that it does not know the
// endpoints of a Service.
func (b *policyBed) isOnlyReached(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	want := expectedEgress[name]
	for _, to := range want.stopped {
		testkit.NoError(t, until(ctx, settle, func() error { return isTimeout(to, b.reaches(ctx, to)) }))
	}
	for _, to := range want.passes {
		if err := until(ctx, settle, func() error { return b.reaches(ctx, to) }); err != nil {
			t.Errorf("%s: %v", to, err)
		}
	}
	for _, to := range []string{"web", "admin"} {
		out, code := b.run(ctx, t, "", "--kubeconfig", b.tb.Kubeconfig(), "--context", "c1,c2", "c1/shop/front",
			"c2/shop/"+to+":8080")
		open := strings.Contains(out, "depending on the endpoints of Service semaphore/c2-shop-73736d-orders")
		if passes := slices.Contains(want.passes, to); open != (name == "egress-service") ||
			!open && (code == 0) != passes {
			t.Errorf("explain says of %s, which is reached=%t, with exit code %d:\n%s", to, passes, code, out)
		}
	}
}

// reaches returns nil if front gets an answer: from a pod of shop by its IP, or by a name.
func (b *policyBed) reaches(ctx context.Context, to string) error {
	host := to
	switch {
	case to == mirrorClusterIP:
		ip, err := b.c1.Kubectl(ctx, nil, "-n", "semaphore", "get", "service", "c2-shop-73736d-orders", "-o",
			"jsonpath={.spec.clusterIP}")
		if err != nil {
			return err
		}
		host = ip
	case to == "db":
		host = b.db.Status.PodIP
	case !strings.Contains(to, "."):
		pod, err := b.c2.Client.CoreV1().Pods("shop").Get(ctx, to, metav1.GetOptions{})
		if err != nil {
			return err
		}
		host = pod.Status.PodIP
	}
	_, err := b.c1.ExecPod(ctx, "shop", "front", "curl", "-sS", "--max-time", "2", "http://"+host+":8080/")
	return err
}

func newPolicyBed(ctx context.Context, t *testing.T) *policyBed {
	s := clusters(ctx, t, testbed.Options{Clusters: []testbed.ClusterSpec{{Name: "c1", Nodes: 1}, {Name: "c2", Nodes: 1}}})
	must(t, s.c1.StartCalicoAPIServer(ctx))
	// With tunnel addresses, host network pods reach the other cluster unless a policy blocks them.
	s.in.Broker, s.in.Components = "reserveTunnelAddresses: true", []string{"tunnel-addresses"}
	must(t, s.in.Install(ctx, s.progress))
	return startPolicyBed(ctx, t, s)
}

// startPolicyBed starts the database in c1 and the pods that ask it.
func startPolicyBed(ctx context.Context, t *testing.T, s *Scenario) *policyBed {
	t.Helper()
	b := &policyBed{Scenario: s, repo: s.in.repo}
	must(t, s.c1.ApplyYAML(ctx, shopNamespace+strings.Replace(workload("db", "app: db"), "sleep", "echo",
		1)+"---\n"+workload("front", "app: front")))
	must(t, s.c2.ApplyYAML(ctx, shopNamespace+strings.ReplaceAll(workload("web", setLabel+": web")+"---\n"+
		workload("admin", setLabel+": admin")+"---\n"+workload("stranger", "app: stranger"), "sleep", "echo")+"---\n"+
		workload(marker, "app: marker")))
	ready(ctx, t, s.c1, "pod/db", "pod/front")
	ready(ctx, t, s.c2, "pod/web", "pod/admin", "pod/stranger", "pod/"+marker)
	b.db = b.pod(ctx, t, s.c1, "db")
	for _, name := range []string{"web", "admin", "stranger", "front"} {
		must(t, until(ctx, settle, func() error { return b.asks(ctx, name) }))
	}
	return b
}

const setLabel = "semaphore.uw.systems/name"

// marker is a pod of c2 that joins a set after another change of it.
const marker = "marker"

// workload returns a pod of shop that sleeps, with one label.
func workload(name, label string, annotations ...string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: shop
  labels: {%s}
  annotations: {%s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: testbed.local/testbed:1
      command: [testbed, sleep]
`, name, label, strings.Join(annotations, ", "))
}

func (b *policyBed) pod(ctx context.Context, t *testing.T, c *testbed.Cluster, name string) *corev1.Pod {
	t.Helper()
	all := testkit.Value(pods(ctx, c, "shop", ""))(t)
	i := slices.IndexFunc(all, func(p corev1.Pod) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("%s has no pod shop/%s with an address", c.Name, name)
	}
	return &all[i]
}

func (b *policyBed) clusterOf(name string) *testbed.Cluster {
	if name == "front" {
		return b.c1
	}
	return b.c2
}

// asks returns nil if a pod gets an answer from the database.
func (b *policyBed) asks(ctx context.Context, name string) error {
	_, err := b.clusterOf(name).ExecPod(ctx, "shop", name, "curl", "-sS", "--max-time", "2",
		"http://"+b.db.Status.PodIP+":8080/")
	return err
}

// isStopped returns nil if a pod gets no answer within curl's timeout.
func (b *policyBed) isStopped(ctx context.Context, name string) error {
	return isTimeout(name, b.asks(ctx, name))
}

func isTimeout(name string, err error) error {
	switch {
	case err == nil:
		return fmt.Errorf("%s got an answer", name)
	case strings.Contains(err.Error(), "timed out"):
		return nil
	}
	return fmt.Errorf("%s was stopped for another reason than policy: %w", name, err)
}

func (b *policyBed) example(ctx context.Context, t *testing.T, manifest string, passes, stopped []string) {
	must(t, b.c1.ApplyYAML(ctx, manifest))
	defer func() {
		if _, err := b.c1.Kubectl(context.WithoutCancel(ctx), strings.NewReader(manifest), "delete", "-f", "-"); err != nil {
			t.Error(err)
		}
	}()
	for _, name := range stopped {
		testkit.NoError(t, until(ctx, settle, func() error { return b.isStopped(ctx, name) }))
	}
	for _, name := range passes {
		if err := until(ctx, settle, func() error { return b.asks(ctx, name) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range stopped {
		testkit.NoError(t, b.isStopped(ctx, name))
	}
	for _, name := range slices.Concat(passes, stopped) {
		if name == "front" {
			continue // explain covers only remote pods
		}
		out, code := b.explain(ctx, t, name)
		if want := slices.Contains(passes, name); (code == 0) != want {
			t.Errorf("explain says of %s, which passes=%t, with exit code %d:\n%s", name, want, code, out)
		}
	}
}

// explain runs semaphorectl on the administrator's machine, with the sets that the broker's pod prints.
func (b *policyBed) explain(ctx context.Context, t *testing.T, name string) (string, int) {
	t.Helper()
	sets := testkit.Value(b.ctl(ctx, b.c1, "broker", "get", "sets", "-o", "json"))(t)
	from := "c2/shop/" + name
	if name == "stranger" { // it is in no set, so only its address identifies it
		from = b.pod(ctx, t, b.c2, name).Status.PodIP
	}
	return b.run(ctx, t, sets, "--sets", "-", "--kubeconfig", b.c1.Kubeconfig, "--from", from, "--to", "shop/db",
		"--port", "8080")
}

// run runs semaphorectl explain and returns its output and exit code.
func (b *policyBed) run(ctx context.Context, t *testing.T, input string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(b.repo, "bin", "semaphorectl"), append([]string{"explain"}, args...)...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &out
	must(t, b.tb.Fabric().Do(cmd.Start))
	_ = cmd.Wait() // its exit code is the result
	code := cmd.ProcessState.ExitCode()
	if code != 0 && code != 2 {
		t.Fatalf("explain %s: exit code %d\n%s", strings.Join(args, " "), code, out.String())
	}
	return out.String(), code
}
