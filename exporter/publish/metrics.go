package publish

import (
	"context"
	"regexp"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/stats"
)

// Metrics are the metrics of all publishers of an exporter, by cluster of the broker.
type Metrics struct {
	connected             *prometheus.GaugeVec
	streamsEnded, changes *prometheus.CounterVec
	refused, bytes        *prometheus.CounterVec
	ackedRevision, ackAt  *prometheus.GaugeVec
	acknowledged          *prometheus.HistogramVec
	client                *grpcprom.ClientMetrics
}

func NewMetrics(reg prometheus.Registerer) *Metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"cluster"})
	}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"cluster"}, more...))
	}
	m := &Metrics{
		connected:    gauge("semaphore_exporter_connected", "1 while the broker of the cluster accepts the stream."),
		streamsEnded: counter("semaphore_exporter_streams_ended_total", "Streams that ended, failed attempts included."),
		changes:      counter("semaphore_exporter_changes_sent_total", "Changes sent, snapshots included.", "kind"),
		refused: counter("semaphore_exporter_refused_total", "Objects that the broker of the cluster refused.", "kind",
			"code"),
		acknowledged: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "semaphore_exporter_ack_duration_seconds",
			Help:    "Seconds from observing a change to the broker's acknowledgement, on the exporter's clock.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, []string{"cluster"}),
		bytes: counter("semaphore_exporter_sent_bytes_total", "Bytes of messages sent, compressed as on the wire."),
		ackedRevision: gauge("semaphore_exporter_acked_revision",
			"Newest revision that the broker of the cluster acknowledged; revisions start at 1 when the exporter starts."),
		ackAt: gauge("semaphore_exporter_last_ack_timestamp_seconds",
			"Unix time of the last acknowledgement of the broker of the cluster; absent before the first."),
		client: grpcprom.NewClientMetrics(),
	}
	reg.MustRegister(m.connected, m.streamsEnded, m.changes, m.refused, m.bytes, m.ackedRevision, m.ackAt,
		m.acknowledged, m.client)
	return m
}

// forget deletes the series of a broker that is no longer published to.
func (m *Metrics) forget(cluster string) {
	of := prometheus.Labels{"cluster": cluster}
	for _, v := range []interface{ DeletePartialMatch(prometheus.Labels) int }{
		m.connected, m.streamsEnded, m.changes, m.refused, m.bytes, m.ackedRevision, m.ackAt, m.acknowledged,
	} {
		v.DeletePartialMatch(of)
	}
}

// wireBytes counts the bytes sent to one broker. It implements stats.Handler.
type wireBytes struct{ counter prometheus.Counter }

func (w wireBytes) HandleRPC(_ context.Context, s stats.RPCStats) {
	if out, ok := s.(*stats.OutPayload); ok {
		w.counter.Add(float64(out.WireLength))
	}
}

func (wireBytes) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (wireBytes) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (wireBytes) HandleConn(context.Context, stats.ConnStats)                       {}

// maxCodes bounds how many refusal codes one broker may create metrics for; semaphore has some twenty.
const maxCodes = 64

var refusalCode = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// codes bounds the label values that a broker can create.
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
