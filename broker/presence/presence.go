// Package presence decides which remote clusters are gone: those whose exporter is silent, and with whose nodes none
// of the own ones has a session. One of these alone is no more than a broken connection.
//
// It looks at both every second and tells what changes. Where the signals come from, and what becomes of it, is for its
// callers: it knows neither streams nor services.
package presence

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/internal/debug"
)

const (
	// lookEvery is how often the signals are looked at.
	lookEvery = time.Second
	// late is when a look comes so late that this process stood still, and was the one that did not hear.
	late = 5 * time.Second
	// agentsTell is how long the agents of a broker that has just started have to attach and to tell.
	agentsTell = 30 * time.Second
)

// Signals are what is known of one cluster.
type Signals struct {
	// Heard is when its exporter last spoke; zero for never.
	Heard time.Time
	// Agents have told how they talk with the cluster's nodes, and Talking of them have a session with one at least.
	Agents, Talking int
}

// Verdict on a cluster.
type Verdict int

const (
	// Unknown: it was not heard yet, and has not had the time for it. Nothing is changed for it.
	Unknown Verdict = iota
	// Here: there is a sign of it, or nobody who could say that it is gone.
	Here
	// Gone: there is none.
	Gone
)

// Decide is the verdict that follows was. silent is for how long nothing was heard of the cluster, or nobody listened for
// it. A cluster is back with either signal; agents that are gone themselves are none.
func Decide(was Verdict, s Signals, silent, silentAfter time.Duration) Verdict {
	switch {
	case s.Talking > 0 || !s.Heard.IsZero() && silent < silentAfter:
		return Here
	case was == Gone || silent >= silentAfter && s.Agents > 0:
		return Gone
	case was == Unknown && s.Heard.IsZero() && silent < silentAfter+agentsTell:
		return Unknown
	}
	return Here
}

// Options of a Watch.
type Options struct {
	// Clusters are those that can be gone.
	Clusters []string
	// SilentAfter is how long nothing must have been heard.
	SilentAfter time.Duration
	// Look is what is known now, by cluster.
	Look func() map[string]Signals
	// Tell is told of each cluster once it is known whether it is gone, and then of every change.
	Tell func(cluster string, gone bool)
	// Warn tells people: a word and a sentence.
	Warn     func(reason, note string)
	Recorder *debug.Recorder
	Log      *slog.Logger
}

// Watch follows which clusters are gone.
type Watch struct {
	options Options

	mu       sync.Mutex
	looked   time.Time // zero before the first look
	from     time.Time // since when it was looked without a pause
	clusters map[string]*cluster
}

type cluster struct {
	Signals
	verdict Verdict
	since   time.Time
	// silent is since when nothing was heard.
	silent time.Time
}

// New makes a watch that has not looked yet. It is a prometheus.Collector.
func New(options Options) *Watch {
	w := &Watch{options: options, clusters: map[string]*cluster{}}
	for _, name := range options.Clusters {
		w.clusters[name] = &cluster{}
	}
	return w
}

// Run looks until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		w.look(time.Now(), w.options.Look())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// look takes what is known now.
func (w *Watch) look(now time.Time, signals map[string]Signals) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.looked.IsZero() || now.Sub(w.looked) > late {
		w.from = now
	}
	w.looked = now
	for _, name := range w.options.Clusters {
		c := w.clusters[name]
		c.Signals = signals[name]
		c.silent = c.Heard
		if w.from.After(c.silent) {
			c.silent = w.from
		}
		verdict := Decide(c.verdict, c.Signals, now.Sub(c.silent), w.options.SilentAfter)
		if verdict == c.verdict {
			continue
		}
		was := c.verdict
		c.verdict, c.since = verdict, now
		w.options.Tell(name, verdict == Gone)
		switch {
		case verdict == Gone:
			note := w.problem(name)
			w.options.Log.Warn("a cluster is gone", "cluster", name, "silent since", c.silent, "agents that tell", c.Agents)
			w.options.Recorder.Record(debug.Event{Source: name, Object: "cluster " + name, Action: "gone", Detail: note})
			w.options.Warn("ClusterGone", note)
		case was == Gone:
			note := fmt.Sprintf("cluster %s is back: %s", name, w.sign(c))
			w.options.Log.Info("a cluster is back", "cluster", name, "sign", w.sign(c))
			w.options.Recorder.Record(debug.Event{Source: name, Object: "cluster " + name, Action: "back", Detail: note})
			w.options.Warn("ClusterBack", note)
		}
	}
}

// sign is why a cluster is not gone.
func (w *Watch) sign(c *cluster) string {
	if c.Talking > 0 {
		return fmt.Sprintf("%d of the %d nodes that tell talk with its nodes", c.Talking, c.Agents)
	}
	return "its exporter was heard at " + c.Heard.UTC().Format(time.RFC3339)
}

// problem says of a cluster that is gone which signals say so, since when, and what that does.
func (w *Watch) problem(name string) string {
	c := w.clusters[name]
	heard := "its exporter was last heard at " + c.Heard.UTC().Format(time.RFC3339)
	if c.Heard.IsZero() {
		heard = "its exporter was not heard since this broker began at " + c.silent.UTC().Format(time.RFC3339)
	}
	agents := "no node tells any more how it talks with its nodes"
	if c.Agents > 0 {
		agents = fmt.Sprintf("none of the %d nodes that tell talks with its nodes", c.Agents)
	}
	return fmt.Sprintf("cluster %s is gone since %s: %s, and %s; its endpoints in global services are kept, demoted or withdrawn as these say, and mirrors stay as they are",
		name, c.since.UTC().Format(time.RFC3339), heard, agents)
}

// Problems are the clusters that are gone, a line each.
func (w *Watch) Problems() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var lines []string
	for _, name := range slices.Sorted(slices.Values(w.options.Clusters)) {
		if w.clusters[name].verdict == Gone {
			lines = append(lines, w.problem(name))
		}
	}
	return lines
}

var goneDesc = prometheus.NewDesc("semaphore_broker_cluster_gone",
	"1 while a remote cluster is gone: its exporter is silent, and no node talks with its nodes.", []string{"cluster"}, nil)

// Describe implements prometheus.Collector.
func (w *Watch) Describe(ch chan<- *prometheus.Desc) { ch <- goneDesc }

// Collect implements prometheus.Collector.
func (w *Watch) Collect(ch chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, c := range w.clusters {
		gone := 0.0
		if c.verdict == Gone {
			gone = 1
		}
		ch <- prometheus.MustNewConstMetric(goneDesc, prometheus.GaugeValue, gone, name)
	}
}
