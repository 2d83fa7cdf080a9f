package services_test

import (
	"testing"
	"time"
)

// Whoever removes by hand what is held leaves no object that asks, and so nobody who would learn that nothing is held
// any more: every stream would be ended once a minute, for ever.
func TestWhatWasRemovedByHandIsHeldNoMore(t *testing.T) {
	f := newFixture(t, 40)
	f.snapshot(0)
	f.verdict(0)
	if len(f.Problems()) != 1 {
		t.Fatalf("problems: %q", f.Problems())
	}
	f.loop.names = nil
	f.now = f.now.Add(10 * time.Minute)
	if !f.ResyncDue("c2") {
		t.Fatal("no other snapshot is asked for")
	}
	f.snapshot(0)
	if f.ResyncDue("c2") || len(f.Problems()) != 0 {
		t.Errorf("due %v; problems %q", f.ResyncDue("c2"), f.Problems())
	}
}
