package reconcile

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestOwnersHaveAnEnd: of owners that come and go, and whose keys are reconciled, nothing is kept.
func TestOwnersHaveAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := map[string]bool{}
		l := New("test", func(_ context.Context, key string) error {
			if !failed[key] {
				failed[key] = true
				return errors.New("once")
			}
			return nil
		}, Options{Workers: 1, Log: quiet}).By(ofCluster)
		l.workers = 1 // failed has no lock
		stop := testkit.Run(t, l.Run)
		for i := range 500 {
			l.Enqueue(fmt.Sprintf("c%d/echo", i))
		}
		time.Sleep(10 * time.Minute)
		for i := range 500 {
			l.Enqueue(fmt.Sprintf("c%d/echo", i))
		}
		time.Sleep(10 * time.Minute)
		l.mu.Lock()
		if n := len(l.owners); n > 0 {
			t.Errorf("of 500 owners %d are kept", n)
		}
		l.mu.Unlock()
		stop()
	})
}
