package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/program"
)

const (
	// maxWaiting bounds the spans that wait for the collector; more are dropped.
	maxWaiting = 2048
	// flushWithin bounds what the end of a part waits for the collector.
	flushWithin = 3 * time.Second
	// logAgain is the shortest interval between two log messages with the same reason.
	logAgain = 10 * time.Minute
)

// isDisabled reports whether the environment disables the SDK (OTEL_SDK_DISABLED).
func isDisabled() bool { return strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") }

// fromEnv returns the variable OTEL_EXPORTER_OTLP_TRACES_name, or else OTEL_EXPORTER_OTLP_name.
func fromEnv(name string) string {
	if v := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_" + name); v != "" {
		return v
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_" + name)
}

// whereOf returns the collector's address. An error names what is missing.
func whereOf(cfg config.Tracing) (string, error) {
	if p := fromEnv("PROTOCOL"); p != "" && p != "grpc" {
		return "", fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: %q: spans are sent by OTLP/gRPC, use grpc and the collector's "+
			"port for it (4317)", p)
	}
	if cfg.Endpoint != "" {
		return cfg.Endpoint, nil
	}
	if where := fromEnv("ENDPOINT"); where != "" {
		return where, nil
	}
	return "", errors.New("tracing.endpoint: none, and OTEL_EXPORTER_OTLP_ENDPOINT is not set: name the collector, such " +
		"as http://otel-collector.observability:4317")
}

// shown returns a collector's address for the log, without the user and password that the environment may contain.
func shown(where string) string {
	scheme, rest, ok := strings.Cut(where, "://")
	if !ok {
		scheme, rest = "", where
	}
	rest, _, _ = strings.Cut(rest, "/")
	rest = rest[strings.LastIndexByte(rest, '@')+1:]
	if !ok {
		return rest
	}
	return scheme + "://" + rest
}

// Metrics count spans.
type Metrics struct {
	sent    prometheus.Counter
	dropped *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "semaphore_spans_sent_total",
			Help: "Spans that the collector accepted. Absent while tracing is off.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_spans_dropped_total",
			Help: "Spans that were dropped, by reason (rate: more a second than the bounds allow, of all changes or of those " +
				"of one cluster; trace: one change has more than 64; queue: 2,048 wait for the collector; collector: it did not " +
				"accept them). Absent while tracing is off.",
		}, []string{"reason"}),
	}
	reg.MustRegister(m.sent, m.dropped)
	for _, reason := range []string{overRate, overTrace, queueFull, notDelivered} {
		m.dropped.WithLabelValues(reason)
	}
	return m
}

// sender sends spans through the SDK. It blocks only at the end.
type sender struct {
	where    string
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	metrics  *Metrics
	log      *slog.Logger

	// waiting counts spans from their end until the collector has them, or they are dropped.
	waiting atomic.Int64
	// closing is done when the time to flush is over.
	closing context.Context
	cancel  context.CancelFunc

	mu sync.Mutex
	// logged has the time of the last log message by reason.
	logged map[string]time.Time
	// refusing is set while the collector accepts nothing.
	refusing bool
}

func newSender(part, cluster string, cfg config.Tracing, m *Metrics, log *slog.Logger) (*sender, error) {
	where, err := whereOf(cfg)
	if err != nil {
		return nil, err
	}
	otel.SetLogger(logr.FromSlogHandler(log.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Debug("the OpenTelemetry SDK", "error", err) }))
	var options []otlptracegrpc.Option
	if cfg.Endpoint != "" {
		options = append(options, otlptracegrpc.WithEndpointURL(cfg.Endpoint))
	}
	exporter, err := otlptracegrpc.New(context.Background(), options...) // it dials when there are spans
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint %s: %w", shown(where), err)
	}
	return newSenderTo(exporter, shown(where), part, cluster, m, log)
}

// newSenderTo is newSender with a given exporter to the collector.
func newSenderTo(exporter sdktrace.SpanExporter, where, part, cluster string, m *Metrics, log *slog.Logger) (*sender,
	error) {
	s := &sender{where: where, metrics: m, log: log, logged: map[string]time.Time{}}
	s.closing, s.cancel = context.WithCancel(context.Background())
	// The environment (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) comes last, so that it overrides the others.
	is, err := resource.New(context.Background(), resource.WithAttributes(
		attribute.String("service.name", "semaphore-"+part), attribute.String("service.namespace", "semaphore"),
		attribute.String("service.version", program.Version), attribute.String("k8s.cluster.name", cluster),
	), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if errors.Is(err, resource.ErrPartialResource) {
		log.Warn("OTEL_RESOURCE_ATTRIBUTES is not key=value,…; spans are sent without the rest", "error", err)
	} else if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	s.provider = sdktrace.NewTracerProvider(sdktrace.WithResource(is), sdktrace.WithIDGenerator(given{}),
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // only sampled spans get here
		sdktrace.WithSpanProcessor(counting{s, sdktrace.NewBatchSpanProcessor(delivery{s, exporter},
			sdktrace.WithMaxQueueSize(maxWaiting))}))
	s.tracer = s.provider.Tracer("github.com/kube-semaphore/semaphore", trace.WithInstrumentationVersion(program.Version))
	return s, nil
}

// identity is the context key for the IDs of a span.
type identity struct{}

type ids struct {
	trace trace.TraceID
	span  trace.SpanID
}

// given is an IDGenerator that takes the IDs from the context.
type given struct{}

// NewIDs implements sdktrace.IDGenerator.
func (given) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	of, _ := ctx.Value(identity{}).(ids)
	return of.trace, of.span
}

