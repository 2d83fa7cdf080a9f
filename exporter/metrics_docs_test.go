package exporter

import (
	"log/slog"
	"testing"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/exporter/conditions"
	"github.com/kube-semaphore/semaphore/exporter/feedback"
	"github.com/kube-semaphore/semaphore/exporter/publish"
	"github.com/kube-semaphore/semaphore/exporter/watch"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/testkit/metricsdoc"
	"github.com/kube-semaphore/semaphore/internal/tracing"
)

// TestMetricsAreDocumented checks that docs/metrics.md has every metric of the exporter with its labels and its help
// text.
func TestMetricsAreDocumented(t *testing.T) {
	table := &metricsdoc.Table{}
	if _, err := leader.New(leader.Options{Registry: table, Log: slog.Default()}); err != nil {
		t.Fatal(err)
	}
	publish.NewMetrics(table)
	tracing.NewMetrics(table)
	feedback.NewMetrics(table)
	conditions.NewMetrics(table)
	if _, err := watch.New(nil, nil, catalog.New(catalog.Rules{}), table); err != nil {
		t.Fatal(err)
	}
	table.MustRegister(&exporter{}, debug.Findings(nil))
	table.Compare(t, "../docs/metrics.md", "semaphore-exporter")
}
