package writes

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var paceStart = time.Unix(1_800_000_000, 0)

func atMs(ms int) time.Time { return paceStart.Add(time.Duration(ms) * time.Millisecond) }

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// due reports whether an object is to be written now, and takes it to be so.
func (p *pace) due(name string, now time.Time, urgent bool) bool {
	wait, hurried := p.wait(name, now)
	if urgent {
		wait = hurried
	}
	if wait > 0 {
		return false
	}
	p.taken(name)
	return true
}

// Decisions about one object, at 1,000 ms.
func TestDecide(t *testing.T) {
	calm := traffic{changed: atMs(1000), took: ms(5), alone: ms(5)}
	burst := calm
	burst.over = true
	busy := calm
	busy.underWay, busy.took = manyUnderWay, ms(20)
	slow := busy
	slow.underWay = manyUnderWay - 1
	wide := busy
	wide.took = ms(15)
	silent := burst
	silent.changed = atMs(900)
	object := func(written int, over bool) pacedObject {
		return pacedObject{meter: meter{over: over}, written: atMs(written), lasted: ms(20), changes: 1}
	}
	for _, c := range []struct {
		name   string
		object pacedObject
		all    traffic
		urgent bool
		want   time.Duration
	}{
		{"changes come one by one", object(999, false), calm, false, 0},
		{"a burst long ago has no effect", object(999, false), calm, false, 0},
		{"a burst of this object", object(990, true), calm, false, quiet},
		{"a burst of all objects", object(990, false), burst, false, quiet},
		{"a burst, and the object has its first write", pacedObject{changes: 1}, burst, false, 0},
		{"a burst, and the object was not written lately", object(0, false), burst, false, 0},
		{"a burst, and the spacing is over soon", object(850, false), burst, false, ms(30)},
		{"a burst in which an address has to leave", object(910, true), burst, true, ms(10)},
		{"a burst in which an address had to leave earlier", object(890, true), burst, true, 0},
		{"a burst that has ended", object(990, true), silent, false, 0},
		{"a burst, and nothing has changed in this object", pacedObject{written: atMs(990)}, silent, false,
			ms(170)},
		{"the apiserver slows down under our writes", object(990, false), busy, false, ms(30)},
		{"a write is slow, and few are under way", object(990, false), slow, false, 0},
		{"many writes are under way, and none is slow", object(990, false), wide, false, 0},
	} {
		if got := decide(atMs(1000), c.object, c.all, c.urgent); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if joins := decide(atMs(1000), c.object, c.all, false); c.urgent && c.want > joins {
			t.Errorf("%s: an address that leaves waits %s, and one that joins %s", c.name, c.want, joins)
		}
	}
}

// The meter lets through what comes at its rate, at random times too, and finds what exceeds it.
func TestMeter(t *testing.T) {
	for _, c := range []struct {
		name        string
		every, n    int // ms between changes
		over        int // the change at which it is over; -1 for never
		stillOver   bool
		calmAfterMs int
	}{
		{"50 a second", 20, 1000, -1, false, 0},
		{"66 a second", 15, 1000, 120, true, 400},
		{"300 a second", 3, 100, 14, true, 400},
	} {
		m, over := meter{}, -1
		for i := range c.n {
			m.add(atMs(i*c.every), objectRate, objectBurst)
			if m.over && over < 0 {
				over = i
			}
		}
		if over != c.over && (over < 0 || c.over < 0 || over > c.over) {
			t.Errorf("%s: over at change %d, want %d at most", c.name, over, c.over)
		}
		if m.over != c.stillOver {
			t.Errorf("%s: over at the end: %v", c.name, m.over)
		}
		if m.leak(atMs(c.n*c.every+c.calmAfterMs), objectRate, objectBurst); m.over {
			t.Errorf("%s: still over %d ms later", c.name, c.calmAfterMs)
		}
	}
}

// simulated is what a simulation saw of the writes of one object.
type simulated struct{ began, ended []int }

// simulation is an apiserver with objects of which changes come, at times in milliseconds.
type simulation struct {
	changes [][]int
	// takes is how long a write takes, in milliseconds, and processors how many of them are as fast as one alone; 0
	// for all.
	takes, processors int
	// urgent, if not nil, reports whether an address has to leave.
	urgent func(at int) bool
	// unpaced objects, the last ones, are written at once.
	unpaced int
}

