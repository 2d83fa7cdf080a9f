package report

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestHostileText: what another cluster said becomes one bounded line of printable, valid text.
func TestHostileText(t *testing.T) {
	testkit.OneLine(t, maxEventNote, func(text string) string {
		e := NewEvents(nil, "mirrors", nil, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		e.Warn("", finding.Restored, text)
		next, _, ok := e.next()
		if !ok {
			t.Fatalf("%.40q: no Event waits", text)
		}
		return next.event.Note
	})
	testkit.OneLine(t, len("lost: ")+maxBecause, func(text string) string {
		return because("lost", &semaphorev1.LinkStatus{LastError: text})
	})
}
