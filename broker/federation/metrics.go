package federation

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type Metrics struct {
	reg          prometheus.Registerer
	refusedTotal *prometheus.CounterVec
	changesTotal *prometheus.CounterVec
	limitedTotal *prometheus.CounterVec
}

func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		reg: reg,
		refusedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_broker_refused_total",
			Help: "Objects of a remote that were refused, completely or in part, by code (docs/findings.md).",
		}, []string{"cluster", "kind", "code"}),
		changesTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_broker_changes_total",
			Help: "Changes received from a remote, without those of snapshots.",
		}, []string{"cluster", "kind", "op"}),
		limitedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_broker_limited_total",
			Help: "How often a remote was slowed down because it changed too fast (changes) or sent too much (bytes), or was " +
				"refused because it opened streams too often (streams).",
		}, []string{"cluster", "limit"}),
	}
	reg.MustRegister(m.refusedTotal, m.changesTotal, m.limitedTotal)
	return m
}

func (m *Metrics) refused(cluster string, r replica.Refused) {
	kind := "unknown" // a remote could make up any number of kinds
	if slices.Contains(semaphorev1.Kinds, r.Key.Kind) {
		kind = semaphorev1.KindName(r.Key.Kind)
	}
	m.refusedTotal.WithLabelValues(cluster, kind, string(r.Code)).Inc()
}

func (m *Metrics) change(cluster string, c replica.Change) {
	op := "upsert"
	if c.New == nil {
		op = "delete"
	}
	m.changesTotal.WithLabelValues(cluster, semaphorev1.KindName(c.Key.Kind), op).Inc()
}

func (m *Metrics) Forget(cluster string) {
	for _, v := range []*prometheus.CounterVec{m.refusedTotal, m.changesTotal, m.limitedTotal} {
		v.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
	}
}

func (m *Metrics) limited(cluster, limit string) {
	m.limitedTotal.WithLabelValues(cluster, limit).Inc()
}

var (
	connectedDesc = prometheus.NewDesc("semaphore_broker_connected",
		"1 while the exporter of a remote is connected.", []string{"cluster"}, nil)
	lastHeardDesc = prometheus.NewDesc("semaphore_broker_last_heard_timestamp_seconds",
		"Unix time of the last message of a remote's exporter, on this cluster's clock; 0 before the first.",
		[]string{"cluster"}, nil)
	kindHeardDesc = prometheus.NewDesc("semaphore_broker_kind_last_heard_timestamp_seconds",
		"Unix time of the last message of a remote's exporter while the kind was complete, on this cluster's clock: the "+
			"replica is as old as that. Before the first, when it promised the kind. Absent while it does not export it.",
		[]string{"cluster", "kind"}, nil)
	objectsDesc = prometheus.NewDesc("semaphore_broker_objects",
		"Objects of a remote in its replica.", []string{"cluster", "kind"}, nil)
	refusedDesc = prometheus.NewDesc("semaphore_broker_refused",
		"Objects of a remote that are refused now, completely or in part.", []string{"cluster", "kind"}, nil)
	completeDesc = prometheus.NewDesc("semaphore_broker_snapshot_complete",
		"1 once a snapshot of the kind from the remote was complete; before, the broker removes nothing of that kind.",
		[]string{"cluster", "kind"}, nil)
	limitDesc = prometheus.NewDesc("semaphore_broker_objects_limit",
		"The limit of objects of a remote.", []string{"cluster", "kind"}, nil)
	retainedDesc = prometheus.NewDesc("semaphore_broker_retained",
		"Objects that a remote has withdrawn and the brake retains.", []string{"cluster", "kind"}, nil)
	omittedDesc = prometheus.NewDesc("semaphore_broker_outcomes_omitted",
		"Services of a remote that have a problem here, and that the report to it omits because it is full.",
		[]string{"cluster"}, nil)
)

type collector struct{ server *Server }

func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connectedDesc, lastHeardDesc, kindHeardDesc, objectsDesc, refusedDesc,
		completeDesc, limitDesc, retainedDesc, omittedDesc} {
		ch <- d
	}
}

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
	for _, v := range c.server.views() {
		l := v.status
		gauge(omittedDesc, float64(v.omitted), l.Cluster)
		gauge(connectedDesc, truth(l.Connected), l.Cluster)
		heard := 0.0
		if l.LastHeard != nil {
			heard = float64(l.LastHeard.AsTime().UnixMilli()) / 1000
		}
		gauge(lastHeardDesc, heard, l.Cluster)
		for _, k := range l.Kinds {
			kind := semaphorev1.KindName(k.Kind)
			if k.AwaitedSince != nil {
				gauge(kindHeardDesc, float64(k.AwaitedSince.AsTime().UnixMilli())/1000, l.Cluster, kind)
			}
			gauge(objectsDesc, float64(k.Objects), l.Cluster, kind)
			gauge(refusedDesc, float64(k.Refused), l.Cluster, kind)
			gauge(completeDesc, truth(k.Complete), l.Cluster, kind)
			gauge(limitDesc, float64(k.Limit), l.Cluster, kind)
			gauge(retainedDesc, float64(k.Retained), l.Cluster, kind)
		}
	}
}
