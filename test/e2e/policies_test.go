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

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// expected lists who passes under each example of docs/policies.md: the pods of shop in c2, and front in c1.
var expected = map[string]struct{ passes, stopped []string }{
	"one-set":        {[]string{"web"}, []string{"admin", "stranger", "front"}},
	"whole-cluster":  {[]string{"web", "admin"}, []string{"stranger", "front"}},
	"own-and-remote": {[]string{"web", "front"}, []string{"admin", "stranger"}},
	"all-namespaces": {[]string{"web"}, []string{"admin", "stranger", "front"}},
	"but-one":        {[]string{"web", "stranger", "front"}, []string{"admin"}},
	"tenant":         {[]string{"web"}, []string{"admin", "stranger", "front"}},
}

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
	t.Run("transitions", func(t *testing.T) { b.transitions(ctx, t) })
}

// examples applies examples of docs/policies.md, which has those of expected and no others.
func (b *policyBed) examples(ctx context.Context, t *testing.T, names ...string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(b.repo, "docs", "policies.md"))
	must(t, err)
	manifests := map[string]string{}
	example := regexp.MustCompile("(?s)<!-- policy: ([a-z-]+) -->\n```yaml\n(.*?)```\n")
	for _, found := range example.FindAllStringSubmatch(string(page), -1) {
		if _, ok := expected[found[1]]; !ok {
			t.Errorf("nobody says who passes under example %q", found[1])
		}
		manifests[found[1]] = found[2]
	}
	if len(manifests) != len(expected) {
		t.Errorf("docs/policies.md has %d of %d examples", len(manifests), len(expected))
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			b.example(ctx, t, manifests[name], expected[name].passes, expected[name].stopped)
		})
	}
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
	must(t, s.c2.ApplyYAML(ctx, shopNamespace+workload("web", setLabel+": web")+"---\n"+workload("admin",
		setLabel+": admin")+"---\n"+workload("stranger", "app: stranger")+"---\n"+workload(marker, "app: marker")))
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
	all, err := pods(ctx, c, "shop", "")
	must(t, err)
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
	err := b.asks(ctx, name)
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
		if err := until(ctx, settle, func() error { return b.isStopped(ctx, name) }); err != nil {
			t.Error(err)
		}
	}
	for _, name := range passes {
		if err := until(ctx, settle, func() error { return b.asks(ctx, name) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range stopped {
		if err := b.isStopped(ctx, name); err != nil {
			t.Error(err)
		}
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
	sets, err := b.ctl(ctx, b.c1, "broker", "get", "sets", "-o", "json")
	must(t, err)
	from := "c2/shop/" + name
	if name == "stranger" { // it is in no set, so only its address identifies it
		from = b.pod(ctx, t, b.c2, name).Status.PodIP
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.repo, "bin", "semaphorectl"), "explain", "--sets", "-",
		"--kubeconfig", b.c1.Kubeconfig, "--from", from, "--to", "shop/db", "--port", "8080")
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(sets), &out, &out
	must(t, b.tb.Fabric().Do(cmd.Start))
	_ = cmd.Wait() // its exit code is the result
	code := cmd.ProcessState.ExitCode()
	if code != 0 && code != 2 {
		t.Fatalf("explain of %s: exit code %d\n%s", name, code, out.String())
	}
	return out.String(), code
}
