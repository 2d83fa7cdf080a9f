package writes

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// If the informer lags behind for a name, the name is reconciled again when the informer reports it, and after
// AfterConflict at the latest. The wait doubles up to maxAfterConflict.
const (
	AfterConflict    = time.Second
	maxAfterConflict = 30 * time.Second
)

type Op string

const (
	Create Op = "create"
	Update Op = "update"
	// Replace deletes an object, and creates the desired one.
	Replace Op = "replace"
	Delete  Op = "delete"
)

type Request int

const (
	// SendCreate creates Object.
	SendCreate Request = iota
	// SendUpdate writes Object if the apiserver's has its UID and version.
	SendUpdate
	// SendDelete deletes Object if the apiserver's has its UID and version.
	SendDelete
	// SendRead reads the object with the name of Object.
	SendRead
	// SendAdopt adopts the object with the name of Object, if the configuration allows it.
	SendAdopt
)

// Write is a write in progress: one request, or several in sequence.
type Write[T Object] struct {
	Name string
	Op   Op
	// Request is the next request, and Object its content.
	Request Request
	Object  T
	// Have is the object as seen, nil for Create; Want is the desired object, nil for Delete.
	Have, Want T
	Change     Change

	// contest, if not nil, is what the write restores.
	contest *Contest
}

func (w *Write[T]) Cluster() string {
	if w.Op == Delete {
		return w.Have.GetLabels()[naming.LabelSourceCluster]
	}
	return w.Want.GetLabels()[naming.LabelSourceCluster]
}

type Result string

const (
	// Done: the object is as desired.
	Done Result = "ok"
	// Conflict: the object is not as seen. The informer will report it, and the name is reconciled again.
	Conflict Result = "conflict"
	// Foreign: an object that is not ours has the name (NotOurs).
	Foreign Result = "foreign"
	// Failed: the apiserver refuses, or does not answer.
	Failed Result = "error"
)

// Step is what a driver does next about a name.
type Step[T Object] struct {
	// Write, if not nil, is to be sent; Settle takes its outcome.
	Write *Write[T]
	// Again is set if the name is to be reconciled once more, after After.
	Again bool
	After time.Duration
	// Why is set if the write waits until then.
	Why Reason

	// Result is the result of a finished Write; empty if none finished. Err is the reason if the driver has to retry.
	Result Result
	Err    error

	// Contest, if not nil, is another writer that changes the object.
	Contest *Contest
	// DelayedOf is the remote whose budget a write waits for from now on.
	DelayedOf string
	// Restored, if not nil, is the contest of a restored object.
	Restored *Contest
}

// delay has the name reconciled once more after the wait of a write.
func (s *Step[T]) delay(after time.Duration, why Reason) {
	s.again(after)
	s.Why = why
}

func (s *Step[T]) again(after time.Duration) {
	if !s.Again || after < s.After {
		s.Again, s.After = true, after
	}
}

// Reason is why a write is delayed.
type Reason string

const (
	// Gathering: more changes of the object may come, which one write then carries.
	Gathering Reason = "gathering"
	// Limited: more was written for the remote than its limits.kibibytesPerSecond.
	Limited Reason = "limited"
	// Contested: another writer changes the object again and again.
	Contested Reason = "contested"
	// Stale: the apiserver has another version than its watch has reported, or has not reported another object that
	// comes first.
	Stale Reason = "stale"
)

// NotSent is the error for a request that was not sent because it is blocked.
type NotSent struct{ Err error }

func (e NotSent) Error() string { return e.Err.Error() }
func (e NotSent) Unwrap() error { return e.Err }

// Settle takes the outcome of the request of a Write. object is the apiserver's answer.
func (m *Machine[T]) Settle(now time.Time, w *Write[T], object T, err error) Step[T] {
	switch w.Request {
	case SendCreate:
		unanswered := m.answered(w.Name, err)
		switch {
		case err == nil:
			return m.believe(now, w, object)
		case apierrors.IsAlreadyExists(err) && !unanswered:
			return w.next(SendRead, w.Want)
		}
	case SendUpdate:
		switch {
		case err != nil:
		case w.Op != Delete:
			return m.believe(now, w, object)
		case object.GetDeletionTimestamp() == nil: // it is empty now
			return w.next(SendDelete, object)
		default:
			m.mu.Lock()
			m.wrote(now, w.Name, Reduce(object))
			m.mu.Unlock()
			return m.end(now, w, nil)
		}
	case SendDelete:
		switch {
		case err == nil && len(w.Object.GetFinalizers()) > 0:
			m.mu.Lock()
			if m.isLost(w.Name, w.Object) { // the watch was faster
				m.removed(w.Name, w.Object)
			} else {
				m.asked[w.Name] = asked{w.Object.GetUID(), now}
			}
			m.mu.Unlock()
			return m.end(now, w, nil) // the informer reports when it is gone
		case err == nil || apierrors.IsNotFound(err):
			return m.deleted(now, w)
		}
	case SendRead:
		if err != nil {
			err = fmt.Errorf("reading %s %s, which is in the way: %w", m.kind.Name, w.Name, err)
			break
		}
		return m.resolveExisting(now, w, object)
	case SendAdopt:
		if err == nil {
			m.mu.Lock()
			m.wrote(now, w.Name, object)
			m.mu.Unlock()
			step := m.end(now, w, nil)
			step.again(0) // it stays as read until it is compared with the desired object
			return step
		}
		if !errors.As(err, new(NotOurs)) {
			err = fmt.Errorf("taking over %s %s: %w", m.kind.Name, w.Name, err)
		}
	}
	return m.end(now, w, err)
}

