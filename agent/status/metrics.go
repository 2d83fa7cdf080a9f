//go:build ignore

package agent

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type metrics struct {
	syncs, heals, queueFull, requeues *prometheus.CounterVec
	rotations                         *prometheus.CounterVec
	keyCreated, keyProblems           *prometheus.GaugeVec
	applySeconds, propagation         *prometheus.HistogramVec
	lookSeconds                       prometheus.Histogram
	refused, conflicts, unrouted      *prometheus.GaugeVec
	appliedRevision                   prometheus.Gauge
}

func newMetrics() *metrics {
	return &metrics{
		syncs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_wg_sync_peers_total",
			Help: "Times that peers of a device were set; success is 1 or 0.",
		}, []string{"device", "success"}),
		heals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_agent_heals_total",
			Help: "Times that a device was not any more as it had been set, and was set right.",
		}, []string{"device"}),
		// Of semaphore-wireguard's queues only these two can fail here: the kernel's, of events, and
		// that of devices to be tried again.
		queueFull: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_wg_sync_queue_full_failures_total",
			Help: "Times that the kernel had more events than could be queued, and the device was looked at as a whole.",
		}, []string{"device"}),
		requeues: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_wg_sync_requeue_total",
			Help: "Times that a device could not be set as wanted and was queued to be tried again.",
		}, []string{"device"}),
		rotations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_agent_key_rotations_total",
			Help: "Times that a device's private key was replaced, for its age or because an operator asked for it.",
		}, []string{"device"}),
		keyCreated: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "semaphore_agent_key_created_timestamp_seconds",
			Help: "When a device's private key was made, Unix time.",
		}, []string{"device"}),
		keyProblems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "semaphore_agent_key_file_problem",
			Help: "1 while the file of a device's private key is damaged, lost, open to others, or cannot be written, or a damaged one lies beside it; the status says what to do.",
		}, []string{"device"}),
		applySeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "semaphore_agent_apply_seconds",
			Help:    "Seconds to set what changed: a device as a whole, or single peers.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"what"}),
		propagation: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "semaphore_agent_propagation_seconds",
			Help:    "Seconds from a change of a remote node's being seen in its cluster, on the clock there, to its being programmed on this node, on the clock here.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 15),
		}, []string{"cluster"}),
		lookSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "semaphore_agent_look_seconds",
			Help:    "Seconds to see whether a device is as it was set.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}),
		refused: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "semaphore_agent_refused",
			Help: "Routes, peers and settings of a device that the broker wants and that cannot be a remote's; the status names them.",
		}, []string{"device"}),
		conflicts: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "semaphore_agent_subnet_conflicts",
			Help: "Subnets of a remote that stay routed although this node has an address inside them; the status names them and what to do.",
		}, []string{"device"}),
		unrouted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "semaphore_agent_routes_failed",
			Help: "Routes of a device that are wanted and could not be made, such as of IPv6 where a node has none; the status says why.",
		}, []string{"device"}),
		appliedRevision: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "semaphore_agent_applied_revision",
			Help: "Revision of the broker's state up to which all is programmed; starts over with the broker.",
		}),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.syncs, m.heals, m.queueFull, m.requeues, m.rotations, m.keyCreated, m.keyProblems, m.applySeconds, m.lookSeconds, m.propagation, m.refused, m.conflicts, m.unrouted, m.appliedRevision}
}

// synced counts one setting of a device, and has all series of a device be there from then on.
func (m *metrics) synced(device, what string, err error, started time.Time) {
	for _, c := range []*prometheus.CounterVec{m.heals, m.queueFull, m.requeues, m.rotations} {
		c.WithLabelValues(device)
	}
	m.syncs.WithLabelValues(device, strconv.Itoa(boolNumber(err == nil))).Inc()
	m.applySeconds.WithLabelValues(what).Observe(time.Since(started).Seconds())
}

