package agent

import (
	"strings"
	"testing"
	"time"
)

// TestClockSetBack: a clock that was set back is detected and named until it shows the old time again, or all keys were
// made since. A clock that runs, is corrected slowly, is set forward, or belongs to a machine that slept is none.
func TestClockSetBack(t *testing.T) {
	noon := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	type look struct{ wall, up time.Duration } // since noon, and since the boot
	for name, test := range map[string]struct {
		looks []look
		back  time.Duration
		renew bool
	}{
		"it runs":               {[]look{{0, 60}, {5, 65}, {10, 70}}, 0, false},
		"it is corrected":       {[]look{{0, 60}, {3, 65}, {6, 70}}, 0, false},
		"it is set forward":     {[]look{{0, 60}, {3605, 65}}, 0, false},
		"the machine slept":     {[]look{{0, 60}, {3605, 3665}}, 0, false},
		"it is set back":        {[]look{{0, 60}, {-3595, 65}}, 3600, true},
		"it is set back twice":  {[]look{{0, 60}, {-3595, 65}, {-7190, 70}}, 3600, false},
		"again after two hours": {[]look{{0, 60}, {-3595, 65}, {3605, 7265}, {5, 7270}}, 3605, true},
	} {
		var c clock
		var back time.Duration
		var renew bool
		for _, l := range test.looks {
			back, renew = c.look(noon.Add(l.wall*time.Second), l.up*time.Second)
		}
		if back != test.back*time.Second || renew != test.renew {
			t.Errorf("%s: back %s, renew %t; want %ds, %t", name, back, renew, test.back, test.renew)
		}
	}

	var c clock
	c.look(noon, time.Minute)
	c.look(noon.Add(-time.Hour), time.Minute)
	at := noon.Add(-time.Hour)
	for name, test := range map[string]struct {
		now     time.Time
		created []time.Time
		named   bool
	}{
		"at once":                            {at, []time.Time{at.Add(-24 * time.Hour)}, true},
		"shortly before it shows that again": {noon.Add(-time.Second), []time.Time{at.Add(-24 * time.Hour)}, true},
		"it shows that again":                {noon, []time.Time{at.Add(-24 * time.Hour)}, false},
		"all keys were made since":           {at.Add(time.Minute), []time.Time{at.Add(30 * time.Second)}, false},
		"one key was not": {at.Add(time.Minute), []time.Time{at.Add(30 * time.Second), at.Add(-24 * time.Hour)},
			true},
		"a key was made by the clock that was ahead": {at.Add(time.Minute), []time.Time{noon.Add(-time.Minute)}, true},
		"the node has no key":                        {at, nil, false},
	} {
		if got := c.problem(test.now, test.created); (got != "") != test.named ||
			test.named && !strings.Contains(got, "set back by 1h0m0s") {
			t.Errorf("%s: %q", name, got)
		}
	}
	up, err := sinceBoot()
	must(t, err)
	if later, err := sinceBoot(); err != nil || later < up || up <= 0 {
		t.Errorf("since the boot: %s, and later %s, %v", up, later, err)
	}
}

// TestNewKeysOfAllRemotes: new keys that are asked for are due for each remote.
func TestNewKeysOfAllRemotes(t *testing.T) {
	a := idle(t)
	a.keys.Ask([]string{"c2", "c3"}, 0, false)
	if due, _ := a.keys.Due(func(string) bool { return true }); strings.Join(due, " ") != "c2 c3" {
		t.Errorf("due are %v", due)
	}
}
