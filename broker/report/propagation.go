package report

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file records how long changes of remote clusters took to take effect in this cluster: the last hundred of each
// remote and kind for semaphorectl status, and all of them in one histogram.
//
// A time spans two clocks: a change begins when it is observed in its cluster, on that cluster's clock, and ends when
// it is written to the apiserver or programmed on a node, on the local clock. The difference of the clocks is part of
// each time, and can make it negative. No decision depends on it.

const maxTimes = 100

// Times are the times of one remote and kind, from the observation of a change at its source to its effect here.
type Times struct {
	Last time.Duration
	// Median and High are the median and the second largest of the last hundred: the largest is often caused by a
	// restart.
	Median, High time.Duration
}

// Tracker records the times of all remotes. Its methods are safe for concurrent use; a nil Tracker records nothing.
type Tracker struct {
	histogram *prometheus.HistogramVec

	mu    sync.Mutex
	rings map[series]*ring
}

type series struct {
	cluster string
	kind    writes.ObjectKind
}

// ring holds the last times; next is the index of the oldest once it is full.
type ring struct {
	times []time.Duration
	next  int
	last  time.Duration
}

func NewTracker(reg prometheus.Registerer) *Tracker {
	t := &Tracker{
		rings: map[series]*ring{},
		histogram: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "semaphore_broker_propagation_seconds",
			Help: "Seconds from the observation of a change in the remote cluster, on that cluster's clock, to its effect " +
				"here, on this cluster's clock: the write to the apiserver, or for kind node the programming by one agent. It " +
				"includes the difference of the clocks; negative values count as 0.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18),
		}, []string{"cluster", "kind"}),
	}
	reg.MustRegister(t.histogram)
	return t
}

// Observe records that a change of cluster, to an object that is written as kind, took effect d after it was observed
// there.
func (t *Tracker) Observe(cluster string, kind writes.ObjectKind, d time.Duration) {
	if t == nil {
		return
	}
	// A negative observation would decrease the histogram's sum, which rate() takes for a restart.
	t.histogram.WithLabelValues(cluster, string(kind)).Observe(max(0, d).Seconds())
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rings[series{cluster, kind}]
	if r == nil {
		r = &ring{}
		t.rings[series{cluster, kind}] = r
	}
	r.last = d
	if len(r.times) < maxTimes {
		r.times = append(r.times, d)
		return
	}
	r.times[r.next] = d
	r.next = (r.next + 1) % maxTimes
}

func (t *Tracker) Forget(cluster string) {
	if t == nil {
		return
	}
	t.histogram.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.rings, func(s series, _ *ring) bool { return s.cluster == cluster })
}

// Times returns the times of a remote's kind; ok is false before the first.
func (t *Tracker) Times(cluster string, kind writes.ObjectKind) (times Times, ok bool) {
	if t == nil {
		return Times{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rings[series{cluster, kind}]
	if r == nil {
		return Times{}, false
	}
	sorted := slices.Clone(r.times)
	slices.Sort(sorted)
	return Times{Last: r.last, Median: sorted[(len(sorted)-1)/2], High: sorted[max(0, len(sorted)-2)]}, true
}

func (t *Tracker) AddTo(links []*semaphorev1.LinkStatus) {
	for _, l := range links {
		for _, k := range l.GetKinds() {
			if times, ok := t.Times(l.GetCluster(), writes.WrittenAs(k.GetKind())); ok {
				k.LastPropagation = durationpb.New(times.Last)
				k.MedianPropagation = durationpb.New(times.Median)
				k.HighPropagation = durationpb.New(times.High)
			}
		}
	}
}