// forget takes out the series of a device that was removed.
func (m *metrics) forget(cluster, device string) {
	m.propagation.DeleteLabelValues(cluster)
	m.keyCreated.DeleteLabelValues(device)
	m.keyProblems.DeleteLabelValues(device)
	for _, c := range []*prometheus.CounterVec{m.syncs, m.heals, m.queueFull, m.requeues, m.rotations} {
		c.DeletePartialMatch(prometheus.Labels{"device": device})
	}
	for _, g := range []*prometheus.GaugeVec{m.refused, m.conflicts, m.unrouted} {
		g.DeleteLabelValues(device)
	}
}

// Those of the devices themselves are in devicemetrics.
var (
	connectedDesc = prometheus.NewDesc("semaphore_agent_connected", "1 while attached to the broker.", nil, nil)
	heardDesc     = prometheus.NewDesc("semaphore_agent_last_heard_timestamp_seconds", "When the broker was last heard, Unix time; absent for never.", nil, nil)
	stateDesc     = prometheus.NewDesc("semaphore_agent_state_age_seconds", "Seconds since a broker last stood by what is wanted of a device, 0 while one does; source is broker, or cache where none was heard since the start.", []string{"device", "source"}, nil)
	desiredDesc   = prometheus.NewDesc("semaphore_agent_peers_desired", "Peers that the broker wants.", []string{"device"}, nil)
	clearDesc     = prometheus.NewDesc("semaphore_agent_clear_packets_total", "Packets of remote pods that were stopped on their way past the device, in the clear: out of the node, or in.", []string{"device", "direction"}, nil)
	passedDesc    = prometheus.NewDesc("semaphore_agent_clear_passed_packets_total", "Packets of the pods of a permissive remote that passed the device by, in the clear, and were let pass: out of the node, or in. Absent for a strict one.", []string{"device", "direction"}, nil)
	strayDesc     = prometheus.NewDesc("semaphore_agent_tunnel_dropped_packets_total", "Packets between a device's port and an address outside the remote's nodeSubnets, which were dropped: out of the node, or in. Absent without a subnets file.", []string{"device", "direction"}, nil)
	waitingDesc   = prometheus.NewDesc("semaphore_agent_clear_peers", "Peers of a permissive remote to which packets go in the clear, as they were not heard in the tunnel yet, or not any more. Absent for a strict one.", []string{"device"}, nil)
	roamedDesc    = prometheus.NewDesc("semaphore_agent_peers_roamed", "Peers whose packets come from another address than they are wanted at, and that are left there.", []string{"device"}, nil)
)

// Describe implements prometheus.Collector.
func (a *agent) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		connectedDesc, heardDesc, stateDesc, desiredDesc, clearDesc, passedDesc, strayDesc, waitingDesc, roamedDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (a *agent) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	a.mu.Lock()
	attached, heard := a.attached, a.heard
	wanted, roamed := map[string]int{}, map[string]int{}
	now := time.Now()
	for _, cluster := range a.state.Clusters() {
		n := a.state.Network(cluster)
		wanted[naming.Device(cluster)] = len(n.Peers)
		roamed[naming.Device(cluster)] = a.looksAt(cluster).roamed
		gauge(stateDesc, max(0, now.Sub(a.confirmed(cluster, now)).Seconds()), naming.Device(cluster), source(n))
	}
	waiting := map[string]int{}
	for cluster, p := range a.permissive {
		waiting[cluster] = p.waiting
	}
	a.mu.Unlock()
	gauge(connectedDesc, float64(boolNumber(attached)))
	if !heard.IsZero() {
		gauge(heardDesc, float64(heard.UnixMilli())/1000)
	}
	counts, err := a.guard.Counts()
	if err != nil {
		counts = nil // the status tells it
	}
	for cluster, c := range counts {
		for direction, n := range map[string]uint64{"out": c.Out, "in": c.In} {
			ch <- prometheus.MustNewConstMetric(clearDesc, prometheus.CounterValue, float64(n), naming.Device(cluster), direction)
		}
	}
	for cluster, c := range counts {
		if !c.Tunnel {
			continue
		}
		for direction, n := range map[string]uint64{"out": c.Sent, "in": c.Arrived} {
			ch <- prometheus.MustNewConstMetric(strayDesc, prometheus.CounterValue, float64(n), naming.Device(cluster), direction)
		}
	}
	for cluster, c := range counts {
		if !c.Permissive {
			continue
		}
		for direction, n := range map[string]uint64{"out": c.PassedOut, "in": c.PassedIn} {
			ch <- prometheus.MustNewConstMetric(passedDesc, prometheus.CounterValue, float64(n), naming.Device(cluster), direction)
		}
	}
	for cluster, n := range waiting {
		gauge(waitingDesc, float64(n), naming.Device(cluster))
	}
	for name, n := range wanted {
		gauge(desiredDesc, float64(n), name)
		gauge(roamedDesc, float64(roamed[name]), name)
	}
}

