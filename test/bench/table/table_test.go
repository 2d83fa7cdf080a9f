package main

import (
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestTable(t *testing.T) {
	const head = "goos: linux\npkg: github.com/kube-semaphore/semaphore/broker\ncpu: some\n"
	for _, c := range []struct {
		name, in string
		rows     []string // of fields
		broken   int
	}{
		{"a figure without a bound", head + "BenchmarkOne-2 \t 10 \t 12345 ns/op\nPASS\n",
			[]string{"broker One ns/op 12345"}, 0},
		{
			"floor and ratio", head +
				"BenchmarkFanOut/all-2 46 30.50 median-ms 20.00 median-ms:floor 1.500 median-ms:most-ratio\n",
			[]string{"broker FanOut/all median-ms 30.5 20 1.52 ≤ 1.5 × floor, BROKEN"}, 1,
		},
		{
			"kept", head + "BenchmarkFanOut-2 46 30.00 median-ms 20.00 median-ms:floor 1.500 median-ms:most-ratio 0 reads 0 " +
				"reads:most\n",
			[]string{"broker FanOut median-ms 30 20 1.50 ≤ 1.5 × floor", "broker FanOut reads 0 ≤ 0"}, 0,
		},
		{"none is too many", head + "BenchmarkX-2 1 1.000 reads 0 reads:most\n", []string{"broker X reads 1 ≤ 0, BROKEN"}, 1},
		{"too little", head + "BenchmarkX-2 1 0.980 share 0.990 share:least\n",
			[]string{"broker X share 0.98 ≥ 0.99, BROKEN"}, 1},
		{
			"less than the floor", head + "BenchmarkX-2 1 0.980 share 1.000 share:floor 0.990 share:least-ratio\n",
			[]string{"broker X share 0.98 1 0.98 ≥ 0.99 × floor, BROKEN"}, 1,
		},
		{"a ratio without a floor", head + "BenchmarkX-2 1 5.000 ms 2.000 ms:most-ratio\n",
			[]string{"broker X ms 5 ≤ 2 × floor, BROKEN"}, 1},
		{"of a library's units", head + "BenchmarkX-2 1 5.000 MB/s\n", []string{"broker X MB/s 5"}, 0},
		{"a failure", head + "--- FAIL: BenchmarkX\n    x_test.go:1: " +
			"no\nFAIL\nFAIL\tgithub.com/kube-semaphore/semaphore/broker\t1s\n", nil, 2},
		{"a death", head + "panic: oh\n", nil, 1},
		{"no measurement, and what follows", head + "BenchmarkX-2 1\nBenchmarkY-2 1 5.000 ms\n",
			[]string{"broker Y ms 5"}, 1},
		{"a line that is cut off", head + "panic: oh", nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, other strings.Builder
			broken := testkit.Value(table(strings.NewReader(c.in), &out, &other))(t)
			var rows []string
			for line := range strings.Lines(out.String()) {
				rows = append(rows, strings.Join(strings.Fields(line), " "))
			}
			if got, want := strings.Join(rows[1:], "\n"), strings.Join(c.rows, "\n"); got != want {
				t.Errorf("rows:\n%s\nwant:\n%s", got, want)
			}
			if len(broken) != c.broken {
				t.Errorf("broken: %q", broken)
			}
			if strings.Contains(c.name, "failure") && !strings.Contains(other.String(), "x_test.go:1: no") {
				t.Errorf("what failed is not said: %q", other.String())
			}
		})
	}
}
