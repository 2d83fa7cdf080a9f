package writes

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/internal/waiting"
)

// The broker restores a change by another writer immediately for the first times in a row, and then ever later. An
// object that another writer deletes is absent while the broker waits, which its users notice: that wait stays short,
// however often it is deleted. Calm is twice the last wait, if that is longer.
var (
	ofChanges   = waiting.Rule{Free: 3, Least: 100 * time.Millisecond, Most: 5 * time.Minute, Calm: time.Minute}
	ofDeletions = waiting.Rule{Free: 3, Least: 100 * time.Millisecond, Most: 100 * time.Millisecond, Calm: time.Minute}
)

// maxContests bounds how many contests are remembered.
const maxContests = 10_000

// contests are the broker's objects that other writers change or delete. It has no lock.
type contests struct {
	// agreed is the version in which an object was last in the desired state, or was written to it.
	agreed map[string]string
	all    map[contestKey]*Contest
}

// contestKey separates the changes of an object from its deletions: a deletion must not delay the restore of a change.
type contestKey struct {
	name    string
	missing bool
}

// Contest is an object of the broker that another writer changes or deletes.
type Contest struct {
	// Missing is set if the other writer deletes the object.
	Missing bool
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
	return &contests{agreed: map[string]string{}, all: map[contestKey]*Contest{}}
}

// agree records that an object is as desired, in a version.
func (c *contests) agree(name, version string) {
	c.agreed[name] = version
	c.restored(name)
}

// restored ends the wait of an object.
func (c *contests) restored(name string) {
	for _, missing := range []bool{false, true} {
		if o := c.all[contestKey{name, missing}]; o != nil {
			o.pending = false
		}
	}
}

// changed records that admission, or a default of the apiserver, changed a write of the broker.
func (c *contests) changed(name string) {
	c.agreed[name] = inAdmission
	c.restored(name)
}

// inAdmission stands for the version of an object that has never been in the desired state.
const inAdmission = "changed in admission"

// forget forgets an object that is not desired.
func (c *contests) forget(name string) {
	delete(c.agreed, name)
	delete(c.all, contestKey{name, false})
	delete(c.all, contestKey{name, true})
}

func (c *contests) reset() {
	clear(c.agreed)
	clear(c.all)
}

// meet records an object that differs from the desired state, in a version. It returns the contest, and the wait before
// the restore. The contest is nil if no other writer has changed the object since it was in the desired state. what
// returns the manager and the fields of the change.
func (c *contests) meet(name, version string, now time.Time, what func() (manager string, fields []string)) (_ *Contest,
	wait time.Duration) {
	agreed, ok := c.agreed[name]
	if !ok || agreed == version {
		return nil, 0
	}
	return c.count(contestKey{name, false}, now, func() (string, []string) {
		manager, fields := what()
		if agreed == inAdmission {
			manager = "a mutating webhook or policy"
		}
		return manager, fields
	})
}

// missing records that a desired object does not exist. The contest is nil if it has never been in the desired state.
func (c *contests) missing(name string, now time.Time) (_ *Contest, wait time.Duration) {
	if _, ok := c.agreed[name]; !ok {
		return nil, 0
	}
	return c.count(contestKey{name, true}, now, func() (string, []string) {
		return "somebody", []string{"the object, which is deleted,"}
	})
}

func (c *contests) count(key contestKey, now time.Time, what func() (manager string, fields []string)) (_ *Contest,
	wait time.Duration) {
	o := c.all[key]
	if o == nil || !o.pending && now.Sub(o.last) > o.calm() {
		if len(c.all) >= maxContests {
			clear(c.all)
		}
		o = &Contest{Missing: key.missing, since: now}
		c.all[key] = o
	}
	if !o.pending {
		o.Times++
		o.pending, o.last, o.due = true, now, now.Add(o.wait())
		o.Manager, o.Fields = what()
	}
	copied := *o
	return &copied, max(o.due.Sub(now), 0)
}

func (o *Contest) rule() waiting.Rule {
	if o.Missing {
		return ofDeletions
	}
	return ofChanges
}

func (o *Contest) wait() time.Duration { return o.rule().After(o.Times) }

// calm is how long the other writer must leave the object alone before the count starts again.
func (o *Contest) calm() time.Duration { return max(o.rule().Calm, 2*o.wait()) }

// lines describes the objects whose restores are delayed, one line each.
func (c *contests) lines(kind string, now time.Time) (lines []string) {
	for key, o := range c.all {
		if o.Contested() && (o.pending || now.Sub(o.last) <= o.calm()) {
			lines = append(lines, fmt.Sprintf("%s %s: %s (since %s, restored %d times)", kind, key.name, o.Problem(),
				o.since.UTC().Format(time.RFC3339), o.Times-1))
		}
	}
	slices.Sort(lines)
	return lines
}

// Contested reports whether restores are delayed because the other writer repeats its change.
func (o *Contest) Contested() bool { return o.Times > o.rule().Free }

// Problem describes the contest. The text does not change while the contest lasts.
func (o *Contest) Problem() string {
	if o.Missing {
		return "somebody deletes it each time that the broker restores it: make them leave this object alone"
	}
	return fmt.Sprintf(
		"%s changes %s each time that the broker restores it, and the broker waits longer each time: make %s "+
			"leave this object alone",
		o.Manager,
		strings.Join(o.Fields, ", "),
		o.Manager,
	)
}
