// Package tracing makes OpenTelemetry spans of a sample of the changes that pass a part, and sends them to a collector.
//
// It has no facts of its own: the spans follow from the events of internal/debug, with their times, and from what
// agents acknowledge. A trace ID follows from the cluster that observed a change and the time when it did, which every
// hop knows; so nothing of a trace is on the wire, and no cluster decides what another one samples
// (docs/adr/0038-spans.md).
//
// It imports the configuration (internal/config), the events (internal/debug), internal/finding, which bounds texts,
// and internal/program for the version.
package tracing

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
)

// The bounds of what is recorded, whatever other clusters send. A remote can choose the times of its changes, and so
// which are sampled.
const (
	// maxTraces is the number of traces that a part remembers.
	maxTraces = 1024
	// maxSpans bounds the spans that a part records of one trace: a node is programmed by each node of a cluster.
	maxSpans = 64
	// spansPerSecond and spansBurst bound the spans of all sources, and perSource those of one.
	spansPerSecond, spansBurst         = 500, 1000
	perSourcePerSecond, perSourceBurst = 100, 200
	// maxSources bounds the sources with a limit of their own; the others share one.
	maxSources = 128
)

// The reasons for which spans are dropped.
const (
	overRate     = "rate"
	overTrace    = "trace"
	queueFull    = "queue"
	notDelivered = "collector"
)

// Tracer makes the spans of one part. Its methods are safe for concurrent use; a nil Tracer does nothing.
type Tracer struct {
	part, cluster string
	limit         uint64
	sender        *sender
	metrics       *Metrics
	log           *slog.Logger

	mu sync.Mutex
	// traces are the remembered traces by ID. order is a ring of their IDs: the newest replaces the oldest, at next.
	traces map[trace.TraceID]*known
	order  []trace.TraceID
	next   int
	all    *rate.Limiter
	bySrc  map[string]*rate.Limiter
	newest time.Time // of the events so far
}

// New returns the tracer of a part of a cluster; nil if the configuration does not enable tracing. The SDK reads
// further settings from the environment, OTEL_EXPORTER_OTLP_*.
func New(part, cluster string, cfg config.Tracing, reg prometheus.Registerer, log *slog.Logger) (*Tracer, error) {
	if cfg.SamplingRatePerMillion == 0 || isDisabled() {
		return nil, nil
	}
	m := NewMetrics(reg)
	sender, err := newSender(part, cluster, cfg, m, log)
	if err != nil {
		return nil, err
	}
	log.Info("tracing is on", "samplingRatePerMillion", cfg.SamplingRatePerMillion, "collector", sender.where)
	return newTracer(part, cluster, cfg.SamplingRatePerMillion, sender, m, log), nil
}

func newTracer(part, cluster string, perMillion int, s *sender, m *Metrics, log *slog.Logger) *Tracer {
	return &Tracer{part: part, cluster: cluster, limit: limit(perMillion), sender: s, metrics: m, log: log,
		traces: map[trace.TraceID]*known{}, order: make([]trace.TraceID, 0, maxTraces),
		all: rate.NewLimiter(spansPerSecond, spansBurst), bySrc: map[string]*rate.Limiter{}}
}

// Follow makes the tracer record the events of a recorder. It must be called before the first event.
func (t *Tracer) Follow(r *debug.Recorder) {
	if t != nil {
		r.Tap(t.take)
	}
}

// take records an event of the part, if its trace is sampled.
func (t *Tracer) take(e debug.Event) {
	if id, ok := t.sampled(e.Source, e.ObservedAt, e.At); ok {
		t.record(id, hop{part: t.part, cluster: t.cluster, source: e.Source, to: e.To, object: e.Object, action: e.Action,
			detail: e.Detail, observedAt: e.ObservedAt, at: e.At})
	}
}

// Programmed records that a node programmed a change of a node of another cluster.
func (t *Tracer) Programmed(node, source string, observedAt time.Time) {
	if t == nil {
		return
	}
	at := time.Now()
	if id, ok := t.sampled(source, observedAt, at); ok {
		t.record(id, hop{part: t.part, cluster: t.cluster, node: node, source: source, object: "node", action: programs,
			detail: "the agent acknowledged it", observedAt: observedAt, at: at})
	}
}

// sampled returns the trace of a change, and whether it is recorded. It neither allocates nor locks.
func (t *Tracer) sampled(source string, observedAt, at time.Time) (id trace.TraceID, ok bool) {
	if !traceable(observedAt, at) {
		return id, false
	}
	id = traceOf(source, observedAt)
	return id, sampled(id, t.limit)
}

func (t *Tracer) record(id trace.TraceID, h hop) {
	t.mu.Lock()
	if before := t.traces[id]; before != nil && len(before.spans) >= maxSpans {
		t.mu.Unlock()
		t.dropped(overTrace, 1)
		return
	}
	if !t.allows(h.source, h.at) {
		t.mu.Unlock()
		t.dropped(overRate, 1)
		return
	}
	spans := spansOf(id, h, t.known(id)) // not earlier: a span that is dropped must not displace another trace
	t.mu.Unlock()
	for _, s := range spans {
		t.sender.send(id, s)
	}
}

// allows reports whether the bounds permit a span, and counts it. The caller must hold t.mu.
func (t *Tracer) allows(source string, at time.Time) bool {
	// A limiter must not see time go backwards, or it would count that time twice.
	if t.newest.Before(at) {
		t.newest = at
	}
	return t.limiter(source).AllowN(t.newest, 1) && t.all.AllowN(t.newest, 1)
}

// known returns the state of a trace. The caller must hold t.mu.
func (t *Tracer) known(id trace.TraceID) *known {
	if k := t.traces[id]; k != nil {
		return k
	}
	if len(t.order) < maxTraces {
		t.order = append(t.order, id)
	} else {
		delete(t.traces, t.order[t.next])
		t.order[t.next] = id
		t.next = (t.next + 1) % maxTraces
	}
	k := &known{}
	t.traces[id] = k
	return k
}

// limiter returns the limit of a source. The caller must hold t.mu.
func (t *Tracer) limiter(source string) *rate.Limiter {
	if l := t.bySrc[source]; l != nil {
		return l
	}
	if len(t.bySrc) >= maxSources {
		source = ""
	}
	l := t.bySrc[source]
	if l == nil {
		l = rate.NewLimiter(perSourcePerSecond, perSourceBurst)
		t.bySrc[source] = l
	}
	return l
}

func (t *Tracer) dropped(reason string, n int) { t.sender.dropped(reason, n, nil) }

// Close sends the waiting spans, for a few seconds at most, and ends the tracer. Later events are lost.
func (t *Tracer) Close(ctx context.Context) {
	if t != nil {
		t.sender.close(ctx)
	}
}
