package exporter

import (
	"log/slog"
	"testing"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/exporter/publish"
	"github.com/kube-semaphore/semaphore/exporter/report"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/test/testkit/metricsdoc"
)

// TestMetricsAreDocumented checks that docs/metrics.md has every metric of the exporter with its labels and its help
// text.
func TestMetricsAreDocumented(t *testing.T) {
	table := &metricsdoc.Table{}
	if _, err := leader.New(leader.Options{Registry: table, Log: slog.Default()}); err != nil {
		t.Fatal(err)
	}
	publish.NewMetrics(table)
	report.NewFeedbackMetrics(table)
	report.NewConditionMetrics(table)
	if _, err := publish.NewWatcher(nil, nil, catalog.New(catalog.Rules{}), table, publish.WatcherOptions{}); err != nil {
		t.Fatal(err)
	}
	table.MustRegister(&exporter{}, debug.Findings(nil), identity.Expiry(nil, "c1"))
	table.Compare(t, "../docs/metrics.md", "semaphore-exporter")
}
