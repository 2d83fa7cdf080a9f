package publish

import (
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are those of all publishers of an exporter, by the cluster of the broker.
type Metrics struct {
	connected             *prometheus.GaugeVec
	streamsEnded, changes *prometheus.CounterVec
	refused               *prometheus.CounterVec
	acknowledged          *prometheus.HistogramVec
	client                *grpcprom.ClientMetrics
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "semaphore_exporter_connected",
			Help: "1 while the broker of the cluster takes the stream.",
		}, []string{"cluster"}),
		streamsEnded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_exporter_streams_ended_total",
			Help: "Streams, and attempts at one, that ended.",
		}, []string{"cluster"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_exporter_changes_sent_total",
			Help: "Changes sent, those of snapshots too.",
		}, []string{"cluster", "kind"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_exporter_refused_total",
			Help: "Objects that the broker of the cluster refused.",
		}, []string{"cluster", "kind", "code"}),
		acknowledged: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "semaphore_exporter_acknowledge_seconds",
			Help:    "Seconds from seeing a change to the broker's word that it holds it; on this process's clock.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, []string{"cluster"}),
		client: grpcprom.NewClientMetrics(),
	}
	reg.MustRegister(m.connected, m.streamsEnded, m.changes, m.refused, m.acknowledged, m.client)
	return m
}
