// Command table reads the output of `go test -bench` and prints one table: each figure with the floor that the same run
// measured, their ratio, and the bound. It exits with 1 if a bound is broken or a benchmark failed.
//
// Figures and bounds are metrics of the benchmarks; see test/bench/figure.
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/perf/benchfmt"

	"github.com/kube-semaphore/semaphore/test/bench/figure"
)

func main() {
	broken, err := table(os.Stdin, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if len(broken) > 0 {
		fmt.Fprintf(os.Stderr, "\n%d broken:\n  %s\n", len(broken), strings.Join(broken, "\n  "))
		os.Exit(1)
	}
}

// module is removed from the names of packages.
const module = "github.com/kube-semaphore/semaphore/"

// table writes the figures of the benchmarks in in to out, and lines about failures to other as they arrive. It returns
// a line for each broken bound and each failure.
func table(in io.Reader, out, other io.Writer) (broken []string, err error) {
	failures := &failed{to: other}
	results := benchfmt.NewReader(io.TeeReader(in, failures), "")
	fmt.Fprintf(out, "%-78s %12s %12s %8s  %s\n", "figure", "value", "floor", "ratio", "bound")
	for results.Scan() {
		switch r := results.Result().(type) {
		case *benchfmt.SyntaxError: // the rest of the table is worth its minutes
			broken = append(broken, r.Error())
		case *benchfmt.Result:
			name := strings.TrimPrefix(r.GetConfig("pkg"), module) + " " + benchmark(r.Name)
			for _, f := range figuresOf(r.Values) {
				line := f.line(name)
				fmt.Fprintln(out, line)
				if f.broken() {
					broken = append(broken, line)
				}
			}
		}
	}
	failures.line(failures.rest)
	return append(broken, failures.lines...), results.Err()
}

// benchmark returns a benchmark's name without the number of processors.
func benchmark(n benchfmt.Name) string {
	_, parts := n.Parts()
	if len(parts) > 0 && parts[len(parts)-1][0] == '-' {
		return strings.TrimSuffix(n.String(), string(parts[len(parts)-1]))
	}
	return n.String()
}

// one is one figure. Absent values are nil.
type one struct {
	unit                                      string
	value                                     float64
	floor, most, least, mostRatio, leastRatio *float64
}

// figuresOf combines the metrics of a benchmark into figures, sorted by unit.
func figuresOf(values []benchfmt.Value) []*one {
	byUnit := map[string]*one{}
	var all []*one
	for _, v := range values {
		value, name := v.Value, v.Unit
		if v.OrigUnit != "" {
			value, name = v.OrigValue, v.OrigUnit
		}
		unit, suffix, _ := strings.Cut(name, figure.Separator)
		f := byUnit[unit]
		if f == nil {
			f = &one{unit: unit}
			byUnit[unit] = f
			all = append(all, f)
		}
		switch suffix {
		case figure.Floor:
			f.floor = &value
		case figure.Most:
			f.most = &value
		case figure.Least:
			f.least = &value
		case figure.MostRatio:
			f.mostRatio = &value
		case figure.LeastRatio:
			f.leastRatio = &value
		default:
			f.value = value
		}
	}
	slices.SortStableFunc(all, func(a, b *one) int { return cmp.Compare(a.unit, b.unit) })
	return all
}

// ratio returns the ratio of the value to the floor; 0 without a floor.
func (f *one) ratio() float64 {
	if f.floor == nil || *f.floor == 0 {
		return 0
	}
	return f.value / *f.floor
}

// broken reports whether a bound is broken. A bound of the ratio is also broken if there is no floor.
func (f *one) broken() bool {
	return f.most != nil && f.value > *f.most ||
		f.least != nil && f.value < *f.least ||
		f.mostRatio != nil && (f.ratio() == 0 || f.ratio() > *f.mostRatio) ||
		f.leastRatio != nil && f.ratio() < *f.leastRatio
}

func (f *one) line(name string) string {
	floor, ratio := "", ""
	if f.floor != nil {
		floor, ratio = number(*f.floor), fmt.Sprintf("%.2f", f.ratio())
	}
	var bounds []string
	for _, b := range []struct {
		limit  *float64
		format string
	}{{f.most, "≤ %s"}, {f.least, "≥ %s"}, {f.mostRatio, "≤ %s × floor"}, {f.leastRatio, "≥ %s × floor"}} {
		if b.limit != nil {
			bounds = append(bounds, fmt.Sprintf(b.format, number(*b.limit)))
		}
	}
	if f.broken() {
		bounds = append(bounds, "BROKEN")
	}
	line := fmt.Sprintf("%-60s %-17s %12s %12s %8s  %s", name, f.unit, number(f.value), floor, ratio,
		strings.Join(bounds, ", "))
	return strings.TrimRight(line, " ")
}

// number formats a number with four significant digits, and without an exponent.
func number(n float64) string {
	if n >= 1000 || n <= -1000 || n == float64(int64(n)) {
		return strconv.FormatFloat(n, 'f', 0, 64)
	}
	return strconv.FormatFloat(n, 'g', 4, 64)
}

// failed collects the lines that report the failure of a test or a package, and copies a benchmark's messages to
// another writer.
type failed struct {
	to    io.Writer
	rest  []byte // the beginning of an incomplete line
	lines []string
}

func (f *failed) Write(p []byte) (int, error) {
	f.rest = append(f.rest, p...)
	for {
		line, rest, whole := bytes.Cut(f.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		f.line(line)
		f.rest = rest
	}
}

func (f *failed) line(data []byte) {
	line := string(data)
	switch {
	case line == "", line == "PASS", line == "FAIL", strings.HasPrefix(line, "Benchmark"), strings.HasPrefix(line, "ok  "),
		slices.ContainsFunc([]string{"goos: ", "goarch: ", "pkg: ", "cpu: "},
			func(p string) bool { return strings.HasPrefix(line, p) }):
		return
	case strings.HasPrefix(line, "--- FAIL"), strings.HasPrefix(line, "FAIL"), strings.HasPrefix(line, "panic:"):
		f.lines = append(f.lines, line)
	}
	fmt.Fprintln(f.to, line)
}
