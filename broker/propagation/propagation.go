// Package propagation keeps how long changes of remote clusters took to take effect in this one: for each remote
// and kind the last hundred, for semaphorectl status, and all of them in one histogram.
//
// A time spans two clocks: a change begins when it is seen in its cluster, on that cluster's clock, and ends when it is
// written to the apiserver or programmed on a node here, on the clock here. What the clocks differ by is in each
// time, and can make it negative. Nothing is decided by it. The package imports nothing of ours.
package propagation

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// remembered is how many times of one remote and kind are kept.
const remembered = 100

// Times are those of one remote and kind, from the seeing of a change at its source to its effect here.
type Times struct {
	// Last is the newest.
	Last time.Duration
	// Median and High are of the last hundred the middle one and the worst but one: the very worst is as often a
	// restart as a trend.
	Median, High time.Duration
}

// Tracker keeps the times of all remotes. Its methods may be called from any goroutine; a nil Tracker keeps nothing.
type Tracker struct {
	histogram *prometheus.HistogramVec

	mu    sync.Mutex
	rings map[of]*ring
}

type of struct{ cluster, kind string }

// ring holds the last times; next is where the next one goes once it is full.
type ring struct {
	times []time.Duration
	next  int
	last  time.Duration
}

// New makes a tracker of nothing yet, and registers its histogram.
func New(reg prometheus.Registerer) *Tracker {
	t := &Tracker{
		rings: map[of]*ring{},
		histogram: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "semaphore_broker_propagation_seconds",
			Help:    "Seconds from when a change was seen in the remote cluster, on that cluster's clock, to when it took effect here, on this one's: written to the apiserver, or of kind node programmed by one agent. A difference of the clocks is in it; what it makes negative counts as 0.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18),
		}, []string{"cluster", "kind"}),
	}
	reg.MustRegister(t.histogram)
	return t
}

// Observe takes note that a change of cluster, to an object that is written as kind, took effect d after it was seen there.
func (t *Tracker) Observe(cluster, kind string, d time.Duration) {
	if t == nil {
		return
	}
	// A negative observation would make the histogram's sum go back, which rate() takes for a restart.
	t.histogram.WithLabelValues(cluster, kind).Observe(max(0, d).Seconds())
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rings[of{cluster, kind}]
	if r == nil {
		r = &ring{}
		t.rings[of{cluster, kind}] = r
	}
	r.last = d
	if len(r.times) < remembered {
		r.times = append(r.times, d)
		return
	}
	r.times[r.next] = d
	r.next = (r.next + 1) % remembered
}

// Times are those of a remote's kind; ok is false before its first.
func (t *Tracker) Times(cluster, kind string) (times Times, ok bool) {
	if t == nil {
		return Times{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rings[of{cluster, kind}]
	if r == nil {
		return Times{}, false
	}
	sorted := slices.Clone(r.times)
	slices.Sort(sorted)
	return Times{Last: r.last, Median: sorted[(len(sorted)-1)/2], High: sorted[max(0, len(sorted)-2)]}, true
}
