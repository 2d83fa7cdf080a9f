package agent

import (
	"testing"

	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/test/testkit/metricsdoc"
)

// TestMetricsAreDocumented: docs/metrics.md has every metric of the agent, with its labels and its help text.
func TestMetricsAreDocumented(t *testing.T) {
	table := &metricsdoc.Table{}
	idle(t).register(table)
	for _, m := range status.DeviceMetrics {
		table.Row(m.Name, m.Labels, m.Help)
	}
	table.Compare(t, "../docs/metrics.md", "semaphore-agent")
}
