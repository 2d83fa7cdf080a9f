package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// ofCluster returns the owner of a key such as c2/7.
func ofCluster(key string) string {
	owner, _, _ := strings.Cut(key, "/")
	return owner
}

// TestOwnersTakeTurns: if thousands of keys of two owners wait, at most as many of each as there are workers precede a
// key of another owner.
func TestOwnersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 4
		var mu sync.Mutex
		var order []string
		l := New("test", func(_ context.Context, key string) error {
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			order = append(order, key)
			return nil
		}, Options{Workers: workers, Log: quiet}).By(ofCluster)
		stop := testkit.Run(t, l.Run)
		synctest.Wait()
		for i := range 5000 {
			l.Enqueue(fmt.Sprint("c2/", i))
			l.Enqueue(fmt.Sprint("c4/", i))
		}
		synctest.Wait()
		l.Enqueue("c3/0")
		time.Sleep(40 * time.Second)
		synctest.Wait()
		stop()
		if at := slices.Index(order, "c3/0"); at < 0 || at > 2*(workers+1) { // one more worker than an owner may use
			t.Errorf("%d others came before it", at)
		}
		if len(order) != 10_001 {
			t.Errorf("%d keys were reconciled", len(order))
		}
		// The keys of one owner come in order, except those that other workers overtake at the beginning and the end.
		last := -1
		for _, key := range order {
			var n int
			if _, err := fmt.Sscanf(key, "c2/%d", &n); err == nil {
				if n < last-2*workers {
					t.Fatalf("%d after %d", n, last)
				}
				last = max(last, n)
			}
		}
	})
}

// TestOwnersShareNoWorkers: keys of one owner that never end do not use all workers, and do not delay the key of
// another owner.
func TestOwnersShareNoWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		owners := map[string]string{}
		done := map[string]bool{}
		l := New("test", func(ctx context.Context, key string) error {
			mu.Lock()
			owner := owners[key]
			mu.Unlock()
			if owner == "c2" {
				<-ctx.Done()
			}
			mu.Lock()
			defer mu.Unlock()
			done[key] = true
			return nil
		}, Options{Workers: 4, Log: quiet}).By(func(key string) string {
			mu.Lock()
			defer mu.Unlock()
			return owners[key]
		})
		stop := testkit.Run(t, l.Run)
		defer stop()
		synctest.Wait() // keys that are queued before Run have no order
		enqueue := func(key, owner string) {
			mu.Lock()
			owners[key] = owner
			mu.Unlock()
			l.Enqueue(key)
		}
		for i := range 100 {
			enqueue(fmt.Sprint(i), "c2")
		}
		time.Sleep(time.Second)
		enqueue("mine", "c3")
		enqueue("99", "c3") // it waits behind those of c2
		time.Sleep(time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if !done["mine"] || !done["99"] {
			t.Error("what takes another owner's workers holds up the rest")
		}
	})
}

// TestOwnersShareNoRetries: however many keys of one owner fail, a key of another owner is retried as soon as if it
// were alone, and its failure is logged.
func TestOwnersShareNoRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var log bytes.Buffer
		tries := 0
		l := New("test", func(_ context.Context, key string) error {
			mu.Lock()
			defer mu.Unlock()
			if key == "c3/0" {
				if tries++; tries > 1 {
					return nil
				}
			}
			return errors.New("there is one already: " + key)
		}, Options{Workers: 4, Log: slog.New(slog.NewTextHandler(&log, nil))}).By(ofCluster)
		stop := testkit.Run(t, l.Run)
		for i := range 2000 {
			l.Enqueue(fmt.Sprint("c2/", i))
		}
		time.Sleep(10 * time.Millisecond)
		l.Enqueue("c3/0")
		time.Sleep(2 * minBackoff)
		synctest.Wait()
		if mu.Lock(); tries < 2 {
			t.Errorf("%d tries within %s", tries, 2*minBackoff)
		}
		mu.Unlock()
		stop()
		if !strings.Contains(log.String(), "c3/0") {
			t.Error("the failure is not logged")
		}
		if n := strings.Count(log.String(), "c2/"); n > 2*(logBurst+1) {
			t.Errorf("%d failures of c2 are logged", n)
		}
	})
}

// TestATurnOfEitherOwner: a key that another owner changes too, of which thousands of keys wait, keeps its turn.
func TestATurnOfEitherOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var order []string
		owner := "c3"
		l := New("test", func(_ context.Context, key string) error {
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			order = append(order, key)
			return nil
		}, Options{Workers: 1, Log: quiet}).By(func(key string) string {
			if key == "shared" {
				return owner
			}
			return "c2"
		})
		for i := range 1000 {
			l.Enqueue(fmt.Sprint(i))
		}
		l.Enqueue("shared")
		owner = "c2"
		l.Enqueue("shared")
		stop := testkit.Run(t, l.Run)
		time.Sleep(time.Minute)
		synctest.Wait()
		stop()
		if at := slices.Index(order, "shared"); at < 0 || at > 2 || len(order) != 1001 {
			t.Errorf("%d others came before it, and %d keys were reconciled", at, len(order))
		}
	})
}
