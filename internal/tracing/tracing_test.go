package tracing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// traced is a tracer of every change, with the recorded spans.
type traced struct {
	*Tracer
	registry *prometheus.Registry
}

func newTraced(t testing.TB, perMillion int, exporter sdktrace.SpanExporter, log *slog.Logger) traced {
	t.Helper()
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	s, err := newSenderTo(exporter, "http://collector:4317", "broker", "c1", m, log)
	testkit.Must(t, err)
	return traced{newTracer("broker", "c1", perMillion, s, m, log), reg}
}

func (tr traced) dropped(t *testing.T, reason string) int {
	t.Helper()
	n, _ := testkit.Metric(t, tr.registry, "semaphore_spans_dropped_total", reason)
	return int(n)
}

func (tr traced) sent(t *testing.T) int {
	t.Helper()
	n, _ := testkit.Metric(t, tr.registry, "semaphore_spans_sent_total")
	return int(n)
}

// received returns the event of a change that c2 observed i nanoseconds before now.
func received(source string, i int, now time.Time) debug.Event {
	return debug.Event{Source: source, Object: fmt.Sprint("service shop/", i), Action: "receive",
		ObservedAt: now.Add(-time.Duration(i)), At: now}
}

var discard = slog.New(slog.NewTextHandler(io.Discard, nil))

