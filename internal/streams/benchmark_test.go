package streams

import (
	"fmt"
	"testing"
	"time"
)

// objects is the size of the benchmarks: the exported pods of a large cluster.
const objects = 100_000

func filled() *Journal[int, int] {
	j := NewJournal[int, int](10_000)
	for i := range objects {
		j.Put(i, i, time.Time{})
	}
	return j
}

// BenchmarkPut measures one change of an object among many.
func BenchmarkPut(b *testing.B) {
	j, now := filled(), time.Now()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		j.Put(i*7919%objects, i, now)
		i++
	}
}

// BenchmarkDeletePut measures an object that is deleted and created again.
func BenchmarkDeletePut(b *testing.B) {
	j, now := filled(), time.Now()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		key := i * 7919 % objects
		j.Delete(key, now)
		j.Put(key, i, now)
		i++
	}
}

// BenchmarkSnapshot measures the first snapshot after a change.
func BenchmarkSnapshot(b *testing.B) {
	j, now := filled(), time.Now()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		j.Put(i%objects, i, now)
		j.Snapshot()
		i++
	}
}

// BenchmarkSince measures one change, and the work of all readers that keep up.
func BenchmarkSince(b *testing.B) {
	for _, readers := range []int{1, 100} {
		b.Run(fmt.Sprint("readers=", readers), func(b *testing.B) {
			j, now := filled(), time.Now()
			at := make([]uint64, readers)
			for r := range at {
				at[r] = j.Head()
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				j.Put(i*7919%objects, i, now)
				for r := range at {
					changes, next, ok := j.Since(at[r], 1000)
					if !ok || len(changes) != 1 {
						b.Fatalf("%d changes, %v", len(changes), ok)
					}
					at[r] = next
				}
				i++
			}
		})
	}
}

// BenchmarkCatchUp measures a reader that returns after every object has changed once.
func BenchmarkCatchUp(b *testing.B) {
	j := filled()
	b.ReportAllocs()
	for b.Loop() {
		n, revision := 0, uint64(0)
		for revision < j.Head() {
			changes, next, _ := j.Since(revision, 1000)
			n, revision = n+len(changes), next
		}
		if n != objects {
			b.Fatalf("%d changes", n)
		}
	}
}
