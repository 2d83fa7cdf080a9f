// Package reconcile is the one reconcile loop: keyed, level-triggered, each key by one worker at a time.
//
// A key that fails is retried with backoff; an enqueue does not shorten that wait. Keys that fail for a shared cause
// wait together: one of them probes, and when it succeeds the others follow (see gate).
//
// If keys have owners, no owner can use up what others need: they take turns, none gets all workers, and retries and
// log messages are limited for each.
//
// A key has one delay at a time, with one Reason.
//
// The caller defines what a key means and how it is reconciled; the package knows neither streams nor Kubernetes
// objects.
package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// Backoff of a key that fails: from minBackoff, doubled each time, up to maxBackoff, with jitter.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 30 * time.Second
	// retryRate bounds the retries per second of all failing keys of an owner, without the first ones.
	retryRate = 3
	// newsAfter is the longest wait, from its last attempt, of a key with a cause of its own once its desired state
	// changed: the change may remove the cause.
	newsAfter = time.Second
)

// A failure is logged when a key begins to fail, or fails for another reason. These bound the messages of one owner,
// those of Warn included.
const logBurst, logRate = 20, 1

// ErrIdle is the result of a reconciliation that had nothing to do. It counts as a success that does not show whether a
// shared cause has ended.
var ErrIdle = errors.New("nothing to do")

type Cause struct {
	Name string
	// Shared is true if other keys fail for the same cause, so that one key probes for all.
	Shared bool
	// All is true if every key would fail for this cause: only the probe is tried. It implies Shared.
	All bool
}

type Reason string

// Failed is the Reason of a key whose last attempt failed.
const Failed Reason = "failed"

type Wait struct {
	Reason Reason
	// Since is when the key began to wait for this reason. Until is when it is tried again; zero if another key that
	// failed for the same cause is tried first.
	Since, Until time.Time
	// Err is that of its last attempt, if that failed.
	Err error
}

type Options struct {
	// Workers is the number of concurrent reconciliations; if keys have owners, that of each owner. 0 means 1.
	Workers int
	// Cause returns why a key failed. If it is nil, no keys share a cause.
	Cause func(error) Cause
	// Metrics of all loops of one part; own ones that nobody reads if nil.
	Metrics *Metrics
	// Log receives failures; slog's default if nil.
	Log *slog.Logger
}

// Loop reconciles keys. A key that is enqueued several times while it waits or is being reconciled is reconciled once
// more, with the latest state.
type Loop[K comparable] struct {
	name      string
	reconcile func(context.Context, K) error
	options   Options
	ownerOf   func(K) string
	// workers is the number of concurrent reconciliations.
	workers int

	mu sync.Mutex
	// news tells a worker that a key is ready, or all that Run ends.
	news *sync.Cond
	// items are all keys that wait, are being reconciled, or fail.
	items  map[K]*item[K]
	owners map[string]*owner
	line   *lines[K]
	// gates hold the keys that wait together, by the name of the cause.
	gates map[string]*gate[K]
}

type owner struct {
	logs *rate.Limiter
	// failing and running count its keys that fail, and that are being reconciled.
	failing, running int
}

type failure struct {
	Problem
	owner string
	cause Cause
	// tried is when the key was last tried, and wait the backoff after that.
	tried time.Time
	wait  time.Duration
}

type Problem struct {
	Key string
	Err error
	// Since is when the key began to fail.
	Since time.Time
	// Attempts is the number of attempts since then.
	Attempts int
}

