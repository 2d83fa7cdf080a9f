package tracing

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// maxAge bounds how far the time of observation may be in the past, or in the future, for a change to be traced. A
// snapshot sends objects that changed long ago, and the time is that of another cluster's clock.
const maxAge = time.Hour

// hop is one step of a change in a part.
type hop struct {
	// part and cluster performed the step, and node is the node for which they did; empty except for changes that an
	// agent programmed.
	part, cluster, node string
	// source is the cluster that observed the change, and to the one that it was sent to.
	source, to string
	// object, action and detail are those of the debug event.
	object, action, detail string
	// observedAt is when the source observed the change, by its clock. at is when the hop ended, by the part's clock.
	observedAt, at time.Time
}

// The actions that the tracer distinguishes. All but the last are actions of debug events.
const (
	exports        = "export"
	withdraws      = "delete"
	receives       = "receive"
	receivesDelete = "receive-delete"
	refuses        = "refuse"
	programs       = "program"
)

// sends reports whether the hop is in the exporter.
func (h hop) sends() bool {
	return h.part == "exporter" && (h.action == exports || h.action == withdraws)
}

// takes reports whether the hop is the first one in the receiving broker.
func (h hop) takes() bool {
	return h.part == "broker" && (h.action == receives || h.action == receivesDelete || h.action == refuses)
}

// failed reports whether the change stopped here.
func (h hop) failed() bool { return h.action == refuses || strings.HasSuffix(h.action, "failed") }

// traceOf returns the ID of the trace of a change: all parts of all clusters derive the same from the cluster that
// observed it, and the time. It allocates nothing.
func traceOf(source string, observedAt time.Time) trace.TraceID {
	var buffer [160]byte
	text := append(buffer[:0], "semaphore change\x00"...)
	text = append(text, source...)
	text = append(text, 0)
	text = binary.BigEndian.AppendUint64(text, uint64(observedAt.Unix()))
	text = binary.BigEndian.AppendUint32(text, uint32(observedAt.Nanosecond()))
	sum := sha256.Sum256(text)
	return trace.TraceID(sum[:16])
}

// spanOf derives the ID of a span from its trace and the texts that identify it.
func spanOf(of trace.TraceID, texts ...string) trace.SpanID {
	sum := sha256.New()
	sum.Write(of[:])
	for _, text := range texts {
		sum.Write([]byte(text))
		sum.Write([]byte{0})
	}
	return trace.SpanID(sum.Sum(nil)[:8])
}

// rootOf returns the ID of the root span, which covers the whole change, and which the exporter records.
func rootOf(of trace.TraceID) trace.SpanID { return spanOf(of, "change") }

// sentAs returns the ID of the span of a change that the exporter sent to a cluster. The broker there derives the same
// ID.
func sentAs(of trace.TraceID, action, object, to string) trace.SpanID {
	object, _, _ = strings.Cut(object, " for ") // the cluster that receives the node's copy
	return spanOf(of, "exporter", action, object, to)
}

// limit returns the bound of sampled IDs, like OpenTelemetry's TraceIDRatioBased: two parts with different rates agree
// on the traces of the lower rate.
func limit(perMillion int) uint64 {
	if perMillion >= 1_000_000 {
		return math.MaxUint64
	}
	return uint64(perMillion) * (math.MaxInt64 / 1_000_000)
}

// sampled reports whether a trace is recorded.
func sampled(id trace.TraceID, limit uint64) bool { return binary.BigEndian.Uint64(id[8:])>>1 < limit }

// traceable reports whether the times of a change permit a trace. It neither allocates nor locks.
func traceable(observedAt, now time.Time) bool {
	age := now.Sub(observedAt)
	return !observedAt.IsZero() && age <= maxAge && age >= -maxAge
}

// known is the state of a trace in a part.
type known struct {
	// received is the span with which the change arrived, and receivedAt its end; zero if there is none.
	received   trace.SpanID
	receivedAt time.Time
	// spans are the recorded spans, up to maxSpans.
	spans []trace.SpanID
}

// has reports whether a span was recorded.
func (k *known) has(id trace.SpanID) bool {
	for _, have := range k.spans {
		if have == id {
			return true
		}
	}
	return false
}

// span is a span to record.
type span struct {
	id, parent trace.SpanID
	name       string
	start, end time.Time
	// of is the hop, with clean and bounded texts.
	of hop
}

// spansOf returns the spans of a hop: its own, and before it, for the exporter's first hop, that of the whole change.
// It updates before, the state of the trace.
func spansOf(id trace.TraceID, h hop, before *known) []span {
	var out []span
	of := h
	for _, text := range []*string{&of.node, &of.source, &of.to, &of.object, &of.action, &of.detail} {
		*text = finding.Clean(*text)
	}
	kind, _, _ := strings.Cut(of.object, " ")
	s := span{parent: rootOf(id), start: h.observedAt, end: h.at, of: of, name: h.part + " " + of.action + " " + kind}
	switch {
	case h.sends():
		s.id = sentAs(id, h.action, h.object, h.to)
		if root := rootOf(id); !before.has(root) {
			change := span{id: root, name: "change " + kind, start: h.observedAt, end: h.at, of: of}
			out = append(out, change.ordered())
		}
	case h.takes():
		action := exports
		if h.action == receivesDelete {
			action = withdraws
		}
		s.id = spanOf(id, h.part, h.cluster, h.action, h.object)
		s.parent = sentAs(id, action, h.object, h.cluster)
		before.received, before.receivedAt = s.id, h.at
	default:
		s.id = spanOf(id, h.part, h.cluster, h.node, h.action, h.object)
		if before.received.IsValid() {
			s.parent, s.start = before.received, before.receivedAt
		}
	}
	if before.has(s.id) { // it was sent or written again
		again := binary.BigEndian.AppendUint64(nil, uint64(h.at.UnixNano()))
		s.id = spanOf(id, string(s.id[:]), string(again))
	}
	out = append(out, s.ordered())
	for _, s := range out {
		before.spans = append(before.spans, s.id)
	}
	return out
}

// ordered returns the span with an end that is not before its start: the clocks of a change's source and of the part
// may differ.
func (s span) ordered() span {
	if s.start.After(s.end) {
		s.start = s.end
	}
	return s
}