// deviceNames are the devices that are wanted, and those that stand and are not.
func (a *agent) deviceNames() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	names := map[string]bool{}
	for _, cluster := range a.state.Clusters() {
		names[naming.Device(cluster)] = true
	}
	for _, r := range a.orphans {
		names[r.GetInterface()] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// status is the agent's part of DebugService.
func (a *agent) status() *semaphorev1.GetStatusResponse {
	s := &semaphorev1.GetStatusResponse{Ready: a.ready() == nil}
	a.mu.Lock()
	link := &semaphorev1.LinkStatus{
		Cluster: a.cfg.Cluster, Address: a.cfg.Broker.Address, Connected: a.attached,
		Since: timestamppb.New(a.since), LastError: a.lastError,
	}
	if !a.heard.IsZero() {
		link.LastHeard = timestamppb.New(a.heard)
	}
	s.Links = append(s.Links, link)
	s.Problems = append(s.Problems, a.around.problems...)
	// Those that are wanted, those that are to go and do not, and those that nobody speaks of.
	clusters := map[string]bool{}
	for _, cluster := range slices.Concat(a.state.Clusters(), slices.Collect(maps.Keys(a.networks)), slices.Collect(maps.Keys(a.orphans))) {
		clusters[cluster] = true
	}
	for _, cluster := range slices.Sorted(maps.Keys(clusters)) {
		d := &semaphorev1.DeviceStatus{Cluster: cluster, Interface: naming.Device(cluster)}
		if want := a.state.Network(cluster); want != nil {
			d.PeersWanted, d.Source = uint32(len(want.Peers)), source(want)
			if at := a.confirmed(cluster, time.Now()); !at.IsZero() {
				d.ConfirmedAt = timestamppb.New(at)
			}
			d.Paths = a.statusPaths(want)
		}
		if n := a.networks[cluster]; n != nil {
			d.Problem = n.problem
		} else if a.orphans[cluster] != nil && a.state.Network(cluster) == nil {
			d.Problem = a.orphan(cluster).GetProblem()
		}
		s.Devices = append(s.Devices, d)
	}
	for _, d := range s.Devices {
		d.AdoptedFrom = a.adopted[d.Cluster]
	}
	a.mu.Unlock()
	if problem := a.cache.Problem(); problem != "" {
		s.Problems = append(s.Problems, problem)
	}
	for _, d := range s.Devices {
		stands, err := a.host.Device(d.Interface)
		switch {
		case err != nil:
			d.Problem = strings.TrimPrefix(d.Problem+"; "+err.Error(), "; ")
		case stands == nil:
			d.Problem = strings.TrimPrefix(d.Problem+"; there is no such interface", "; ")
		default:
			describeDevice(d, stands)
		}
	}
	return s
}

func describeDevice(d *semaphorev1.DeviceStatus, stands *wireguard.Device) {
	d.Backend, d.PublicKey = stands.Backend, stands.PublicKey.String()
	d.ListenPort, d.Mtu = uint32(stands.ListenPort), uint32(stands.MTU)
	d.PeersPresent = uint32(len(stands.Peers))
	d.LastHandshake = newestHandshake(stands.Peers)
	for _, p := range stands.Peers {
		if p.LastHandshakeTime.After(time.Unix(0, 0)) {
			d.PeersWithHandshake++
		}
		d.ReceivedBytes += uint64(p.ReceiveBytes)
		d.SentBytes += uint64(p.TransmitBytes)
	}
	for _, r := range stands.Routes {
		d.Routes = append(d.Routes, r.String())
	}
}
