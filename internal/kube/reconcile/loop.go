// Package reconcile is the one loop that drives the world towards what is wanted: keyed,
// level-triggered, each key by one worker at a time.
//
// A key that fails waits before it is tried again, longer each time, and what is enqueued of it meanwhile joins the wait.
// Keys that fail for a cause that they share wait together: one of them probes, and when it succeeds the others
// follow (see gate).
//
// Where keys have owners, these share nothing that one of them can fill or hold: they take turns, none has all workers, and how often
// failures are tried again and logged is counted for each.
//
// What a key means and how it is reconciled is the caller's; the package knows neither
// streams nor Kubernetes objects.
//
// It imports nothing of ours.
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

// Backoff of a key that fails: the first retry comes after minBackoff, each further one
// after twice the time, up to maxBackoff, all with jitter.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 30 * time.Second
	// However many keys of an owner fail, they are tried again retryRate times a second in all, apart from the first ones.
	retryRate = 10
	// newsAfter is when a key of which something has changed is tried again at the latest, if it waits for a cause of its own:
	// the change may be the mend.
	newsAfter = time.Second
)

// Failures are logged when a key begins to fail, or fails in another way; so many of an owner at once and so many a second.
const logBurst, logRate = 20, 1

// ErrIdle is what reconcile returns for a key of which there was nothing to do. It is a success that says nothing of whether
// the way is open.
var ErrIdle = errors.New("nothing to do")

// Cause is why a key failed.
type Cause struct {
	// Name tells causes apart.
	Name string
	// Shared says that others fail for it whatever they are, so that one probes for all.
	Shared bool
	// All says that every key would fail for it: none is tried but the one that probes. It is shared.
	All bool
}

// Options of a Loop.
type Options struct {
	// Workers is how many keys may be reconciled at a time, of one owner where keys have some; 1 when 0.
	Workers int
	// Cause tells why a key failed; nil where no keys share a cause.
	Cause func(error) Cause
	// Metrics are the loops' metrics, shared by the loops of one part; nil for none.
	Metrics *Metrics
	// Log is told of failures; slog's default when nil.
	Log *slog.Logger
}

// Loop reconciles keys. However often a key is enqueued while it waits or is being
// reconciled, it is reconciled once more and then with the newest state.
type Loop[K comparable] struct {
	name      string
	reconcile func(context.Context, K) error
	options   Options
	ownerOf   func(K) string
	// workers is how many keys are reconciled at a time.
	workers int

	mu      sync.Mutex
	failing map[K]*failure
	// owners are those that keys had, and parked whose the keys are that wait for another of the same owner to be done with.
	owners map[string]*owner[K]
	parked map[K]string
	// alone are the keys that wait each for itself, by the name of their cause.
	alone map[string]map[K]bool
	// gates hold the keys that wait together, by the name of their cause; gated is the gate in which a key waits, and released
	// the one that let it go to be tried.
	gates           map[string]*gate[K]
	gated, released map[K]*gate[K]
	// due is before when a key is not tried.
	due map[K]time.Time
	// queue is nil until Run makes it: it starts goroutines, which Run ends. Until then early holds what
	// was enqueued, and when it is due.
	queue workqueue.TypedDelayingInterface[K]
	early map[K]time.Time
}

// owner is what is kept of one.
type owner[K comparable] struct {
	logs *rate.Limiter
	// failing and running are how many keys fail, and are being reconciled.
	failing, running int
	// parked are the keys that wait while as many run as may, in order, and some that do not wait any more.
	parked []K
}

// failure is a key that fails.
type failure struct {
	Problem
	owner string
	cause Cause
	// tried is when it was tried last, and wait the backoff after that.
	tried time.Time
	wait  time.Duration
}

// Problem is a key that could not be reconciled, and is tried again.
type Problem struct {
	Key string
	Err error
	// Since when the key has been failing without a success between.
	Since time.Time
	// Attempts since then.
	Attempts int
}

// New makes a loop. reconcile is called with one key at a time and compares what is
// wanted with what is; a nil error means that both agree or that a later event will
// tell, and ErrIdle that they agreed before.
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

