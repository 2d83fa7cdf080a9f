package federation

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestOutcomes: what differs is sent, and what ended; of too many those that were sent stay, whatever comes before them
// by name, and how many are left out is sent once.
func TestOutcomes(t *testing.T) {
	of := func(from, to int, reason string) (all []*semaphorev1.Outcome) {
		for i := from; i < to; i++ {
			all = append(all, &semaphorev1.Outcome{Key: &semaphorev1.ObjectKey{Namespace: "shop", Name: fmt.Sprintf("echo-%05d",
				i)}, Code: "NamespaceDenied", Reason: reason})
		}
		return all
	}
	var o outcomes
	step := func(what string, now []*semaphorev1.Outcome, sent, ended int, omitted ...uint64) {
		t.Helper()
		var gotSent, gotEnded int
		var gotOmitted []uint64
		for _, r := range o.diff(now) {
			switch m := r.GetOutcome(); {
			case m.GetKey() == nil:
				gotOmitted = append(gotOmitted, m.GetOmitted())
			case m.GetCode() == "":
				gotEnded++
			default:
				gotSent++
			}
		}
		if gotSent != sent || gotEnded != ended || !slices.Equal(gotOmitted, omitted) {
			t.Errorf("%s: %d sent, %d ended, omitted %v; want %d, %d, %v", what, gotSent, gotEnded, gotOmitted, sent, ended,
				omitted)
		}
		if len(o.sent) > maxOutcomes {
			t.Errorf("%s: %d are remembered", what, len(o.sent))
		}
	}
	step("none", nil, 0, 0)
	step("some", of(100, 200, "a"), 100, 0)
	step("the same", of(100, 200, "a"), 0, 0)
	step("one twice", append(of(100, 200, "a"), of(100, 101, "b")...), 0, 0)
	step("other reasons", of(100, 200, "b"), 100, 0)
	step("too many", of(100, maxOutcomes+200, "b"), maxOutcomes-100, 0, 100)
	step("more, before the others by name", of(0, maxOutcomes+200, "b"), 0, 0, 200)
	step("the same again", of(0, maxOutcomes+200, "b"), 0, 0)
	step("some end", of(0, maxOutcomes, "b"), 100, 100, 0)
	step("all end", nil, 0, maxOutcomes)

	l := &link{cluster: "c2", current: &stream{}}
	if p := l.omittedProblem(); p != "" {
		t.Errorf("problem %q", p)
	}
	l.current.outcomes.diff(of(0, maxOutcomes+1, "a"))
	if p := l.omittedProblem(); l.omitted() != 1 || !strings.Contains(p, "the report to cluster c2 is full") {
		t.Errorf("%d, problem %q", l.omitted(), p)
	}
}
