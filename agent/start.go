package agent

import (
	"errors"
	"io/fs"
	"log/slog"
	"time"

	"github.com/kube-semaphore/semaphore/agent/cache"
	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/traffic"
)

// start does what precedes the first round, in this order: the guard, so that nothing leaves the node in the clear;
// orphans, which the first report needs; the state of an earlier agent.
func (a *agent) start() error {
	if err := a.node.LoadSubnets(); err != nil {
		return err
	}
	c, err := cache.Load(a.cfg.StateFile, a.cfg.Cluster)
	a.node.RestoreGuard(c)
	a.devices.FindOrphans()
	a.restore(c, err)
	a.node.CheckAtStart()
	if a.traffic == nil { // an earlier agent may have counted
		if _, err := traffic.Remove(); err != nil {
			slog.Warn("cannot remove the tables that counted traffic by Service; the agent retries when it restarts",
				"error", err)
		}
	}
	return nil
}

// restore uses the state of an earlier agent until a broker sends its own. It reports and ignores a file that cannot be
// used: the node remains as it is, and the broker sends the complete state.
func (a *agent) restore(c *cache.Contents, err error) {
	event := events.Event{Cluster: a.cfg.Cluster, Object: "state file"}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		slog.Info("no state of an earlier agent to restore", "file", a.cfg.StateFile)
	case err != nil:
		event.Action, event.Detail = "refuse", err.Error()
		a.events.Emit(event.Warn("cannot use the state file of an earlier agent; devices stay unchanged until the broker "+
			"sends its state", "error", err))
	case len(c.Networks) == 0: // the broker had no remotes then, and may have some now
	default:
		a.session.Restore(c.Networks, c.Confirmed)
		age := time.Since(c.Confirmed).Round(time.Second)
		event.Action, event.Detail = "restore", "confirmed by the broker "+age.String()+" ago"
		a.events.Emit(event.Info("restored the state of an earlier agent until the broker sends its own",
			"remotes", len(c.Networks), "age", age))
		a.queue.poke()
	}
}

// snapshot returns the state to save for the next agent.
func (a *agent) snapshot() (cache.Contents, bool) {
	c, complete := a.session.Snapshot()
	c.Guard = a.node.Guarded()
	return c, complete
}
