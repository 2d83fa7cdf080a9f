package testbed

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// times records the steps of Up and their times.
type times struct {
	began time.Time
	mu    sync.Mutex
	spans []span // guarded by mu
}

type span struct {
	of, what   string
	start, end time.Duration
}

// span begins a step and returns the function that ends it.
func (t *times) span(of, what string) (done func()) {
	start := time.Since(t.began)
	return func() {
		end := time.Since(t.began)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.spans = append(t.spans, span{of, what, start, end})
	}
}

// print writes a table, in the order in which the steps began.
func (t *times) print(out io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.of, b.of), cmp.Compare(a.start, b.start))
	})
	fmt.Fprintf(out, "%8s %8s %8s\n", "from", "to", "took")
	for _, s := range t.spans {
		fmt.Fprintf(out, "%7.1fs %7.1fs %7.1fs  %-3s %s\n",
			s.start.Seconds(), s.end.Seconds(), (s.end - s.start).Seconds(), s.of, s.what)
	}
}
