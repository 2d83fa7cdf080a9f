package apply

import (
	"fmt"
	"testing"
	"time"
)

// simulate has changes of one object come at times, in milliseconds, and returns when it is written, each write taking a while.
func simulate(changes []int, urgent func(at int) bool) (writes []int) {
	const writeTakes = 5
	start := time.Unix(1_800_000_000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	p := newPace()
	pending, busy, end := false, 0, changes[len(changes)-1]+2000
	for ms := 0; ms < end; ms++ {
		for len(changes) > 0 && changes[0] <= ms {
			p.change("s", at(ms))
			pending, changes = true, changes[1:]
		}
		if pending && ms >= busy && p.wait("s", at(ms), func() bool { return urgent != nil && urgent(ms) }) == 0 {
			writes = append(writes, ms)
			busy, pending = ms+writeTakes, false
			p.wrote("s", at(ms))
		}
	}
	return writes
}

func every(gap, n int) (changes []int) {
	for i := range n {
		changes = append(changes, i*gap)
	}
	return changes
}

func TestPace(t *testing.T) {
	for _, c := range []struct {
		name    string
		changes []int
		urgent  func(int) bool
		// most writes, how long after the last change the last of them is at most, and any change.
		writes, late, longest int
	}{
		{"one change", []int{0}, nil, 1, 0, 0},
		{"five a second", every(200, 20), nil, 20, 0, 0},
		{"two at once", []int{0, 20}, nil, 2, 80, 80},
		{"500 pods of ten sets in 0.7 s", every(14, 50), nil, 5, 80, 500},
		{"2,000 pods of twenty sets in 3 s", every(30, 100), nil, 10, 80, 500},
		{"a rollout of 1,000 pods in 30 s", every(30, 1000), nil, 70, 80, 500},
		{"one in which pods leave", every(30, 1000), func(int) bool { return true }, 301, 100, 100},
		{"a burst, and later another", append(every(10, 50), 5000, 5010, 5020), nil, 7, 80, 500},
	} {
		t.Run(c.name, func(t *testing.T) {
			writes := simulate(c.changes, c.urgent)
			if len(writes) > c.writes {
				t.Errorf("%d writes, want %d at most: %v", len(writes), c.writes, writes)
			}
			if writes[0] != c.changes[0] {
				t.Errorf("the first change waits until %d", writes[0])
			}
			if late := writes[len(writes)-1] - c.changes[len(c.changes)-1]; late < 0 || late > c.late {
				t.Errorf("the last write is %d ms after the last change, want %d at most", late, c.late)
			}
			next := 0
			for _, at := range c.changes {
				for writes[next] < at {
					next++
				}
				if took := writes[next] - at; took > c.longest {
					t.Errorf("the change at %d is written after %d ms, want %d at most", at, took, c.longest)
				}
			}
		})
	}
}

// Pods of twenty sets come one after the other, each set's further apart than the silence that ends a burst.
func TestPaceOfSeveralObjects(t *testing.T) {
	const sets, pods, writeTakes = 20, 2000, 5
	for _, c := range []struct{ gap, writes int }{{1, 8}, {4, 22}} {
		p, start := newPace(), time.Unix(1_800_000_000, 0)
		var pending [sets]bool
		var busy, writes, last [sets]int
		for ms := 0; ms < c.gap*pods+1000; ms++ {
			now := start.Add(time.Duration(ms) * time.Millisecond)
			if i := ms / c.gap; i < pods && ms%c.gap == 0 {
				p.change(fmt.Sprint(i%sets), now)
				pending[i%sets] = true
			}
			for s := range sets {
				name := fmt.Sprint(s)
				if !pending[s] || ms < busy[s] || p.wait(name, now, func() bool { return false }) > 0 {
					continue
				}
				pending[s], busy[s], last[s] = false, ms+writeTakes, ms
				writes[s]++
				p.wrote(name, now)
			}
		}
		for s := range sets {
			if late := last[s] - c.gap*(pods-1); writes[s] > c.writes || late > 50 {
				t.Errorf("a pod every %d ms: %d writes of set %d, want %d at most; the last one %d ms after the last pod", c.gap, writes[s], s, c.writes, late)
			}
		}
		if p.waiting != 0 {
			t.Errorf("%d objects wait at the end", p.waiting)
		}
	}
}

// What comes while an object is being written is not waited for any longer than what came before.
func TestPaceDuringAWrite(t *testing.T) {
	p, now := newPace(), time.Unix(1_800_000_000, 0)
	for range 3 {
		for range 3 {
			p.change("s", now)
		}
		now = now.Add(time.Second)
		if p.wait("s", now, func() bool { return false }) != 0 {
			t.Fatal("it is not written")
		}
		p.change("s", now)
		p.wrote("s", now)
	}
	if wait := p.wait("s", now, func() bool { return false }); wait > mostQuiet {
		t.Errorf("it waits %s", wait)
	}
}

func TestPaceForgets(t *testing.T) {
	p, now := newPace(), time.Unix(1_800_000_000, 0)
	p.wrote("s", now)
	if p.wait("s", now, func() bool { return false }) == 0 {
		t.Error("it may be written again at once")
	}
	p.gone("s")
	if p.wait("s", now, func() bool { return false }) != 0 || len(p.objects) != 0 {
		t.Error("one that has gone is remembered")
	}
}
