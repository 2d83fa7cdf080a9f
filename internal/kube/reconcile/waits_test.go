package reconcile

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestWaits: a key that is delayed has one reason, since when and until when, and the histogram has how long it waited
// for each.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		begin, tries := time.Now(), 0
		var l *Loop[string]
		l = New("test", func(context.Context, string) error {
			switch tries++; tries {
			case 1:
				l.Delay("a", time.Second, "contested")
				return ErrIdle
			case 2:
				l.Delay("a", 2*time.Second, "contested")
				return ErrIdle
			case 3:
				return errors.New("refused")
			}
			return nil
		}, Options{Log: quiet, Metrics: NewMetrics("test", reg)})
		stop := testkit.Run(t, l.Run)
		l.Enqueue("a")
		is := func(at time.Duration, want Wait) {
			t.Helper()
			time.Sleep(time.Until(begin.Add(at)))
			synctest.Wait()
			if w := l.Wait("a"); w != want {
				t.Errorf("after %s it waits %+v, want %+v", at, w, want)
			}
		}
		is(time.Second/2, Wait{"contested", begin, begin.Add(time.Second), nil})
		is(2*time.Second, Wait{"contested", begin, begin.Add(3 * time.Second), nil})
		time.Sleep(time.Second)
		synctest.Wait()
		failed := l.Wait("a")
		if failed.Reason != Failed || failed.Err == nil || !failed.Since.Equal(begin.Add(3*time.Second)) ||
			!failed.Until.After(failed.Since) {
			t.Errorf("it waits %+v", failed)
		}
		is(4*time.Second, Wait{})
		stop()
		for _, f := range testkit.Value(reg.Gather())(t) {
			if f.GetName() == "test_queue_delay_seconds" {
				for _, m := range f.GetMetric() {
					h := m.GetHistogram()
					reason := m.GetLabel()[0].GetValue()
					if h.GetSampleCount() != 1 || reason == "contested" && h.GetSampleSum() != 3 {
						t.Errorf("%s: %d waits, of %v s", reason, h.GetSampleCount(), h.GetSampleSum())
					}
				}
				if len(f.GetMetric()) != 2 {
					t.Errorf("%d reasons", len(f.GetMetric()))
				}
				return
			}
		}
		t.Error("no histogram")
	})
}
