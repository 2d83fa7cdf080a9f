package plan

import (
	"fmt"
	"time"

	"github.com/kube-semaphore/semaphore/internal/waiting"
)

// heals spaces how often the agent heals a device that another program changes. It cannot win against a program that
// writes all the time.
var heals = waiting.Rule{Free: 10, Least: time.Second, Most: 30 * time.Second, Calm: time.Minute}

// contest counts how often a device was healed lately. The zero value is that of a device that no other program
// changes.
type contest struct{ waiting.Repeats }

// pause returns how long a device must be left alone after it was last healed.
func (c *contest) pause(now time.Time) time.Duration {
	if now.Sub(c.Last) >= heals.Calm {
		return 0
	}
	return heals.After(c.Times)
}

func (c *contest) problem(now time.Time) error {
	pause := c.pause(now)
	if pause == 0 {
		return nil
	}
	return fmt.Errorf("another program keeps changing the device: the agent healed it %d times, the next time after %s; "+
		"find who does, or stop the agent", c.Times, pause)
}
