package federation

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/replica"
)

// TestForget: the series of a removed remote end, and those of others stay.
func TestForget(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	for _, cluster := range []string{"c2", "c3"} {
		m.refused(cluster, replica.Refused{})
		m.change(cluster, replica.Change{})
		m.limited(cluster, "bytes")
	}
	m.Forget("c2")
	all, err := reg.Gather()
	if err != nil || len(all) != 3 {
		t.Fatalf("%d metrics: %v", len(all), err)
	}
	for _, f := range all {
		if n := len(f.GetMetric()); n != 1 || f.GetMetric()[0].GetLabel()[0].GetValue() != "c3" {
			t.Errorf("%s has %v", f.GetName(), f.GetMetric())
		}
	}
}
