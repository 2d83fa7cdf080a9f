package agent

import (
	"errors"
	"io/fs"
	"log/slog"
	"time"

	"github.com/kube-semaphore/semaphore/agent/cache"
	"github.com/kube-semaphore/semaphore/agent/events"
)

// start does what comes before the first round, in this order: the guard, so that nothing leaves the node in the clear;
// orphans, which the first report needs; and the state of an earlier agent.
func (a *agent) start() error {
	if err := a.node.LoadSubnets(); err != nil {
		return err
	}
	c, err := cache.Load(a.cfg.StateFile, a.cfg.Cluster)
	a.node.RestoreGuard(c)
	a.devices.FindOrphans()
	a.restore(c, err)
	a.node.CheckAtStart()
	return nil
}

// restore uses the state of an earlier agent until this one has its broker's. It reports a file that cannot be used,
// and ignores it: the node stays as it is, and the broker sends all.
func (a *agent) restore(c *cache.Contents, err error) {
	event := events.Event{Cluster: a.cfg.Cluster, Object: "state file"}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		slog.Info("no state of an earlier agent to restore", "file", a.cfg.StateFile)
	case err != nil:
		event.Action, event.Detail = "refuse", err.Error()
		a.events.Emit(event.Warn("the state of an earlier agent is not used", "error", err))
	case len(c.Networks) == 0: // of a broker that had no remotes, and may have some by now
	default:
		a.session.Restore(c.Networks, c.Confirmed)
		age := time.Since(c.Confirmed).Round(time.Second)
		event.Action, event.Detail = "restore", "confirmed by the broker "+age.String()+" ago"
		a.events.Emit(event.Info("restored the state of an earlier agent until the broker speaks",
			"remotes", len(c.Networks), "age", age))
		a.queue.poke()
	}
}

// snapshot is what is kept for the next agent.
func (a *agent) snapshot() (cache.Contents, bool) {
	c, complete := a.session.Snapshot()
	c.Guard = a.node.Guarded()
	return c, complete
}
