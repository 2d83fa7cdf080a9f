// Package reconcile is the one reconcile loop: keyed, level-triggered, each key by one worker at a time.
//
// A key that fails is retried with backoff; an enqueue does not shorten that wait. Keys that fail for a shared cause
// wait together: one of them probes, and when it succeeds the others follow (see gate).
//
// If keys have owners, no owner can use up what others need: they take turns, none gets all workers, and retries and
// log messages are limited for each.
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
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"
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

// Cause is why a key failed.
type Cause struct {
	// Name identifies the cause.
	Name string
	// Shared is true if other keys fail for the same cause, so that one key probes for all.
	Shared bool
	// All is true if every key would fail for this cause: only the probe is tried. It implies Shared.
	All bool
}

// Options of a Loop.
type Options struct {
	// Workers is the number of concurrent reconciliations; if keys have owners, that of each owner. 0 means 1.
	Workers int
	// Cause returns why a key failed. If it is nil, no keys share a cause.
	Cause func(error) Cause
	// Metrics of all loops of one part; nil for none.
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

	mu      sync.Mutex
	failing map[K]*failure
	// owners has the state of each owner. parked has the owner of each key that waits for a free worker of its owner.
	owners map[string]*owner[K]
	parked map[K]string
	// alone has the keys that each wait for their own backoff, by the name of their cause.
	alone map[string]map[K]bool
	// gates hold the keys that wait together, by the name of the cause. gated is the gate in which a key waits, and
	// released the one that released it.
	gates           map[string]*gate[K]
	gated, released map[K]*gate[K]
	// due is the time before which a key is not tried.
	due map[K]time.Time
	// queue is nil until Run creates it, because it starts goroutines. Until then, early holds the enqueued keys and
	// when they are due.
	queue workqueue.TypedDelayingInterface[K]
	early map[K]time.Time
}

// owner is the state of one owner.
type owner[K comparable] struct {
	logs *rate.Limiter
	// failing and running count its keys that fail, and that are being reconciled.
	failing, running int
	// parked are, in order, the keys that wait because the owner has no free worker, and some that no longer wait.
	parked []K
}

// failure is a key that fails.
type failure struct {
	Problem
	owner string
	cause Cause
	// tried is when the key was last tried, and wait the backoff after that.
	tried time.Time
	wait  time.Duration
}

// Problem is a key that fails and is retried.
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
	if options.Cause == nil {
		options.Cause = func(error) Cause { return Cause{} }
	}
	return &Loop[K]{
		name: name, reconcile: reconcile, options: options, workers: options.Workers,
		ownerOf: func(K) string { return "" }, owners: map[string]*owner[K]{}, parked: map[K]string{},
		failing: map[K]*failure{}, alone: map[string]map[K]bool{}, early: map[K]time.Time{}, due: map[K]time.Time{},
		gates: map[string]*gate[K]{}, gated: map[K]*gate[K]{}, released: map[K]*gate[K]{},
	}
}

// By sets the function that returns a key's owner. It is called before Run. Owners take turns, and there are a quarter
// more workers than one owner may use. of is called with locks held, and must not call the Loop. Some state of each
// owner is kept permanently, so there should be few owners.
func (l *Loop[K]) By(of func(K) string) *Loop[K] {
	l.ownerOf, l.workers = of, l.options.Workers+max(1, l.options.Workers/4)
	return l
}

// owner returns the state of an owner.
func (l *Loop[K]) owner(name string) *owner[K] {
	o := l.owners[name]
	if o == nil {
		o = &owner[K]{logs: rate.NewLimiter(logRate, logBurst)}
		l.owners[name] = o
	}
	return o
}

func (l *Loop[K]) newQueue() workqueue.TypedDelayingInterface[K] {
	config := workqueue.TypedQueueConfig[K]{Name: l.name, Queue: newTurns(l.ownerOf)}
	if l.options.Metrics != nil {
		config.MetricsProvider = l.options.Metrics
	}
	return workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{
		Name: l.name, MetricsProvider: config.MetricsProvider, Queue: workqueue.NewTypedWithConfig(config),
	})
}

// Enqueue queues a key. A key that is enqueued before Run waits for Run; one that is enqueued after Run's context ended
// is not reconciled. A key in backoff stays in backoff.
func (l *Loop[K]) Enqueue(key K) { l.EnqueueAfter(key, 0) }

// EnqueueAfter queues a key after a time.
func (l *Loop[K]) EnqueueAfter(key K, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(key, d)
}

// News queues a key whose desired state changed. If the key waits for a cause of its own, it is tried again at most
// newsAfter after its last attempt.
func (l *Loop[K]) News(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.failing[key]; f != nil && !f.cause.Shared {
		if due, waits := l.due[key]; waits {
			if soon := f.tried.Add(newsAfter); soon.Before(due) {
				l.delay(key, time.Until(soon))
			}
			return
		}
	}
	l.add(key, 0)
}