func (s simulation) run() []simulated {
	p := newPace()
	n := len(s.changes)
	out, pending, left, next := make([]simulated, n), make([]bool, n), make([]float64, n), make([]int, n)
	end := 0
	for _, of := range s.changes {
		end = max(end, of[len(of)-1]+2000)
	}
	for now := 0; now < end; now++ {
		underWay := 0
		for i, of := range s.changes {
			for next[i] < len(of) && of[next[i]] <= now {
				if i < n-s.unpaced {
					p.change(fmt.Sprint(i), atMs(now))
				}
				pending[i] = true
				next[i]++
			}
			if left[i] > 0 {
				underWay++
			}
		}
		speed := 1.0
		if s.processors > 0 && underWay > s.processors {
			speed = float64(s.processors) / float64(underWay)
		}
		for i := range s.changes {
			name, paced := fmt.Sprint(i), i < n-s.unpaced
			if left[i] > 0 {
				if left[i] -= speed; left[i] <= 1e-9 {
					left[i] = 0
					out[i].ended = append(out[i].ended, now)
					if paced {
						p.wrote(name, atMs(now), true)
					}
				}
			}
			if !pending[i] || left[i] > 0 {
				continue
			}
			if !paced || p.due(name, atMs(now), s.urgent != nil && s.urgent(now)) {
				if paced {
					p.writing(name, atMs(now))
				}
				out[i].began = append(out[i].began, now)
				left[i], pending[i] = float64(s.takes), false
			}
		}
	}
	return out
}

func every(gap, n int) (changes []int) {
	for i := range n {
		changes = append(changes, i*gap)
	}
	return changes
}

// waits are how long each change waited for the write that carries it to begin, at most and the p-th of a hundred.
func waits(changes, began []int) (all []int) {
	next := 0
	for _, at := range changes {
		for began[next] < at {
			next++
		}
		all = append(all, began[next]-at)
	}
	return all
}

func TestPace(t *testing.T) {
	const writeTakes = 5
	// The writes of a rollout: none waits longer than 100 ms for an address to leave, so ten a second, and until it
	// is known that it is no trickle one for each change.
	const rollout = 30*10 + 120
	for _, c := range []struct {
		name    string
		changes []int
		urgent  func(int) bool
		// most writes, how long after the last change the last of them begins at most, and after any change.
		writes, late, longest int
	}{
		{"one change", []int{0}, nil, 1, 0, 0},
		{"5 a second", every(200, 20), nil, 20, 0, 0},
		{"20 a second", every(50, 100), nil, 100, 0, 0},
		{"50 a second", every(20, 500), nil, 500, 0, 0},
		{"two while a write is under way", []int{0, 1, 2}, nil, 2, 5, 5},
		{"ten at once", every(1, 10), nil, 3, 5, 5},
		{"500 at once", every(1, 500), nil, 7, 80, 180},
		{"a rollout of 1,000 pods in 30 s", every(15, 2000), func(int) bool { return true }, rollout, 100, 100},
		{"the same without pods that leave", every(15, 2000), nil, 290, 80, 180},
		{"a burst, and later a trickle", append(every(5, 100), 5000, 5050, 5100), nil, 23, 0, 180},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := simulation{changes: [][]int{c.changes}, takes: writeTakes, urgent: c.urgent}.run()[0]
			if len(out.began) > c.writes {
				t.Errorf("%d writes, want %d at most", len(out.began), c.writes)
			}
			all := waits(c.changes, out.began)
			if all[0] != 0 {
				t.Errorf("the first change waits %d ms", all[0])
			}
			for i, took := range all {
				if took > c.longest {
					t.Errorf("the change at %d waits %d ms, want %d at most", c.changes[i], took, c.longest)
				}
			}
			if last := all[len(all)-1]; last > c.late {
				t.Errorf("the last change waits %d ms, want %d at most", last, c.late)
			}
		})
	}
}