// TestOff: without a rate there is no tracer, whatever the environment says, and the nil tracer allocates nothing. An
// event of a change that is not sampled allocates no more than one without a tracer.
func TestOff(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	reg := prometheus.NewRegistry()
	off, err := New("broker", "c1", config.Tracing{}, reg, discard)
	if err != nil || off != nil {
		t.Fatalf("%v, %v", off, err)
	}
	if found, err := reg.Gather(); err != nil || len(found) != 0 {
		t.Errorf("metrics while tracing is off: %v, %v", found, err)
	}
	off.Follow(nil)
	off.Close(t.Context())
	now := time.Now()
	if n := testing.AllocsPerRun(1000, func() { off.Programmed("n1", "c2", now) }); n != 0 {
		t.Errorf("tracing that is off allocates %v times for each acknowledgement", n)
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if off, err = New("broker", "c1", config.Tracing{SamplingRatePerMillion: 1}, reg, discard); err != nil || off != nil {
		t.Errorf("with OTEL_SDK_DISABLED: %v, %v", off, err)
	}

	none := newTraced(t, 0, tracetest.NewNoopExporter(), discard) // it records none
	defer none.Close(t.Context())
	e := received("c2", 1, now)
	allocated := func(follow func(*debug.Recorder)) float64 {
		r := debug.NewRecorder("broker", "c1", "")
		follow(r)
		for range 5000 { // until its ring has its final size
			r.Record(e)
		}
		return testing.AllocsPerRun(1000, func() { r.Record(e) })
	}
	without, with := allocated(func(*debug.Recorder) {}), allocated(none.Follow)
	if without != with {
		t.Errorf("an event allocates %v times without a tracer, and %v times with one that does not sample it", without, with)
	}
	if n := testing.AllocsPerRun(1000, func() { none.Programmed("n1", "c2", now) }); n != 0 {
		t.Errorf("an acknowledgement that is not sampled allocates %v times", n)
	}
}

// TestBounds: a remote that chooses sampled times for any number of changes causes a bounded number of spans, and does
// not use the share of others.
func TestBounds(t *testing.T) {
	tr := newTraced(t, 1_000_000, tracetest.NewNoopExporter(), discard)
	defer tr.Close(t.Context())
	now := time.Now()
	recorded := func() (n int) {
		for _, k := range tr.traces {
			n += len(k.spans)
		}
		return n
	}
	for i := range 20_000 {
		tr.take(received("c2", i, now))
	}
	if got := recorded(); got != perSourceBurst {
		t.Errorf("%d spans of c2 at once; want %d", got, perSourceBurst)
	}
	if len(tr.traces) > maxTraces || len(tr.order) > maxTraces {
		t.Errorf("%d traces are known", len(tr.traces))
	}
	dropped := tr.dropped(t, overRate)
	if dropped != 20_000-perSourceBurst {
		t.Errorf("%d are counted", dropped)
	}
	before := recorded()
	tr.take(received("c3", 1, now))
	if got := recorded(); got != before+1 {
		t.Error("c2 takes the spans of c3")
	}
	for i := range 2 * maxSources {
		for j := range perSourceBurst {
			tr.take(received(fmt.Sprint("s", i), j, now))
		}
	}
	if got := 20_000 + 1 + 2*maxSources*perSourceBurst - tr.dropped(t, overRate); got != spansBurst {
		t.Errorf("%d spans of all at once; want %d", got, spansBurst)
	}
	if len(tr.bySrc) > maxSources+1 {
		t.Errorf("%d sources have a limit of their own", len(tr.bySrc))
	}
	// A second later there is room again.
	later := now.Add(time.Second)
	before = tr.dropped(t, overRate)
	for i := range 1000 {
		tr.take(received("c2", i, later))
	}
	if got := 1000 - (tr.dropped(t, overRate) - before); got != perSourcePerSecond {
		t.Errorf("%d spans of c2 in the next second; want %d", got, perSourcePerSecond)
	}
}

// TestNodesOfOneChange: a change that a thousand nodes program has a bounded trace, and the other spans are counted.
func TestNodesOfOneChange(t *testing.T) {
	kept := tracetest.NewInMemoryExporter()
	tr := newTraced(t, 1_000_000, kept, discard)
	now := time.Now()
	tr.take(received("c2", 1, now))
	for i := range 1000 {
		tr.Programmed(fmt.Sprint("w", i), "c2", now.Add(-1))
	}
	testkit.Must(t, tr.sender.provider.ForceFlush(t.Context()))
	spans := kept.GetSpans()
	tr.Close(t.Context())
	if len(spans) != maxSpans || tr.sent(t) != maxSpans || tr.dropped(t, overTrace) != 1001-maxSpans {
		t.Fatalf("%d spans, %d sent, %d dropped", len(spans), tr.sent(t), tr.dropped(t, overTrace))
	}
	for _, s := range spans[1:] {
		if s.SpanContext.TraceID() != spans[0].SpanContext.TraceID() || s.Parent.SpanID() != spans[0].SpanContext.SpanID() {
			t.Fatalf("%v is not under %v", s, spans[0])
		}
	}
}

// collector is a SpanExporter that the test controls: it blocks, fails, or accepts spans.
type collector struct {
	mu    sync.Mutex
	stuck chan struct{}
	err   error
}

func (c *collector) ExportSpans(ctx context.Context, _ []sdktrace.ReadOnlySpan) error {
	c.mu.Lock()
	stuck, err := c.stuck, c.err
	c.mu.Unlock()
	if stuck != nil {
		select {
		case <-stuck:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (c *collector) Shutdown(context.Context) error { return nil }

// TestCollectorThatIsStuck: spans are dropped and counted, the first drop is logged, and only the end of the part
// waits, for a bounded time.
func TestCollectorThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &testkit.Buffer{}
		tr := newTraced(t, 1_000_000, &collector{stuck: make(chan struct{})}, slog.New(slog.NewTextHandler(log, nil)))
		began := time.Now()
		const all = 5_000
		for i := range all {
			// Spans of different traces and seconds, so that no other bound applies.
			at := began.Add(time.Duration(i) * time.Second)
			id := traceOf("c2", at)
			for _, s := range spansOf(id, hop{part: "broker", cluster: "c1", action: "receive", object: "service shop/x",
				observedAt: at, at: at}, &known{}) {
				tr.sender.send(id, s)
			}
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("%d spans waited %s for the collector", all, waited)
		}
		synctest.Wait()
		if got := tr.dropped(t, queueFull); got != all-maxWaiting {
			t.Errorf("%d dropped; want %d", got, all-maxWaiting)
		}
		tr.Close(context.Background())
		if took := time.Since(began); took != flushWithin {
			t.Errorf("the end took %s; want %s", took, flushWithin)
		}
		if got := tr.dropped(t, queueFull) + tr.dropped(t, notDelivered); got != all || tr.sent(t) != 0 {
			t.Errorf("%d of %d are counted", got, all)
		}
		if n := tr.sender.waiting.Load(); n != 0 {
			t.Errorf("%d spans count as waiting after the end", n)
		}
		if n := strings.Count(log.String(), "spans are dropped"); n != 2 || !strings.Contains(log.String(), "reason=queue") ||
			!strings.Contains(log.String(), "reason=collector") {
			t.Errorf("%d lines in the log:\n%s", n, log)
		}
	})
}

// TestCollectorThatFails: a failing collector is logged once in ten minutes, and when it works again.
func TestCollectorThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &testkit.Buffer{}
		to := &collector{err: errors.New("rpc error: \x1b[31mno")}
		tr := newTraced(t, 1_000_000, to, slog.New(slog.NewTextHandler(log, nil)))
		for range 25 { // minutes
			tr.take(received("c2", 1, time.Now()))
			time.Sleep(time.Minute)
		}
		if n := strings.Count(log.String(), "spans are dropped"); n != 3 || strings.Contains(log.String(), `\x1b`) {
			t.Errorf("%d lines in the log:\n%s", n, log)
		}
		if got := tr.dropped(t, notDelivered); got != 25 {
			t.Errorf("%d dropped", got)
		}
		to.mu.Lock()
		to.err = nil
		to.mu.Unlock()
		for range 5 {
			tr.take(received("c2", 1, time.Now()))
			time.Sleep(time.Minute)
		}
		tr.Close(context.Background())
		if n := tr.sender.waiting.Load(); n != 0 {
			t.Errorf("%d spans count as waiting after they were sent", n)
		}
		if n := strings.Count(log.String(), "accepts spans again"); n != 1 || tr.sent(t) != 5 {
			t.Errorf("%d lines in the log, %d sent:\n%s", n, tr.sent(t), log)
		}
	})
}

