package apply

import (
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/prometheus/client_golang/prometheus"
)

// TestForget: the series of a removed remote end, and those of others stay.
func TestForget(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	for _, cluster := range []string{"c2", "c3"} {
		m.delayed.WithLabelValues(cluster, "service").Inc()
		m.propagated(cluster, writes.Service, time.Second)
	}
	m.Forget("c2")
	all := testkit.Value(reg.Gather())(t)
	of := map[string]int{}
	for _, f := range all {
		for _, series := range f.GetMetric() {
			for _, label := range series.GetLabel() {
				if label.GetName() == "cluster" {
					of[label.GetValue()+" "+strings.TrimPrefix(f.GetName(), "semaphore_broker_")]++
				}
			}
		}
	}
	if len(of) != 2 || of["c3 writes_delayed_total"] != 1 || of["c3 propagation_seconds"] != 1 {
		t.Errorf("there are series of %v", of)
	}
	if _, ok := m.Propagation.Times("c2", writes.Service); ok {
		t.Error("the times of a removed remote stay")
	}
}
