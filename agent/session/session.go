//go:build ignore

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/agent/cache"
	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// restored is what this agent knows of how old its state is.
type restored struct {
	// confirmedAt is when a broker last stood by what is wanted for a cluster, for those that none stands by now.
	confirmedAt map[string]time.Time
	// from is when what was restored at the start was confirmed, zero where nothing was.
	from time.Time
	// stands says that all that was restored has been carried out once.
	stands bool
}

// restoreGuard has all that an earlier agent guarded guarded, before this one does anything else.
func (a *agent) restoreGuard() {
	c, err := cache.Load(a.cfg.StateFile, a.cfg.Cluster)
	if err != nil { // which restore tells
		a.guardConfigured()
		return
	}
	a.mu.Lock()
	if a.declared.subnets == nil {
		a.configured.remotes = map[string]*semaphorev1.GuardedRemote{}
		for _, r := range c.Guarded() {
			if plan.Cluster(r.GetCluster()) == nil {
				a.configured.remotes[r.GetCluster()] = r
			}
		}
	}
	a.mu.Unlock()
	for _, r := range c.Guard { // of an agent that kept no such list it is not known what was refused
		for _, text := range r.GetPodSubnets() {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				a.kept[r.GetCluster()] = append(a.kept[r.GetCluster()], prefix)
			}
		}
	}
	a.guardConfigured()
}

// restore takes over what an earlier agent was told, before this one has heard its broker. A file that cannot be used is
// told and counts for nothing: what stands on the node stays as it is, and the broker tells all.
func (a *agent) restore() {
	c, err := cache.Load(a.cfg.StateFile, a.cfg.Cluster)
	if errors.Is(err, fs.ErrNotExist) {
		slog.Info("no state of an earlier agent to restore", "file", a.cfg.StateFile)
		return
	}
	if err != nil {
		slog.Warn("the state of an earlier agent is not used", "error", err)
		a.recorder.Record(debug.Event{Source: a.cfg.Cluster, Object: "state file", Action: "refuse", Detail: err.Error()})
		return
	}
	if len(c.Networks) == 0 {
		return // of a broker that had no remotes, and may have some by now
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dirty.add(a.state.Restore(c.Networks))
	a.restored.from = c.Confirmed
	for cluster := range c.Networks {
		a.restored.confirmedAt[cluster] = c.Confirmed
	}
	age := time.Since(c.Confirmed).Round(time.Second)
	slog.Info("restored the state of an earlier agent until the broker speaks", "remotes", len(c.Networks), "age", age)
	a.recorder.Record(debug.Event{Source: a.cfg.Cluster, Object: "state file", Action: "restore", Detail: "confirmed by the broker " + age.String() + " ago"})
	a.poke()
}

// snapshot is what is kept for the next agent.
func (a *agent) snapshot() (cache.Contents, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	networks, whole := a.state.Snapshot()
	now := time.Now()
	oldest := now
	for cluster := range networks {
		if at := a.confirmed(cluster, now); at.Before(oldest) {
			oldest = at
		}
	}
	return cache.Contents{Networks: networks, Guard: a.guarding(), Confirmed: oldest}, whole
}

// confirmed is when a broker last stood by what is wanted for a cluster: now, while it is attached and has told all of
// it. It is called with mu held.
func (a *agent) confirmed(cluster string, now time.Time) time.Time {
	if a.attached && a.state.Proven(cluster) {
		return now
	}
	return a.restored.confirmedAt[cluster]
}

// lost notes how old is from now on what the broker stood by until now. It is called with mu held, before the stream counts as
// ended.
func (a *agent) lost(now time.Time) {
	for _, cluster := range a.state.Clusters() {
		a.restored.confirmedAt[cluster] = a.confirmed(cluster, now)
	}
}

// source is where what is wanted for a cluster comes from.
func source(n *desired.Network) string {
	if n.Restored {
		return "cache"
	}
	return "broker"
}

// carriedOut notes, after a round, whether all that was restored stands. It is called with mu held.
func (a *agent) carriedOut() {
	broken := slices.ContainsFunc(slices.Collect(maps.Keys(a.failing)), a.broken)
	if !a.restored.from.IsZero() && !broken && len(a.dirty.networks) == 0 {
		a.restored.stands = true
	}
}

// stale tells how old what is wanted is, where no broker stands by it; empty where one does.
func (a *agent) stale() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	var stale []string
	for _, cluster := range a.state.Clusters() {
		if at := a.confirmed(cluster, now); at.Before(now) {
			stale = append(stale, fmt.Sprintf("device %s stale, age %s, from the %s",
				naming.Device(cluster), max(0, now.Sub(at)).Round(time.Second), source(a.state.Network(cluster))))
		}
	}
	return strings.Join(stale, "; ")
}

// remarks are what an agent that is ready says of itself: how old what is wanted is, and what is not as it should be with devices.
func (a *agent) remarks() string {
	remarks := []string{a.stale()}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, cluster := range slices.Sorted(maps.Keys(a.networks)) {
		if problem := a.networks[cluster].problem; problem != "" {
			remarks = append(remarks, "device "+naming.Device(cluster)+": "+problem)
		}
	}
	return strings.TrimPrefix(strings.Join(remarks, "; "), "; ")
}
