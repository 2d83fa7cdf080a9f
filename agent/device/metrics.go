package device

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	syncs, heals, queueFull, requeues *prometheus.CounterVec
	applySeconds, propagation         *prometheus.HistogramVec
	lookSeconds                       prometheus.Histogram
	refused, conflicts, unrouted      *prometheus.GaugeVec
}

func newMetrics() *metrics {
	byDevice := []string{"cluster", "device"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		opts := prometheus.CounterOpts{Name: name, Help: help}
		return prometheus.NewCounterVec(opts, append(byDevice[:2:2], labels...))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, byDevice)
	}
	return &metrics{
		syncs: counter("semaphore_wg_sync_peers_total",
			"Writes of a device's peers; success is 1 or 0.", "success"),
		heals: counter("semaphore_agent_heals_total",
			"Times that the agent healed a device that somebody else had changed."),
		requeues: counter("semaphore_wg_sync_requeue_total",
			"Times that a device could not be configured and was queued for another attempt."),
		// Two of semaphore-wireguard's queues can fail here: that of the kernel's events, and that of devices to try
		// again.
		queueFull: counter("semaphore_wg_sync_queue_full_failures_total",
			"Times that the kernel had more events than its queue holds, so that the agent checked the complete device."),
		applySeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "semaphore_agent_apply_duration_seconds",
			Help:    "Seconds to apply a change: to a complete device, or to single peers.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"what"}),
		propagation: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "semaphore_agent_propagation_seconds",
			Help: "Seconds from the observation of a remote node's change in its cluster, on that cluster's clock, to its " +
				"programming on this node, on this node's clock.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 15),
		}, []string{"cluster"}),
		lookSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "semaphore_agent_device_check_duration_seconds",
			Help:    "Seconds to check whether a device is as the agent configured it.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}),
		refused: gauge("semaphore_agent_refused",
			"Routes, peers and settings of a device that the broker sent and the agent refuses; the status names them."),
		conflicts: gauge("semaphore_agent_subnet_conflicts",
			"Subnets of a remote that stay routed although this node has an address inside them; "+
				"the status names them and what to do."),
		unrouted: gauge("semaphore_agent_routes_failed",
			"Routes of a device that could not be created, such as IPv6 routes on a node without IPv6; the status has the "+
				"reason."),
	}
}

func (r *Reconciler) Collectors() []prometheus.Collector {
	m := r.metrics
	return []prometheus.Collector{
		m.syncs, m.heals, m.queueFull, m.requeues, m.applySeconds, m.lookSeconds, m.propagation,
		m.refused, m.conflicts, m.unrouted,
	}
}

// synced counts one setting of a device, and creates all series of the device.
func (m *metrics) synced(cluster, device, what string, err error, started time.Time) {
	m.heals.WithLabelValues(cluster, device)
	m.queueFull.WithLabelValues(cluster, device)
	m.requeues.WithLabelValues(cluster, device)
	success := "1"
	if err != nil {
		success = "0"
	}
	m.syncs.WithLabelValues(cluster, device, success).Inc()
	m.applySeconds.WithLabelValues(what).Observe(time.Since(started).Seconds())
}

func (m *metrics) forget(cluster, device string) {
	m.propagation.DeleteLabelValues(cluster)
	for _, c := range []*prometheus.CounterVec{m.syncs, m.heals, m.queueFull, m.requeues} {
		c.DeletePartialMatch(prometheus.Labels{"device": device})
	}
	for _, g := range []*prometheus.GaugeVec{m.refused, m.conflicts, m.unrouted} {
		g.DeleteLabelValues(cluster, device)
	}
}
