package apply

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// What somebody else changes of ours is restored at once, freely so many times; after that each time twice as long is waited,
// up to maxRestore. Who lets it be for as long as calm, and for twice the last wait, has all of it restored at once again.
const (
	freeRestores = 3
	minRestore   = 100 * time.Millisecond
	maxRestore   = 5 * time.Minute
	calm         = time.Minute
	// maxContests bounds those that are remembered.
	maxContests = 10_000
)

// restoreAfter is how long it is waited before an object is restored for the n-th time in a row.
func restoreAfter(n int) time.Duration {
	if n <= freeRestores {
		return 0
	}
	return min(minRestore<<min(n-freeRestores-1, 20), maxRestore)
}

// contests are the objects of ours that others change.
type contests struct {
	mu sync.Mutex
	// agreed is the version in which an object was last as it is wanted, or was written so.
	agreed map[string]string
	all    map[string]*contest
}

// contest is one of them.
type contest struct {
	// n is how many times in a row it was restored, or is about to be.
	n int
	// pending says that it has not been restored yet, which is due then.
	pending bool
	due     time.Time
	// since when, last, who and what.
	since, last time.Time
	manager     string
	fields      []string
}

func newContests() *contests {
	return &contests{agreed: map[string]string{}, all: map[string]*contest{}}
}

// agree notes that an object is as it is wanted, in a version.
func (c *contests) agree(name, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.agreed[name] = version
	if o := c.all[name]; o != nil {
		o.pending = false
	}
}

// changed notes that a write of ours has been changed on its way, by admission or as a default of the apiserver.
func (c *contests) changed(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.agreed[name] = inAdmission
	if o := c.all[name]; o != nil {
		o.pending = false
	}
}

// inAdmission is in the place of the version of an object that has never been as it is wanted.
const inAdmission = "changed in admission"

// forget forgets an object that is not wanted.
func (c *contests) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.agreed, name)
	delete(c.all, name)
}

// reset forgets all.
func (c *contests) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.agreed)
	clear(c.all)
}

// meet takes an object that is not as it is wanted, in a version, which is empty for one that is not there. It returns the contest,
// nil where nobody else has changed it since it was as we wanted it, and for how long it is not to be restored yet. what
// tells who changed it and what.
func (c *contests) meet(name, version string, now time.Time, what func() (manager string, fields []string)) (_ *contest, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	agreed, ok := c.agreed[name]
	if !ok || agreed == version {
		return nil, 0
	}
	o := c.all[name]
	if o == nil || !o.pending && now.Sub(o.last) > max(calm, 2*restoreAfter(o.n)) {
		if len(c.all) >= maxContests {
			clear(c.all)
		}
		o = &contest{since: now}
		c.all[name] = o
	}
	if !o.pending {
		o.n++
		o.pending, o.last, o.due = true, now, now.Add(restoreAfter(o.n))
		if o.manager, o.fields = what(); agreed == inAdmission {
			o.manager = "a mutating webhook or policy"
		}
	}
	copied := *o
	return &copied, max(o.due.Sub(now), 0)
}

// lines are those that are restored less and less, one each.
func (c *contests) lines(kind string, now time.Time) (lines []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, o := range c.all {
		if o.n > freeRestores && (o.pending || now.Sub(o.last) <= max(calm, 2*restoreAfter(o.n))) {
			lines = append(lines, fmt.Sprintf("%s %s: %s (since %s, restored %d times)", kind, name, o.fought(), o.since.UTC().Format(time.RFC3339), o.n-1))
		}
	}
	slices.Sort(lines)
	return lines
}

// fought is what is wrong with an object that another insists on, the same words each time.
func (o *contest) fought() string {
	return fmt.Sprintf("%s changes %s each time that the broker restores it, which it does ever more rarely: have %s leave this object alone",
		o.manager, strings.Join(o.fields, ", "), o.manager)
}
