// Package retain decides what must stay of what stands in the own cluster (fail static): an object that nobody wants goes only
// once all was heard of the remote that it came from, and not while that would take away most of what stands of the remote.
//
// The second is the brake of a broker that has just started. While it runs, each replica holds back a withdrawal of most of what its
// remote exports; a broker that starts has nothing to compare a remote's first snapshot with, but what an earlier one
// wrote. Objects that the first snapshot would take away stay until a later snapshot lacks them too, or the operator releases them.
//
// It is pure: the time and what stands are arguments, and it knows nothing of objects. Its caller owns it.
package retain

import (
	"fmt"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Count counts what stands of a remote: how many objects, and how many of them are not wanted. ok is false while it is not known what stands.
type Count func() (withdrawn, all int, ok bool)

// Guard is the rule for the objects of one type that came from one remote. A new one retains everything.
type Guard struct {
	cluster, objects string
	brake            config.Brake
	kinds            []semaphorev1.Kind
	// snapshots counts those that were taken over, by kind.
	snapshots map[semaphorev1.Kind]int
	// confirmed says that what is not wanted may go: once so, it stays so, as the replica's own brake holds from then on.
	confirmed bool
	// evaluated is how many snapshots had been taken over when the question was last asked.
	evaluated int
	// since is when objects were first held; withdrawn of all that stand.
	since          time.Time
	withdrawn, all int
}

// New makes the guard of a remote's objects, such as "services". They are wanted by what the remote exports of kinds.
func New(cluster, objects string, brake config.Brake, kinds ...semaphorev1.Kind) *Guard {
	return &Guard{cluster: cluster, objects: objects, brake: brake, kinds: kinds, snapshots: map[semaphorev1.Kind]int{}}
}

// Cluster is the remote.
func (g *Guard) Cluster() string { return g.cluster }

// Objects are what the guard is of, such as "services".
func (g *Guard) Objects() string { return g.objects }

// Complete takes note that a whole snapshot of a kind was taken over.
func (g *Guard) Complete(kind semaphorev1.Kind) {
	if slices.Contains(g.kinds, kind) {
		g.snapshots[kind]++
	}
}

// complete is how many whole snapshots there were of each of the kinds.
func (g *Guard) complete() int {
	n := g.snapshots[g.kinds[0]]
	for _, kind := range g.kinds[1:] {
		n = min(n, g.snapshots[kind])
	}
	return n
}

// Heard says whether a whole snapshot was taken over of each kind.
func (g *Guard) Heard() bool { return g.complete() > 0 }

// Retains says whether what is not wanted has to stay.
func (g *Guard) Retains() bool { return !g.confirmed || !g.Heard() }

// Evaluate asks whether what is not wanted may go, where a snapshot was taken over since that was last asked. It returns whether the answer
// is another than before, and a sentence for a person when objects begin to be held.
func (g *Guard) Evaluate(now time.Time, count Count) (changed bool, warning string) {
	snapshots := g.complete()
	if g.confirmed || snapshots == 0 || snapshots == g.evaluated {
		return false, ""
	}
	withdrawn, all, ok := count()
	if !ok {
		return false, ""
	}
	g.evaluated = snapshots
	again := !g.since.IsZero() && now.Sub(g.since) >= g.brake.Hold.Duration
	if !g.brake.Brakes(withdrawn, all) || again {
		g.confirmed = true
		return true, ""
	}
	if g.since.IsZero() {
		g.since = now
		warning = fmt.Sprintf("the first snapshot of cluster %s withdraws %d of %d objects (%s): they stay until a snapshot in %s or later says so too, or `semaphorectl brake release %s`",
			g.cluster, withdrawn, all, g.objects, g.brake.Hold, g.cluster)
	}
	g.withdrawn, g.all = withdrawn, all
	return false, warning
}

// holds says whether objects are held that the last snapshot would take away.
func (g *Guard) holds() bool { return !g.confirmed && !g.since.IsZero() }

// Release lets go what is held, as the operator wants it, and returns how many objects that is.
func (g *Guard) Release() int {
	if !g.holds() {
		return 0
	}
	g.confirmed = true
	return g.withdrawn
}

// Due says whether another snapshot that lacks what is held would let it go.
func (g *Guard) Due(now time.Time) bool {
	return g.holds() && now.Sub(g.since) >= g.brake.Hold.Duration
}

// Problem is what is held, for a person; empty for nothing.
func (g *Guard) Problem() string {
	if !g.holds() {
		return ""
	}
	return fmt.Sprintf("held back since %s: cluster %s exports no more %d of the %d objects (%s) that an earlier broker wrote for it; they go when a snapshot says so again, or by `semaphorectl brake release %s`",
		g.since.UTC().Format(time.RFC3339), g.cluster, g.withdrawn, g.all, g.objects, g.cluster)
}
