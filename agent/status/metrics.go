package status

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// DeviceFamilies has those of the devices.
var (
	connectedDesc = desc("semaphore_agent_connected", "1 while attached to the broker.")
	heardDesc     = desc("semaphore_agent_last_heard_timestamp_seconds",
		"Unix time of the last message from the broker; absent before the first.")
	stateDesc = desc("semaphore_agent_state_age_seconds",
		"Seconds since a broker last confirmed the desired state of a device, 0 while one confirms it; source is broker, "+
			"or cache if no broker was connected since the start. Absent if that time is ahead of the node's clock.",
		"cluster", "device", "source")
	desiredDesc = desc("semaphore_agent_peers_desired", "Peers that the broker sent.", "cluster", "device")
	clearDesc   = desc("semaphore_agent_clear_packets_total",
		"Unencrypted packets to or from remote pods that the guard dropped because they passed the device by: out of the "+
			"node, or in.", "cluster", "device", "direction")
	passedDesc = desc("semaphore_agent_clear_passed_packets_total",
		"Unencrypted packets to or from pods of a permissive remote that the guard passed: out of the node, or in. Absent "+
			"for a strict one.",
		"cluster", "device", "direction")
	strayDesc = desc("semaphore_agent_tunnel_dropped_packets_total",
		"Packets between a device's port and an address outside the remote's nodeSubnets, which were dropped: "+
			"out of the node, or in. Absent without a subnets file.",
		"cluster", "device", "direction")
	waitingDesc = desc("semaphore_agent_clear_peers",
		"Peers of a permissive remote to which packets go unencrypted, because nothing was received from them through the "+
			"tunnel yet, or no longer; all of them while it is `clear`. Absent for a strict one.",
		"cluster", "device")
	roamedDesc = desc("semaphore_agent_peers_roamed",
		"Peers whose packets come from another address than the configured endpoint, and whose endpoint the agent leaves "+
			"there.", "cluster", "device")
)

type Metrics struct {
	Board   *Board
	Session *stream.Session
	// Counts reads the guard's counters.
	Counts func() (map[string]GuardCount, error)
}

func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		connectedDesc, heardDesc, stateDesc, desiredDesc, clearDesc, passedDesc, strayDesc, waitingDesc, roamedDesc,
	} {
		ch <- d
	}
}

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
		if age, known := r.Age(now); known {
			gauge(stateDesc, age.Seconds(), r.Cluster, r.Device(), semaphorev1.StateSourceName(r.Source))
		}
		gauge(desiredDesc, float64(r.Peers), r.Cluster, r.Device())
		gauge(roamedDesc, float64(view.Devices[r.Cluster].Roamed), r.Cluster, r.Device())
	}
	for cluster, d := range view.Devices {
		if d.Clear != nil {
			gauge(waitingDesc, float64(d.Clear.Peers), cluster, naming.Device(cluster))
		}
	}
	m.collectGuard(ch)
}

func (m *Metrics) collectGuard(ch chan<- prometheus.Metric) {
	counts, err := m.Counts()
	if err != nil {
		return // the status reports it
	}
	for cluster, c := range counts {
		packets := func(d *prometheus.Desc, out, in uint64) {
			device := naming.Device(cluster)
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(out), cluster, device, "out")
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(in), cluster, device, "in")
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

func AppliedRevision() prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "semaphore_agent_applied_revision",
		Help: "Revision of the broker's state up to which all is programmed; starts over with the broker.",
	})
}