func (w *Write[T]) next(request Request, object T) Step[T] {
	after := *w
	after.Request, after.Object = request, object
	return Step[T]{Write: &after}
}

// resolveExisting decides how to handle an existing object with the name of one to create. If it is the very object
// that the watch lost, somebody removed a label by which the watch selects, and it is restored.
func (m *Machine[T]) resolveExisting(now time.Time, w *Write[T], have T) Step[T] {
	unlabelled := have.GetLabels()[naming.LabelManagedBy] == ""
	m.mu.Lock()
	isLost := m.isLost(w.Name, have)
	m.mu.Unlock()
	switch {
	case isLost && (unlabelled || Ours(have)):
		return m.restore(w, have)
	case unlabelled && have.GetAnnotations()[naming.AnnotationSourceName] != "":
		return m.end(now, w, NotOurs{Kind: m.kind.Name, Name: w.Name, Hint: fmt.Sprintf(
			"semaphore created it, and somebody removed its label %s: set %s=%s again, or delete it",
			naming.LabelManagedBy, naming.LabelManagedBy, naming.ManagedByBroker)})
	}
	return w.next(SendAdopt, w.Want)
}

// restore writes over an object that the watch lost. Only one that still has the broker's label may be deleted: see
// deploy/broker/object-writes.yaml.
func (m *Machine[T]) restore(w *Write[T], have T) Step[T] {
	merged := m.kind.Merge(have, w.Want)
	step := w.next(SendUpdate, merged)
	if Ours(have) && m.kind.Replace != nil && m.kind.Replace(have, w.Want) {
		step = w.next(SendDelete, have)
		step.Write.Op = Replace
	}
	restored := Contest{Missing: true, Times: 1}
	if w.contest != nil {
		restored = *w.contest
	}
	restored.Manager, restored.Fields = managerOf(have), fieldsThatDiffer(have, merged)
	step.Write.contest = &restored
	return step
}

// believe records the answer to a successful write.
func (m *Machine[T]) believe(now time.Time, w *Write[T], object T) Step[T] {
	object = Reduce(object)
	as := m.kind.Equal(m.kind.Merge(object, w.Want), object)
	m.mu.Lock()
	m.wrote(now, w.Name, object)
	if as {
		m.contests.agree(w.Name, object.GetResourceVersion())
	} else {
		m.contests.changed(w.Name)
	}
	m.mu.Unlock()
	step := m.end(now, w, nil)
	if !as {
		step.again(0) // the watch does not report a write without a change
	}
	return step
}

func (m *Machine[T]) wrote(now time.Time, name string, object T) {
	if m.belief.Wrote(now, name, object) {
		delete(m.lost, name)
	}
}

func (m *Machine[T]) deleted(now time.Time, w *Write[T]) Step[T] {
	m.mu.Lock()
	m.belief.Deleted(now, w.Name, w.Object)
	m.removed(w.Name, w.Object) // the watch may have been faster
	if w.contest == nil {
		m.contests.forget(w.Name)
	}
	m.mu.Unlock()
	if w.Op == Replace {
		return w.next(SendCreate, w.Want)
	}
	return m.end(now, w, nil)
}

// answered records whether a creation got a response that says its outcome, and returns whether the previous one got
// none: one of 5xx is by a proxy, or by an apiserver whose storage may have the object.
func (m *Machine[T]) answered(name string, err error) (unanswered bool) {
	var status apierrors.APIStatus
	m.mu.Lock()
	defer m.mu.Unlock()
	unanswered = m.unanswered[name]
	switch {
	case errors.As(err, new(NotSent)):
	case err != nil && (!errors.As(err, &status) || status.Status().Code >= 500):
		m.unanswered[name] = true
	default:
		delete(m.unanswered, name)
	}
	return unanswered
}

func (m *Machine[T]) end(now time.Time, w *Write[T], err error) (step Step[T]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pace != nil {
		m.pace.wrote(w.Name, now, err == nil)
		if err == nil && w.Op == Delete {
			m.pace.forget(w.Name)
		}
	}
	switch {
	case err == nil:
		m.agreed(w.Name)
		if left := m.belief.Left(now, w.Name); left > 0 {
			step.again(left)
		}
		step.Result = Done
		if w.Request != SendDelete { // a finalizer keeps the object that is replaced
			step.Restored = w.contest
		}
		return step
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.IsNotFound(err) && w.Request == SendUpdate:
		// The existing object is not as seen, or it is the result of a create without a response: the informer reports
		// it, and the name is reconciled. If the informer does not, the name is reconciled later, and the object then
		// counts as one of another writer.
		m.belief.Forget(w.Name)
		m.keep(w.Name, w.Change)
		step.Result = Conflict
		step.delay(m.conflicted(w.Name), Stale)
		return step
	case errors.As(err, new(NotOurs)):
		step.Result = Foreign
	default:
		step.Result = Failed
	}
	step.Err = err
	m.keep(w.Name, w.Change)
	m.failing[w.Name] = w.Cluster()
	return step
}

// conflicted returns the wait before a name is reconciled after one more conflict.
func (m *Machine[T]) conflicted(name string) time.Duration {
	n := m.conflicts[name]
	m.conflicts[name]++
	return min(AfterConflict<<min(n, 10), maxAfterConflict)
}