// New returns a loop. reconcile compares the desired with the actual state of one key. It returns nil if both agree now
// or a later event will follow, and ErrIdle if they agreed before.
func New[K comparable](name string, reconcile func(context.Context, K) error, options Options) *Loop[K] {
	if options.Workers == 0 {
		options.Workers = 1
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	if options.Metrics == nil {
		options.Metrics = NewMetrics("semaphore", prometheus.NewRegistry())
	}
	if options.Cause == nil {
		options.Cause = func(error) Cause { return Cause{} }
	}
	l := &Loop[K]{
		name: name, reconcile: reconcile, options: options, workers: options.Workers,
		ownerOf: func(K) string { return "" }, owners: map[string]*owner{}, items: map[K]*item[K]{}, line: &lines[K]{},
		gates: map[string]*gate[K]{},
	}
	l.news = sync.NewCond(&l.mu)
	return l
}

// By sets the function that returns a key's owner. It is called before Run. Owners take turns, and there are a quarter
// more workers than one owner may use. of is called with locks held, and must not call the Loop. Some state of each
// owner is kept permanently, so there should be few owners.
func (l *Loop[K]) By(of func(K) string) *Loop[K] {
	l.ownerOf, l.workers = of, l.options.Workers+max(1, l.options.Workers/4)
	return l
}

func (l *Loop[K]) owner(name string) *owner {
	o := l.owners[name]
	if o == nil {
		o = &owner{logs: rate.NewLimiter(logRate, logBurst)}
		l.owners[name] = o
	}
	return o
}

func (l *Loop[K]) item(key K) *item[K] {
	it := l.items[key]
	if it == nil {
		it = &item[K]{key: key}
		l.items[key] = it
	}
	return it
}

// Enqueue queues a key. A key that is enqueued before Run waits for Run; one that is enqueued after Run's context ended
// is not reconciled. A key in backoff stays in backoff.
func (l *Loop[K]) Enqueue(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready(l.item(key))
}

func (l *Loop[K]) EnqueueAfter(key K, d time.Duration) { l.Delay(key, d, "") }

// Delay queues a key after a time, and records why its write is delayed; empty for no reason.
func (l *Loop[K]) Delay(key K, d time.Duration, why Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	it := l.item(key)
	if why != "" {
		l.because(it, why)
	}
	if d <= 0 || l.waits(it) {
		l.ready(it)
		return
	}
	if at := time.Now().Add(d); it.planned.IsZero() || at.Before(it.planned) {
		it.planned = at
		l.reschedule(it)
	}
	l.options.Metrics.retries.WithLabelValues(l.name).Inc()
}

// News queues a key whose desired state changed. If the key waits for a cause of its own, it is tried again at most
// newsAfter after its last attempt.
func (l *Loop[K]) News(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed(l.item(key))
}

// changed is News with the lock held. An attempt under way may have begun with the old state: it counts again after it.
func (l *Loop[K]) changed(it *item[K]) {
	it.news = it.running
	if f := it.failure; f != nil && !f.cause.Shared && !it.held.IsZero() {
		if soon := f.tried.Add(newsAfter); soon.Before(it.held) {
			l.hold(it, time.Until(soon))
		}
		return
	}
	l.ready(it)
}

// waits reports whether a key waits for its backoff or in a gate, which an enqueue does not shorten.
func (l *Loop[K]) waits(it *item[K]) bool {
	return !it.held.IsZero() || it.in != nil && it.in != l.line
}

// ready queues a key unless it waits.
func (l *Loop[K]) ready(it *item[K]) {
	if l.waits(it) {
		return
	}
	if it.running {
		it.again = true
		return
	}
	if it.in == nil {
		it.began = time.Now()
		l.options.Metrics.adds.WithLabelValues(l.name).Inc()
	}
	l.line.push(it, l.ownerOf(it.key))
	l.news.Signal()
}

// hold sets the time before which the key is not tried.
func (l *Loop[K]) hold(it *item[K], d time.Duration) {
	it.held = time.Now().Add(max(d, time.Nanosecond))
	l.reschedule(it)
	l.options.Metrics.retries.WithLabelValues(l.name).Inc()
}

// reschedule follows a change of the time at which a key is due.
func (l *Loop[K]) reschedule(it *item[K]) {
	if it.timer == nil {
		it.timer = time.AfterFunc(time.Until(it.due()), func() { l.ring(it) })
	} else {
		it.timer.Reset(time.Until(it.due()))
	}
}

// ring queues a key that is due.
func (l *Loop[K]) ring(it *item[K]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if it.due().IsZero() || it.due().After(now) {
		return // it has changed meanwhile
	}
	if it.held = (time.Time{}); !it.planned.After(now) {
		it.planned = time.Time{}
	} else {
		l.reschedule(it)
	}
	l.ready(it)
}

// Run reconciles keys until ctx ends, and returns ctx's error after the last worker. It must be called only once.
func (l *Loop[K]) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.news.Broadcast()
	})
	defer stop()
	var workers sync.WaitGroup
	workers.Go(func() { l.measure(ctx) })
	for range l.workers {
		workers.Go(func() { l.work(ctx) })
	}
	workers.Wait()
	return ctx.Err()
}

func (l *Loop[K]) work(ctx context.Context) {
	enough := func(owner string) bool { return l.owner(owner).running >= l.options.Workers }
	l.mu.Lock()
	defer l.mu.Unlock()
	for ctx.Err() == nil {
		it := l.line.pop(enough)
		switch {
		case it == nil:
			l.news.Wait()
		case !l.shut(it):
			l.one(ctx, it)
		}
	}
}

// shut reports whether a gate keeps all keys, and this one from now on. The key may have been queued before.
func (l *Loop[K]) shut(it *item[K]) bool {
	if it.probes == nil {
		for _, g := range l.gates {
			if g.cause.All && !g.open {
				g.waiting.push(it, l.ownerOf(it.key))
				l.because(it, Failed)
				return true
			}
		}
	}
	return false
}

// one reconciles a key, without the lock.
func (l *Loop[K]) one(ctx context.Context, it *item[K]) {
	name, now := it.line, time.Now() // whose turn it is
	o := l.owner(name)
	o.running++
	l.options.Metrics.latency.WithLabelValues(l.name).Observe(now.Sub(it.began).Seconds())
	before := it.wait()
	it.running, it.began, it.why = true, now, ""
	l.mu.Unlock()
	err := l.reconcile(ctx, it.key)
	l.mu.Lock()
	o.running--
	it.running = false
	l.options.Metrics.work.WithLabelValues(l.name).Observe(time.Since(now).Seconds())
	if ctx.Err() != nil {
		return
	}
	gate := it.probes
	it.probes = nil
	if gate != nil {
		gate.out--
	}
	switch {
	case err == nil:
		l.succeeded(it, gate)
	case errors.Is(err, ErrIdle):
		l.forget(it)
		if gate != nil {
			gate.idle(l)
		}
	default:
		l.failed(it, gate, err)
	}
	l.continues(it, before)
	switch {
	case it.news:
		it.again, it.news = false, false
		l.changed(it)
	case it.again:
		it.again = false
		l.ready(it)
	}
	if it.in == nil && it.due().IsZero() && it.failure == nil {
		delete(l.items, it.key)
	}
	l.drop(name, o)
}

