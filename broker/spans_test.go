package broker

import (
	"fmt"
	"testing"
	"time"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/testkit"
	"github.com/kube-semaphore/semaphore/internal/testkit/otlp"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// observedAt is a message of one change with a time of its own.
func observedAt(m *semaphorev1.PublishRequest, at time.Time) *semaphorev1.PublishRequest {
	m.GetChanges().Changes[0].ObservedAt = timestamppb.New(at)
	return m
}

// TestSpans checks that a change of a node of c2 and its acknowledgement by an agent of c1 are in one trace. An object
// that the broker refuses is an error in its own trace. Implausible times make no span.
func TestSpans(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
	w := newWorld(t)
	noLeaks(t)
	c := otlp.New(t)
	w.cfg.Tracing = config.Tracing{SamplingRatePerMillion: 1_000_000, Endpoint: c.URL}
	stop := w.start(w.cfg)
	agent := w.attach("", 0)
	agent.report()
	e := w.exporter("c2")
	sendAll(e, "e1", nodeObject("n1", 21, "10.2.1.0/24"))
	agent.until("the first snapshot", `
device c2: 51822 [10.2.0.0/16]
peer c2/n1: 172.18.2.21:51820 [10.2.1.0/24]`, "c2")

	now := time.Now()
	e.send(observedAt(changesFrom(101, nodeObject("n2", 22, "10.2.2.0/24")), now),
		observedAt(changesFrom(102, nodeObject("n3", 23, "10.9.3.0/24")), now.Add(1)),
		observedAt(changesFrom(103, nodeObject("n4", 24, "10.2.4.0/24")), time.Unix(0, 1)),
		observedAt(changesFrom(104, nodeObject("n5", 25, "10.2.5.0/24")), now.Add(1000*time.Hour)))
	e.acked(104)
	agent.until("the changes", `
device c2: 51822 [10.2.0.0/16]
peer c2/n1: 172.18.2.21:51820 [10.2.1.0/24]
peer c2/n2: 172.18.2.22:51820 [10.2.2.0/24]
peer c2/n4: 172.18.2.24:51820 [10.2.4.0/24]
peer c2/n5: 172.18.2.25:51820 [10.2.5.0/24]`, "c2")
	testkit.Must(t, agent.stream.Send(&semaphorev1.AttachRequest{
		Message: &semaphorev1.AttachRequest_Applied{Applied: &semaphorev1.Applied{Revision: agent.revision}}}))

	var spans []otlp.Span
	testkit.Eventually(t, time.Minute, "the collector has what the agent has said", func() error {
		for _, s := range c.Spans() {
			if s.Name == "broker program node" {
				return nil
			}
		}
		return fmt.Errorf("the spans are\n%s", otlp.Lines(c.Spans()))
	})
	stop() // which sends the rest
	spans = c.Spans()
	received, refused, programmed := find(spans, "broker receive node"), find(spans, "broker refuse node"),
		find(spans, "broker program node")
	if len(received) != 2 || len(refused) != 1 || len(programmed) != 1 || len(spans) != 4 {
		t.Fatalf("the spans are\n%s", otlp.Lines(spans))
	}
	n2, n3 := received[0], received[1] // of n3 all but the CIDR is accepted
	if n2.Text("semaphore.object") != "node n2" || n2.Text("semaphore.source") != "c2" || n2.Cluster != "c1" ||
		!n2.Start().Equal(now) || len(n2.ParentSpanId) == 0 {
		t.Errorf("the receipt of n2 is %v", n2.Span)
	}
	if r := refused[0]; r.Text("semaphore.object") != "node n3" || string(r.TraceId) != string(n3.TraceId) ||
		string(n3.TraceId) == string(n2.TraceId) ||
		!r.Start().Equal(now.Add(1)) || r.Status.GetCode() != tracev1.Status_STATUS_CODE_ERROR ||
		r.Text("semaphore.detail") != r.Status.GetMessage() || r.Status.GetMessage() == "" {
		t.Errorf("the refusal of n3's CIDR is %v", r.Span)
	}
	p := programmed[0]
	if string(p.TraceId) != string(n2.TraceId) || string(p.ParentSpanId) != string(n2.SpanId) ||
		!p.Start().Equal(n2.End()) || p.Text("semaphore.node") != "n1" || p.End().Before(p.Start()) {
		t.Errorf("what the agent of n1 has said is %v, under %v", p.Span, n2.Span)
	}
}

func find(spans []otlp.Span, name string) (found []otlp.Span) {
	for _, s := range spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}
