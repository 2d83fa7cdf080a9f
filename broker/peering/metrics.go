package peering

import "github.com/prometheus/client_golang/prometheus"

type Metrics struct {
	reg           prometheus.Registerer
	refusedTotal  *prometheus.CounterVec
	renewalsTotal *prometheus.CounterVec
}

func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{reg: reg, refusedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "semaphore_broker_agents_refused_total",
		Help: "Agents that were not admitted, by gRPC code: Unauthenticated (token), PermissionDenied (not the live node " +
			"or pod), Unavailable (the apiserver did not answer), ResourceExhausted (refused too often).",
	}, []string{"code"}), renewalsTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "semaphore_broker_agent_token_reviews_total",
		Help: "Repeated reviews of the tokens of open streams, by result: good, refused (the stream ends) or unknown (the " +
			"apiserver did not answer; the stream remains).",
	}, []string{"result"})}
	reg.MustRegister(m.refusedTotal, m.renewalsTotal)
	return m
}

func (m *Metrics) refused(code string) { m.refusedTotal.WithLabelValues(code).Inc() }

func (m *Metrics) reviewed(result string) { m.renewalsTotal.WithLabelValues(result).Inc() }

var (
	silentPairsDesc = prometheus.NewDesc("semaphore_broker_silent_pairs",
		"Pairs of an own node and a remote node where the own node sends and gets no answer.", []string{"cluster"}, nil)
	nodesTalkingDesc = prometheus.NewDesc("semaphore_broker_nodes_talking",
		"Own nodes that talk with at least one node of a remote.", []string{"cluster"}, nil)
	handshakeDesc = prometheus.NewDesc(
		"semaphore_broker_last_handshake_timestamp_seconds",
		"Unix time of the newest handshake of any own node with a node of the remote, on the own node's clock; absent for "+
			"none.",
		[]string{"cluster"},
		nil,
	)
)

type tunnels struct{ s *Server }

func (t tunnels) Describe(ch chan<- *prometheus.Desc) {
	ch <- silentPairsDesc
	ch <- nodesTalkingDesc
	ch <- handshakeDesc
}

func (t tunnels) Collect(ch chan<- prometheus.Metric) {
	for cluster, of := range t.s.Tunnels() {
		ch <- prometheus.MustNewConstMetric(silentPairsDesc, prometheus.GaugeValue, float64(of.SilentPairs), cluster)
		ch <- prometheus.MustNewConstMetric(nodesTalkingDesc, prometheus.GaugeValue, float64(of.Talking), cluster)
		if !of.Newest.IsZero() {
			ch <- prometheus.MustNewConstMetric(handshakeDesc, prometheus.GaugeValue,
				float64(of.Newest.UnixMilli())/1000, cluster)
		}
	}
}

// streams registers the metrics that are read from the streams at each scrape.
func (m *Metrics) streams(s *Server) {
	m.reg.MustRegister(tunnels{s},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "semaphore_broker_agents_attached", Help: "Nodes whose agent is attached.",
		}, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return float64(len(s.attached))
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "semaphore_broker_agents_behind", Help: "Changes that the slowest attached agent has not applied.",
		}, func() float64 {
			most := uint64(0)
			for _, n := range s.Status(nil, nil) {
				most = max(most, n.GetBehind())
			}
			return float64(most)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "semaphore_broker_peering_revision", Help: "Newest revision of the devices and peers that agents receive.",
		}, func() float64 { return float64(s.options.State.journal.Head()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "semaphore_broker_peering_encodings_total",
			Help: "Changes of devices and peers that were encoded, once for all agents.",
		}, func() float64 { return float64(s.options.State.encodings.Load()) }),
	)
}
