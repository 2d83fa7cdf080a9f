package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// needsBed skips the test if it cannot bring up clusters. Otherwise it returns a context that ends on an interrupt, so
// that an interrupted test cleans up like a failed one.
func needsBed(t testing.TB) context.Context {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: brings up two clusters")
	}
	testkit.NeedsRoot(t, "it makes network namespaces")
	// The clusters live as long as this context. The test's own context has ended by the time a cleanup collects
	// diagnostics.
	ctx, stop := signal.NotifyContext(context.WithoutCancel(t.Context()), os.Interrupt, syscall.SIGTERM)
	t.Cleanup(stop)
	return ctx
}

// connected returns clusters c1 and c2 with a node each and semaphore installed. change, which may be nil, runs before
// the installation.
func connected(ctx context.Context, t *testing.T, change func(*Installation)) *Scenario {
	t.Helper()
	s := clusters(ctx, t, testbed.Options{Clusters: []testbed.ClusterSpec{{Name: "c1", Nodes: 1}, {Name: "c2", Nodes: 1}}})
	if change != nil {
		change(s.in)
	}
	must(t, s.in.Install(ctx, s.progress))
	return s
}

// withoutStandbys installs one broker and one exporter in a cluster, where a test asks for no standby. In make test-all
// they are as shipped.
func (in *Installation) withoutStandbys() {
	if tier.All() {
		return
	}
	in.Patches = `  - target: {kind: Deployment, name: semaphore-(broker|exporter)}
    patch: |
      - {op: replace, path: /spec/replicas, value: 1}`
}

// clusters returns the clusters of the options, which include c1 and c2, without semaphore.
func clusters(ctx context.Context, t testing.TB, options testbed.Options) *Scenario {
	t.Helper()
	repo := testkit.Value(filepath.Abs("../.."))(t)
	options.Progress = t.Output()
	tb := testkit.Value(testbed.Up(ctx, options))(t)
	t.Cleanup(func() { testkit.NoError(t, tb.Down()) })
	s := testkit.Value(New(tb, repo, func(what string) { t.Log(what) }))(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Diagnose(context.WithoutCancel(ctx)))
		}
	})
	return s
}

// must ends the test on an error.
var must = testkit.Must

// ready waits for workloads in namespace shop: "deployment/echo", "statefulset/db", "pod/client".
func ready(ctx context.Context, t testing.TB, c *testbed.Cluster, workloads ...string) {
	t.Helper()
	for _, w := range workloads {
		args := []string{"-n", "shop", "rollout", "status", w, "--timeout=300s"}
		if filepath.Dir(w) == "pod" {
			args = []string{"-n", "shop", "wait", "--for=condition=Ready", w, "--timeout=300s"}
		}
		if _, err := c.Kubectl(ctx, nil, args...); err != nil {
			t.Fatal(errors.Join(err, fmt.Errorf("%s", c.Diagnose(ctx, "shop"))))
		}
	}
}
