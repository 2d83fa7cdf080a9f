package writes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Machine decides the writes of the objects of one type. A driver takes a name through these steps, one at a time for
// each name:
//
//	Wait     is it time?
//	Expire   does an own write stop to count against the informer?
//	Begin    what is there, and whose is it?       (the driver asks Desired.Want)
//	Decide   what is to be sent?
//	Settle   what follows from the outcome?        (until a Step has no Write)
//
// Its methods are called from many goroutines. None waits, and objects are compared without the lock held.
type Machine[T Object] struct {
	kind    Kind[T]
	budgets *Budgets

	mu       sync.Mutex
	belief   *Belief[T]
	contests *contests
	pace     *pace // nil if writes are not paced
	// lost are the broker's objects whose deletion the watch reported. The watch also reports a deletion if another writer
	// removes the broker's label.
	lost map[string]T
	// changes are the changes that the next write of a name includes.
	changes map[string]Change
	// sources has, by name, the cluster of the newest change, or otherwise that of the object.
	sources map[string]string
	// conflicts counts, by name, the writes in a row that failed because the object was not as seen.
	conflicts map[string]int
	// failing is the cluster of each name whose last write failed.
	failing map[string]string
	// unanswered are names whose creation got no response: the object may exist, and belong to the broker.
	unanswered map[string]bool
	// due are the writes that wait for the budget of a remote.
	due map[string]time.Time
	// leaving are the objects that are deleted and that a foreign finalizer keeps, as the informer reported them.
	leaving map[string]leaving
	// asked are the objects with finalizers that were deleted, until they are gone: a decision may be under way about an
	// object that was seen before its deletion.
	asked map[string]asked
}

// asked is a deletion that the apiserver accepted, of an object that stays until its finalizers are gone.
type asked struct {
	uid types.UID
	at  time.Time
}

type leaving struct {
	since      time.Time
	finalizers []string
}

// Change is a change in a cluster that a write includes. ObservedAt is when that cluster saw it; zero if unknown.
type Change struct {
	Cluster    string
	ObservedAt time.Time
}

// New returns a Machine. Machines share budgets, which may be nil.
func New[T Object](kind Kind[T], budgets *Budgets) *Machine[T] {
	m := &Machine[T]{
		kind: kind, budgets: budgets, belief: NewBelief[T](), contests: newContests(),
		lost: map[string]T{}, changes: map[string]Change{}, sources: map[string]string{}, conflicts: map[string]int{},
		failing: map[string]string{}, unanswered: map[string]bool{}, due: map[string]time.Time{},
		leaving: map[string]leaving{}, asked: map[string]asked{},
	}
	if kind.Paced {
		m.pace = newPace()
	}
	return m
}

// Reset forgets what depends on resource versions, because another informer starts.
func (m *Machine[T]) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.belief.Reset()
	m.contests.reset()
	clear(m.leaving)
	clear(m.asked)
}

// Changed records a change that the next write of a name includes. Of several changes the oldest one is measured,
// because it has waited longest.
func (m *Machine[T]) Changed(now time.Time, name string, change Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keep(name, change)
	if m.pace != nil {
		m.pace.change(name, now)
	}
}

// Informed records a report of the informer: an object, its deletion, or that it no longer has the broker's label.
func (m *Machine[T]) Informed(name string, object T, gone bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ours := m.belief.Informed(name, object, gone)
	m.listed(name, object)
	if gone {
		m.lost[name] = object
		if a, asked := m.asked[name]; ours || asked && a.uid == object.GetUID() {
			m.removed(name, object)
		}
		delete(m.leaving, name)
		delete(m.asked, name)
	}
	m.agreed(name)
}

// removed forgets an object that the broker has deleted. Nothing else may do so: while a remote is not complete, it is
// unknown whether its name is desired, and a remote may be away for as long as the broker runs.
func (m *Machine[T]) removed(name string, object T) {
	if m.isLost(name, object) {
		delete(m.lost, name)
	}
	if _, changes := m.changes[name]; !changes {
		delete(m.sources, name)
	}
}

// isLost reports whether the watch has reported the deletion of this very object.
func (m *Machine[T]) isLost(name string, object T) bool {
	lost, ok := m.lost[name]
	return ok && lost.GetUID() == object.GetUID()
}

// Listed records an object of the first list.
func (m *Machine[T]) Listed(name string, object T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listed(name, object)
}

func (m *Machine[T]) listed(name string, object T) {
	cluster := object.GetLabels()[naming.LabelSourceCluster]
	if _, known := m.sources[name]; !known && cluster != "" {
		m.sources[name] = cluster
	}
	if at := object.GetDeletionTimestamp(); at != nil && len(object.GetFinalizers()) > 0 {
		m.leaving[name] = leaving{at.Time, object.GetFinalizers()}
	} else {
		delete(m.leaving, name)
	}
}

