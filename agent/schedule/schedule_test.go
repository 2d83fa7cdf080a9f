package schedule

import (
	"strings"
	"testing"
	"time"
)

// Some heals are at once; who goes on is met less and less, and is told; peace ends it.
func TestContest(t *testing.T) {
	var c contest
	now := time.Unix(1_000_000, 0)
	var pauses []string
	for range 20 {
		c.healed(now)
		pauses = append(pauses, c.pause(now).String())
		if told := c.problem(now) != nil; told != (c.pause(now) > 0) {
			t.Errorf("told %v with a pause of %s", told, c.pause(now))
		}
		now = now.Add(c.pause(now) + time.Second)
	}
	if got, want := strings.Join(pauses, " "), strings.Repeat("0s ", 10)+"1s 2s 4s 8s 16s 30s 30s 30s 30s 30s"; got != want {
		t.Errorf("pauses %s\nwant   %s", got, want)
	}
	now = now.Add(quietPeriod)
	if c.pause(now) != 0 || c.problem(now) != nil {
		t.Errorf("after a minute of peace the pause is %s: %v", c.pause(now), c.problem(now))
	}
	c.healed(now)
	if c.pause(now) != 0 {
		t.Errorf("the first heal after peace has a pause of %s", c.pause(now))
	}
}
