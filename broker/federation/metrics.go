package federation

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Metrics are those of the remote clusters. A nil Metrics measures nothing.
type Metrics struct {
	reg          prometheus.Registerer
	refusedTotal *prometheus.CounterVec
	changesTotal *prometheus.CounterVec
	limitedTotal *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		reg: reg,
		refusedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_broker_refused_total",
			Help: "Objects of a remote that were refused, in whole or in part, by reason; the codes are in docs/security.md.",
		}, []string{"cluster", "kind", "code"}),
		changesTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_broker_changes_total",
			Help: "Changes taken from a remote, those of snapshots not counted.",
		}, []string{"cluster", "kind", "op"}),
		limitedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_broker_limited_total",
			Help: "How often a remote was held back because it changed too fast (changes) or sent too much (bytes), or was refused because it began streams too often (streams).",
		}, []string{"cluster", "limit"}),
	}
	reg.MustRegister(m.refusedTotal, m.changesTotal, m.limitedTotal)
	return m
}

func (m *Metrics) refused(cluster string, r replica.Refused) {
	if m != nil {
		kind := "unknown" // of kinds that do not exist there are any number
		if slices.Contains(replica.Kinds, r.Key.Kind) {
			kind = semaphorev1.KindName(r.Key.Kind)
		}
		m.refusedTotal.WithLabelValues(cluster, kind, string(r.Code)).Inc()
	}
}

func (m *Metrics) change(cluster string, c replica.Change) {
	if m == nil {
		return
	}
	op := "upsert"
	if c.New == nil {
		op = "delete"
	}
	m.changesTotal.WithLabelValues(cluster, semaphorev1.KindName(c.Key.Kind), op).Inc()
}

func (m *Metrics) limited(cluster, limit string) {
	if m != nil {
		m.limitedTotal.WithLabelValues(cluster, limit).Inc()
	}
}

func (m *Metrics) links(s *Server) { m.reg.MustRegister(collector{s}) }

var (
	connectedDesc = prometheus.NewDesc("semaphore_broker_connected",
		"1 while the exporter of a remote is connected.", []string{"cluster"}, nil)
	lastHeardDesc = prometheus.NewDesc("semaphore_broker_last_heard_timestamp_seconds",
		"When a remote's exporter was last heard, Unix time on this cluster's clock; 0 for never.", []string{"cluster"}, nil)
	kindHeardDesc = prometheus.NewDesc("semaphore_broker_kind_last_heard_timestamp_seconds",
		"When a remote's exporter last spoke for a kind that it has told whole, Unix time on this cluster's clock: what is held is as old as that. Absent for never.",
		[]string{"cluster", "kind"}, nil)
	objectsDesc = prometheus.NewDesc("semaphore_broker_objects",
		"Objects held of a remote.", []string{"cluster", "kind"}, nil)
	refusedDesc = prometheus.NewDesc("semaphore_broker_refused",
		"Objects of a remote that are refused now, in whole or in part.", []string{"cluster", "kind"}, nil)
	completeDesc = prometheus.NewDesc("semaphore_broker_snapshot_complete",
		"1 once a whole snapshot of a kind was taken over from a remote; before, nothing of that kind is removed.", []string{"cluster", "kind"}, nil)
	limitDesc = prometheus.NewDesc("semaphore_broker_objects_limit",
		"The most objects that are taken of a remote.", []string{"cluster", "kind"}, nil)
	heldBackDesc = prometheus.NewDesc("semaphore_broker_held_back",
		"Objects of a remote that it has withdrawn and the brake holds.", []string{"cluster", "kind"}, nil)
)

// collector reads the links when it is scraped.
type collector struct{ server *Server }

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connectedDesc, lastHeardDesc, kindHeardDesc, objectsDesc, refusedDesc, completeDesc, limitDesc, heldBackDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	truth := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	for _, l := range c.server.Status() {
		gauge(connectedDesc, truth(l.Connected), l.Cluster)
		heard := 0.0
		if l.LastHeard != nil {
			heard = float64(l.LastHeard.AsTime().UnixMilli()) / 1000
		}
		gauge(lastHeardDesc, heard, l.Cluster)
		for _, k := range l.Kinds {
			if k.LastHeard != nil {
				gauge(kindHeardDesc, float64(k.LastHeard.AsTime().UnixMilli())/1000, l.Cluster, k.Kind)
			}
			gauge(objectsDesc, float64(k.Objects), l.Cluster, k.Kind)
			gauge(refusedDesc, float64(k.Refused), l.Cluster, k.Kind)
			gauge(completeDesc, truth(k.Complete), l.Cluster, k.Kind)
			gauge(limitDesc, float64(k.Limit), l.Cluster, k.Kind)
			gauge(heldBackDesc, float64(k.HeldBack), l.Cluster, k.Kind)
		}
	}
}
