package reconcile

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// measureEvery is the interval at which loops set their gauges.
const measureEvery = 500 * time.Millisecond

// Metrics are those of all loops of one part, by loop.
type Metrics struct {
	depth, unfinished, longest *prometheus.GaugeVec
	adds, retries              *prometheus.CounterVec
	latency, work, waits       *prometheus.HistogramVec
}

// NewMetrics registers the metrics with names PREFIX_queue_…; a prefix is, for example, "semaphore_broker".
func NewMetrics(prefix string, reg prometheus.Registerer) *Metrics {
	labels := []string{"queue"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "_queue_" + name, Help: help}, labels)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "_queue_" + name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "_queue_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, labels)
	}
	m := &Metrics{
		depth: gauge("depth", "Objects that wait to be reconciled."),
		unfinished: gauge("unfinished_work_seconds",
			"Seconds of running reconciliations, which work_duration does not contain yet."),
		longest: gauge("longest_running_processor_seconds", "Seconds that the longest running reconciliation has taken."),
		adds:    counter("adds_total", "Objects enqueued."),
		retries: counter("retries_total", "Objects enqueued for later: again after a failure, or as planned."),
		latency: histogram("latency_duration_seconds", "Seconds an object waited.", labels...),
		work:    histogram("work_duration_seconds", "Seconds an object took to reconcile.", labels...),
		waits: histogram("delay_seconds", "Seconds that a write of an object was delayed, by reason: failed, gathering, "+
			"limited, contested or stale.", "reason"),
	}
	reg.MustRegister(m.depth, m.unfinished, m.longest, m.adds, m.retries, m.latency, m.work, m.waits)
	return m
}

func (l *Loop[K]) measure(ctx context.Context) {
	m := l.options.Metrics
	for _, series := range []prometheus.ObserverVec{m.latency, m.work} {
		series.WithLabelValues(l.name)
	}
	m.adds.WithLabelValues(l.name)
	m.retries.WithLabelValues(l.name)
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for {
		l.mu.Lock()
		var all, longest time.Duration
		for _, it := range l.items {
			if it.running {
				took := time.Since(it.began)
				all, longest = all+took, max(longest, took)
			}
		}
		ready := l.line.n
		l.mu.Unlock()
		m.depth.WithLabelValues(l.name).Set(float64(ready))
		m.unfinished.WithLabelValues(l.name).Set(all.Seconds())
		m.longest.WithLabelValues(l.name).Set(longest.Seconds())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
