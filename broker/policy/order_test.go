package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Two sets are written at a time, and an address passes from one to the other while the first is being written
// with it: the other has to wait for the end of that write, and then for the one that takes it out again.
func TestAnAddressBeingWrittenCountsAsWritten(t *testing.T) {
	p := plan()
	k := newCluster(t, p)
	p.Apply("c2", pods("a/p u1 s 10.2.0.1"))
	written := p.Reserve("c2-a-s", k.now).Set // and under way from now on
	p.Apply("c2", pods("a/p", "a/q u2 t 10.2.0.1"))
	if d := p.Reserve("c2-a-t", k.now); d.Set != nil || d.Again == 0 {
		t.Fatalf("it joins %v while another set is written with it (again after %s)", d.Set, d.Again)
	}
	// The informer reports what was there before: the write is still under way.
	p.Observed("c2-a-s", nil)
	if d := p.Reserve("c2-a-t", k.now); d.Set != nil || d.Again == 0 {
		t.Fatalf("it joins %v because of what was before the write (again after %s)", d.Set, d.Again)
	}
	p.Observed("c2-a-s", written)
	if d := p.Reserve("c2-a-t", k.now); d.Set != nil {
		t.Fatalf("it joins %v while another set has it", d.Set.Spec.Nets)
	}
	if woken := k.reconcile("c2-a-s"); !slices.Contains(woken, "c2-a-t") {
		t.Errorf("the address has left, which wakes %v", woken)
	}
	if d := p.Reserve("c2-a-t", k.now); d.Set == nil || !slices.Equal(d.Set.Spec.Nets, []string{"10.2.0.1/32"}) {
		t.Errorf("nobody else has it, and %+v", d)
	}
}

// A write that was decided and came to nothing keeps nobody out for long.
func TestAnAddressThatNeverArrives(t *testing.T) {
	p := plan()
	k := newCluster(t, p)
	p.Apply("c2", pods("a/p u1 s 10.2.0.1"))
	p.Reserve("c2-a-s", k.now)
	p.Apply("c2", pods("a/p", "a/q u2 t 10.2.0.1"))
	if d := p.Reserve("c2-a-t", k.now); d.Set != nil || d.Again == 0 {
		t.Errorf("while it is under way: %+v", d)
	}
	p.Observed("c2-a-s", nil)
	p.Reserve("c2-a-s", k.now) // it has failed, and the set is looked at again
	if d := p.Reserve("c2-a-t", k.now); d.Set == nil || d.Again != 0 {
		t.Errorf("%+v", d)
	}
}

// After a restart two sets with one name are heard of one after the other. The address in the object is that of
// the set that the object says, and not of the one that had the name for a moment.
func TestAPassingNameDoesNotChangeTheOwner(t *testing.T) {
	before := plan()
	k := newCluster(t, before)
	k.settle(touchedNames(before.Apply("c2", pods("a/p u1 b-c 10.2.0.1", "a/r u3 b-c 10.2.0.3")))...)
	p := plan()
	k.p = p
	for name, s := range k.sets {
		p.Observed(name, s)
	}
	p.Apply("c2", pods("a-b/q u2 c 10.2.0.1", "a/r u3 b-c 10.2.0.3"))
	suffixed := naming.SetWithSuffix("c2", "a-b", "c")
	if d := p.Reserve(suffixed, k.now); d.Set != nil {
		t.Errorf("it joins %v while the old set has it, as another pod's", d.Set.Spec.Nets)
	}
	k.settle("c2-a-b-c", suffixed)
	if got := k.show(); got != suffixed+"=10.2.0.1/32 c2-a-b-c=10.2.0.3/32" {
		t.Errorf("%s", got)
	}
}

// TestSetOnlyReads: who asks what is wanted, and writes nothing, changes nothing: the answer stays the same, no other
// set waits for a write that is not under way, and no hold begins.
func TestSetOnlyReads(t *testing.T) {
	p := plan()
	k := newCluster(t, p)
	p.Apply("c2", pods("a/p u1 s 10.2.0.1"))
	if d := p.Set("c2-a-s", k.now); d.Set == nil || len(d.Set.Spec.Nets) != 1 {
		t.Fatalf("before the write: %+v", d)
	}
	p.Apply("c2", pods("a/p", "a/q u2 t 10.2.0.1"))
	if d := p.Set("c2-a-t", k.now); d.Set == nil || d.Again != 0 {
		t.Errorf("it waits for a write that nobody began: %+v", d)
	}
	k.settle("c2-a-s", "c2-a-t")
	p.Apply("c2", pods("a/q u2 s 10.2.0.1"))
	for _, after := range []time.Duration{0, time.Second, holdRemoval} {
		if d := p.Set("c2-a-t", k.now.Add(after)); d.Set == nil || d.Again != holdRemoval {
			t.Errorf("after %s nobody has begun to hold the IP, and %+v", after, d)
		}
	}
	p.Reserve("c2-a-t", k.now)
	if d := p.Set("c2-a-t", k.now.Add(holdRemoval)); d.Set != nil {
		t.Errorf("after it was held for %s: %+v", holdRemoval, d)
	}
}

// TestUrgent: a write is urgent if it takes an IP out of an object, and not if it only adds some.
func TestUrgent(t *testing.T) {
	p := plan()
	k := newCluster(t, p)
	k.settle(touchedNames(p.Apply("c2", pods("a/p u1 s 10.2.0.1", "a/q u2 s 10.2.0.2")))...)
	for _, step := range []struct {
		what    string
		changes []replica.Change
		want    bool
	}{
		{"it is as desired", nil, false},
		{"an IP is to be added", pods("a/r u3 s 10.2.0.3"), false},
		{"an IP is to be removed", pods("a/p"), true},
	} {
		p.Apply("c2", step.changes)
		if got := p.Urgent("c2-a-s"); got != step.want {
			t.Errorf("%s: urgent %t, want %t", step.what, got, step.want)
		}
	}
	k.settle("c2-a-s")
	if p.Urgent("c2-a-s") || p.Urgent("c2-a-other") {
		t.Error("it is urgent after the write, or without an object")
	}
}
