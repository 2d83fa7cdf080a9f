package services_test

import (
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// An operator who removes by hand what is retained leaves no object that asks, and so nothing that would learn that the
// rest is released: every stream would be ended once a minute, forever.
func TestObjectsRemovedByHandAreNotRetained(t *testing.T) {
	f := newFixture(t, 40)
	f.snapshot(0)
	f.verdict(0)
	if len(finding.Texts(f.Findings())) != 1 {
		t.Fatalf("problems: %q", finding.Texts(f.Findings()))
	}
	f.loop.names = nil
	f.now = f.now.Add(time.Hour)
	if !f.ResyncDue("c2") {
		t.Fatal("no other snapshot is asked for")
	}
	f.snapshot(0)
	if f.ResyncDue("c2") || len(finding.Texts(f.Findings())) != 0 {
		t.Errorf("due %v; problems %q", f.ResyncDue("c2"), finding.Texts(f.Findings()))
	}
}
