// Package reconcile is the one loop that drives the world towards what is wanted: keyed,
// level-triggered, each key by one worker at a time, each failing key backing off alone.
//
// What a key means and how it is reconciled is the caller's; the package knows neither
// streams nor Kubernetes objects.
package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"
)

// Backoff of a key that fails: the first retry comes after minBackoff, each further one
// after twice the time, up to maxBackoff, all with jitter.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 30 * time.Second
)

// Options of a Loop.
type Options struct {
	// Workers is how many keys may be reconciled at a time; 1 when 0.
	Workers int
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

	mu      sync.Mutex
	failing map[K]Problem
	// queue is nil until Run makes it: it starts goroutines, which Run ends. Until then early holds what
	// was enqueued, and when it is due.
	queue workqueue.TypedRateLimitingInterface[K]
	early map[K]time.Time
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
// tell.
func New[K comparable](name string, reconcile func(context.Context, K) error, options Options) *Loop[K] {
	if options.Workers == 0 {
		options.Workers = 1
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	return &Loop[K]{
		name: name, reconcile: reconcile, options: options,
		failing: map[K]Problem{}, early: map[K]time.Time{},
	}
}

func (l *Loop[K]) newQueue() workqueue.TypedRateLimitingInterface[K] {
	config := workqueue.TypedRateLimitingQueueConfig[K]{Name: l.name}
	if l.options.Metrics != nil {
		config.MetricsProvider = l.options.Metrics
	}
	return workqueue.NewTypedRateLimitingQueueWithConfig(newLimiter[K](), config)
}

// jittered spreads the retries of keys that failed together, as all do when an
// apiserver goes away.
type jittered[K comparable] struct {
	workqueue.TypedRateLimiter[K]
}

func newLimiter[K comparable]() workqueue.TypedRateLimiter[K] {
	return jittered[K]{workqueue.NewTypedItemExponentialFailureRateLimiter[K](minBackoff, maxBackoff)}
}

func (j jittered[K]) When(key K) time.Duration {
	d := j.TypedRateLimiter.When(key)
	return d/2 + rand.N(d)
}

// Enqueue asks for a key to be reconciled. What is enqueued before Run waits for it; what is enqueued
// when the context of Run has ended is not reconciled any more.
func (l *Loop[K]) Enqueue(key K) {
	if queue := l.queueOr(key, 0); queue != nil {
		queue.Add(key)
	}
}

// EnqueueAfter asks for a key to be reconciled after a while.
func (l *Loop[K]) EnqueueAfter(key K, d time.Duration) {
	if queue := l.queueOr(key, d); queue != nil {
		queue.AddAfter(key, d)
	}
}

// queueOr returns the queue, or nil when there is none yet and key was put among the early ones.
func (l *Loop[K]) queueOr(key K, d time.Duration) workqueue.TypedRateLimitingInterface[K] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == nil {
		due := time.Now().Add(d)
		if at, ok := l.early[key]; !ok || due.Before(at) {
			l.early[key] = due
		}
	}
	return l.queue
}

// Run reconciles until ctx ends, and returns when the last worker has. It is called once.
func (l *Loop[K]) Run(ctx context.Context) error {
	queue := l.newQueue()
	l.mu.Lock()
	l.queue = queue
	early := l.early
	l.early = nil
	l.mu.Unlock()
	for key, due := range early {
		if d := time.Until(due); d > 0 {
			queue.AddAfter(key, d)
		} else {
			queue.Add(key)
		}
	}

	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	var g errgroup.Group
	for range l.options.Workers {
		g.Go(func() error {
			for {
				key, shutdown := queue.Get()
				if shutdown {
					return nil
				}
				l.one(ctx, queue, key)
			}
		})
	}
	g.Wait()
	queue.ShutDown() // waits for the one that the context began
	return ctx.Err()
}

func (l *Loop[K]) one(ctx context.Context, queue workqueue.TypedRateLimitingInterface[K], key K) {
	defer queue.Done(key)
	// A queue that is shut down still hands out what waits in it.
	if ctx.Err() != nil {
		return
	}
	err := l.reconcile(ctx, key)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		l.mu.Lock()
		delete(l.failing, key)
		l.mu.Unlock()
		queue.Forget(key)
		return
	}
	l.mu.Lock()
	p := l.failing[key]
	if p.Since.IsZero() {
		p.Since = time.Now()
	}
	p.Key, p.Err = fmt.Sprint(key), err
	p.Attempts++
	l.failing[key] = p
	l.mu.Unlock()
	l.options.Log.Warn("reconcile failed; trying again", "loop", l.name, "key", p.Key, "attempt", p.Attempts, "error", err)
	queue.AddRateLimited(key)
}

// Problems are the keys that fail now, in the order of their names.
func (l *Loop[K]) Problems() []Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Problem, 0, len(l.failing))
	for _, p := range l.failing {
		out = append(out, p)
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