func (l *Loop[K]) because(it *item[K], why Reason) {
	if it.why == "" {
		it.since = time.Now()
	}
	it.why = why
}

// continues records that a key waits on for the reason it had before, or that this wait has ended.
func (l *Loop[K]) continues(it *item[K], before Wait) {
	switch {
	case before.Reason == "":
	case it.why == before.Reason:
		it.since = before.Since
	default:
		l.options.Metrics.waits.WithLabelValues(string(before.Reason)).Observe(time.Since(before.Since).Seconds())
	}
}

// Wait returns why the write of a key is delayed; without a Reason if it is not.
func (l *Loop[K]) Wait(key K) Wait {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it := l.items[key]; it != nil && !it.running {
		return it.wait()
	}
	return Wait{}
}

// drop forgets an owner of which nothing runs or fails, once all its log messages are allowed again: owners come and
// go, and a new state would be the same.
func (l *Loop[K]) drop(name string, o *owner) {
	if o.running == 0 && o.failing == 0 && o.logs.Tokens() >= logBurst {
		delete(l.owners, name)
	}
}

func (l *Loop[K]) forget(it *item[K]) (before *failure) {
	before = it.failure
	if before != nil {
		o := l.owner(before.owner)
		o.failing--
		l.drop(before.owner, o)
	}
	it.failure = nil
	return before
}

// succeeded records that a key was reconciled, so that others that failed for the same cause may succeed now.
func (l *Loop[K]) succeeded(it *item[K], gate *gate[K]) {
	before := l.forget(it)
	if gate != nil {
		gate.succeeded(l)
	}
	if before == nil || before.cause.Shared || before.cause.Name == "" {
		return
	}
	n := 0
	for _, other := range l.items {
		if f := other.failure; f != nil && f.cause == before.cause && !other.held.IsZero() {
			l.hold(other, 0)
			if n++; n == 2 {
				break
			}
		}
	}
}

// failed puts a key into backoff, or into the gate of its cause.
func (l *Loop[K]) failed(it *item[K], gate *gate[K], err error) {
	cause := l.options.Cause(err)
	cause.Shared = cause.Shared || cause.All
	f := l.forget(it)
	if f == nil {
		f = &failure{Problem: Problem{Key: fmt.Sprint(it.key), Since: time.Now()}}
	}
	fresh := f.Err == nil || f.Err.Error() != err.Error()
	f.Err, f.cause, f.tried = err, cause, time.Now()
	f.Attempts++
	f.owner = l.ownerOf(it.key)
	owner := l.owner(f.owner)
	owner.failing++
	it.failure = f
	l.because(it, Failed)
	if gate != nil && (!cause.Shared || cause.Name != gate.cause.Name) {
		gate.idle(l)
	}
	if cause.Shared {
		g := l.gates[cause.Name]
		if g == nil {
			g = newGate[K](cause)
			l.gates[cause.Name] = g
			l.log(f.owner, slog.LevelWarn, "reconcile failed; all that fail for this cause wait, and one tries again", "cause",
				cause.Name, "loop", l.name, "key", f.Key, "error", err)
		}
		g.failed(l, it)
		return
	}
	level := slog.LevelDebug
	if fresh {
		level = slog.LevelWarn
	}
	l.log(f.owner, level, "reconcile failed; trying again", "key", f.Key, "loop", l.name, "attempt", f.Attempts,
		"error", err)
	f.wait = min(max(2*f.wait, minBackoff), maxBackoff)
	l.hold(it, jitter(max(f.wait, time.Duration(owner.failing-1)*time.Second/retryRate)))
}

// jitter spreads the retries of keys that failed together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// log logs the failure of an owner's key. It limits warnings to what a person can read.
func (l *Loop[K]) log(owner string, level slog.Level, message string, args ...any) {
	if level < slog.LevelWarn || l.owner(owner).logs.Allow() {
		l.options.Log.Log(context.Background(), level, message, args...)
	}
}

// Warn logs a warning about a key. It counts toward the limit of its owner's messages about failures.
func (l *Loop[K]) Warn(key K, message string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log(l.ownerOf(key), slog.LevelWarn, message, args...)
}

func (l *Loop[K]) Problems() []Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Problem
	for _, it := range l.items {
		if it.failure != nil {
			out = append(out, it.failure.Problem)
		}
	}
	slices.SortFunc(out, func(a, b Problem) int { return cmp.Compare(a.Key, b.Key) })
	return out
}
