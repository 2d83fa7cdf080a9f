package agent

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/events"
)

const (
	// leastStep is the least step back of a clock that matters: WireGuard tries a handshake again every 5 s, and a peer
	// answers once the clock has passed the time that it last saw.
	leastStep = 10 * time.Second
	// renewWithin spreads the new keys of nodes whose clocks were set together, and renewEvery bounds how often a clock
	// leads to new keys.
	renewWithin = time.Minute
	renewEvery  = time.Hour
)

// clock detects that the node's clock was set back. The first message of a handshake has the sender's time, and a peer
// ignores one that is not later than the last that it saw under the same key (WireGuard whitepaper, 5.1). Peers hence
// ignore this node until its clock shows the old time again, or it has a new key; they reach it all the while. It is
// safe for concurrent use.
type clock struct {
	mu sync.Mutex
	// offset is the time of the boot by the wall clock, as last read.
	offset time.Time
	// back is the last step, at when the clock was first seen after it, and until when it shows the old time again.
	back      time.Duration
	at, until time.Time
	// renewed is the time since the boot at which new keys were last ordered.
	renewed time.Duration
}

// look compares the wall clock with the time since the boot. It returns the step by which the clock was set back since
// the last look, 0 for none, and whether keys should be renewed.
func (c *clock) look(wall time.Time, up time.Duration) (back time.Duration, renew bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall = wall.Round(0)
	was := c.offset
	c.offset = wall.Add(-up)
	if was.IsZero() {
		return 0, false
	}
	if back = was.Sub(c.offset); back < leastStep {
		return 0, false
	}
	c.back, c.at = back, wall
	if until := wall.Add(back); until.After(c.until) {
		c.until = until
	}
	if renew = c.renewed == 0 || up-c.renewed >= renewEvery; renew {
		c.renewed = up
	}
	return back, renew
}

// problem returns the effect that a clock which was set back still has. created are the times at which the keys of the
// node were made: a key that was made since has no history.
func (c *clock) problem(now time.Time, created []time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	now = now.Round(0)
	if c.back == 0 || !now.Before(c.until) {
		return ""
	}
	old := 0
	for _, t := range created {
		if t.Before(c.at.Truncate(time.Second)) || t.After(now.Add(leastStep)) {
			old++
		}
	}
	if old == 0 {
		return ""
	}
	return fmt.Sprintf("the clock of this node was set back by %s at %s: peers ignore its handshakes until it is %s "+
		"again, or until it has new keys", c.back.Round(time.Second), c.at.UTC().Format(time.RFC3339),
		c.until.UTC().Format(time.RFC3339))
}

// sinceBoot returns the time since the machine booted, in which it may have slept.
func sinceBoot() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}

// watchClock looks at the clock. If it was set back, the agent orders new keys, as an operator would: each waits until
// the remote would get it.
func (a *agent) watchClock() {
	up, err := sinceBoot()
	if err != nil {
		return // every kernel that has WireGuard has this clock
	}
	back, renew := a.clock.look(time.Now(), up)
	if back == 0 {
		return
	}
	detail := "by " + back.Round(time.Second).String()
	a.events.Emit(events.Event{Cluster: a.cfg.Cluster, Object: "clock", Action: "set-back", Detail: detail}.
		Warn("the node's clock was set back; peers ignore its handshakes until it shows the old time again, or the node has "+
			"new keys", "back", back, "renew", renew))
	if !renew {
		return
	}
	clusters := a.session.Clusters()
	a.keys.Ask(clusters, renewWithin, false)
	slog.Info("new keys are due, because the clock was set back", "clusters", clusters, "within", renewWithin)
	a.queue.poke()
}

func (a *agent) clockProblem() string {
	var created []time.Time
	for _, cluster := range a.session.Clusters() {
		if key, ok := a.keys.Stored(cluster); ok {
			created = append(created, key.Created)
		}
	}
	return a.clock.problem(time.Now(), created)
}
