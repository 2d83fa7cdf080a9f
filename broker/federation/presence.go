package federation

// Presence decides which remote clusters are gone: those whose exporter is stale, and whose nodes do not answer
// own nodes that try. One sign alone may be a broken connection, and unused tunnels are no sign.
//
// It evaluates both signals every second and reports changes. It knows neither streams nor services: its callers
// provide the signals and act on the changes.

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

const (
	pollInterval = time.Second
	// pauseThreshold is the delay of a poll from which on the process counts as paused, so that it could not receive
	// messages.
	pauseThreshold = 5 * time.Second
	// probeAfter is the silence of an exporter after which agents probe the cluster's nodes: a heartbeat is late. The
	// answers, or their absence, are known some 15 s later.
	probeAfter = 7 * time.Second
	// agentsGrace is how long agents may take to attach and report to a broker that has just started.
	agentsGrace = 30 * time.Second
)

type Signals struct {
	// LastHeard is when its exporter last sent a message; zero for never.
	LastHeard time.Time
	// Agents is the number of agents that report on the cluster's nodes; Talking of them have a session with at least
	// one, and Unanswered of them have none, tried and got no answer.
	Agents, Talking, Unanswered int
}

type Verdict int

const (
	// Unknown: there was no message yet, and not enough time for one. Nothing is changed for it.
	Unknown Verdict = iota
	// Here: there is a sign of the cluster, or no agent could report that it is gone.
	Here
	// Gone: there is no sign of it.
	Gone
)

// decide returns the verdict that follows was. silent is the time without a message, or without a running process.
// Either signal suffices for Here; agents that detached, or that did not try, are no signal. More than half of the
// agents must have tried in vain: a few nodes may have lost the network themselves.
func decide(was Verdict, s Signals, silent, silentAfter time.Duration) Verdict {
	switch {
	case s.Talking > 0 || !s.LastHeard.IsZero() && silent < silentAfter:
		return Here
	case was == Gone || silent >= silentAfter && 2*s.Unanswered > s.Agents:
		return Gone
	case was == Unknown && s.LastHeard.IsZero() && silent < silentAfter+agentsGrace:
		return Unknown
	}
	return Here
}

type PresenceOptions struct {
	Clusters []string
	// SilentAfter is how long there must have been no message.
	SilentAfter time.Duration
	// Heard returns when the exporter of each cluster last sent a message, zero for never, and Tunnels what agents report
	// on some clusters, without LastHeard.
	Heard   func() map[string]time.Time
	Tunnels func(clusters []string) map[string]Signals
	// Probe makes agents try whether nodes of clusters answer; it is called at each poll while their exporters are
	// silent.
	Probe func(clusters []string)
	// Unknown is called with clusters that are watched from now on, OnChange for each cluster once its verdict is known,
	// and then for every change.
	Unknown  func(clusters ...string)
	OnChange func(cluster string, gone bool)
	// Warn notifies operators with a reason and a sentence. If it is not accepted, it is repeated at the next poll.
	Warn     func(reason finding.Code, note string) (accepted bool)
	Recorder *debug.Recorder
	Log      *slog.Logger
}

type Presence struct {
	options PresenceOptions

	mu          sync.Mutex
	lastPoll    time.Time // zero before the first
	polledSince time.Time // since when there was no pause
	clusters    map[string]*cluster
}

type cluster struct {
	Signals
	verdict     Verdict
	since       time.Time
	silentSince time.Time
	// untold is the newest warning while it is not accepted.
	untold warning
}

type warning struct {
	reason finding.Code
	note   string
}

// NewPresence makes one that has heard nothing. It is a prometheus.Collector.
func NewPresence(options PresenceOptions) *Presence {
	w := &Presence{options: options}
	w.Follow(options.Clusters)
	return w
}

// Follow replaces the clusters to watch. The state of those that remain continues.
func (w *Presence) Follow(names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.clusters
	w.clusters, w.options.Clusters = map[string]*cluster{}, names
	for _, name := range names {
		if w.clusters[name] = was[name]; was[name] == nil {
			w.clusters[name] = &cluster{}
			w.options.Unknown(name)
		}
	}
}

