package reconcile

import (
	"log/slog"
	"time"
)

// A gate is probed again after minBackoff, and then after ever longer up to maxProbe, with jitter: that long, and a quarter
// more, is how late it is seen at most that the cause has ended.
const maxProbe = 400 * time.Millisecond

// gate holds keys that failed for a cause that they share, such as an apiserver that does not answer. One of them is let go
// to probe, each time another. When it succeeds two others follow, and two for each that succeeds,
// so that what was down is not met by all of them at once.
//
// Its methods are called with the lock of the loop.
type gate[K comparable] struct {
	cause Cause
	since time.Time
	// waiting are the keys that wait; owners take turns.
	waiting *turns[K]
	// out are those that were let go and have not come back.
	out map[K]bool
	// open says that the last one that came back succeeded.
	open bool
	// backoff before the last probe.
	backoff time.Duration
	// passed is how many succeeded.
	passed int
}

func newGate[K comparable](cause Cause, owner func(K) string) *gate[K] {
	return &gate[K]{cause: cause, since: time.Now(), waiting: newTurns(owner), out: map[K]bool{}}
}

// wait has a key wait.
func (g *gate[K]) wait(l *Loop[K], key K) {
	g.waiting.Push(key)
	l.gated[key] = g
}

// failed has a key wait that failed for the cause, and has the gate probed.
func (g *gate[K]) failed(l *Loop[K], key K) {
	delete(g.out, key)
	g.open = false
	g.wait(l, key)
	if len(g.out) > 0 {
		return // those that are under way tell
	}
	g.backoff = min(max(2*g.backoff, minBackoff), maxProbe)
	l.delay(g.next(l), g.backoff*3/4+jitter(g.backoff/4)) // three quarters to one and an eighth of it
}

// succeeded notes that the cause has ended.
func (g *gate[K]) succeeded(l *Loop[K], key K) {
	delete(g.out, key)
	g.open, g.backoff = true, 0
	g.passed++
	for range 2 {
		// Keys that wait for nothing stand behind no more than this in the queue.
		if g.waiting.Len() > 0 && len(g.out) < 2*l.options.Workers {
			l.queue.Add(g.next(l))
		}
	}
	g.close(l)
}

// idle notes that a key that was let go has told nothing of the cause: another does.
func (g *gate[K]) idle(l *Loop[K], key K) {
	delete(g.out, key)
	if g.waiting.Len() > 0 {
		l.queue.Add(g.next(l))
	}
	g.close(l)
}

// next lets a key go that waits, the first of the owner whose turn it is.
func (g *gate[K]) next(l *Loop[K]) K {
	key := g.waiting.Pop()
	delete(l.gated, key)
	g.out[key] = true
	l.released[key] = g
	return key
}

// close removes a gate at which nobody is any more.
func (g *gate[K]) close(l *Loop[K]) {
	if g.waiting.Len() == 0 && len(g.out) == 0 {
		delete(l.gates, g.cause.Name)
		l.log("", slog.LevelInfo, "reconciling again what waited", "loop", l.name, "cause", g.cause.Name, "keys", g.passed, "after", time.Since(g.since).Round(time.Millisecond))
	}
}
