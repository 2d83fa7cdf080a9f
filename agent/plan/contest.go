package plan

import (
	"fmt"
	"time"
)

// The agent heals a change by another program immediately a few times, then after increasing waits, until the program
// has left the device alone for quietPeriod. It cannot win against a program that writes all the time.
const (
	freeHeals   = 10
	quietPeriod = time.Minute
	shortPause  = 500 * time.Millisecond
	longPause   = 30 * time.Second
)

// contest counts how often a device was healed lately. The zero value is that of a device that no other program
// changes.
type contest struct {
	heals int
	last  time.Time
}

func (c *contest) healed(now time.Time) {
	if now.Sub(c.last) >= quietPeriod {
		c.heals = 0
	}
	c.heals++
	c.last = now
}

// pause returns how long a device must be left alone after it was last healed.
func (c *contest) pause(now time.Time) time.Duration {
	if c.heals <= freeHeals || now.Sub(c.last) >= quietPeriod {
		return 0
	}
	return min(shortPause<<min(c.heals-freeHeals, 10), longPause)
}

func (c *contest) problem(now time.Time) error {
	pause := c.pause(now)
	if pause == 0 {
		return nil
	}
	return fmt.Errorf("another program keeps changing the device: the agent healed it %d times, the next time after %s; "+
		"find who does, or stop the agent", c.heals, pause)
}
