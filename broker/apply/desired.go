package apply

import (
	"time"

	"github.com/kube-semaphore/semaphore/broker/retain"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Warn has an Event written about a remote, "" for none: reason is a word, note a sentence. Of one topic one Event is written for a
// while. See Events.WarnOf.
type Warn func(cluster, topic, reason, note string)

// Loop is an Objects of any type, to those who decide what is wanted.
type Loop interface {
	// Mark asks for a name to be reconciled, because of a change in cluster that was seen there at observedAt.
	Mark(name, cluster string, observedAt time.Time)
	// Wake asks for a name to be reconciled.
	Wake(name string)
	// WakeOwned asks for all objects that came from cluster to be reconciled.
	WakeOwned(cluster string)
	// WakeAll asks for all objects of ours, and all that are wanted, to be reconciled.
	WakeAll()
	// Synced says whether what is there is known.
	Synced() bool
	// Owned are the names of all objects of ours that are there and came from cluster; ok is false while what is
	// there is not known.
	Owned(cluster string) (names []string, ok bool)
}

// Decide is the three-valued answer for one name: what is wanted, if anything, and the cluster that the object there came from. mayGo
// says whether what is there of a cluster may go when nobody wants it; it is asked only where that matters.
func Decide[T Object](want T, wanted bool, owner string, mayGo func(owner string) bool) Answer[T] {
	switch {
	case wanted && (owner == "" || owner == want.GetLabels()[naming.LabelSourceCluster] || mayGo(owner)):
		return Answer[T]{Verdict: Present, Object: want}
	case !wanted && mayGo(owner):
		return Answer[T]{Verdict: Absent}
	}
	// Either nothing is known of the name, or it is another remote's that may want it still.
	return Answer[T]{Verdict: Unknown}
}

// Evaluate asks a guard whether those objects of its remote that exist and are not wanted may go. When the answer changes, the loop
// reconciles them.
func Evaluate(g *retain.Guard, loop Loop, now time.Time, wanted func(name string) bool, warn Warn) {
	changed, warning := g.Evaluate(now, func() (withdrawn, all int, ok bool) {
		names, ok := loop.Owned(g.Cluster())
		for _, name := range names {
			if !wanted(name) {
				withdrawn++
			}
		}
		return withdrawn, len(names), ok
	})
	if warning != "" {
		warn(g.Cluster(), "HeldBack "+g.Objects(), "HeldBack", warning)
	}
	if changed {
		loop.WakeOwned(g.Cluster())
	}
}
