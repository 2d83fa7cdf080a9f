package publish

import (
	"context"
	"regexp"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/stats"
)

// Metrics are those of all publishers of an exporter, by the cluster of the broker.
type Metrics struct {
	connected             *prometheus.GaugeVec
	streamsEnded, changes *prometheus.CounterVec
	refused, bytes        *prometheus.CounterVec
	ackedRevision, ackAt  *prometheus.GaugeVec
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
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_exporter_sent_bytes_total",
			Help: "Bytes of messages sent, as they are on the wire.",
		}, []string{"cluster"}),
		ackedRevision: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "semaphore_exporter_acked_revision",
			Help: "Newest revision that the broker of the cluster holds; revisions start anew with this process.",
		}, []string{"cluster"}),
		ackAt: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "semaphore_exporter_last_ack_timestamp_seconds",
			Help: "When the broker of the cluster last acknowledged something, Unix time; absent for never.",
		}, []string{"cluster"}),
		client: grpcprom.NewClientMetrics(),
	}
	reg.MustRegister(m.connected, m.streamsEnded, m.changes, m.refused, m.bytes, m.ackedRevision, m.ackAt, m.acknowledged, m.client)
	return m
}

// wireBytes counts what goes to one broker. It implements stats.Handler.
type wireBytes struct{ counter prometheus.Counter }

func (w wireBytes) HandleRPC(_ context.Context, s stats.RPCStats) {
	if out, ok := s.(*stats.OutPayload); ok {
		w.counter.Add(float64(out.WireLength))
	}
}

func (wireBytes) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (wireBytes) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (wireBytes) HandleConn(context.Context, stats.ConnStats)                       {}

// maxCodes is how many words for refusals one broker may make metrics of; there are some twenty.
const maxCodes = 64

var refusalCode = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// codes keeps a broker from filling this process's memory with metrics.
type codes map[string]bool

func (c codes) label(code string) string {
	if !c[code] {
		if len(c) == maxCodes || !refusalCode.MatchString(code) {
			return "other"
		}
		c[code] = true
	}
	return code
}
