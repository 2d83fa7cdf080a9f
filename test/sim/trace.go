package sim

import (
	"fmt"
	"hash/fnv"
)

// kept is how many lines a failure shows.
const kept = 50

// trace is what happened, a line a step. Two runs of one seed have the same trace, which its sum shows without storing
// it.
type trace struct {
	last []string // a ring
	next int
	sum  uint64
	tell func(string) // nil for nobody
}

func newTrace(tell func(string)) *trace { return &trace{tell: tell} }

func (t *trace) add(line string) {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d\n%s", t.sum, line)
	t.sum = h.Sum64()
	if len(t.last) < kept {
		t.last = append(t.last, line)
	} else {
		t.last[t.next] = line
		t.next = (t.next + 1) % kept
	}
	if t.tell != nil {
		t.tell(line)
	}
}

// tail is the last lines, oldest first.
func (t *trace) tail() []string {
	return append(append([]string(nil), t.last[t.next:]...), t.last[:t.next]...)
}
