package tracing

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"
)

var observed = time.Date(2026, 7, 1, 12, 0, 0, 123456789, time.UTC)

func after(d time.Duration) time.Time { return observed.Add(d) }

// TestIDsStay: programs of two versions derive the same IDs. A different derivation would cut each trace in two while
// clusters are upgraded.
func TestIDsStay(t *testing.T) {
	id := traceOf("c2", observed)
	for got, want := range map[string]string{
		id.String():         "302a47f5c36522c84774f59bdde8ce55",
		rootOf(id).String(): "0b6ee5ed0b4bed53",
		sentAs(id, "export", "node n1 for c1", "c1").String():    sentAs(id, "export", "node n1", "c1").String(),
		sentAs(id, "export", "service shop/echo", "c1").String(): "2a9aad84d9cbdd75",
	} {
		if got != want {
			t.Errorf("%s; want %s", got, want)
		}
	}
	for _, other := range []trace.TraceID{traceOf("c3", observed), traceOf("c2", after(1)),
		traceOf("c2", after(time.Second)),
		traceOf("", time.Time{})} {
		if other == id {
			t.Error("two changes have one ID")
		}
	}
}

// TestSampling: the rate is kept, and of two parts with different rates, the one with the higher rate records
// everything that the other records.
func TestSampling(t *testing.T) {
	const changes = 20_000
	for _, rate := range []int{1000, 100_000, 500_000} {
		got := 0
		for i := range changes {
			id := traceOf("c2", after(time.Duration(i)))
			is := sampled(id, limit(rate))
			if is {
				got++
			}
			if is && !sampled(id, limit(rate+1)) || !sampled(id, limit(1_000_000)) || sampled(id, limit(0)) {
				t.Fatalf("%s: sampled at %d, and not at a greater rate; or at 0, or not at all of a million", id, rate)
			}
		}
		want := float64(changes) * float64(rate) / 1e6
		if math.Abs(float64(got)-want) > 5*math.Sqrt(want) { // the hash is fixed, so the result is not random
			t.Errorf("%d of %d at %d per million; want about %.0f", got, changes, rate, want)
		}
	}
}

func TestTraceable(t *testing.T) {
	now := observed
	for _, c := range []struct {
		at   time.Time
		want bool
	}{
		{now, true}, {now.Add(-maxAge), true}, {now.Add(maxAge), true},
		{now.Add(-maxAge - 1), false}, {now.Add(maxAge + 1), false},
		{time.Time{}, false}, {time.Unix(0, 0), false}, {time.Unix(1<<40, 0), false},
	} {
		if got := traceable(c.at, now); got != c.want {
			t.Errorf("%s: %t", c.at, got)
		}
	}
}

// line is a test's description of a span.
type line struct {
	Name, Parent string
	Start, End   time.Duration
	Object       string
}

