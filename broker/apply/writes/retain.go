package writes

import (
	"fmt"
	"maps"
	"slices"
	"sync"
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

// Complete counts a complete snapshot of a kind. It reports whether the kind is one of those that decide.
func (g *Retention) Complete(kind semaphorev1.Kind) bool {
	decides := slices.Contains(g.kinds, kind)
	if decides {
		g.snapshots[kind]++
	}
	return decides
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

// Retentions are those of one type of objects, by remote.
type Retentions struct {
	objects  ObjectKind
	exported []semaphorev1.Kind
	of       map[string]*Retention
}

// Of returns that of a remote; nil for one that is not configured.
func (t *Retentions) Of(cluster string) *Retention { return t.of[cluster] }

// MayDelete reports whether an undesired object of a remote may be deleted. One without a source cluster, which is of
// several or whose label was removed by hand, may be deleted when it can belong to no remote.
func (t *Retentions) MayDelete(owner string) bool {
	if owner != "" {
		g := t.of[owner]
		return g == nil || !g.Retains() // of a remote that the operator removed from the configuration
	}
	for _, g := range t.of {
		if g.Retains() {
			return false
		}
	}
	return true
}

// Retaining has the Retentions of an engine, and is the part of it that others ask about them. Those methods hold the
// engine's lock; of Retain, Follow and Take, the caller does.
type Retaining struct {
	Brake config.Brake
	Now   func() time.Time
	Lock  *sync.RWMutex
	// Decide has the engine decide again after a Release, with the lock held.
	Decide func(cluster string)

	types []*Retentions
}

// Retain adds a type of objects. exported are the kinds of a remote that decide which of them are desired; they are
// made for the last one.
func (r *Retaining) Retain(objects ObjectKind, exported ...semaphorev1.Kind) *Retentions {
	t := &Retentions{objects: objects, exported: exported}
	r.types = append(r.types, t)
	return t
}

// Follow replaces the configured remotes. A new one begins with what it retains.
func (r *Retaining) Follow(remotes []string) {
	for _, t := range r.types {
		was := t.of
		t.of = map[string]*Retention{}
		for _, name := range remotes {
			if t.of[name] = was[name]; t.of[name] == nil {
				t.of[name] = NewRetention(name, t.objects, r.Brake, t.exported...)
			}
		}
	}
}

// Take takes what a stream of a configured remote says about its snapshots: a kind of which one is complete, or the
// stream's Hello. It reports whether the snapshot decides about objects.
func (r *Retaining) Take(cluster string, completed semaphorev1.Kind, hello *semaphorev1.Hello) (decides bool) {
	for _, t := range r.types {
		decides = t.of[cluster].Complete(completed) || decides
		if hello != nil {
			t.of[cluster].Hello(hello)
		}
	}
	return decides
}

// each calls do with each Retention of a remote, and the kind for which its objects are made.
func (r *Retaining) each(cluster string, do func(*Retention, semaphorev1.Kind)) {
	for _, t := range r.types {
		if g := t.of[cluster]; g != nil {
			do(g, t.exported[len(t.exported)-1])
		}
	}
}

// ResyncDue reports whether another complete snapshot of a remote would release retained objects.
func (r *Retaining) ResyncDue(cluster string) (due bool) {
	r.Lock.RLock()
	defer r.Lock.RUnlock()
	r.each(cluster, func(g *Retention, _ semaphorev1.Kind) { due = due || g.Due(r.Now()) })
	return due
}

// Retained returns how many objects for a kind of a remote the brake retains after its first snapshot, and since when.
func (r *Retaining) Retained(cluster string, kind semaphorev1.Kind) (objects int, since time.Time) {
	r.Lock.RLock()
	defer r.Lock.RUnlock()
	r.each(cluster, func(g *Retention, of semaphorev1.Kind) {
		if n, at := g.Retained(); of == kind && n > 0 {
			objects, since = objects+n, at
		}
	})
	return objects, since
}

// Release removes the objects that the brake retains after the first snapshot of a remote, of some kinds or of all. It
// returns the number of objects by the kind that they were made for.
func (r *Retaining) Release(cluster string, kinds ...semaphorev1.Kind) map[semaphorev1.Kind]int {
	r.Lock.Lock()
	defer r.Lock.Unlock()
	released, free := map[semaphorev1.Kind]int{}, false
	r.each(cluster, func(g *Retention, of semaphorev1.Kind) {
		if len(kinds) == 0 || slices.Contains(kinds, of) {
			if n := g.Release(); n > 0 {
				released[of] += n
			}
		}
		free = free || !g.Retains()
	})
	if free {
		r.Decide(cluster)
	}
	return released
}

// Findings has a line about the retained objects of each remote and type; the status of the remote's link counts them.
func (r *Retaining) Findings() (found []finding.Finding) {
	r.Lock.RLock()
	defer r.Lock.RUnlock()
	for _, t := range r.types {
		for _, cluster := range slices.Sorted(maps.Keys(t.of)) {
			if text := t.of[cluster].Problem(); text != "" {
				found = append(found, finding.Detail(finding.Retained, cluster, []string{text})...)
			}
		}
	}
	return found
}
