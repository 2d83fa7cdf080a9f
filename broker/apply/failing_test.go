package apply

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
)

// asked is an error that counts how often somebody asks what it means.
type asked struct{ times *atomic.Int32 }

func (asked) Error() string { return "no" }

func (a asked) As(any) bool {
	a.times.Add(1)
	return false
}

// TestHeartbeatsShareWhatFails: however many heartbeats arrive in a second, all failures are looked at once, and a
// second later the answer is a new one.
func TestHeartbeatsShareWhatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const services, heartbeats = 20, 100
		var times atomic.Int32
		var mends atomic.Bool
		o := &Objects[*corev1.Service]{loop: reconcile.New("service", func(context.Context, string) error {
			if mends.Load() {
				return nil
			}
			return asked{&times}
		}, reconcile.Options{Log: slog.New(slog.DiscardHandler), Metrics: reconcile.NewMetrics("test",
			prometheus.NewRegistry())})}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = o.loop.Run(ctx) }()
		for i := range services {
			o.loop.Enqueue(fmt.Sprint("s", i))
		}
		synctest.Wait()
		o.Failing()
		once := times.Swap(0)
		time.Sleep(failingFor)
		for range heartbeats {
			if n := len(o.Failing()); n != services {
				t.Fatalf("%d fail, want %d", n, services)
			}
			time.Sleep(failingFor / (2 * heartbeats))
		}
		if n := times.Load(); once == 0 || n != once {
			t.Errorf("%d heartbeats asked about failures %d times, one asks %d times", heartbeats, n, once)
		}
		mends.Store(true)
		time.Sleep(time.Minute)
		if n := len(o.Failing()); n != 0 {
			t.Errorf("%d fail a minute after all were written", n)
		}
	})
}
