package e2e

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// TestTwoClusters runs all steps of the demo.
func TestTwoClusters(t *testing.T) {
	tier.OnlyAll(t, "TestFeatures has all steps but the killed broker (F01, F24)")
	if testing.Short() {
		t.Skip("-short: brings up two clusters")
	}
	testkit.NeedsRoot(t, "it makes network namespaces")
	// An interrupted test cleans up like a failed one.
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	t.Cleanup(stop)
	repo, err := filepath.Abs("../..")
	must(t, err)
	started := time.Now()
	tb, err := testbed.Up(ctx, testbed.Options{Progress: t.Output()})
	must(t, err)
	t.Cleanup(func() {
		if err := tb.Down(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("two clusters were up after %s", time.Since(started).Round(100*time.Millisecond))
	scenario, err := New(tb, repo, func(what string) { t.Log(what) })
	must(t, err)
	must(t, scenario.Prepare(ctx))
	t.Logf("semaphore and the workloads were ready after %s", time.Since(started).Round(100*time.Millisecond))
	steps := Steps()
	for i, step := range steps {
		if i == len(steps)-1 {
			look(ctx, t, scenario)
		}
		if !t.Run(step.Name, func(t *testing.T) {
			evidence, took, err := scenario.Run(ctx, step)
			must(t, err)
			t.Logf("%s (%s)", evidence, took.Round(100*time.Millisecond))
		}) {
			t.Log(scenario.Diagnose(context.WithoutCancel(ctx)))
			t.FailNow() // each step needs the ones before
		}
	}
}

// look logs the status that a user would check, and fails if the tools fail.
func look(ctx context.Context, t *testing.T, s *Scenario) {
	var status string
	if err := until(ctx, settle, func() (err error) { status, err = s.Status(ctx); return err }); err != nil {
		t.Error(err)
	}
	memory, err := s.Memory(ctx)
	if err != nil {
		t.Error(err)
	}
	t.Logf("\n%s\nresident memory\n%s", status, memory)
}