// Run evaluates the signals until ctx ends, whose error it returns.
func (w *Presence) Run(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		now := time.Now()
		w.evaluate(now, w.read(now))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// read returns the current signals by cluster. It reads what agents report only on clusters whose exporter is late: it
// decides nothing about others, and thousands of agents report on each.
func (w *Presence) read(now time.Time) map[string]Signals {
	signals, late := map[string]Signals{}, []string(nil)
	for cluster, heard := range w.options.Heard() {
		if signals[cluster] = (Signals{LastHeard: heard}); now.Sub(heard) >= probeAfter {
			late = append(late, cluster)
		}
	}
	if len(late) > 0 {
		for cluster, s := range w.options.Tunnels(late) {
			s.LastHeard = signals[cluster].LastHeard
			signals[cluster] = s
		}
	}
	return signals
}

func (w *Presence) evaluate(now time.Time, signals map[string]Signals) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lastPoll.IsZero() || now.Sub(w.lastPoll) > pauseThreshold {
		w.polledSince = now
	}
	w.lastPoll = now
	var silent []string
	for _, name := range w.options.Clusters {
		c := w.clusters[name]
		c.Signals = signals[name]
		c.silentSince = c.LastHeard
		if w.polledSince.After(c.silentSince) {
			c.silentSince = w.polledSince
		}
		if now.Sub(c.silentSince) >= probeAfter {
			silent = append(silent, name)
		}
		verdict, was := decide(c.verdict, c.Signals, now.Sub(c.silentSince), w.options.SilentAfter), c.verdict
		if verdict != was {
			c.verdict, c.since = verdict, now
			w.options.OnChange(name, verdict == Gone)
		}
		switch {
		case verdict == was:
		case verdict == Gone:
			c.untold = warning{finding.ClusterGone, w.problem(name)}
			w.options.Log.Warn("a cluster is gone", "cluster", name, "silentSince", c.silentSince, "agents", c.Agents)
			w.options.Recorder.Record(debug.Event{Source: name, Object: "cluster " + name, Action: "gone",
				Detail: c.untold.note})
		case was == Gone:
			c.untold = warning{finding.ClusterBack, fmt.Sprintf("cluster %s is back since %s: %s", name,
				now.UTC().Format(time.RFC3339), w.sign(c))} // the same text, again within half an hour, would be suppressed
			w.options.Log.Info("a cluster is back", "cluster", name, "sign", w.sign(c))
			w.options.Recorder.Record(debug.Event{Source: name, Object: "cluster " + name, Action: "back",
				Detail: c.untold.note})
		}
		if c.untold.note != "" && w.options.Warn(c.untold.reason, c.untold.note) {
			c.untold = warning{}
		}
	}
	if len(silent) > 0 {
		w.options.Probe(silent)
	}
}

func (w *Presence) sign(c *cluster) string {
	if c.Talking > 0 {
		return fmt.Sprintf("%d of the %d nodes that report have a session with its nodes", c.Talking, c.Agents)
	}
	return "its exporter sent a message at " + c.LastHeard.UTC().Format(time.RFC3339)
}

// problem returns why a cluster is gone, since when, and the consequence.
func (w *Presence) problem(name string) string {
	c := w.clusters[name]
	heard := "its exporter last sent a message at " + c.LastHeard.UTC().Format(time.RFC3339)
	if c.LastHeard.IsZero() {
		heard = "its exporter has sent nothing since this broker started at " + c.silentSince.UTC().Format(time.RFC3339)
	}
	agents := "no node reports on sessions with its nodes"
	if c.Agents > 0 {
		agents = fmt.Sprintf("none of the %d nodes that report has a session with its nodes, and %d of them tried in vain "+
			"to begin one", c.Agents, c.Unanswered)
	}
	return fmt.Sprintf("cluster %s is gone since %s: %s, and %s; its endpoints in global services are kept, demoted or "+
		"withdrawn as configured, and mirrors remain unchanged",
		name, c.since.UTC().Format(time.RFC3339), heard, agents)
}

func (w *Presence) Findings() (found []finding.Finding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range slices.Sorted(slices.Values(w.options.Clusters)) {
		if w.clusters[name].verdict == Gone {
			found = append(found, finding.Line(finding.ClusterGone, name, w.problem(name))...)
		}
	}
	return found
}

var goneDesc = prometheus.NewDesc("semaphore_broker_cluster_gone",
	"1 while a remote cluster is gone: its exporter is stale, and its nodes do not answer own nodes that try.",
	[]string{"cluster"}, nil)

func (w *Presence) Describe(ch chan<- *prometheus.Desc) { ch <- goneDesc }

func (w *Presence) Collect(ch chan<- prometheus.Metric) {
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
