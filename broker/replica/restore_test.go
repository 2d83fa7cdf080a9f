package replica

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// restored is a replica that begins with the nodes n1, n2 and n3 of an earlier broker, and whose brake retains what
// withdraws more than half, from two objects on, for a minute.
func restored(t *testing.T) *braked {
	t.Helper()
	b := &braked{Replica: newReplica(), t: t, now: now}
	b.SetLimits(config.Limits{Nodes: 5},
		config.Brake{Percent: 50, AtLeast: 2, Hold: config.Duration{Duration: time.Minute}})
	changes := b.Restore(kNode, []*semaphorev1.Object{object(kNode, "n1", "a"), object(kNode, "n2", "a"),
		object(kNode, "n3", "a"), object(kNode, "bad", "a"), object(kNode, "half", "a")})
	if got := show(changes); got != "+n1 +n2 +n3" {
		t.Fatalf("restored: %s", got)
	}
	return b
}

// hear takes a first or another complete snapshot of nodes, each as NAME or, without a key, as -NAME.
func (b *braked) hear(revision uint64, names ...string) Result {
	b.t.Helper()
	var all []*semaphorev1.Change
	for i, name := range names {
		version := "a"
		if name[0] == '-' {
			name, version = name[1:], "hollow"
		}
		all = append(all, upsert(uint64(i+1), kNode, name, version))
	}
	b.s = b.Open()
	if w := welcomeOf(b.t, b.take(hello(fmt.Sprint("e", revision), revision, 0, kNode))); b.Complete(kNode) !=
		(len(w.GetHeld()) == 1) {
		b.t.Errorf("complete %v, and the broker offers %v", b.Complete(kNode), w.GetHeld())
	}
	return b.take(begin(kNode, revision), changes(all...), end(kNode, revision, uint64(len(names))))
}

// wants checks which nodes are held with a key, and how many of them are retained.
func (b *braked) wants(what string, retained int, names ...string) {
	b.t.Helper()
	var got []string
	for key, o := range b.All(kNode) {
		if !isEmpty(o) {
			got = append(got, key.Name)
		}
	}
	slices.Sort(got)
	if n := b.Retained(kNode, 0).Total; !slices.Equal(got, names) || n != retained {
		b.t.Errorf("%s: %d retained of %v; want %d of %v", what, n, got, retained, names)
	}
}

// TestRestore: the first snapshot of a kind is compared with what an earlier broker had, as any later one with what is
// held. An object that is not admitted completely, or is beyond the limit, is not restored.
func TestRestore(t *testing.T) {
	b := restored(t)
	if b.Complete(kNode) {
		t.Error("it is complete before its remote was heard")
	}
	if more := b.Restore(kNode, []*semaphorev1.Object{object(kNode, "n4", "a"), object(kNode, "n5", "a"),
		object(kNode, "n6", "a")}); len(more) != 2 {
		t.Errorf("restored beyond the limit of 5: %s", show(more))
	}

	b = restored(t)
	if r := b.hear(10, "n1", "n2", "n3"); len(r.Changes) > 0 || r.Completed != kNode {
		t.Errorf("a snapshot of the same: %s", show(r.Changes))
	}

	b = restored(t)
	if r := b.hear(10, "n1", "n2"); show(r.Changes) != "-n3" || !r.Changes[0].ObservedAt.IsZero() {
		t.Errorf("one of three goes at once: %s", show(r.Changes))
	}

	b = restored(t)
	if r := b.hear(10); len(r.Changes) > 0 || len(r.Retained) != 1 || r.Retained[0] != (Retained{kNode, 3, 3, 3, false}) {
		t.Errorf("a snapshot without nodes: %s, retained %+v", show(r.Changes), r.Retained)
	}

	// One that is sent without its key, and one that is not sent.
	b = restored(t)
	b.hear(10, "n1", "-n2")
	b.wants("most are withdrawn", 2, "n1", "n2", "n3")
	if since := b.Retained(kNode, 0).Since; !since.Equal(now) {
		t.Errorf("retained since %s", since)
	}
	b.now = now.Add(time.Minute - 1)
	if r := b.hear(20, "n1", "-n2"); len(r.Retained) > 0 {
		t.Errorf("it is reported twice: %+v", r.Retained)
	}
	b.wants("before the time to hold", 2, "n1", "n2", "n3")
	b.now = now.Add(time.Minute)
	b.hear(30, "n1", "-n2")
	b.wants("another snapshot after the time to hold", 0, "n1")

	b = restored(t)
	b.hear(10, "n1", "-n2")
	if r := b.Release(b.now, kNode); len(r.Changes) != 2 {
		t.Errorf("released: %s", show(r.Changes))
	}
	b.wants("the operator releases them", 0, "n1")
}

// TestOtherBoundsOfRestored: what an earlier broker had, and other bounds no longer admit, goes before its remote is
// heard; the rest stays.
func TestOtherBoundsOfRestored(t *testing.T) {
	b := restored(t)
	if r := b.Judge(b.now, below("n3")); show(r.Changes) != "-n3" || len(r.Retained) > 0 {
		t.Errorf("changes %s, retained %v", show(r.Changes), r.Retained)
	}
	b.wants("other bounds", 0, "n1", "n2")
	b.SetAdmit(admit)
	changed(t, b.hear(10, "n1", "n2", "n3"), "+n3")
}

// TestR24RestoredNodesThatAreNoLongerExported: what an earlier broker had of a kind that the exporter no longer exports
// stays until the operator releases it. Then the kind is complete, so that agents get the deletions. A later broker,
// which begins with nothing, has it complete from the start and reports nothing. A kind that was never known is not
// complete: no agent has a device for its nodes.
func TestR24RestoredNodesThatAreNoLongerExported(t *testing.T) {
	without := func(b *braked) Result {
		b.s = b.Open()
		return b.take(hello("e1", 0, 0, kService))
	}
	b := restored(t)
	if res := without(b); len(res.Retained) != 1 || len(res.Changes) > 0 || res.Completed != 0 || b.Complete(kNode) {
		t.Errorf("without nodes: %+v", res)
	}
	b.wants("no longer exported", 3, "n1", "n2", "n3")
	res := b.Release(b.now, kNode)
	if show(res.Changes) != "-n1 -n2 -n3" || res.Completed != kNode || !b.Complete(kNode) {
		t.Errorf("released: %s, completed %v", show(res.Changes), res.Completed)
	}
	b.wants("released", 0)
	b.s = b.Open()
	if w := welcomeOf(t, b.take(hello("e2", 1, 0, kNode))); len(w.Held) > 0 || w.ResumeRevision != 0 {
		t.Errorf("welcome %v: the exporter may have what the operator released", w)
	}
	changed(t, b.take(begin(kNode, 1), changes(upsert(1, kNode, "n1", "a")), end(kNode, 1, 1)), "+n1")

	later := &braked{Replica: newReplica(), t: t, now: now}
	later.Restore(kNode, nil)
	if res := without(later); len(res.Retained)+len(res.Changes) > 0 || res.Completed != kNode || !later.Complete(kNode) {
		t.Errorf("a later broker: %+v", res)
	}
	never := &braked{Replica: newReplica(), t: t, now: now}
	if res := without(never); len(res.Retained) > 0 || res.Completed != 0 || never.Release(now, kNode).Completed != 0 {
		t.Errorf("never known: %+v", res)
	}
}
