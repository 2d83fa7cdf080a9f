// Package figure states what a benchmark measures: a value, the floor measured beside it in the same run, and the bound
// that it must keep. A benchmark prints all of them as metrics of its own, by testing.B.ReportMetric;
// internal/bench/table joins them into one table, and fails where a bound is broken.
//
// A bound must not depend on the machine: it limits counts (writes, bytes, allocations), or the ratio of a time to its
// floor.
//
// The package imports no other package of semaphore.
package figure

import "testing"

// A metric that belongs to a figure has the figure's unit, the separator, and one of these for its own unit.
const (
	Separator  = ":"
	Floor      = "floor"
	Most       = "most"        // of the value
	Least      = "least"       // of the value
	MostRatio  = "most-ratio"  // of the value to the floor
	LeastRatio = "least-ratio" // of the value to the floor
)

// Figure is one number that a benchmark reports.
type Figure struct {
	b    *testing.B
	unit string
}

// Report reports a value. The unit names it, as testing's do: p50-ms, writes/change, B/op.
func Report(b *testing.B, unit string, value float64) Figure {
	b.Helper()
	b.ReportMetric(value, unit)
	return Figure{b, unit}
}

// Of is a figure that testing reports by itself: ns/op, and with ReportAllocs B/op and allocs/op.
func Of(b *testing.B, unit string) Figure { return Figure{b, unit} }

// Floor is what the same costs when it is done directly, without the product, measured in the same run.
func (f Figure) Floor(value float64) Figure { return f.with(Floor, value) }

// AtMost bounds the value.
func (f Figure) AtMost(value float64) Figure { return f.with(Most, value) }

// AtLeast bounds the value.
func (f Figure) AtLeast(value float64) Figure { return f.with(Least, value) }

// AtMostTimesFloor bounds the ratio of the value to its floor.
func (f Figure) AtMostTimesFloor(ratio float64) Figure { return f.with(MostRatio, ratio) }

// AtLeastTimesFloor bounds the ratio of the value to its floor.
func (f Figure) AtLeastTimesFloor(ratio float64) Figure { return f.with(LeastRatio, ratio) }

func (f Figure) with(what string, value float64) Figure {
	f.b.Helper()
	f.b.ReportMetric(value, f.unit+Separator+what)
	return f
}

// WithoutTime leaves out the time of one iteration, where the load is the benchmark's and its speed says nothing.
func WithoutTime(b *testing.B) {
	b.Helper()
	b.ReportMetric(0, "ns/op")
}
