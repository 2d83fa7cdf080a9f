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
	waiting *turns[K]
	// out has the released keys whose result is still open.
	out map[K]bool
	// open is true if the last released key succeeded.
	open bool
	// backoff is the wait before the last probe.
	backoff time.Duration
	// passed counts the successes.
	passed int
}

func newGate[K comparable](cause Cause, owner func(K) string) *gate[K] {
	return &gate[K]{cause: cause, since: time.Now(), waiting: newTurns(owner), out: map[K]bool{}}
}

func (g *gate[K]) wait(l *Loop[K], key K) {
	g.waiting.Push(key)
	l.gated[key] = g
}

// failed adds a key that failed for the cause, and schedules a probe.
func (g *gate[K]) failed(l *Loop[K], key K) {
	delete(g.out, key)
	g.open = false
	g.wait(l, key)
	if len(g.out) > 0 {
		return // the result of the running ones decides
	}
	g.backoff = min(max(2*g.backoff, minBackoff), maxProbe)
	l.delay(g.next(l), g.backoff*3/4+jitter(g.backoff/4)) // three quarters to one and an eighth of it
}

// succeeded records that the cause has ended.
func (g *gate[K]) succeeded(l *Loop[K], key K) {
	delete(g.out, key)
	g.open, g.backoff = true, 0
	g.passed++
	for range 2 {
		// Keys without an own backoff wait behind at most this many in the queue.
		if g.waiting.Len() > 0 && len(g.out) < 2*l.options.Workers {
			l.queue.Add(g.next(l))
		}
	}
	g.close(l)
}

// idle records that a released key showed nothing about the cause: another one probes.
func (g *gate[K]) idle(l *Loop[K], key K) {
	delete(g.out, key)
	if g.waiting.Len() > 0 {
		l.queue.Add(g.next(l))
	}
	g.close(l)
}

// next releases a waiting key, the first of the owner whose turn it is.
func (g *gate[K]) next(l *Loop[K]) K {
	key := g.waiting.Pop()
	delete(l.gated, key)
	g.out[key] = true
	l.released[key] = g
	return key
}

// close removes a gate without keys.
func (g *gate[K]) close(l *Loop[K]) {
	if g.waiting.Len() == 0 && len(g.out) == 0 {
		delete(l.gates, g.cause.Name)
		l.log("", slog.LevelInfo, "reconciling again what waited", "loop", l.name, "cause", g.cause.Name, "keys", g.passed,
			"after", time.Since(g.since).Round(time.Millisecond))
	}
}