// leavingAfter is the time after which an object that waits for its deletion is a problem.
const leavingAfter = 10 * time.Second

// Leaving describes the objects that are deleted and not gone, a line each.
func (m *Machine[T]) Leaving(now time.Time) (lines []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.leaving)) {
		if o := m.leaving[name]; now.Sub(o.since) >= leavingAfter {
			lines = append(lines, fmt.Sprintf("%s %s: deleted at %s, and kept by %s, which is not semaphore's: remove the "+
				"finalizer, or ask its owner why it remains", m.kind.Name, name, o.since.UTC().Format(time.RFC3339),
				strings.Join(o.finalizers, ", ")))
		}
	}
	return lines
}

// Newest returns the object under a name, own writes included.
func (m *Machine[T]) Newest(now time.Time, name string) (object T, there bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.belief.Get(now, name)
}

// SourceOf returns the cluster for which a name is reconciled; empty if unknown or none.
func (m *Machine[T]) SourceOf(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sources[name]
}

// FailingOf returns the cluster of a name whose last write failed; empty if it succeeded or the cluster is unknown.
func (m *Machine[T]) FailingOf(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failing[name]
}

// Contests describes the objects whose restores are delayed, a line each.
func (m *Machine[T]) Contests(now time.Time) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.contests.lines(string(m.kind.Name), now)
}

// Wait returns how long a name must wait before it is written; 0 means that it is written now, with all changes so far.
// urgent reports whether its write must not be paced. Wait calls urgent without the lock, and only if the result
// matters.
func (m *Machine[T]) Wait(now time.Time, name string, urgent func() bool) time.Duration {
	if m.pace == nil {
		return 0
	}
	m.mu.Lock()
	wait, hurried := m.pace.wait(name, now)
	m.mu.Unlock()
	if hurried < wait && urgent() {
		wait = hurried
	}
	if wait == 0 {
		m.mu.Lock()
		m.pace.taken(name)
		m.mu.Unlock()
	}
	return wait
}

// Expire ends the belief in an own write that the informer did not report in time. If it returns true, the caller must
// observe the object again.
func (m *Machine[T]) Expire(now time.Time, name string) (object T, expired bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.belief.Expire(now, name)
}

// Seen is the known state of a name before Desired is asked.
type Seen[T Object] struct {
	Name   string
	Object T
	There  bool
	// Owner is the cluster that the object came from; empty if no object of the broker exists.
	Owner string
	// Change is the change that the object may lack.
	Change Change
}

func (m *Machine[T]) Begin(now time.Time, name string) Seen[T] {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := Seen[T]{Name: name, Change: m.changes[name]}
	if seen.Object, seen.There = m.belief.Get(now, name); seen.There {
		seen.Owner = seen.Object.GetLabels()[naming.LabelSourceCluster]
	}
	delete(m.changes, name)
	return seen
}