// Pods of several sets come by turns. Each is written at once where they come no faster than 200 a second; bursts are
// a few writes for each set, the last of which is not late.
func TestPaceOfSeveralObjects(t *testing.T) {
	for _, c := range []struct {
		name                  string
		sets, pods, perSecond int
		takes                 int
		writes, late, longest int
	}{
		{"200 a second over 20 sets", 20, 2000, 200, 5, 100, 0, 0},
		{"200 a second over 4 sets", 4, 2000, 200, 5, 500, 0, 0},
		{"500 pods of 10 sets in 0.7 s", 10, 500, 714, 5, 10, 55, 180},
		{"2,000 pods of 20 sets in 3 s", 20, 2000, 667, 5, 20, 70, 180},
		{"2,000 pods of 20 sets in 2 s, slow writes", 20, 2000, 1000, 30, 13, 80, 210},
		{"1,000 sets, each once a second", 1000, 3000, 1000, 5, 3, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			changes := make([][]int, c.sets)
			for i := range c.pods {
				changes[i%c.sets] = append(changes[i%c.sets], i*1000/c.perSecond)
			}
			for i, out := range (simulation{changes: changes, takes: c.takes}).run() {
				all := waits(changes[i], out.began)
				longest := 0
				for _, took := range all {
					longest = max(longest, took)
				}
				if last := all[len(all)-1]; len(out.began) > c.writes || last > c.late || longest > c.longest {
					t.Fatalf("set %d: %d writes, want %d at most; the last change waits %d ms, want %d at most; the longest wait is "+
						"%d ms, want %d",
						i, len(out.began), c.writes, last, c.late, longest, c.longest)
				}
			}
		})
	}
}

// clumped are changes of which one is to come every gap ms, on a machine that delivers nothing for a while now and
// then.
func clumped(r *rand.Rand, gap, n, longest int) (changes []int) {
	for at, free := 0, 0; len(changes) < n; at += gap {
		if at >= free && r.IntN(10) == 0 {
			free = at + r.IntN(longest+1)
		}
		changes = append(changes, max(at, free))
	}
	return changes
}

// A machine that delivers changes in clumps, and takes longer for several writes at once, makes no burst of a
// trickle: an address is hardly later than without any pace.
func TestPaceOnABusyMachine(t *testing.T) {
	for _, c := range []struct{ sets, perSecond, longest, takes, processors int }{
		{10, 200, 0, 5, 2}, {10, 200, 100, 5, 2}, {10, 200, 170, 5, 2}, {4, 200, 100, 5, 2}, {4, 200, 170, 5, 2},
		{4, 200, 170, 9, 2}, {20, 200, 170, 5, 2}, {1, 50, 170, 5, 2}, {1, 50, 170, 9, 1}, {10, 200, 170, 9, 2},
	} {
		name := fmt.Sprintf("%d a second over %d sets, clumps of %d ms, writes of %d ms on %d", c.perSecond, c.sets,
			c.longest, c.takes, c.processors)
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			s := simulation{changes: make([][]int, c.sets), takes: c.takes, processors: c.processors}
			for i, at := range clumped(r, 1000/c.perSecond, 20*c.perSecond, c.longest) {
				s.changes[i%c.sets] = append(s.changes[i%c.sets], at)
			}
			percentiles := func() (p50, p99 int) {
				var took []int
				for i, out := range s.run() {
					took = append(took, latencies(s.changes[i], out)...)
				}
				slices.Sort(took)
				return took[len(took)/2], took[len(took)*99/100]
			}
			p50, p99 := percentiles()
			s.unpaced = c.sets
			without50, without99 := percentiles()
			if 5*p50 > 6*without50 || 2*p99 > 3*without99 {
				t.Errorf("p50 %d ms, p99 %d ms; without a pace %d and %d ms", p50, p99, without50, without99)
			}
		})
	}
}

// latencies are how long each change took until the write that carries it had ended.
func latencies(changes []int, out simulated) (all []int) {
	for i, wait := range waits(changes, out.began) {
		began := changes[i] + wait
		n, _ := slices.BinarySearch(out.began, began)
		all = append(all, out.ended[n]-changes[i])
	}
	return all
}

// share is an apiserver on two processors, which all requests and other programs share. Sixteen workers give pods their
// IPs, one after the other, and each is a change of a set: a burst that our writes make longer.
type share struct {
	pods, sets int
	// others are programs that always run.
	others int
}

// request is one that takes a time of a processor, in milliseconds: of a pod, or of the set that carries pods.
type request struct {
	left float64
	pod  int // -1 for a write of a set
	set  int
	with []int
}

