package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// TestTwoClusters runs all steps of the demo.
func TestTwoClusters(t *testing.T) {
	tier.OnlyAll(t, "TestFeatures has all steps but the killed broker (F01, F24)")
	ctx := needsBed(t)
	started := time.Now()
	s := clusters(ctx, t, testbed.Options{})
	must(t, s.Prepare(ctx))
	t.Logf("semaphore and the workloads were ready after %s", time.Since(started).Round(100*time.Millisecond))
	steps := Steps()
	for i, step := range steps {
		if i == len(steps)-1 {
			look(ctx, t, s)
		}
		if !t.Run(step.Name, func(t *testing.T) {
			evidence, took, err := s.Run(ctx, step)
			must(t, err)
			t.Logf("%s (%s)", evidence, took.Round(100*time.Millisecond))
		}) {
			t.FailNow() // each step needs the ones before
		}
	}
}

// look logs the status that a user would check, and fails if the tools fail.
func look(ctx context.Context, t *testing.T, s *Scenario) {
	var status string
	testkit.NoError(t, until(ctx, settle, func() (err error) { status, err = s.Status(ctx); return err }))
	memory, err := s.Memory(ctx)
	testkit.NoError(t, err)
	t.Logf("\n%s\nresident memory\n%s", status, memory)
}