// Decide returns the next step from the existing and the desired object.
func (m *Machine[T]) Decide(now time.Time, seen Seen[T], answer Answer[T]) (step Step[T]) {
	m.mu.Lock()
	lost, isLost := m.lost[seen.Name]
	m.mu.Unlock()
	write, differs := m.difference(seen, answer)
	if isLost && write != nil && write.Op == Create && m.kind.Recreate != nil {
		write.Object = m.kind.Recreate(lost, write.Object)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if write != nil { // a change since Begin is in the answer, or was just too late for it
		m.keep(seen.Name, seen.Change)
		write.Change = m.changes[seen.Name]
		delete(m.changes, seen.Name)
	}
	if left := m.belief.Left(now, seen.Name); left > 0 {
		// If another writer deleted the object while the watch was down, no informer reports the deletion.
		step.again(left)
	}
	if answer.Again > 0 {
		m.keep(seen.Name, seen.Change)
		step.delay(answer.Again, Stale)
	}
	switch {
	case answer.Verdict == Absent:
		delete(m.due, seen.Name)
		if !seen.There {
			m.forget(seen.Name)
		}
	case answer.Verdict == Present && !differs:
		delete(m.due, seen.Name)
		m.contests.agree(seen.Name, seen.Object.GetResourceVersion())
	}
	if write == nil {
		return step
	}
	if a, ok := m.asked[seen.Name]; ok && write.Request == SendDelete && a.uid == write.Object.GetUID() {
		if left := a.at.Add(BeliefFor).Sub(now); left > 0 {
			step.delay(left, Stale)
			return step
		}
	}
	if write.Op != Delete && !m.admit(now, write, &step) {
		return step
	}
	if m.pace != nil {
		m.pace.writing(seen.Name, now)
	}
	step.Write = write
	return step
}

// difference returns the write that turns the existing object into the desired one; nil for none. differs reports
// whether they differ. It needs no lock.
func (m *Machine[T]) difference(seen Seen[T], answer Answer[T]) (write *Write[T], differs bool) {
	w := Write[T]{Name: seen.Name, Have: seen.Object, Want: answer.Object}
	switch {
	case answer.Verdict == Absent && seen.There:
		var none T
		w.Op, w.Request, w.Object, w.Want = Delete, SendDelete, seen.Object, none
		if len(seen.Object.GetFinalizers()) == 0 {
			break
		}
		// It may stay for long after it was deleted, and readers use its content.
		if m.kind.Empty != nil {
			if empty := m.kind.Empty(seen.Object); !m.kind.Equal(empty, seen.Object) {
				w.Request, w.Object = SendUpdate, empty
				break
			}
		}
		if seen.Object.GetDeletionTimestamp() != nil {
			return nil, true // the informer reports when it is gone
		}
	case answer.Verdict != Present:
		return nil, true
	case !seen.There:
		var none T
		w.Op, w.Request, w.Object, w.Have = Create, SendCreate, answer.Object, none
	case seen.Object.GetDeletionTimestamp() != nil:
		// It is created after the informer has reported the deletion; until then readers use its content.
		merged := m.kind.Merge(seen.Object, answer.Object)
		if m.kind.Empty == nil || m.kind.Equal(merged, seen.Object) {
			return nil, true
		}
		w.Op, w.Request, w.Object = Update, SendUpdate, merged
	case m.kind.Replace != nil && m.kind.Replace(seen.Object, answer.Object):
		w.Op, w.Request, w.Object = Replace, SendDelete, seen.Object
	default:
		merged := m.kind.Merge(seen.Object, answer.Object)
		if m.kind.Equal(merged, seen.Object) {
			return nil, false
		}
		w.Op, w.Request, w.Object = Update, SendUpdate, merged
	}
	return &w, true
}

// admit reports whether a write may be sent now. If not, the step has the time of the next attempt.
func (m *Machine[T]) admit(now time.Time, w *Write[T], step *Step[T]) bool {
	var wait time.Duration
	why := Contested
	if w.Op != Replace {
		wait = m.contested(now, w, step)
	}
	if wait == 0 && (w.contest == nil || w.Change.Cluster != "") { // a restore is not the remote's doing
		object := w.Object
		if w.Op == Replace {
			object = w.Want
		}
		payer := cmp.Or(w.Change.Cluster, w.Want.GetLabels()[naming.LabelSourceCluster])
		wait, why = m.afford(now, w.Name, payer, object, step), Limited
	}
	if wait == 0 {
		return true
	}
	m.keep(w.Name, w.Change)
	step.delay(wait, why)
	return false
}

// contested returns how long an object that another writer changed or deleted must wait before it is restored. A change
// of the desired object is written immediately, which also restores the other fields.
func (m *Machine[T]) contested(now time.Time, w *Write[T], step *Step[T]) time.Duration {
	var contest *Contest
	var wait time.Duration
	if w.Op == Update {
		contest, wait = m.contests.meet(w.Name, w.Have.GetResourceVersion(), now, func() (string, []string) {
			return managerOf(w.Have), fieldsThatDiffer(w.Have, w.Object)
		})
	} else {
		contest, wait = m.contests.missing(w.Name, now)
	}
	w.contest = contest
	if contest == nil || w.Change.Cluster != "" {
		return 0
	}
	step.Contest = contest
	return wait
}

// afford returns how long a write must wait for its budget. The first call takes the bytes from the budget of the
// write's remote, and fixes the time at which the write is due, whatever changes until then.
func (m *Machine[T]) afford(now time.Time, name, cluster string, object T, step *Step[T]) time.Duration {
	due, reserved := m.due[name]
	if !reserved {
		wait := m.budgets.reserve(cluster, object, now)
		if wait > 0 {
			m.due[name] = now.Add(wait)
			step.DelayedOf = cluster
		}
		return wait
	}
	if wait := due.Sub(now); wait > 0 {
		return wait
	}
	delete(m.due, name)
	return 0
}

func (m *Machine[T]) forget(name string) {
	m.contests.forget(name)
	m.agreed(name)
	delete(m.lost, name)
	delete(m.unanswered, name)
	delete(m.sources, name)
	delete(m.asked, name)
	if m.pace != nil {
		m.pace.forget(name)
	}
}

// agreed resets the conflicts of a name: the informer has reported it, or it was written, or nothing is desired.
func (m *Machine[T]) agreed(name string) {
	delete(m.conflicts, name)
	delete(m.failing, name)
}

// keep records the change that the next write of a name includes.
func (m *Machine[T]) keep(name string, change Change) {
	if change.Cluster == "" {
		return
	}
	m.sources[name] = change.Cluster
	was, ok := m.changes[name]
	if !ok || was.ObservedAt.IsZero() || !change.ObservedAt.IsZero() && change.ObservedAt.Before(was.ObservedAt) {
		m.changes[name] = change
	}
}
