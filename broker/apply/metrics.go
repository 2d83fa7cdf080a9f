package apply

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/report"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
)

// Metrics are the metrics of all writes to the apiserver.
type Metrics struct {
	Loops *reconcile.Metrics
	// Propagation is the time from a change in a remote to its write here, by remote and name of the written type.
	Propagation *report.Tracker

	reg         prometheus.Registerer
	writes      *prometheus.CounterVec
	watchErrors *prometheus.CounterVec
	failing     Failing
	restored    *prometheus.CounterVec
	delayed     *prometheus.CounterVec
}

func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		Loops:       reconcile.NewMetrics("semaphore_broker", reg),
		Propagation: report.NewTracker(reg),
		reg:         reg,
		failing:     Failing{lines: map[any]string{}},
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_broker_writes_total",
			Help: "Writes to the apiserver, by kind of object, operation (create, update, delete, replace, patch) and result " +
				"(ok; conflict: the object had changed, the broker tries again; foreign: an object that the broker did not " +
				"create has the name; error).",
		}, []string{"kind", "op", "result"}),
		watchErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_broker_watch_errors_total",
			Help: "Failed lists and watches of the own apiserver, by kind of object.",
		}, []string{"kind"}),
	}
	m.restored = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "semaphore_broker_restored_total",
		Help: "Objects of the broker that somebody else has changed or deleted, and that it restored, by kind of object.",
	}, []string{"kind"})
	m.delayed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "semaphore_broker_writes_delayed_total",
		Help: "Writes that waited because more was written for a remote than its limits.kibibytesPerSecond, by kind of " +
			"object.",
	}, []string{"cluster", "kind"})
	reg.MustRegister(m.delayed, m.writes, m.watchErrors, m.restored)
	return m
}

func (m *Metrics) count(kind writes.ObjectKind, desired, present func() int) {
	gauge := func(name, help string, f func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "semaphore_broker_" + name, Help: help, ConstLabels: prometheus.Labels{"kind": string(kind)},
		}, func() float64 { return float64(f()) })
	}
	m.reg.MustRegister(
		gauge("objects_desired", "Objects that should exist in the own cluster.", desired),
		gauge("objects_present", "Objects of semaphore that exist in the own cluster.", present),
	)
}

// Forget deletes the series of a remote that is no longer configured.
func (m *Metrics) Forget(cluster string) {
	m.delayed.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
	m.Propagation.Forget(cluster)
}

func (m *Metrics) Write(kind writes.ObjectKind, op, result string) {
	m.writes.WithLabelValues(string(kind), op, result).Inc()
}

func (m *Metrics) propagated(cluster string, kind writes.ObjectKind, d time.Duration) {
	m.Propagation.Observe(cluster, kind, d)
}