// run returns how many writes a set has, how long 99 of 100 changes take from the pod's answer, and the last one.
func (s share) run() (writes float64, p99, late int) {
	const step, ofPod, ofSet = 0.25, 2.4, 4.0
	r, p := rand.New(rand.NewPCG(1, 2)), newPace()
	at := func(ms float64) time.Time { return paceStart.Add(time.Duration(ms * float64(time.Millisecond))) }
	for i := range s.sets { // each was written before, alone
		p.writing(fmt.Sprint(i), at(float64(i)*50-5000))
		p.wrote(fmt.Sprint(i), at(float64(i)*50-5000+ofSet), true)
	}
	var requests []*request
	answered, pending, busy := make([]float64, s.pods), make([][]int, s.sets), make([]bool, s.sets)
	ask := make([]float64, s.sets) // like a loop, which asks when something changes, and after the wait
	var took []int
	next, workers, last, sent := 0, 16, 0.0, 0
	for now := 0.0; len(took) < s.pods; now += step {
		for ; workers > 0 && next < s.pods; workers, next = workers-1, next+1 {
			requests = append(requests, &request{left: ofPod * (0.5 + r.Float64()), pod: next})
		}
		for set, with := range pending {
			if len(with) == 0 || busy[set] || now < ask[set] {
				continue
			}
			if wait, _ := p.wait(fmt.Sprint(set), at(now)); wait > 0 {
				ask[set] = now + float64(wait)/float64(time.Millisecond)
				continue
			}
			p.taken(fmt.Sprint(set))
			p.writing(fmt.Sprint(set), at(now))
			requests = append(requests, &request{left: ofSet * (0.7 + 0.6*r.Float64()), pod: -1, set: set, with: with})
			pending[set], busy[set], sent = nil, true, sent+1
		}
		speed := min(1, 2/float64(max(1, len(requests)+s.others)))
		requests = slices.DeleteFunc(requests, func(q *request) bool {
			q.left -= speed * step
			switch {
			case q.left > 0:
				return false
			case q.pod >= 0:
				workers, answered[q.pod], last = workers+1, now, now
				pending[q.pod%s.sets] = append(pending[q.pod%s.sets], q.pod)
				ask[q.pod%s.sets] = 0
				p.change(fmt.Sprint(q.pod%s.sets), at(now))
			default:
				busy[q.set] = false
				p.wrote(fmt.Sprint(q.set), at(now), true)
				for _, pod := range q.with {
					took = append(took, int(now-answered[pod]))
				}
				late = int(now - last)
			}
			return true
		})
	}
	slices.Sort(took)
	return float64(sent) / float64(s.sets), took[len(took)*99/100], late
}

// TestPaceOfABurst bounds the writes of a set, p99 and the last change of a burst that shares its processors with the
// writes: docs/adr/0052-one-delay.md has what other rules cost in this model.
func TestPaceOfABurst(t *testing.T) {
	for _, c := range []struct {
		share
		writes    float64
		p99, late int
	}{
		{share{500, 10, 0}, 6.6, 250, 100}, {share{2000, 20, 0}, 20, 250, 100}, {share{500, 10, 8}, 8.5, 250, 100},
		{share{2000, 20, 8}, 29, 260, 100}, {share{2000, 20, 20}, 41, 310, 130},
	} {
		writes, p99, late := c.run()
		t.Logf("%d pods of %d sets beside %d programs: %.1f writes of a set, p99 %d ms, the last %d ms late", c.pods, c.sets,
			c.others, writes, p99, late)
		if writes > c.writes || p99 > c.p99 || late > c.late {
			t.Errorf("want %v writes, %d ms and %d ms at most", c.writes, c.p99, c.late)
		}
	}
}

// Writes that fail end, and say nothing of how fast the apiserver is.
func TestPaceOfWritesThatFail(t *testing.T) {
	p, now := newPace(), paceStart
	for range 100 {
		p.writing("s", now)
		p.wrote("s", now.Add(time.Second), false)
	}
	if p.all.underWay != 0 || p.all.took != 0 {
		t.Errorf("%+v", p.all)
	}
	if !p.due("s", now, false) {
		t.Error("what was never written waits")
	}
}

func TestPaceForgets(t *testing.T) {
	p, now := newPace(), paceStart
	p.writing("s", now)
	p.wrote("s", now, true)
	p.change("s", now)
	p.forget("s")
	if len(p.objects) != 0 || p.all.underWay != 0 {
		t.Errorf("one that has gone is remembered: %+v", p)
	}
}
