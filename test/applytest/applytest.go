// Package applytest has the helpers that tests of the broker's loops outside of package apply share.
package applytest

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// Options returns the options of a loop, and the registry of its metrics.
func Options() (apply.Options, *prometheus.Registry) {
	registry := prometheus.NewRegistry()
	return apply.Options{
		Metrics: apply.NewMetrics(registry), Recorder: debug.NewRecorder("broker", "c1", ""),
		Log: slog.New(slog.DiscardHandler), Workers: 4,
	}, registry
}

// Eventually waits up to a minute for a condition. The condition returns what it saw last.
func Eventually(t *testing.T, what string, f func() (bool, string)) {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, what, testkit.State(f))
}
