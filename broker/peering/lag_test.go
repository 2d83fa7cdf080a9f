package peering

import (
	"fmt"
	"slices"
	"testing"
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

func TestLag(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(1_800_000_000+int64(n), 0) }
	var l lag
	if done := l.applied(5); done != nil {
		t.Errorf("%v applied of nothing", done)
	}
	l.sent(6, "c2", at(1))
	l.sent(7, "c3", at(2))
	l.sent(8, "c2", time.Time{}) // nobody knows since when
	l.sent(9, "c2", at(0))
	if done := l.applied(5); done != nil {
		t.Errorf("%v applied before it was", done)
	}
	if done := l.applied(7); !slices.Equal(done, []Propagated{{"c2", at(1)}, {"c3", at(2)}}) {
		t.Errorf("applied up to 7: %v", done)
	}
	if done := l.applied(100); !slices.Equal(done, []Propagated{{"c2", at(0)}}) {
		t.Errorf("applied up to 100: %v", done)
	}
}

// An agent that applies nothing costs no more than maxUnapplied, and the change that waited longest is not lost.
func TestLagIsBounded(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(1_800_000_000+int64(n), 0) }
	var l lag
	revision := uint64(0)
	for n := range 10_000 {
		revision++
		l.sent(revision, fmt.Sprint("c", n%3), at(n))
	}
	revision++
	l.sent(revision, "c9", at(20_000))
	revision++
	l.sent(revision, "c0", at(-1))
	if n := len(l.pending); n != maxUnapplied+1 {
		t.Errorf("%d remembered", n)
	}
	done := l.applied(revision)
	oldest := slices.MinFunc(done, func(a, b Propagated) int { return a.ObservedAt.Compare(b.ObservedAt) })
	if len(done) != maxUnapplied+1 || len(l.pending) != 0 || oldest.Cluster != "c0" || !oldest.ObservedAt.Equal(at(-1)) {
		t.Errorf("%d applied, %d left, the oldest is %v", len(done), len(l.pending), oldest)
	}
}

// The state that an agent receives when it attaches is no change; a state that it receives afterwards, or missed while
// it was away, is.
func TestSessionCountsChangesAfterTheSnapshot(t *testing.T) {
	at := func(n int) map[string]time.Time {
		return map[string]time.Time{"a": time.Unix(1_800_000_000+int64(n), 0).UTC()}
	}
	applied := func(s *Session, revision uint64) []Propagated {
		t.Helper()
		r, err := s.Receive(players.Applied(revision))
		testkit.Must(t, err)
		return r.Propagated
	}
	state := NewState()
	become(state, "c2", meshOf("c2", "a 1"), at(1))
	first := open(t, state, nil)
	said(t, first)
	if got := applied(first, state.journal.Head()); got != nil {
		t.Errorf("the whole state took %v", got)
	}
	become(state, "c2", meshOf("c2", "a 2"), at(2))
	if got := applied(first, state.journal.Head()); got != nil {
		t.Errorf("%v came through before it was sent", got)
	}
	said(t, first)
	want := []Propagated{{"c2", at(2)["a"]}}
	if got := applied(first, state.journal.Head()); !slices.Equal(got, want) {
		t.Errorf("%v came through; want %v", got, want)
	}
	if got := applied(first, state.journal.Head()); got != nil {
		t.Errorf("%v came through twice", got)
	}
	again := open(t, state, &semaphorev1.AgentHello{ResumeEpoch: state.journal.Epoch(), ResumeRevision: 2})
	said(t, again)
	if got := applied(again, state.journal.Head()); !slices.Equal(got, want) {
		t.Errorf("of what it missed %v came through; want %v", got, want)
	}
}
