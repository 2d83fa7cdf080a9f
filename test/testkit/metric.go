package testkit

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric returns the sum of all samples of a metric that have all given label values, in any order. For a histogram, it
// sums the numbers of observations. found reports whether such a sample exists.
func Metric(tb testing.TB, metrics prometheus.Gatherer, name string, labels ...string) (sum float64, found bool) {
	tb.Helper()
	families, err := metrics.Gather()
	Must(tb, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, sample := range f.GetMetric() {
			var values []string
			for _, l := range sample.GetLabel() {
				values = append(values, l.GetValue())
			}
			if !slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(values, l) }) {
				sum += sample.GetCounter().GetValue() + sample.GetGauge().GetValue() +
					float64(sample.GetHistogram().GetSampleCount())
				found = true
			}
		}
	}
	return sum, found
}