// By says whose a key is at the moment, before Run. Owners take turns, and there are more workers than one owner may have, by a quarter. of is
// called with locks held, and must not call the Loop. Of an owner something is kept for good: there should be few.
func (l *Loop[K]) By(of func(K) string) *Loop[K] {
	l.ownerOf, l.workers = of, l.options.Workers+max(1, l.options.Workers/4)
	return l
}

// owner is what is kept of one.
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

// Enqueue asks for a key to be reconciled. What is enqueued before Run waits for it; what is enqueued
// when the context of Run has ended is not reconciled any more. One that waits after a failure goes on waiting.
func (l *Loop[K]) Enqueue(key K) { l.EnqueueAfter(key, 0) }

// EnqueueAfter asks for a key to be reconciled after a while.
func (l *Loop[K]) EnqueueAfter(key K, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(key, d)
}

// News asks for a key to be reconciled of which something is wanted that was not before. One that waits for a cause of its
// own waits for newsAfter at most.
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

// add has the key come out of the queue after a while, where it does not wait for another reason.
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
		delete(l.parked, key) // who has it now has not as many running as may
	}
	if d > 0 {
		l.queue.AddAfter(key, d)
	} else {
		l.queue.Add(key)
	}
}

// delay has the key tried after a while and not before.
func (l *Loop[K]) delay(key K, d time.Duration) {
	d = max(d, time.Nanosecond)
	l.due[key] = time.Now().Add(d)
	l.queue.AddAfter(key, d)
}

// Run reconciles until ctx ends, and returns when the last worker has. It is called once.
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
	queue.ShutDown() // waits for the one that the context began
	return ctx.Err()
}

func (l *Loop[K]) one(ctx context.Context, key K) {
	// A queue that is shut down still hands out what waits in it.
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

// begin says whether a key that came out of the queue is to be tried now, and whose it is. It may have been put there before it failed.
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

// ended notes that a key of an owner is not being reconciled any more, and has another come that waits for it.
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
}

// ready says whether a key that came out of the queue waits for nothing.
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

// forget has a key fail no more.
func (l *Loop[K]) forget(key K) (before *failure) {
	before = l.failing[key]
	if before != nil && !before.cause.Shared {
		if delete(l.alone[before.cause.Name], key); len(l.alone[before.cause.Name]) == 0 {
			delete(l.alone, before.cause.Name)
		}
	}
	if before != nil {
		l.owner(before.owner).failing--
	}
	delete(l.failing, key)
	return before
}

// succeeded notes that a key was brought to what is wanted, which others that failed for the same cause may be now.
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

// failed has a key wait.
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
			l.log(f.owner, slog.LevelWarn, "reconcile failed; all that fail for this cause wait, and one tries again", "loop", l.name, "cause", cause.Name, "key", f.Key, "error", err)
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
	l.log(f.owner, level, "reconcile failed; trying again", "loop", l.name, "key", f.Key, "attempt", f.Attempts, "error", err)
	f.wait = min(max(2*f.wait, minBackoff), maxBackoff)
	l.delay(key, jitter(max(f.wait, time.Duration(owner.failing-1)*time.Second/retryRate)))
}

// jitter spreads the retries of keys that failed together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// log logs what an owner's key led to, where it is a warning only as many as somebody can read.
func (l *Loop[K]) log(owner string, level slog.Level, message string, args ...any) {
	if level < slog.LevelWarn || l.owner(owner).logs.Allow() {
		l.options.Log.Log(context.Background(), level, message, args...)
	}
}

// Problems are the keys that fail now, in the order of their names.
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

// NewMetrics registers the metrics under PREFIX_queue_…; prefix is such as "semaphore_broker".
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
		depth:      gauge("depth", "Objects that wait to be reconciled."),
		unfinished: gauge("unfinished_work_seconds", "Seconds of reconciling under way and not yet in work_duration."),
		longest:    gauge("longest_running_processor_seconds", "Seconds that the longest reconciling under way has taken."),
		adds:       counter("adds_total", "Objects enqueued."),
		retries:    counter("retries_total", "Objects enqueued for later: again after a failure, or as planned."),
		latency:    histogram("latency_duration_seconds", "Seconds an object waited."),
		work:       histogram("work_duration_seconds", "Seconds an object took to reconcile."),
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