// add queues the key after d, unless it waits for another reason.
func (l *Loop[K]) add(key K, d time.Duration) {
	if l.queue == nil {
		due := time.Now().Add(d)
		if at, ok := l.early[key]; l.early != nil && (!ok || due.Before(at)) {
			l.early[key] = due
		}
		return
	}
	if _, waits := l.due[key]; waits || l.gated[key] != nil {
		return
	}
	if owner, waits := l.parked[key]; waits {
		if l.ownerOf(key) == owner {
			return
		}
		delete(l.parked, key) // its new owner may have no running reconciliations left
	}
	if d > 0 {
		l.queue.AddAfter(key, d)
	} else {
		l.queue.Add(key)
	}
}

// delay sets the time before which the key is not tried.
func (l *Loop[K]) delay(key K, d time.Duration) {
	d = max(d, time.Nanosecond)
	l.due[key] = time.Now().Add(d)
	l.queue.AddAfter(key, d)
}

// Run reconciles keys until ctx ends, and returns after the last worker. It must be called only once.
func (l *Loop[K]) Run(ctx context.Context) error {
	queue := l.newQueue()
	l.mu.Lock()
	l.queue = queue
	early := l.early
	l.early = nil
	for key, due := range early {
		l.add(key, max(time.Until(due), 0))
	}
	l.mu.Unlock()

	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	var g errgroup.Group
	for range l.workers {
		g.Go(func() error {
			for {
				key, shutdown := queue.Get()
				if shutdown {
					return nil
				}
				l.one(ctx, key)
				queue.Done(key)
			}
		})
	}
	g.Wait()
	queue.ShutDown() // waits for the goroutine that the context started
	return ctx.Err()
}

func (l *Loop[K]) one(ctx context.Context, key K) {
	// A queue that was shut down still returns waiting keys.
	if ctx.Err() != nil {
		return
	}
	owner, ok := l.begin(key)
	if !ok {
		return
	}
	err := l.reconcile(ctx, key)
	l.ended(owner)
	if ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	gate := l.released[key]
	delete(l.released, key)
	switch {
	case err == nil:
		l.succeeded(key, gate)
	case errors.Is(err, ErrIdle):
		l.forget(key)
		if gate != nil {
			gate.idle(l, key)
		}
	default:
		l.failed(key, gate, err)
	}
}

// begin reports whether to try a key from the queue now, and returns its owner. The key may have been queued before it
// failed.
func (l *Loop[K]) begin(key K) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready(key) {
		return "", false
	}
	name := l.ownerOf(key)
	o := l.owner(name)
	if o.running >= l.options.Workers && l.released[key] == nil {
		l.parked[key] = name
		o.parked = append(o.parked, key)
		return "", false
	}
	o.running++
	return name, true
}

// ended records that the reconciliation of a key ended, and queues a parked key of the owner.
func (l *Loop[K]) ended(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.owner(name)
	o.running--
	for len(o.parked) > 0 && o.running < l.options.Workers {
		next := o.parked[0]
		o.parked = o.parked[1:]
		if of, waits := l.parked[next]; waits && of == name {
			delete(l.parked, next)
			l.queue.Add(next)
			return
		}
	}
	l.drop(name, o)
}

// drop forgets an owner of which nothing runs, waits or fails, once all its log messages are allowed again: owners come
// and go, and a new state would be the same.
func (l *Loop[K]) drop(name string, o *owner[K]) {
	if o.running == 0 && o.failing == 0 && len(o.parked) == 0 && o.logs.Tokens() >= logBurst {
		delete(l.owners, name)
	}
}

// ready reports whether a key from the queue waits for nothing.
func (l *Loop[K]) ready(key K) bool {
	if _, waits := l.parked[key]; waits || l.gated[key] != nil {
		return false
	}
	if due, waits := l.due[key]; waits {
		if d := time.Until(due); d > 0 {
			l.queue.AddAfter(key, d)
			return false
		}
		delete(l.due, key)
	}
	if l.released[key] == nil {
		for _, g := range l.gates {
			if g.cause.All && !g.open {
				g.wait(l, key)
				return false
			}
		}
	}
	return true
}

// forget ends the failure of a key.
func (l *Loop[K]) forget(key K) (before *failure) {
	before = l.failing[key]
	if before != nil && !before.cause.Shared {
		if delete(l.alone[before.cause.Name], key); len(l.alone[before.cause.Name]) == 0 {
			delete(l.alone, before.cause.Name)
		}
	}
	if before != nil {
		o := l.owner(before.owner)
		o.failing--
		l.drop(before.owner, o)
	}
	delete(l.failing, key)
	return before
}

// succeeded records that a key was reconciled, so that others that failed for the same cause may succeed now.
func (l *Loop[K]) succeeded(key K, gate *gate[K]) {
	before := l.forget(key)
	if gate != nil {
		gate.succeeded(l, key)
	}
	if before == nil || before.cause.Shared || before.cause.Name == "" {
		return
	}
	n := 0
	for other := range l.alone[before.cause.Name] {
		if _, waits := l.due[other]; waits {
			l.delay(other, 0)
			if n++; n == 2 {
				break
			}
		}
	}
}

