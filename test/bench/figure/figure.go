// Package figure reports what a benchmark measures: a value, a floor that the same run measured, and a bound for the
// value. A benchmark reports all of them as metrics, by testing.B.ReportMetric; test/bench/table joins them into
// one table, and fails if a bound is exceeded.
//
// A bound must not depend on the machine: it limits counts (writes, bytes, allocations), or the ratio of a time to its
// floor.
package figure

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// The unit of a metric that belongs to a figure is the figure's unit, the separator, and one of these.
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

// Report reports a value. Its unit names it, as in package testing: p50-ms, writes/change, B/op.
func Report(b *testing.B, unit string, value float64) Figure {
	b.Helper()
	b.ReportMetric(value, unit)
	return Figure{b, unit}
}

// Of returns a figure that package testing reports by itself: ns/op, and with ReportAllocs B/op and allocs/op.
func Of(b *testing.B, unit string) Figure { return Figure{b, unit} }

// Floor reports the cost of doing the same directly, without the product, measured in the same run.
func (f Figure) Floor(value float64) Figure { return f.with(Floor, value) }

// AtMost reports an upper bound of the value.
func (f Figure) AtMost(value float64) Figure { return f.with(Most, value) }

// AtLeast reports a lower bound of the value.
func (f Figure) AtLeast(value float64) Figure { return f.with(Least, value) }

// AtMostTimesFloor reports an upper bound of the ratio of the value to its floor.
func (f Figure) AtMostTimesFloor(ratio float64) Figure { return f.with(MostRatio, ratio) }

// AtLeastTimesFloor reports a lower bound of the ratio of the value to its floor.
func (f Figure) AtLeastTimesFloor(ratio float64) Figure { return f.with(LeastRatio, ratio) }

func (f Figure) with(what string, value float64) Figure {
	f.b.Helper()
	f.b.ReportMetric(value, f.unit+Separator+what)
	return f
}

// WithoutTime suppresses ns/op. It is for benchmarks that generate their own load, whose speed means nothing.
func WithoutTime(b *testing.B) {
	b.Helper()
	b.ReportMetric(0, "ns/op")
}

// Quantiles sorts times, and returns their median and their 99th percentile.
func Quantiles(times []time.Duration) (p50, p99 time.Duration) {
	slices.Sort(times)
	return times[len(times)/2], times[(len(times)*99+99)/100-1]
}

// BetterQuartile returns what a quarter of the turns of a unit is better than: times, in µs, are better if they are
// shorter, and all else if it is more. Other load on the machine makes turns only worse.
func BetterQuartile(unit string, turns []float64) float64 {
	all := slices.Sorted(slices.Values(turns))
	if strings.HasSuffix(unit, "µs") {
		return all[len(all)/4]
	}
	return all[len(all)*3/4]
}

// Mean returns the mean of turns, and its standard error. It is for figures that differ from turn to turn by
// themselves, not because of other load.
func Mean(turns []float64) (mean, standardError float64) {
	n := float64(len(turns))
	for _, x := range turns {
		mean += x / n
	}
	squares := 0.0
	for _, x := range turns {
		squares += (x - mean) * (x - mean)
	}
	return mean, math.Sqrt(squares / (n - 1) / n)
}

// Paired returns the geometric means of the turns of a figure and of its floor, and the standard error of the logarithm
// of their ratio. It is for turns that follow each other: what else the machine does changes both of a pair alike.
func Paired(turns, floors []float64) (mean, floor, standardError float64) {
	logs, ratios := make([]float64, len(turns)), make([]float64, len(turns))
	for i, x := range turns {
		logs[i], ratios[i] = math.Log(floors[i]), math.Log(x/floors[i])
	}
	of, _ := Mean(logs)
	ratio, standardError := Mean(ratios)
	return math.Exp(of + ratio), math.Exp(of), standardError
}
