package agent

import (
	"os"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/test/testkit"
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

// TestAlertsNeedNoTrust: an alert fires for each Prometheus, also for one that peerMetricsFrom does not name.
func TestAlertsNeedNoTrust(t *testing.T) {
	rules := string(testkit.Value(os.ReadFile("../deploy/features/alerts/rules.yaml"))(t))
	for _, m := range status.DeviceMetrics {
		if strings.Contains(rules, m.Name) {
			t.Errorf("an alert asks for %s, which only trusted clients read", m.Name)
		}
	}
}
