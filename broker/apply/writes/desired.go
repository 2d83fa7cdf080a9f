package writes

import (
	"time"

	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

type Verdict int

const (
	// Unknown: leave the object as it is.
	Unknown Verdict = iota
	// Present: the object should exist.
	Present
	// Absent: no object should exist; an object of the broker is deleted.
	Absent
)

// Answer is what should exist under a name.
type Answer[T Object] struct {
	Verdict Verdict
	// Object is the desired object, if Verdict is Present.
	Object T
	// Again is the time after which the answer is asked for once more, because another object comes first, whose report
	// by the watch may change it earlier; 0 for none. Until then the write counts as Stale.
	Again time.Duration
}

// Desired is the interface by which a driver asks an engine what should exist. It is safe for concurrent use, and never
// called with a Machine's lock held.
type Desired[T Object] struct {
	// Names returns all names under which an object should exist.
	Names func() []string
	// Want returns what should exist under a name. owner is the cluster that the broker's existing object came from;
	// empty if there is none. Want only reads.
	Want func(name, owner string) Answer[T]
	// Reserve, if not nil, is Want for the driver that starts to write a name. It also records the changes of the write,
	// so that the answers for other names take it into account.
	Reserve func(name, owner string) Answer[T]
	// Urgent, if not nil, reports whether a change of the object under a name must be written without pacing.
	Urgent func(name string) bool
	// Synced, if not nil, is called when the list of existing objects is complete.
	Synced func()
	// Observed, if not nil, receives the object under a name whenever it may have changed, in order.
	Observed func(name string, object T, there bool)
}

// Start returns what should exist under a name that the driver starts to write.
func (d Desired[T]) Start(name, owner string) Answer[T] {
	if d.Reserve != nil {
		return d.Reserve(name, owner)
	}
	return d.Want(name, owner)
}

// IsUrgent reports whether the change from have, if it exists, to the desired object must be written without pacing.
func (d Desired[T]) IsUrgent(kind Kind[T], name string, have T, there bool) bool {
	if d.Urgent != nil {
		return d.Urgent(name)
	}
	if kind.Urgent == nil || !there {
		return false
	}
	answer := d.Want(name, have.GetLabels()[naming.LabelSourceCluster])
	return answer.Verdict == Absent || answer.Verdict == Present && kind.Urgent(have, answer.Object)
}

// Loop is the interface of the loop that writes an engine's objects.
type Loop interface {
	// Mark queues a name because of a change in cluster that was seen there at observedAt.
	Mark(name, cluster string, observedAt time.Time)
	// Wake queues a name.
	Wake(name string)
	// WakeOwned queues all objects that came from cluster.
	WakeOwned(cluster string)
	// Observe passes all existing objects that came from cluster to Desired.Observed again, for an engine that did not
	// know the cluster when it observed them.
	Observe(cluster string)
	// WakeAll queues all objects of the broker, and all desired ones.
	WakeAll()
	// Synced reports whether the list of existing objects is complete.
	Synced() bool
	// Owned returns the names of all existing objects of the broker that came from cluster; ok is false until the list
	// is complete.
	Owned(cluster string) (names []string, ok bool)
}

// Pointer is an Object of a type O.
type Pointer[O any] interface {
	*O
	Object
}

// Decide returns the three-valued answer for one name, from the desired object, if any, and the cluster that the
// existing object came from. An object that is wanted and nil is not known yet. mayGo reports whether an object of a
// cluster may be deleted when it is not desired; Decide calls it only if that matters.
func Decide[T Pointer[O], O any](want T, wanted bool, owner string, mayGo func(owner string) bool) Answer[T] {
	switch {
	case wanted && want == nil:
	case wanted && (owner == "" || owner == want.GetLabels()[naming.LabelSourceCluster] || mayGo(owner)):
		return Answer[T]{Verdict: Present, Object: want}
	case !wanted && mayGo(owner):
		return Answer[T]{Verdict: Absent}
	}
	// The name is unknown, or it belongs to another remote that may still want it.
	return Answer[T]{Verdict: Unknown}
}

// Evaluate asks a Retention whether undesired objects of its remote may be deleted. If the answer changes, it queues
// them.
func Evaluate(g *Retention, loop Loop, now time.Time, wanted func(name string) bool, shared func() int,
	warn problem.Warn) {
	changed, warning := g.Evaluate(now, func() (withdrawn, all int, ok bool) {
		names, ok := loop.Owned(g.cluster)
		for _, name := range names {
			if !wanted(name) {
				withdrawn++
			}
		}
		all = len(names)
		if g.unexported && !g.Heard() && shared != nil {
			n := shared()
			withdrawn, all = withdrawn+n, all+n
		}
		return withdrawn, all, ok
	})
	if warning != "" {
		warn(g.cluster, "Retained "+g.objects, finding.Retained, warning)
	}
	if changed {
		loop.WakeOwned(g.cluster)
		loop.WakeOwned("") // those wait for every remote
	}
}