// failed puts a key into backoff, or into the gate of its cause.
func (l *Loop[K]) failed(key K, gate *gate[K], err error) {
	cause := l.options.Cause(err)
	cause.Shared = cause.Shared || cause.All
	f := l.forget(key)
	if f == nil {
		f = &failure{Problem: Problem{Key: fmt.Sprint(key), Since: time.Now()}}
	}
	fresh := f.Err == nil || f.Err.Error() != err.Error()
	f.Err, f.cause, f.tried = err, cause, time.Now()
	f.Attempts++
	f.owner = l.ownerOf(key)
	owner := l.owner(f.owner)
	owner.failing++
	l.failing[key] = f
	if gate != nil && (!cause.Shared || cause.Name != gate.cause.Name) {
		gate.idle(l, key)
	}
	if cause.Shared {
		g := l.gates[cause.Name]
		if g == nil {
			g = newGate(cause, l.ownerOf)
			l.gates[cause.Name] = g
			l.log(f.owner, slog.LevelWarn, "reconcile failed; all that fail for this cause wait, and one tries again", "cause",
				cause.Name, "loop", l.name, "key", f.Key, "error", err)
		}
		g.failed(l, key)
		return
	}
	if l.alone[cause.Name] == nil {
		l.alone[cause.Name] = map[K]bool{}
	}
	l.alone[cause.Name][key] = true
	level := slog.LevelDebug
	if fresh {
		level = slog.LevelWarn
	}
	l.log(f.owner, level, "reconcile failed; trying again", "key", f.Key, "loop", l.name, "attempt", f.Attempts,
		"error", err)
	f.wait = min(max(2*f.wait, minBackoff), maxBackoff)
	l.delay(key, jitter(max(f.wait, time.Duration(owner.failing-1)*time.Second/retryRate)))
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

// Problems returns the failing keys, sorted by name.
func (l *Loop[K]) Problems() []Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Problem, 0, len(l.failing))
	for _, f := range l.failing {
		out = append(out, f.Problem)
	}
	slices.SortFunc(out, func(a, b Problem) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

// Metrics are those of all loops of one part, by loop. It is a workqueue.MetricsProvider.
type Metrics struct {
	depth, unfinished, longest *prometheus.GaugeVec
	adds, retries              *prometheus.CounterVec
	latency, work              *prometheus.HistogramVec
}

// NewMetrics registers the metrics with names PREFIX_queue_…; a prefix is, for example, "semaphore_broker".
func NewMetrics(prefix string, reg prometheus.Registerer) *Metrics {
	labels := []string{"queue"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "_queue_" + name, Help: help}, labels)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "_queue_" + name, Help: help}, labels)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "_queue_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, labels)
	}
	m := &Metrics{
		depth: gauge("depth", "Objects that wait to be reconciled."),
		unfinished: gauge("unfinished_work_seconds",
			"Seconds of running reconciliations, which work_duration does not contain yet."),
		longest: gauge("longest_running_processor_seconds", "Seconds that the longest running reconciliation has taken."),
		adds:    counter("adds_total", "Objects enqueued."),
		retries: counter("retries_total", "Objects enqueued for later: again after a failure, or as planned."),
		latency: histogram("latency_duration_seconds", "Seconds an object waited."),
		work:    histogram("work_duration_seconds", "Seconds an object took to reconcile."),
	}
	reg.MustRegister(m.depth, m.unfinished, m.longest, m.adds, m.retries, m.latency, m.work)
	return m
}

// NewDepthMetric implements workqueue.MetricsProvider.
func (m *Metrics) NewDepthMetric(name string) workqueue.GaugeMetric {
	return m.depth.WithLabelValues(name)
}

// NewAddsMetric implements workqueue.MetricsProvider.
func (m *Metrics) NewAddsMetric(name string) workqueue.CounterMetric {
	return m.adds.WithLabelValues(name)
}

// NewLatencyMetric implements workqueue.MetricsProvider.
func (m *Metrics) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return m.latency.WithLabelValues(name)
}

// NewWorkDurationMetric implements workqueue.MetricsProvider.
func (m *Metrics) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return m.work.WithLabelValues(name)
}

// NewUnfinishedWorkSecondsMetric implements workqueue.MetricsProvider.
func (m *Metrics) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return m.unfinished.WithLabelValues(name)
}

// NewLongestRunningProcessorSecondsMetric implements workqueue.MetricsProvider.
func (m *Metrics) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return m.longest.WithLabelValues(name)
}

// NewRetriesMetric implements workqueue.MetricsProvider.
func (m *Metrics) NewRetriesMetric(name string) workqueue.CounterMetric {
	return m.retries.WithLabelValues(name)
}
