package status

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/session"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Those of the devices themselves are in devicemetrics.
var (
	connectedDesc = desc("semaphore_agent_connected", "1 while attached to the broker.")
	heardDesc     = desc("semaphore_agent_last_heard_timestamp_seconds",
		"When the broker was last heard, Unix time; absent for never.")
	stateDesc = desc("semaphore_agent_state_age_seconds",
		"Seconds since a broker last stood by what is wanted of a device, 0 while one does; "+
			"source is broker, or cache where none was heard since the start.",
		"device", "source")
	desiredDesc = desc("semaphore_agent_peers_desired", "Peers that the broker wants.", "device")
	clearDesc   = desc("semaphore_agent_clear_packets_total",
		"Packets of remote pods that were stopped on their way past the device, in the clear: out of the node, or in.",
		"device", "direction")
	passedDesc = desc("semaphore_agent_clear_passed_packets_total",
		"Packets of the pods of a permissive remote that passed the device by, in the clear, and were let pass: "+
			"out of the node, or in. Absent for a strict one.",
		"device", "direction")
	strayDesc = desc("semaphore_agent_tunnel_dropped_packets_total",
		"Packets between a device's port and an address outside the remote's nodeSubnets, which were dropped: "+
			"out of the node, or in. Absent without a subnets file.",
		"device", "direction")
	waitingDesc = desc("semaphore_agent_clear_peers",
		"Peers of a permissive remote to which packets go in the clear, as they were not heard in the tunnel yet, "+
			"or not any more; all of them while it is `clear`. Absent for a strict one.",
		"device")
	roamedDesc = desc("semaphore_agent_peers_roamed",
		"Peers whose packets come from another address than they are wanted at, and that are left there.", "device")
)

// Metrics are those of the Board and of the session.
type Metrics struct {
	Board   *Board
	Session *session.Session
	// Counts reads the guard's counters.
	Counts func() (map[string]guard.Count, error)
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		connectedDesc, heardDesc, stateDesc, desiredDesc, clearDesc, passedDesc, strayDesc, waitingDesc, roamedDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	view, stream := m.Board.Get(), m.Session.View(now)
	connected := 0.
	if stream.Attached {
		connected = 1
	}
	gauge(connectedDesc, connected)
	if !stream.Heard.IsZero() {
		gauge(heardDesc, float64(stream.Heard.UnixMilli())/1000)
	}
	for _, r := range stream.Remotes {
		gauge(stateDesc, max(0, now.Sub(r.ConfirmedAt).Seconds()), r.Device(), r.Source)
		gauge(desiredDesc, float64(r.Peers), r.Device())
		gauge(roamedDesc, float64(view.Devices[r.Cluster].Roamed), r.Device())
	}
	for cluster, d := range view.Devices {
		if d.Clear != nil {
			gauge(waitingDesc, float64(d.Clear.Peers), naming.Device(cluster))
		}
	}
	m.collectGuard(ch)
}

// collectGuard collects the packets that the guard counts.
func (m *Metrics) collectGuard(ch chan<- prometheus.Metric) {
	counts, err := m.Counts()
	if err != nil {
		return // the status reports it
	}
	for cluster, c := range counts {
		packets := func(d *prometheus.Desc, out, in uint64) {
			device := naming.Device(cluster)
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(out), device, "out")
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(in), device, "in")
		}
		packets(clearDesc, c.Out, c.In)
		if c.Tunnel {
			packets(strayDesc, c.Sent, c.Arrived)
		}
		if c.Permissive {
			packets(passedDesc, c.PassedOut, c.PassedIn)
		}
	}
}

// AppliedRevision makes the gauge of the revision up to which all is programmed.
func AppliedRevision() prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "semaphore_agent_applied_revision",
		Help: "Revision of the broker's state up to which all is programmed; starts over with the broker.",
	})
}