// NewSpanID implements sdktrace.IDGenerator.
func (given) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	of, _ := ctx.Value(identity{}).(ids)
	return of.span
}

func (s *sender) send(id trace.TraceID, of span) {
	ctx := context.WithValue(context.Background(), identity{}, ids{id, of.id})
	if of.parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: id, SpanID: of.parent, TraceFlags: trace.FlagsSampled, Remote: true}))
	}
	kind := trace.SpanKindInternal
	switch {
	case of.of.sends() && of.parent.IsValid():
		kind = trace.SpanKindProducer
	case of.of.takes():
		kind = trace.SpanKindConsumer
	}
	_, made := s.tracer.Start(ctx, of.name, trace.WithTimestamp(of.start), trace.WithSpanKind(kind),
		trace.WithAttributes(attributes(of)...))
	if of.of.failed() {
		made.SetStatus(codes.Error, of.of.detail)
	}
	made.End(trace.WithTimestamp(of.end))
}

// attributes returns the facts of the hop. semaphore.after_seconds is the column AFTER of `semaphorectl debug trace`;
// it is negative if the clocks of the clusters differ by more than the delay.
func attributes(s span) []attribute.KeyValue {
	out := []attribute.KeyValue{attribute.String("semaphore.source", s.of.source),
		attribute.String("semaphore.object", s.of.object)}
	if !s.parent.IsValid() {
		return out // of the whole change
	}
	out = append(out, attribute.String("semaphore.action", s.of.action),
		attribute.Float64("semaphore.after_seconds", s.of.at.Sub(s.of.observedAt).Seconds()))
	for _, text := range [][2]string{{"semaphore.to", s.of.to}, {"semaphore.node", s.of.node},
		{"semaphore.detail", s.of.detail}} {
		if text[1] != "" {
			out = append(out, attribute.String(text[0], text[1]))
		}
	}
	return out
}

// dropped counts spans that do not reach the collector. It logs the first one, and then one each logAgain.
func (s *sender) dropped(reason string, n int, err error) {
	s.metrics.dropped.WithLabelValues(reason).Add(float64(n))
	s.mu.Lock()
	last, is := s.logged[reason]
	due := !is || time.Since(last) >= logAgain
	if due {
		s.logged[reason] = time.Now()
	}
	s.refusing = s.refusing || reason == notDelivered
	s.mu.Unlock()
	if due {
		args := []any{"reason", reason, "collector", s.where}
		if err != nil {
			args = append(args, "error", finding.Clean(err.Error()))
		}
		s.log.Warn("spans are dropped; semaphore_spans_dropped_total counts them", args...)
	}
}

// delivered counts spans that the collector accepted.
func (s *sender) delivered(n int) {
	s.metrics.sent.Add(float64(n))
	s.mu.Lock()
	was := s.refusing
	s.refusing = false
	s.mu.Unlock()
	if was {
		s.log.Info("the collector accepts spans again", "collector", s.where)
	}
}

// close sends the waiting spans, until ctx ends or flushWithin has passed.
func (s *sender) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushWithin)
	defer cancel()
	// Exports that still wait then end immediately, and Shutdown with them.
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	if err := s.provider.Shutdown(context.WithoutCancel(ctx)); err != nil {
		s.log.Debug("the end of tracing", "error", err)
	}
	s.cancel()
}

// counting bounds the waiting spans, and counts those above the bound: the SDK's processor drops them silently.
type counting struct {
	*sender
	sdktrace.SpanProcessor
}

// OnEnd implements sdktrace.SpanProcessor.
func (c counting) OnEnd(of sdktrace.ReadOnlySpan) {
	if c.waiting.Add(1) > maxWaiting {
		c.waiting.Add(-1)
		c.dropped(queueFull, 1, nil)
		return
	}
	c.SpanProcessor.OnEnd(of)
}

// delivery counts the spans that the collector accepts.
type delivery struct {
	*sender
	sdktrace.SpanExporter
}

// ExportSpans implements sdktrace.SpanExporter. It returns no error: what failed is counted here.
func (d delivery) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(d.closing, cancel)
	defer stop()
	err := d.SpanExporter.ExportSpans(ctx, spans)
	d.waiting.Add(-int64(len(spans)))
	if err != nil {
		d.dropped(notDelivered, len(spans), err)
		return nil
	}
	d.delivered(len(spans))
	return nil
}
