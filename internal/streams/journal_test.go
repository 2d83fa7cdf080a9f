package streams

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func at(second int) time.Time { return time.Unix(int64(second), 0) }

// text formats entries as "REVISION KEY=VALUE" or "REVISION KEY deleted (last VALUE)".
func text(entries []*Entry[string, int]) []string {
	out := []string{}
	for _, e := range entries {
		if e.Deleted {
			out = append(out, fmt.Sprintf("%d %s deleted (last %d)", e.Revision, e.Key, e.Value))
		} else {
			out = append(out, fmt.Sprintf("%d %s=%d", e.Revision, e.Key, e.Value))
		}
	}
	return out
}

// do performs steps: "a=1" puts, "-a" deletes.
func do(t *testing.T, j *Journal[string, int], steps ...string) {
	t.Helper()
	for i, s := range steps {
		if s[0] == '-' {
			last, _ := j.Get(s[1:])
			j.Delete(s[1:], last, at(i))
			continue
		}
		var key string
		var value int
		if _, err := fmt.Sscanf(s, "%1s=%d", &key, &value); err != nil {
			t.Fatalf("step %q: %v", s, err)
		}
		j.Put(key, value, at(i))
	}
}

func TestSince(t *testing.T) {
	for _, test := range []struct {
		name       string
		tombstones int
		steps      []string
		revision   uint64
		limit      int
		want       []string
		next       uint64
		refused    bool
	}{
		{name: "empty", tombstones: 10, limit: 10, want: []string{}, next: 0},
		{name: "from the beginning", tombstones: 10, steps: []string{"a=1", "b=2"}, limit: 10,
			want: []string{"1 a=1", "2 b=2"}, next: 2},
		{name: "only what is newer", tombstones: 10, steps: []string{"a=1", "b=2", "c=3"}, revision: 2, limit: 10,
			want: []string{"3 c=3"}, next: 3},
		{name: "up to date", tombstones: 10, steps: []string{"a=1"}, revision: 1, limit: 10, want: []string{}, next: 1},
		{name: "superseded changes are left out", tombstones: 10, steps: []string{"a=1", "b=2", "a=3", "a=4"}, limit: 10,
			want: []string{"2 b=2", "4 a=4"}, next: 4},
		{name: "deletions are changes", tombstones: 10, steps: []string{"a=1", "b=2", "-a"}, revision: 2, limit: 10,
			want: []string{"3 a deleted (last 1)"}, next: 3},
		{name: "an object that comes back", tombstones: 10, steps: []string{"a=1", "-a", "a=2"}, limit: 10,
			want: []string{"3 a=2"}, next: 3},
		{name: "deleting what is not there changes nothing", tombstones: 10, steps: []string{"a=1", "-b", "-a", "-a"},
			limit: 10, want: []string{"2 a deleted (last 1)"}, next: 2},
		{name: "a page", tombstones: 10, steps: []string{"a=1", "b=2", "c=3"}, limit: 2,
			want: []string{"1 a=1", "2 b=2"}, next: 2},
		{name: "a page that is just full goes to the head", tombstones: 10, steps: []string{"a=1", "b=2", "b=3"}, limit: 2,
			want: []string{"1 a=1", "3 b=3"}, next: 3},
		{name: "a page ends before superseded changes", tombstones: 10, steps: []string{"a=1", "b=2", "b=3", "c=4"}, limit: 1,
			want: []string{"1 a=1"}, next: 1},
		{name: "no room for anything", tombstones: 10, steps: []string{"a=1"}, limit: 0, want: []string{}, next: 0},
		{name: "no tombstones kept, reader before the deletion", tombstones: 0, steps: []string{"a=1", "b=2", "-a"},
			revision: 2, limit: 10, refused: true, next: 2},
		{name: "no tombstones kept, reader after the deletion", tombstones: 0, steps: []string{"a=1", "b=2", "-a", "c=4"},
			revision: 3, limit: 10, want: []string{"4 c=4"}, next: 4},
		{name: "a revision that has not been yet", tombstones: 10, steps: []string{"a=1"}, revision: 2, limit: 10,
			refused: true, next: 2},
		{name: "the last revision there can be", tombstones: 10, steps: []string{"a=1"}, revision: 1<<64 - 1, limit: 10,
			refused: true, next: 1<<64 - 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := NewJournal[string, int](test.tombstones)
			do(t, j, test.steps...)
			got, next, ok := j.Since(test.revision, test.limit)
			if ok == test.refused {
				t.Fatalf("ok = %v", ok)
			}
			if next != test.next {
				t.Errorf("next = %d; want %d", next, test.next)
			}
			if !test.refused {
				if diff := cmp.Diff(test.want, text(got)); diff != "" {
					t.Errorf("changes (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestSnapshot(t *testing.T) {
	j := NewJournal[string, int](10)
	if all, revision := j.Snapshot(); len(all) != 0 || revision != 0 {
		t.Errorf("empty journal: %v at %d", text(all), revision)
	}
	do(t, j, "a=1", "b=2", "c=3", "a=4", "-b")
	all, revision := j.Snapshot()
	if diff := cmp.Diff([]string{"3 c=3", "4 a=4"}, text(all)); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
	if revision != 5 {
		t.Errorf("revision = %d; want 5", revision)
	}
	again, _ := j.Snapshot()
	if &again[0] != &all[0] {
		t.Error("a second snapshot of the same revision was made again: with many readers that is many copies")
	}
	do(t, j, "c=6")
	if diff := cmp.Diff([]string{"3 c=3", "4 a=4"}, text(all)); diff != "" {
		t.Errorf("a later change reached an earlier snapshot (-want +got):\n%s", diff)
	}
	if newer, _ := j.Snapshot(); len(newer) != 2 || newer[1].Value != 6 {
		t.Errorf("snapshot after a change: %v", text(newer))
	}
}

func TestEpochsDiffer(t *testing.T) {
	one, other := NewJournal[string, int](1), NewJournal[string, int](1)
	if one.Epoch() == other.Epoch() {
		t.Error("two journals have one epoch")
	}
}

// TestTombstoneLimit: a reader that missed as many deletions as the limit continues, and one that missed more does not.
func TestTombstoneLimit(t *testing.T) {
	const limit = 10
	j := NewJournal[string, int](limit)
	for i := range 1000 {
		key := fmt.Sprint(i)
		j.Put(key, i, at(i))
		j.Delete(key, 0, at(i))
		if j.dead > limit {
			t.Fatalf("after %d deletions: %d tombstones", i+1, j.dead)
		}
		// Each step with a deletion takes two revisions.
		if back := uint64(2 * limit); j.head > back {
			if _, _, ok := j.Since(j.head-back, 1000); !ok {
				t.Fatalf("a reader that missed %d deletions has to start over; oldest %d, head %d", limit, j.Oldest(), j.head)
			}
		}
	}
	if want := j.head - 2*limit; j.Oldest() != want {
		t.Errorf("oldest %d at head %d; want %d", j.Oldest(), j.head, want)
	}
	if _, _, ok := j.Since(j.Oldest()-1, 1); ok {
		t.Error("a reader before the oldest revision was not refused")
	}
	if _, _, ok := j.Since(j.Oldest(), 1); !ok {
		t.Error("a reader at the oldest revision was refused")
	}
	checkBounds(t, j)
}

// TestSlotsAreBounded: objects that change often cost no more memory than those that never change.
func TestSlotsAreBounded(t *testing.T) {
	j := NewJournal[string, int](10)
	for i := range 100_000 {
		j.Put(fmt.Sprint(i%7), i, at(i))
		if i%1000 == 0 {
			checkBounds(t, j)
		}
	}
	checkBounds(t, j)
	if c := cap(j.log); c > 1000 {
		t.Errorf("room for %d slots; 7 objects need no more than a few hundred", c)
	}
}

// checkBounds checks the journal's bounds of memory, and its own counts.
func checkBounds[K comparable, V any](t *testing.T, j *Journal[K, V]) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	live, dead := 0, 0
	for _, e := range j.byKey {
		if e.Deleted {
			dead++
		} else {
			live++
		}
	}
	if live != j.live || dead != j.dead {
		t.Errorf("counts: %d live, %d deleted; there are %d and %d", j.live, j.dead, live, dead)
	}
	if most := 2*(live+dead) + 64; len(j.log) > most {
		t.Errorf("%d slots for %d objects and %d tombstones", len(j.log), live, dead)
	}
	if len(j.tombstones) > len(j.log) {
		t.Errorf("%d revisions of tombstones for %d slots", len(j.tombstones), len(j.log))
	}
	if dead > j.maxTombstones {
		t.Errorf("%d tombstones; the limit is %d", dead, j.maxTombstones)
	}
	entries, last := 0, uint64(0)
	for _, s := range j.log {
		if s.revision <= last {
			t.Errorf("slot %d after slot %d", s.revision, last)
		}
		last = s.revision
		if s.entry != nil {
			entries++
			if j.byKey[s.entry.Key] != s.entry || s.entry.Revision != s.revision {
				t.Errorf("slot %d holds %+v, which is not the newest of its object", s.revision, s.entry)
			}
		}
	}
	if entries != live+dead {
		t.Errorf("%d entries in the log, %d by key", entries, live+dead)
	}
}

func TestChanged(t *testing.T) {
	j := NewJournal[string, int](10)
	changed := j.Changed(0)
	select {
	case <-changed:
		t.Fatal("changed before anything has")
	default:
	}
	do(t, j, "a=1")
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Fatal("a change was not reported")
	}
	select {
	case <-j.Changed(0):
	default:
		t.Fatal("a change that has been is not reported at once")
	}

	// A deletion of a missing object wakes no reader.
	changed = j.Changed(1)
	do(t, j, "-b")
	select {
	case <-changed:
		t.Error("a change that was none is reported")
	default:
	}
}

// TestDeleteAllWithoutTombstones: deleting everything without tombstones takes time proportional to the number of
// objects, not to its square.
func TestDeleteAllWithoutTombstones(t *testing.T) {
	if testing.Short() {
		t.Skip("measures time")
	}
	const n = 50_000
	j := NewJournal[int, int](0)
	for i := range n {
		j.Put(i, i, at(i))
	}
	// CPU time, so that other processes on the core do not count.
	start := testkit.ProcessorTime()
	for i := range n {
		j.Delete(i, 0, at(i))
	}
	// Linear time is tens of milliseconds; quadratic time is 50,000 × 50,000 / 2 steps, which takes seconds.
	if d := testkit.ProcessorTime() - start; d > 500*time.Millisecond {
		t.Errorf("%d deletions took %s of CPU", n, d)
	}
	checkBounds(t, j)
}

func TestCount(t *testing.T) {
	j := NewJournal[string, int](10)
	do(t, j, "a=1", "b=2", "c=3", "a=4", "-b", "d=6")
	for _, test := range []struct {
		revision     uint64
		limit, count int
	}{{0, 100, 2}, {3, 100, 2}, {4, 100, 1}, {5, 100, 1}, {6, 100, 0}, {1<<64 - 1, 100, 0}, {0, 0, 6}, {0, 4, 1 + 2}} {
		if got := j.Count(test.revision, test.limit, func(e *Entry[string, int]) bool {
			return !e.Deleted &&
				e.Value%2 == 0
		}); got != test.count {
			t.Errorf("%d even ones after %d, looking at %d; not %d", got, test.revision, test.limit, test.count)
		}
	}
}

func TestLast(t *testing.T) {
	j := NewJournal[string, int](1)
	do(t, j, "a=1", "-a")
	if e, _ := j.Last("a"); !e.Deleted || e.Value != 1 || !e.ObservedAt.Equal(at(1)) {
		t.Errorf("the last of a is %v", e)
	}
}
