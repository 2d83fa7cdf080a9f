package apply

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/propagation"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
)

// Metrics are those of all writes to the apiserver.
type Metrics struct {
	// Loops are the metrics of the queues.
	Loops *reconcile.Metrics
	// Propagation is how long changes took to be written, by remote and the name of the type they are written as.
	Propagation *propagation.Tracker

	reg         prometheus.Registerer
	writes      *prometheus.CounterVec
	watchErrors *prometheus.CounterVec
	events      *prometheus.CounterVec
	restored    *prometheus.CounterVec
	delayed     *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		Loops:       reconcile.NewMetrics("semaphore_broker", reg),
		Propagation: propagation.New(reg),
		reg:         reg,
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_broker_writes_total",
			Help: "Writes to the apiserver, by kind of object, operation (create, update, delete, replace, patch) and result (ok; conflict: what is there had changed, tried again; foreign: the name is someone else's; error).",
		}, []string{"kind", "op", "result"}),
		watchErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_broker_watch_errors_total",
			Help: "Failed lists and watches of the own apiserver, by kind of object.",
		}, []string{"kind"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_broker_events_total",
			Help: "Kubernetes Events about refusals, collisions and interference: written, suppressed (written lately or about to be, or too many of a remote wait), failed.",
		}, []string{"result"}),
	}
	m.restored = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "semaphore_broker_restored_total",
		Help: "Objects of the broker that somebody else has changed or deleted, and that it restored, by kind of object.",
	}, []string{"kind"})
	m.delayed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "semaphore_broker_writes_delayed_total",
		Help: "Writes that waited because more was written for a remote than its limits.kibibytesPerSecond, by kind of object.",
	}, []string{"cluster", "kind"})
	reg.MustRegister(m.delayed, m.writes, m.watchErrors, m.events, m.restored)
	return m
}

// count registers how many objects of a kind are wanted and how many are there.
func (m *Metrics) count(kind string, desired, present func() int) {
	gauge := func(name, help string, f func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "semaphore_broker_" + name, Help: help, ConstLabels: prometheus.Labels{"kind": kind},
		}, func() float64 { return float64(f()) })
	}
	m.reg.MustRegister(
		gauge("objects_desired", "Objects that are wanted in the own cluster.", desired),
		gauge("objects_present", "Objects of this tool that are in the own cluster.", present),
	)
}

func (m *Metrics) write(kind, op, result string) { m.writes.WithLabelValues(kind, op, result).Inc() }

func (m *Metrics) propagated(cluster, kind string, d time.Duration) {
	m.Propagation.Observe(cluster, kind, d)
}