// TestSpansOf follows changes through the parts, and checks which spans they have, in which order, and with which
// parent.
func TestSpansOf(t *testing.T) {
	slice := hop{source: "c2", object: "endpointslice shop/echo-x", observedAt: observed}
	at := func(h hop, part, cluster, action string, at time.Duration) hop {
		h.part, h.cluster, h.action, h.at = part, cluster, action, after(at)
		return h
	}
	to := func(h hop, cluster string) hop { h.to = cluster; return h }
	as := func(h hop, object string) hop { h.object = object; return h }
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		hops []hop
		want []line
	}{
		{"one cluster", []hop{
			to(at(slice, "exporter", "c2", "export", 1*ms), "c1"),
			at(slice, "broker", "c1", "receive", 3*ms),
			as(at(slice, "broker", "c1", "update", 9*ms), "endpointslice c2-shop-73736d-echo-c2-0"),
		}, []line{
			{"change endpointslice", "", 0, 1 * ms, "endpointslice shop/echo-x"},
			{"exporter export endpointslice", "change endpointslice", 0, 1 * ms, "endpointslice shop/echo-x"},
			{"broker receive endpointslice", "exporter export endpointslice", 0, 3 * ms, "endpointslice shop/echo-x"},
			{"broker update endpointslice", "broker receive endpointslice", 3 * ms, 9 * ms,
				"endpointslice c2-shop-73736d-echo-c2-0"},
		}},
		{"two clusters: one change, and each receives what was sent to it", []hop{
			to(at(slice, "exporter", "c2", "export", 1*ms), "c1"),
			to(at(slice, "exporter", "c2", "export", 2*ms), "c3"),
			at(slice, "broker", "c3", "receive", 4*ms),
			at(slice, "broker", "c1", "receive", 5*ms),
		}, []line{
			{"change endpointslice", "", 0, 1 * ms, "endpointslice shop/echo-x"},
			{"exporter export endpointslice", "change endpointslice", 0, 1 * ms, "endpointslice shop/echo-x"},
			{"exporter export endpointslice", "change endpointslice", 0, 2 * ms, "endpointslice shop/echo-x"},
			{"broker receive endpointslice", "exporter export endpointslice", 0, 4 * ms, "endpointslice shop/echo-x"},
			{"broker receive endpointslice", "exporter export endpointslice", 0, 5 * ms, "endpointslice shop/echo-x"},
		}},
		{"a deletion", []hop{
			to(at(slice, "exporter", "c2", "delete", 1*ms), "c1"),
			at(slice, "broker", "c1", "receive-delete", 2*ms),
			as(at(slice, "broker", "c1", "delete", 3*ms), "endpointslice c2-shop-73736d-echo-c2-0"),
		}, []line{
			{"change endpointslice", "", 0, 1 * ms, "endpointslice shop/echo-x"},
			{"exporter delete endpointslice", "change endpointslice", 0, 1 * ms, "endpointslice shop/echo-x"},
			{"broker receive-delete endpointslice", "exporter delete endpointslice", 0, 2 * ms, "endpointslice shop/echo-x"},
			{"broker delete endpointslice", "broker receive-delete endpointslice", 2 * ms, 3 * ms,
				"endpointslice c2-shop-73736d-echo-c2-0"},
		}},
		{"refused", []hop{
			to(at(slice, "exporter", "c2", "export", 1*ms), "c1"),
			at(slice, "broker", "c1", "refuse", 2*ms),
		}, []line{
			{"change endpointslice", "", 0, 1 * ms, "endpointslice shop/echo-x"},
			{"exporter export endpointslice", "change endpointslice", 0, 1 * ms, "endpointslice shop/echo-x"},
			{"broker refuse endpointslice", "exporter export endpointslice", 0, 2 * ms, "endpointslice shop/echo-x"},
		}},
		{"a node, which two nodes program", []hop{
			to(as(at(slice, "exporter", "c2", "export", 1*ms), "node n1 for c1"), "c1"),
			as(at(slice, "broker", "c1", "receive", 2*ms), "node n1"),
			func() hop { h := as(at(slice, "broker", "c1", programs, 7*ms), "node"); h.node = "w1"; return h }(),
			func() hop { h := as(at(slice, "broker", "c1", programs, 8*ms), "node"); h.node = "w2"; return h }(),
		}, []line{
			{"change node", "", 0, 1 * ms, "node n1 for c1"},
			{"exporter export node", "change node", 0, 1 * ms, "node n1 for c1"},
			{"broker receive node", "exporter export node", 0, 2 * ms, "node n1"},
			{"broker program node", "broker receive node", 2 * ms, 7 * ms, "node"},
			{"broker program node", "broker receive node", 2 * ms, 8 * ms, "node"},
		}},
		{"the clock of the receiver is behind", []hop{
			at(slice, "broker", "c1", "receive", -5*ms),
			at(slice, "broker", "c1", "create", -2*ms),
		}, []line{
			{"broker receive endpointslice", "?", -5 * ms, -5 * ms, "endpointslice shop/echo-x"},
			{"broker create endpointslice", "broker receive endpointslice", -5 * ms, -2 * ms, "endpointslice shop/echo-x"},
		}},
		{"in a snapshot, which no event of the broker names", []hop{
			at(slice, "broker", "c1", "create", 9*ms),
		}, []line{
			{"broker create endpointslice", "?", 0, 9 * ms, "endpointslice shop/echo-x"},
		}},
		{"sent again after a disconnect, and written again", []hop{
			to(at(slice, "exporter", "c2", "export", 1*ms), "c1"),
			to(at(slice, "exporter", "c2", "export", 5*ms), "c1"),
			at(slice, "broker", "c1", "update-failed", 6*ms),
			at(slice, "broker", "c1", "update-failed", 7*ms),
		}, []line{
			{"change endpointslice", "", 0, 1 * ms, "endpointslice shop/echo-x"},
			{"exporter export endpointslice", "change endpointslice", 0, 1 * ms, "endpointslice shop/echo-x"},
			{"exporter export endpointslice", "change endpointslice", 0, 5 * ms, "endpointslice shop/echo-x"},
			{"broker update-failed endpointslice", "change endpointslice", 0, 6 * ms, "endpointslice shop/echo-x"},
			{"broker update-failed endpointslice", "change endpointslice", 0, 7 * ms, "endpointslice shop/echo-x"},
		}},
		{"hostile names", []hop{
			as(at(slice, "broker", "c1", "receive", 1*ms), "service shop/\x1b[31m\u202e\xff"+strings.Repeat("x", 1000)),
		}, []line{
			{"broker receive service", "?", 0, 1 * ms, "service shop/ [31m  " + strings.Repeat("x", 380) + "…"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := traceOf("c2", observed)
			parts := map[string]*known{} // by process
			names := map[trace.SpanID]string{}
			var got []line
			for _, h := range c.hops {
				process := h.part + h.cluster
				if parts[process] == nil {
					parts[process] = &known{}
				}
				for _, s := range spansOf(id, h, parts[process]) {
					if names[s.id] != "" || !s.id.IsValid() {
						t.Errorf("the ID of %s is that of %s", s.name, names[s.id])
					}
					names[s.id] = s.name
					parent := names[s.parent]
					if s.parent.IsValid() && parent == "" {
						parent = "?" // the parent is not in the table
					}
					got = append(got, line{s.name, parent, s.start.Sub(observed), s.end.Sub(observed), s.of.object})
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}
