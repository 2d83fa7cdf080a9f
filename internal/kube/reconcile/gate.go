package reconcile

import (
	"log/slog"
	"time"
)

// A gate is probed after minBackoff, then with a backoff up to maxProbe, with jitter. The loop therefore notices the
// end of a cause at most 1.25 × maxProbe late.
const maxProbe = 400 * time.Millisecond

// gate holds keys that failed for a shared cause, such as an apiserver that does not answer. It releases one key at a
// time as a probe, each time another one. After a success it releases two others, and two for each further success, so
// that a service that recovers does not get all keys at once.
//
// The caller holds the lock of the loop.
type gate[K comparable] struct {
	cause Cause
	since time.Time
	// waiting are the keys that wait; owners take turns.
	waiting *lines[K]
	// out counts the released keys whose result is still open.
	out int
	// open is true if the last released key succeeded.
	open bool
	// backoff is the wait before the last probe.
	backoff time.Duration
	passed  int
}

func newGate[K comparable](cause Cause) *gate[K] {
	return &gate[K]{cause: cause, since: time.Now(), waiting: &lines[K]{}}
}

// failed adds a key that failed for the cause, and schedules a probe.
func (g *gate[K]) failed(l *Loop[K], it *item[K]) {
	g.open = false
	g.waiting.push(it, l.ownerOf(it.key))
	if g.out > 0 {
		return // the result of the running ones decides
	}
	g.backoff = min(max(2*g.backoff, minBackoff), maxProbe)
	l.hold(g.next(), g.backoff*3/4+jitter(g.backoff/4)) // three quarters to one and an eighth of it
}

// succeeded records that the cause has ended.
func (g *gate[K]) succeeded(l *Loop[K]) {
	g.open, g.backoff = true, 0
	g.passed++
	for range 2 {
		// Keys without an own backoff wait behind at most this many in the queue.
		if g.waiting.n > 0 && g.out < 2*l.options.Workers {
			l.ready(g.next())
		}
	}
	g.close(l)
}

// idle records that a released key showed nothing about the cause: another one probes.
func (g *gate[K]) idle(l *Loop[K]) {
	if g.waiting.n > 0 {
		l.ready(g.next())
	}
	g.close(l)
}

// next releases a waiting key, the first of the owner whose turn it is.
func (g *gate[K]) next() *item[K] {
	it := g.waiting.pop(func(string) bool { return false })
	it.probes = g
	g.out++
	return it
}

func (g *gate[K]) close(l *Loop[K]) {
	if g.waiting.n == 0 && g.out == 0 {
		delete(l.gates, g.cause.Name)
		l.log("", slog.LevelInfo, "reconciling again what waited", "loop", l.name, "cause", g.cause.Name, "keys", g.passed,
			"after", time.Since(g.since).Round(time.Millisecond))
	}
}
