package streams

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// view is the state of a reader. It reads only the journal, and must end with what the writers last wrote.
type view struct {
	revision uint64
	objects  map[string]int
	// snapshots counts the snapshots with which it had to start again.
	snapshots int
}

func newView() *view { return &view{objects: map[string]int{}} }

// step reads one page of changes, or a snapshot if the journal requires one.
func (v *view) step(j *Journal[string, int], limit int) error {
	changes, next, ok := j.Since(v.revision, limit)
	if !ok {
		all, revision := j.Snapshot()
		if revision < v.revision {
			return fmt.Errorf("snapshot at %d for a reader at %d", revision, v.revision)
		}
		v.snapshots++
		v.revision, v.objects = revision, make(map[string]int, len(all))
		for _, e := range all {
			if e.Deleted || e.Revision > revision {
				return fmt.Errorf("snapshot at %d holds %+v", revision, e)
			}
			v.objects[e.Key] = e.Value
		}
		return nil
	}
	if len(changes) > limit {
		return fmt.Errorf("%d changes for a limit of %d", len(changes), limit)
	}
	last := v.revision
	for _, e := range changes {
		if e.Revision <= last || e.Revision > next {
			return fmt.Errorf("revision %d between %d and %d", e.Revision, last, next)
		}
		last = e.Revision
		if e.Deleted {
			delete(v.objects, e.Key)
			continue
		}
		// Writers write only increasing values.
		if old, had := v.objects[e.Key]; had && old >= e.Value {
			return fmt.Errorf("%s went back from %d to %d", e.Key, old, e.Value)
		}
		v.objects[e.Key] = e.Value
	}
	v.revision = next
	return nil
}

// TestModel, with one goroutine and random operations: a reader knows every change up to its revision that is still the
// object's last.
func TestModel(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			limit := []int{0, 1, 3, 20, 1000}[random.IntN(5)]
			keys := 1 + random.IntN(80)
			deletions := random.IntN(100)
			j := NewJournal[string, int](limit)
			// The model: the last change of each object that ever existed.
			type change struct {
				revision uint64
				value    int
				deleted  bool
			}
			model := map[string]change{}
			readers := []*view{newView(), newView(), newView()}
			check := func(v *view) {
				t.Helper()
				for key, c := range model {
					value, knows := v.objects[key]
					if c.revision <= v.revision && (knows == c.deleted || (!c.deleted && value != c.value)) {
						t.Fatalf("a reader at %d has %s = %d, %v; its last change was %+v", v.revision, key, value, knows, c)
					}
				}
			}
			for i := range 3000 {
				key := fmt.Sprint(random.IntN(keys))
				if random.IntN(100) < deletions {
					j.Delete(key, 0, at(i))
					if last, had := model[key]; had && !last.deleted {
						model[key] = change{revision: j.Head(), deleted: true}
					}
				} else {
					j.Put(key, i, at(i))
					model[key] = change{revision: j.Head(), value: i}
				}
				// The first reader keeps up, and the last one hardly does.
				for n, v := range readers {
					if random.IntN(1+40*n*n) != 0 {
						continue
					}
					testkit.Must(t, v.step(j, 1+random.IntN(50)))
					check(v)
				}
				if i%100 == 0 {
					checkBounds(t, j)
				}
			}
			checkBounds(t, j)
			for _, v := range readers {
				for v.revision < j.Head() {
					testkit.Must(t, v.step(j, 7))
					check(v)
				}
				if pending := j.Pending(v.revision); pending != 0 {
					t.Errorf("%d changes pending for a reader at the head", pending)
				}
				if len(v.objects) != j.Len() {
					t.Errorf("a reader has %d objects of %d", len(v.objects), j.Len())
				}
			}
		})
	}
}

// TestModelConcurrent, with many goroutines: writers each have keys of their own, and readers read at any speed, leave
// and come back, with their state or without it. In the end all have the same.
func TestModelConcurrent(t *testing.T) {
	const writers, readers, keys, writes = 8, 12, 50, 4000
	j := NewJournal[string, int](100)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	var mu sync.Mutex
	model := map[string]int{} // guarded by mu
	g, ctx := errgroup.WithContext(ctx)
	// One reader falls behind the tombstones, however the others are scheduled: it reads once before the writers begin,
	// and then only after they have ended.
	j.Put("first", 0, at(0))
	j.Delete("first", 0, at(0))
	late := newView()
	testkit.Must(t, late.step(j, 10))
	written := make(chan struct{})
	var writing sync.WaitGroup
	for w := range writers {
		writing.Add(1)
		g.Go(func() error {
			defer writing.Done()
			random := rand.New(rand.NewPCG(uint64(w), 2))
			own := map[string]int{}
			for i := range writes {
				key := fmt.Sprintf("w%d-%d", w, random.IntN(keys))
				if random.IntN(3) == 0 {
					j.Delete(key, 0, at(i))
					delete(own, key)
				} else {
					j.Put(key, i, at(i))
					own[key] = i
				}
				want, there := own[key]
				if got, ok := j.Get(key); ok != there || got != want {
					return fmt.Errorf("Get(%s) = %d, %v; its only writer left it at %d, %v", key, got, ok, want, there)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(model, own)
			return nil
		})
	}
	g.Go(func() error { writing.Wait(); close(written); return nil })

	views := make([]*view, readers)
	for r := range readers {
		g.Go(func() error {
			random := rand.New(rand.NewPCG(uint64(r), 3))
			v := newView()
			if r == 0 {
				v = late
				<-written
			}
			defer func() { views[r] = v }()
			for {
				if err := v.step(j, 1+random.IntN(200)); err != nil {
					return fmt.Errorf("reader %d: %w", r, err)
				}
				switch random.IntN(10 * (r + 1)) {
				case 0: // it leaves for a while, and resumes
					time.Sleep(time.Duration(random.IntN(1+r*r)) * time.Millisecond)
				case 1: // it comes back without state
					v = &view{objects: map[string]int{}, snapshots: v.snapshots}
				}
				select {
				case <-written:
					if v.revision == j.Head() {
						return nil
					}
					continue
				default:
				}
				// It waits like a stream: for a change, or for the end of the writers.
				select {
				case <-j.Changed(v.revision):
				case <-time.After(10 * time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
	}
	testkit.Must(t, g.Wait())
	checkBounds(t, j)
	snapshots := 0
	for r, v := range views {
		if !maps.Equal(v.objects, model) {
			t.Errorf("reader %d ends with %d objects, which are not the %d of the writers", r, len(v.objects), len(model))
		}
		snapshots += v.snapshots
	}
	all, revision := j.Snapshot()
	if revision != j.Head() || len(all) != len(model) {
		t.Errorf("snapshot of %d objects at %d; want %d at %d", len(all), revision, len(model), j.Head())
	}
	t.Logf("%d revisions, %d objects left, %d snapshots", j.Head(), len(model), snapshots)
	if snapshots == 0 {
		t.Error("no reader ever fell behind the tombstones: the test tests less than it says")
	}
}
