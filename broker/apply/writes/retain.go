package writes

import (
	"fmt"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file decides which existing objects of a remote stay although the remote does not export them (fail static): an
// object that is not desired is deleted only when the remote it came from is complete, and not while the deletions
// would be most of the remote's existing objects.
//
// The second rule is the brake of a broker that has just started. While a broker runs, each replica retains its
// remote's withdrawals if they are most of its exports; a broker that starts can compare a remote's first snapshot only
// with the objects of an earlier broker. Objects that the first snapshot would delete stay until a later snapshot lacks
// them too, or the operator releases them. If the remote's exporter no longer exports their kind, no snapshot comes:
// the operator alone releases them.
//
// Time and existing objects are arguments. A Retention belongs to its caller and has no lock.

// Count returns how many objects of a remote exist, and how many of them are not desired. ok is false while the
// existing objects are not known.
type Count func() (withdrawn, all int, ok bool)

// Retention decides for the objects of one kind that came from one remote. A new one retains everything.
type Retention struct {
	cluster, objects string
	brake            config.Brake
	kinds            []semaphorev1.Kind
	// snapshots are the complete snapshots received, by kind.
	snapshots map[semaphorev1.Kind]int
	// confirmed means that undesired objects may be deleted. It stays true: from then on the replica's brake decides.
	confirmed bool
	// unexported means that the remote's exporter does not export a kind, so that the operator alone decides; unread that
	// it has not read one yet, so that a snapshot will decide, and there is none to ask for.
	unexported, unread bool
	// evaluated is the number of snapshots at the last evaluation.
	evaluated int
	// since is when the Retention began to retain the withdrawn ones of all existing objects.
	since          time.Time
	withdrawn, all int
}

// NewRetention creates the Retention of a remote's objects of a kind. exported are the kinds of the remote that decide
// which objects are desired.
func NewRetention(cluster string, of ObjectKind, brake config.Brake, exported ...semaphorev1.Kind) *Retention {
	return &Retention{cluster: cluster, objects: of.Plural(), brake: brake, kinds: exported,
		snapshots: map[semaphorev1.Kind]int{}}
}

// Complete counts a complete snapshot of a kind.
func (g *Retention) Complete(kind semaphorev1.Kind) {
	if slices.Contains(g.kinds, kind) {
		g.snapshots[kind]++
	}
}

// Hello notes which kinds the exporter of a stream that begins exports. It comes before the snapshots of its stream.
func (g *Retention) Hello(h *semaphorev1.Hello) {
	was := g.unexported
	g.unexported, g.unread = false, false
	for _, kind := range g.kinds {
		switch {
		case slices.Contains(h.GetKinds(), kind):
		case slices.Contains(h.GetUnreadKinds(), kind):
			g.unread = true
		default:
			g.unexported = !g.confirmed
		}
	}
	if was && !g.unexported && !g.Heard() {
		g.since = time.Time{} // the first snapshot decides
	}
}

// complete returns how many complete snapshots there were of every kind.
func (g *Retention) complete() int {
	n := g.snapshots[g.kinds[0]]
	for _, kind := range g.kinds[1:] {
		n = min(n, g.snapshots[kind])
	}
	return n
}

// Heard reports whether there was a complete snapshot of every kind.
func (g *Retention) Heard() bool { return g.complete() > 0 }

// Retains reports whether undesired objects stay.
func (g *Retention) Retains() bool { return !g.confirmed || !g.Heard() }

// Evaluate decides after a new snapshot whether undesired objects may be deleted. It returns whether the answer
// changed, and a sentence for the operator when the Retention begins to retain.
func (g *Retention) Evaluate(now time.Time, count Count) (changed bool, warning string) {
	snapshots := g.complete()
	if g.confirmed || !g.unexported && snapshots == g.evaluated {
		return false, ""
	}
	withdrawn, all, ok := count()
	if !ok {
		return false, ""
	}
	switch {
	case g.unexported && withdrawn > 0:
		begins := !g.holds()
		if g.withdrawn, g.all = withdrawn, all; begins {
			g.since = now
			warning = g.Problem()
		}
		return false, warning
	case g.unexported: // a remote may lack the feature: nothing waits for it
		g.Release()
		return true, ""
	}
	g.evaluated = snapshots
	again := !g.since.IsZero() && now.Sub(g.since) >= g.brake.Hold.Duration
	if !g.brake.Brakes(withdrawn, all) || again {
		g.confirmed = true
		return true, ""
	}
	if g.since.IsZero() {
		g.since = now
		warning = fmt.Sprintf("the first snapshot of cluster %s withdraws %d of %d objects (%s): the broker retains them %s",
			g.cluster, withdrawn, all, g.objects, g.brake.Until(g.cluster, false))
	}
	g.withdrawn, g.all = withdrawn, all
	return false, warning
}

// holds reports whether the Retention retains objects that the last snapshot would delete.
func (g *Retention) holds() bool { return !g.confirmed && !g.since.IsZero() }

// Release ends retaining by order of an operator, and returns how many objects it concerns.
func (g *Retention) Release() int {
	if !g.holds() && !g.unexported {
		return 0
	}
	if g.unexported {
		for _, kind := range g.kinds {
			g.Complete(kind) // as if a snapshot had lacked them
		}
	}
	g.confirmed, g.unexported = true, false
	return g.withdrawn
}

// Due reports whether another snapshot without the retained objects would release them. None is asked for while one
// waits for the existing objects to be known.
func (g *Retention) Due(now time.Time) bool {
	return g.holds() && !g.unexported && !g.unread && g.complete() == g.evaluated &&
		now.Sub(g.since) >= g.brake.Hold.Duration
}

// Problem describes the retained objects for the operator; empty for none.
func (g *Retention) Problem() string {
	if !g.holds() {
		return ""
	}
	return fmt.Sprintf("retained since %s, %s: cluster %s no longer exports %d of the %d objects (%s) that an earlier "+
		"broker wrote for it", g.since.UTC().Format(time.RFC3339), g.brake.Until(g.cluster, g.unexported), g.cluster,
		g.withdrawn, g.all, g.objects)
}

// Retained returns how many objects g retains, and since when; 0 for none.
func (g *Retention) Retained() (objects int, since time.Time) {
	if !g.holds() {
		return 0, time.Time{}
	}
	return g.withdrawn, g.since
}

// Findings has the line about the retained objects; the status of the remote's link counts them.
func (g *Retention) Findings() []finding.Finding {
	if !g.holds() {
		return nil
	}
	return finding.Detail(finding.Retained, g.cluster, []string{g.Problem()})
}
