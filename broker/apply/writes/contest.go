package writes

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The broker restores a change by another writer immediately for the first freeRestores times; after that each wait
// doubles, up to maxRestore. When the other writer has left the object alone for calm, and for twice the last wait, the
// count starts again.
const (
	freeRestores = 3
	minRestore   = 100 * time.Millisecond
	maxRestore   = 5 * time.Minute
	calm         = time.Minute
	// maxContests bounds how many contests are remembered.
	maxContests = 10_000
)

// restoreAfter returns the wait before the n-th restore in a row.
func restoreAfter(n int) time.Duration {
	if n <= freeRestores {
		return 0
	}
	return min(minRestore<<min(n-freeRestores-1, 20), maxRestore)
}

// contests are the broker's objects that other writers change. It has no lock.
type contests struct {
	// agreed is the version in which an object was last in the desired state, or was written to it.
	agreed map[string]string
	all    map[string]*Contest
}

// Contest is an object of the broker that another writer changes.
type Contest struct {
	// Times is the number of consecutive restores, including the next one.
	Times int
	// Manager is the field manager of the last change, and Fields are the changed fields.
	Manager string
	Fields  []string
	// pending is set until the change is restored.
	pending     bool
	due         time.Time
	since, last time.Time
}

func newContests() *contests {
	return &contests{agreed: map[string]string{}, all: map[string]*Contest{}}
}

// agree records that an object is as desired, in a version.
func (c *contests) agree(name, version string) {
	c.agreed[name] = version
	if o := c.all[name]; o != nil {
		o.pending = false
	}
}

// changed records that admission, or a default of the apiserver, changed a write of the broker.
func (c *contests) changed(name string) {
	c.agreed[name] = inAdmission
	if o := c.all[name]; o != nil {
		o.pending = false
	}
}

// inAdmission stands for the version of an object that has never been in the desired state.
const inAdmission = "changed in admission"

// forget forgets an object that is not desired.
func (c *contests) forget(name string) {
	delete(c.agreed, name)
	delete(c.all, name)
}

func (c *contests) reset() {
	clear(c.agreed)
	clear(c.all)
}

// meet records an object that differs from the desired state, in a version (empty for an absent one). It returns the
// contest, and the wait before the restore. The contest is nil if no other writer has changed the object since it was
// in the desired state. what returns the manager and the fields of the change.
func (c *contests) meet(name, version string, now time.Time, what func() (manager string, fields []string)) (_ *Contest,
	wait time.Duration) {
	agreed, ok := c.agreed[name]
	if !ok || agreed == version {
		return nil, 0
	}
	o := c.all[name]
	if o == nil || !o.pending && now.Sub(o.last) > max(calm, 2*restoreAfter(o.Times)) {
		if len(c.all) >= maxContests {
			clear(c.all)
		}
		o = &Contest{since: now}
		c.all[name] = o
	}
	if !o.pending {
		o.Times++
		o.pending, o.last, o.due = true, now, now.Add(restoreAfter(o.Times))
		if o.Manager, o.Fields = what(); agreed == inAdmission {
			o.Manager = "a mutating webhook or policy"
		}
	}
	copied := *o
	return &copied, max(o.due.Sub(now), 0)
}

// lines describes the objects whose restores are delayed, one line each.
func (c *contests) lines(kind string, now time.Time) (lines []string) {
	for name, o := range c.all {
		if o.Times > freeRestores && (o.pending || now.Sub(o.last) <= max(calm, 2*restoreAfter(o.Times))) {
			lines = append(lines, fmt.Sprintf("%s %s: %s (since %s, restored %d times)", kind, name, o.Problem(),
				o.since.UTC().Format(time.RFC3339), o.Times-1))
		}
	}
	slices.Sort(lines)
	return lines
}

// Contested reports whether restores are delayed because the other writer repeats its change.
func (o *Contest) Contested() bool { return o.Times > freeRestores }

// Problem describes the contest. The text does not change while the contest lasts.
func (o *Contest) Problem() string {
	return fmt.Sprintf(
		"%s changes %s each time that the broker restores it, and the broker waits longer each time: make %s "+
			"leave this object alone",
		o.Manager,
		strings.Join(o.Fields, ", "),
		o.Manager,
	)
}
