// Package otlp is for tests: a collector that receives spans by OTLP/gRPC, as the parts send them, and keeps them.
//
// It imports internal/testkit.
package otlp

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/kube-semaphore/semaphore/internal/testkit"
)

// Collector receives spans.
type Collector struct {
	collectorv1.UnimplementedTraceServiceServer
	// URL is the value for tracing.endpoint.
	URL string

	mu      sync.Mutex
	spans   []Span
	headers metadata.MD
}

// Span is a span with its sender.
type Span struct {
	*tracev1.Span
	Service, Cluster string
}

// New starts a collector and stops it when the test ends.
func New(t *testing.T) *Collector {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	c := &Collector{URL: "http://" + listener.Addr().String()}
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	testkit.Run(t, func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, server.Stop)
		defer stop()
		return server.Serve(listener)
	})
	return c
}

// Export implements the OTLP trace service.
func (c *Collector) Export(ctx context.Context, m *collectorv1.ExportTraceServiceRequest) (
	*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers, _ = metadata.FromIncomingContext(ctx)
	for _, r := range m.GetResourceSpans() {
		of := r.GetResource().GetAttributes()
		for _, s := range r.GetScopeSpans() {
			for _, span := range s.GetSpans() {
				c.spans = append(c.spans, Span{span, text(of, "service.name"), text(of, "k8s.cluster.name")})
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// Spans returns the received spans in the order in which they ended.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.spans)
	slices.SortStableFunc(all, func(a, b Span) int { return a.End().Compare(b.End()) })
	return all
}

// Header returns the values of a header of the last message.
func (c *Collector) Header(name string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.headers.Get(name)
}

// Lines returns one line of text for each span.
func Lines(spans []Span) string {
	var lines []string
	for _, s := range spans {
		lines = append(lines, s.String())
	}
	return strings.Join(lines, "\n")
}

// String returns the span's sender, name and object.
func (s Span) String() string {
	return s.Service + "/" + s.Cluster + ": " + s.Name + " " + s.Text("semaphore.object")
}

// Start returns when the span began.
func (s Span) Start() time.Time { return time.Unix(0, int64(s.StartTimeUnixNano)) }

// End returns when the span ended.
func (s Span) End() time.Time { return time.Unix(0, int64(s.EndTimeUnixNano)) }

// Text returns the value of a string attribute.
func (s Span) Text(key string) string { return text(s.Attributes, key) }

// After returns the value of the attribute semaphore.after_seconds.
func (s Span) After() float64 { return value(s.Attributes, "semaphore.after_seconds").GetDoubleValue() }

func text(all []*commonv1.KeyValue, key string) string { return value(all, key).GetStringValue() }

func value(all []*commonv1.KeyValue, key string) *commonv1.AnyValue {
	for _, a := range all {
		if a.GetKey() == key {
			return a.GetValue()
		}
	}
	return nil
}
