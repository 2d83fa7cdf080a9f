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

// maxAge bounds how long ago, or by how much in the future, the source may have observed a change that is traced. A
// snapshot sends objects that changed long ago, and the time is another cluster's.
const maxAge = time.Hour

// hop is one thing that a part did with a change.
type hop struct {
	// part and cluster did it, and node has it done; node is empty but for what an agent programmed.
	part, cluster, node string
	// source is the cluster that the change came from, and to the one that it was sent to.
	source, to string
	// object, action and detail are those of the debug event.
	object, action, detail string
	// observedAt is when the source observed the change, on its clock, and at when the hop ended, on the part's.
	observedAt, at time.Time
}

// The actions that the tracer knows by name. They are those of debug events, but for the last.
const (
	exports        = "export"
	withdraws      = "delete"
	receives       = "receive"
	receivesDelete = "receive-delete"
	refuses        = "refuse"
	programs       = "program"
)

// sends reports whether the hop is the exporter's.
func (h hop) sends() bool {
	return h.part == "exporter" && (h.action == exports || h.action == withdraws)
}

// takes reports whether the hop is the first of the broker that receives the change.
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

// spanOf derives the ID of a span from its trace and the texts that name it.
func spanOf(of trace.TraceID, texts ...string) trace.SpanID {
	sum := sha256.New()
	sum.Write(of[:])
	for _, text := range texts {
		sum.Write([]byte(text))
		sum.Write([]byte{0})
	}
	return trace.SpanID(sum.Sum(nil)[:8])
}

// rootOf is the span of the whole change, which its exporter records.
func rootOf(of trace.TraceID) trace.SpanID { return spanOf(of, "change") }

// sentAs is the span of a change that its exporter sent to a cluster. The broker there derives it, too.
func sentAs(of trace.TraceID, action, object, to string) trace.SpanID {
	object, _, _ = strings.Cut(object, " for ") // whose copy of a node it is
	return spanOf(of, "exporter", action, object, to)
}

// limit is the bound of IDs that are sampled, as that of OpenTelemetry's TraceIDRatioBased: two parts with other rates
// agree on the traces of the smaller.
func limit(perMillion int) uint64 {
	if perMillion >= 1_000_000 {
		return math.MaxUint64
	}
	return uint64(perMillion) * (math.MaxInt64 / 1_000_000)
}

// sampled reports whether a trace is one of those that are recorded.
func sampled(id trace.TraceID, limit uint64) bool { return binary.BigEndian.Uint64(id[8:])>>1 < limit }

// traceable reports whether the times of a change make a trace. Neither allocates nor locks.
func traceable(observedAt, now time.Time) bool {
	age := now.Sub(observedAt)
	return !observedAt.IsZero() && age <= maxAge && age >= -maxAge
}

// known is what a part knows of a trace.
type known struct {
	// received is the span by which the change came, and receivedAt its end; zero for none.
	received   trace.SpanID
	receivedAt time.Time
	// spans are those that were recorded, up to maxSpans.
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

// span is one that is recorded.
type span struct {
	id, parent trace.SpanID
	name       string
	start, end time.Time
	// of is the hop, with texts that are cleaned and bounded.
	of hop
}

// spansOf returns the spans of a hop: its own, and for the first hop of the exporter the whole change's before it.
// before is what the part knows of the trace, and learns of it.
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
	if before.has(s.id) { // sent or written again
		again := binary.BigEndian.AppendUint64(nil, uint64(h.at.UnixNano()))
		s.id = spanOf(id, string(s.id[:]), string(again))
	}
	out = append(out, s.ordered())
	for _, s := range out {
		before.spans = append(before.spans, s.id)
	}
	return out
}

// ordered is the span with an end that is not before its start: the two clocks of a change may differ.
func (s span) ordered() span {
	if s.start.After(s.end) {
		s.start = s.end
	}
	return s
}
