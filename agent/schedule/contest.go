//go:build ignore

package plan

import (
	"fmt"
	"time"
)

// Whoever changes what we put right is met at once some times, then after longer and longer times, until it has
// left the device alone for calm. There is no way to win against another program, and nobody gains by both
// writing all the time.
const (
	fair       = 10
	calm       = time.Minute
	shortPause = 500 * time.Millisecond
	longPause  = 30 * time.Second
)

// Contest is how often a device had to be put right lately. The zero value is that of one that nobody else changes.
type Contest struct {
	heals int
	last  time.Time
}

// Healed counts that the device was put right.
func (c *Contest) Healed(now time.Time) {
	if now.Sub(c.last) >= calm {
		c.heals = 0
	}
	c.heals++
	c.last = now
}

// Pause is for how long the device is to be left after it was last put right.
func (c *Contest) Pause(now time.Time) time.Duration {
	if c.heals <= fair || now.Sub(c.last) >= calm {
		return 0
	}
	return min(shortPause<<min(c.heals-fair, 10), longPause)
}

// Problem tells of a contest that goes on; nil for none.
func (c *Contest) Problem(now time.Time) error {
	pause := c.Pause(now)
	if pause == 0 {
		return nil
	}
	return fmt.Errorf("someone else keeps changing the device: it was put right %d times, the next time after %s; find who does, or stop the agent", c.heals, pause)
}
