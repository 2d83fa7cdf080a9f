package agent

import (
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/agent/traffic"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// start does the work before the first round, in this order: the guard of all remotes of the subnets file; orphans,
// which the first report needs; the state c of an earlier agent. Nothing that others wrote ends the agent.
func (a *agent) start(c *stream.StateFile, err error) {
	a.earlier = c
	if errors.Is(err, fs.ErrNotExist) {
		a.earlier = &stream.StateFile{}
	}
	before := ""
	if c != nil {
		before = c.Subnets
	}
	a.node.LoadSubnets(before)
	a.node.Restore(c)
	a.devices.FindOrphans()
	a.restore(c, err)
	if up, err := sinceBoot(); c != nil && err == nil {
		a.clock.look(c.Confirmed, up) // the clock showed this: if it is ahead, the clock was set back while no agent looked
		a.watchClock()
	}
	a.node.Want(guard.Work{Settings: true, Guard: true}, false)
	if a.traffic == nil { // an earlier agent may have counted
		if _, err := traffic.Remove(); err != nil {
			slog.Warn("cannot remove the tables that counted traffic by Service; the agent retries when it restarts",
				"error", err)
		}
	}
	a.cache.Changed()
}

// restore uses the state of an earlier agent until a broker sends its own. It reports and ignores a file that cannot be
// used: the node remains as it is, and the broker sends the complete state.
func (a *agent) restore(c *stream.StateFile, err error) {
	event := events.Event{Cluster: a.cfg.Cluster, Object: "state file"}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		slog.Info("no state of an earlier agent to restore", "file", a.cfg.StateFile)
	case err != nil:
		a.unread = err.Error()
		event.Action, event.Detail = "refuse", err.Error()
		a.events.Emit(event.Warn("cannot use the state file of an earlier agent; devices stay unchanged until the broker "+
			"sends its state", "error", err))
	case len(c.Networks) == 0: // the broker had no remotes then, and may have some now
	default:
		a.session.Restore(c.Networks, c.Confirmed)
		age := time.Since(c.Confirmed).Round(time.Second)
		event.Action, event.Detail = "restore", "confirmed by the broker "+age.String()+" ago"
		if age < 0 {
			event.Detail = "confirmed by the broker at " + c.Confirmed.UTC().Format(time.RFC3339) + ", ahead of the clock"
		}
		a.events.Emit(event.Info("restored the state of an earlier agent until the broker sends its own",
			"remotes", len(c.Networks), "age", age))
		a.queue.poke()
	}
}

// snapshot returns the state to save for the next agent. Until a broker has sent its state, that is the earlier state
// with the present guard and bounds: a node that boots again without a broker needs them. A file that cannot be used is
// not replaced before.
func (a *agent) snapshot() (stream.StateFile, bool) {
	c, complete := a.session.Snapshot()
	guarded := a.node.Guarded()
	if !complete {
		if a.earlier == nil {
			return c, false
		}
		c = *a.earlier
		for _, r := range c.Guarded() {
			if !slices.ContainsFunc(guarded, func(g *semaphorev1.GuardedRemote) bool {
				return g.GetCluster() == r.GetCluster()
			}) {
				guarded = append(guarded, r) // its guard is retained until a broker has spoken
			}
		}
	}
	c.Guard, c.Calls = guarded, a.node.Called()
	if c.Subnets = a.node.Declared(); c.Subnets == "" && a.earlier != nil {
		c.Subnets = a.earlier.Subnets
	}
	return c, true
}