// TestWrongEnvironment: if the environment does not allow a tracer to send, the start fails with an error that names
// what to set.
func TestWrongEnvironment(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"no collector", nil, "tracing.endpoint: none, and OTEL_EXPORTER_OTLP_ENDPOINT is not set"},
		{"another protocol", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
			"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, `OTEL_EXPORTER_OTLP_PROTOCOL: "http/protobuf": spans are sent by ` +
			`OTLP/gRPC, use grpc`},
		{"another protocol of traces", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
			"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "http/json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			tr, err := New("broker", "c1", config.Tracing{SamplingRatePerMillion: 1}, prometheus.NewRegistry(), discard)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %s", err, c.want)
			}
			tr.Close(t.Context())
		})
	}
}

// BenchmarkRecord measures the cost of an event: without a tracer, with one that does not sample it, and with one that
// does.
func BenchmarkRecord(b *testing.B) {
	for _, c := range []struct {
		name       string
		perMillion int
	}{{"off", -1}, {"unsampled", 0}, {"sampled", 1_000_000}} {
		b.Run(c.name, func(b *testing.B) {
			r := debug.NewRecorder("broker", "c1", "")
			if c.perMillion >= 0 {
				tr := newTraced(b, c.perMillion, tracetest.NewNoopExporter(), discard)
				defer tr.Close(context.Background())
				tr.Follow(r)
			}
			now := time.Now()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				r.Record(received("c2", i%maxTraces, now))
			}
		})
	}
}

// TestTimesThatGoBack: events whose times jump back and forth get no more spans than the bounds allow.
func TestTimesThatGoBack(t *testing.T) {
	tracer := newTracer("broker", "c1", 1_000_000, nil, NewMetrics(prometheus.NewRegistry()), slog.Default())
	now, taken := time.Now(), 0
	tracer.mu.Lock()
	defer tracer.mu.Unlock()
	for i := range 10 * perSourceBurst {
		if tracer.allows("c2", now.Add(-time.Duration(i%2)*2*time.Second)) {
			taken++
		}
	}
	if taken > perSourceBurst {
		t.Errorf("%d spans in no time, want %d at most", taken, perSourceBurst)
	}
}

// TestAddressesInTheLog: the log does not contain a password of the collector's address.
func TestAddressesInTheLog(t *testing.T) {
	for where, want := range map[string]string{
		"https://user:secret@otel:4317/v1": "https://otel:4317", "http://otel:4317": "http://otel:4317",
		"otel:4317": "otel:4317", "user:secret@otel:4317": "otel:4317",
	} {
		if got := shown(where); got != want {
			t.Errorf("%q is shown as %q, want %q", where, got, want)
		}
	}
}

// TestResourceAttributes: an environment that the SDK refuses does not stop a part.
func TestResourceAttributes(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "team")
	var log testkit.Buffer
	s, err := newSenderTo(tracetest.NewInMemoryExporter(), "http://collector:4317", "broker", "c1",
		NewMetrics(prometheus.NewRegistry()), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s.close(t.Context())
	if !strings.Contains(log.String(), "OTEL_RESOURCE_ATTRIBUTES") {
		t.Errorf("the log has %q", log.String())
	}
}
