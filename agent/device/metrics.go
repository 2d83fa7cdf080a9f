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
	byDevice := []string{"device"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		opts := prometheus.CounterOpts{Name: name, Help: help}
		return prometheus.NewCounterVec(opts, append(byDevice[:1:1], labels...))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, byDevice)
	}
	return &metrics{
		syncs: counter("semaphore_wg_sync_peers_total",
			"Times that peers of a device were set; success is 1 or 0.", "success"),
		heals: counter("semaphore_agent_heals_total",
			"Times that a device was not any more as it had been set, and was set right."),
		requeues: counter("semaphore_wg_sync_requeue_total",
			"Times that a device could not be set as wanted and was queued to be tried again."),
		// Of semaphore-wireguard's queues only two can fail here: that of the kernel's events, and that of devices to
		// be tried again.
		queueFull: counter("semaphore_wg_sync_queue_full_failures_total",
			"Times that the kernel had more events than could be queued, and the device was looked at as a whole."),
		applySeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "semaphore_agent_apply_seconds",
			Help:    "Seconds to set what changed: a device as a whole, or single peers.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"what"}),
		propagation: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "semaphore_agent_propagation_seconds",
			Help: "Seconds from a change of a remote node's being seen in its cluster, on the clock there, " +
				"to its being programmed on this node, on the clock here.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 15),
		}, []string{"cluster"}),
		lookSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "semaphore_agent_look_seconds",
			Help:    "Seconds to see whether a device is as it was set.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}),
		refused: gauge("semaphore_agent_refused",
			"Routes, peers and settings of a device that the broker wants and that cannot be a remote's; "+
				"the status names them."),
		conflicts: gauge("semaphore_agent_subnet_conflicts",
			"Subnets of a remote that stay routed although this node has an address inside them; "+
				"the status names them and what to do."),
		unrouted: gauge("semaphore_agent_routes_failed",
			"Routes of a device that are wanted and could not be made, such as of IPv6 where a node has none; "+
				"the status says why."),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{
		m.syncs, m.heals, m.queueFull, m.requeues, m.applySeconds, m.lookSeconds, m.propagation,
		m.refused, m.conflicts, m.unrouted,
	}
}

// synced counts one setting of a device, and makes all series of the device.
func (m *metrics) synced(device, what string, err error, started time.Time) {
	m.heals.WithLabelValues(device)
	m.queueFull.WithLabelValues(device)
	m.requeues.WithLabelValues(device)
	success := "1"
	if err != nil {
		success = "0"
	}
	m.syncs.WithLabelValues(device, success).Inc()
	m.applySeconds.WithLabelValues(what).Observe(time.Since(started).Seconds())
}

// forget deletes the series of a device that was removed.
func (m *metrics) forget(cluster, device string) {
	m.propagation.DeleteLabelValues(cluster)
	for _, c := range []*prometheus.CounterVec{m.syncs, m.heals, m.queueFull, m.requeues} {
		c.DeletePartialMatch(prometheus.Labels{"device": device})
	}
	for _, g := range []*prometheus.GaugeVec{m.refused, m.conflicts, m.unrouted} {
		g.DeleteLabelValues(device)
	}
}
