package sim

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// What broker/apply has, in short.
const (
	loopConflict   = time.Second
	loopBelieve    = 10 * time.Second
	loopMinBackoff = 50 * time.Millisecond
	loopMaxBackoff = 30 * time.Second
)

var errAway = errors.New("the apiserver is away")

// rules of one type of object.
type rules[T apply.Object] struct {
	// merge is have with what is ours in it as in want; equal says whether the apiserver would change anything.
	merge func(have, want T) T
	equal func(a, b T) bool
	// replace says that have cannot become want by an update.
	replace func(have, want T) bool
	// prepared checks what is about to be written: want is nil for a delete, have for a create.
	prepared func(b *broker, name string, have, want T)
}

// loop is broker/apply.Objects, as it is seen from the plans and from the apiserver: keyed, level-triggered, with
// an informer of its own and a belief in its own writes; here one step at a time. A write takes two steps, so that
// anything can come between.
type loop[T apply.Object] struct {
	b       *broker
	rules   rules[T]
	desired apply.Desired[T]
	table   *table[T]

	// at is how much of the table's log the informer has seen; known is what it has in store.
	at     int
	known  map[string]T
	synced bool
	// believed are own writes that the informer may not have seen.
	believed map[string]belief[T]

	// queue is sorted: what is touched by one change is told in no order.
	queue   []string
	later   map[string]time.Time
	fails   map[string]int
	flights []flight[T]
}

type belief[T apply.Object] struct {
	object  T
	deleted bool
	until   time.Time
}

// flight is a write under way.
type flight[T apply.Object] struct {
	name       string
	have, want T
	op         string
	// again says that the name was asked for meanwhile.
	again bool
}

func newLoop[T apply.Object](b *broker, t *table[T], desired apply.Desired[T], r rules[T]) *loop[T] {
	return &loop[T]{
		b: b, rules: r, desired: desired, table: t, known: map[string]T{}, believed: map[string]belief[T]{},
		later: map[string]time.Time{}, fails: map[string]int{},
	}
}

// runner is a loop of any type.
type runner interface {
	inform(all bool) bool
	reconcile() bool
	land(lost, fails bool) bool
	abandon() []func()
	due(now time.Time) bool
	next() (time.Time, bool)
	busy() bool
	size() int
}

// Mark implements apply.Loop.
func (l *loop[T]) Mark(name, _ string, _ time.Time) { l.Wake(name) }

// Wake implements apply.Loop.
func (l *loop[T]) Wake(name string) {
	for i := range l.flights {
		if l.flights[i].name == name {
			l.flights[i].again = true
			return
		}
	}
	if i, there := slices.BinarySearch(l.queue, name); !there {
		l.queue = slices.Insert(l.queue, i, name)
	}
}

// WakeOwned implements apply.Loop.
func (l *loop[T]) WakeOwned(cluster string) {
	names, _ := l.Owned(cluster)
	for _, name := range names {
		l.Wake(name)
	}
}

// WakeAll implements apply.Loop.
func (l *loop[T]) WakeAll() {
	for name := range l.known {
		l.Wake(name)
	}
	for _, name := range l.desired.Names() {
		l.Wake(name)
	}
}

// Synced implements apply.Loop.
func (l *loop[T]) Synced() bool { return l.synced }

// Owned implements apply.Loop.
func (l *loop[T]) Owned(cluster string) ([]string, bool) {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(l.known)) {
		if l.known[name].GetLabels()[naming.LabelSourceCluster] == cluster {
			names = append(names, name)
		}
	}
	return names, l.synced
}

func (l *loop[T]) after(name string, d time.Duration) {
	at := l.b.w.now.Add(d)
	if was, ok := l.later[name]; !ok || at.Before(was) {
		l.later[name] = at
	}
}

// due wakes what was put off until now.
func (l *loop[T]) due(now time.Time) bool {
	any := false
	for _, name := range slices.Sorted(maps.Keys(l.later)) {
		if !now.Before(l.later[name]) {
			delete(l.later, name)
			l.Wake(name)
			any = true
		}
	}
	return any
}

// next is when something that was put off is due.
func (l *loop[T]) next() (first time.Time, ok bool) {
	for _, at := range l.later {
		if !ok || at.Before(first) {
			first, ok = at, true
		}
	}
	return first, ok
}

func (l *loop[T]) busy() bool {
	return len(l.queue) > 0 || len(l.flights) > 0 || l.at < len(l.table.log)
}

func (l *loop[T]) size() int { return len(l.queue) + len(l.flights) + len(l.later) }

// inform lets the informer see the next event, or all there is at once, as after a watch that was lost.
func (l *loop[T]) inform(all bool) bool {
	if !l.synced || all {
		return l.relist()
	}
	if l.at == len(l.table.log) {
		return false
	}
	e := l.table.log[l.at]
	l.at++
	l.see(e.name, e.object, e.gone)
	return true
}

func (l *loop[T]) relist() bool {
	if l.synced && l.at == len(l.table.log) {
		return false
	}
	first := !l.synced
	l.at = len(l.table.log)
	now := map[string]T{}
	for name, o := range l.table.objects {
		if ours(o) {
			now[name] = o
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if was, ok := l.known[name]; !ok || was.GetResourceVersion() != now[name].GetResourceVersion() {
			l.see(name, now[name], false)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.known)) {
		if _, ok := now[name]; !ok {
			l.see(name, l.known[name], true)
		}
	}
	if first {
		l.synced = true
		if l.desired.Synced != nil {
			l.desired.Synced()
		}
		for _, name := range slices.Sorted(slices.Values(l.desired.Names())) {
			l.Wake(name)
		}
	}
	l.b.tracef("%ss listed: %d", l.table.name, len(now))
	return true
}

// see takes what the informer tells.
func (l *loop[T]) see(name string, o T, gone bool) {
	if gone {
		delete(l.known, name)
	} else {
		l.known[name] = o
	}
	if w, ok := l.believed[name]; ok {
		same := o.GetUID() == w.object.GetUID()
		switch {
		case w.deleted && (gone || !same), !w.deleted && gone && same, !w.deleted && !gone && version(o) >= version(w.object):
			delete(l.believed, name)
		}
	}
	l.observe(name)
	l.Wake(name)
	l.b.tracef("informer: %s %s version %s gone=%t", l.table.name, name, o.GetResourceVersion(), gone)
}

func version(o metav1.Object) int {
	n, _ := strconv.Atoi(o.GetResourceVersion())
	return n
}

// newest is what is under a name, our own writes included.
func (l *loop[T]) newest(name string) (o T, there bool) {
	if w, ok := l.believed[name]; ok {
		if l.b.w.now.Before(w.until) {
			return w.object, !w.deleted
		}
		delete(l.believed, name)
		l.table.d.disorder(w.object)
	}
	o, there = l.known[name]
	return o, there
}

func (l *loop[T]) observe(name string) {
	if l.desired.Observed != nil {
		o, there := l.newest(name)
		l.desired.Observed(name, o, there)
	}
}

// reconcile looks at one name that waits, any of them, and begins the write that it needs.
func (l *loop[T]) reconcile() bool {
	if !l.synced || len(l.queue) == 0 {
		return false
	}
	l.b.doubt()
	i := l.b.w.rng.IntN(len(l.queue))
	name := l.queue[i]
	l.queue = slices.Delete(l.queue, i, i+1)

	if w, ok := l.believed[name]; ok && !l.b.w.now.Before(w.until) {
		delete(l.believed, name)
		l.table.d.disorder(w.object) // the informer is too late for anything to be said of order
		l.observe(name)
	}
	l.lookAgain(name)
	have, there := l.newest(name)
	owner := ""
	if there {
		owner = have.GetLabels()[naming.LabelSourceCluster]
	}
	answer := l.desired.Want(name, owner)
	if answer.Again > 0 {
		l.after(name, answer.Again)
	}
	f := flight[T]{name: name, have: have, want: answer.Object}
	switch {
	case answer.Verdict == apply.Absent && there:
		f.op = "delete"
		var none T
		f.want = none
	case answer.Verdict != apply.Present:
	case !there:
		f.op = "create"
	case l.rules.replace != nil && l.rules.replace(have, answer.Object):
		f.op = "replace"
	default:
		if merged := l.rules.merge(have, answer.Object); !l.rules.equal(merged, have) {
			f.op, f.want = "update", merged
		}
	}
	if f.op == "" {
		delete(l.fails, name)
		l.b.tracef("%s %s: nothing to do (verdict %d, again %s)", l.table.name, name, answer.Verdict, answer.Again)
		return true
	}
	if !there {
		var none T
		have = none // it was deleted, if anything
	}
	l.rules.prepared(l.b, name, have, f.want)
	l.flights = append(l.flights, f)
	l.b.tracef("%s %s: %s begins (again %s)", l.table.name, name, f.op, answer.Again)
	return true
}

// carryOut does the write at the apiserver.
func (l *loop[T]) carryOut(f flight[T], by writer) (out T, err error) {
	switch f.op {
	case "create":
		return l.table.create(f.want, by)
	case "update":
		return l.table.update(f.want, by)
	}
	err = l.table.delete(f.have, by)
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return f.have, err
}

// land ends one write that is under way: lost says that it is not carried out, fails that it seems to have failed.
func (l *loop[T]) land(lost, fails bool) bool {
	if len(l.flights) == 0 {
		return false
	}
	by := byBroker
	if l.b.d.leader != l.b {
		by = byLate
	}
	i := l.b.w.rng.IntN(len(l.flights))
	f := l.flights[i]
	l.flights = slices.Delete(l.flights, i, i+1)
	err := errAway
	var out T
	if !lost {
		if out, err = l.carryOut(f, by); fails {
			l.table.d.disorder(out) // until the informer tells, the broker takes it for not written
			err = apierrors.NewTimeoutError("cut", 1)
		}
	}
	if err == nil {
		if f.op == "delete" || f.op == "replace" {
			l.believe(f.name, out, true)
		} else {
			l.believe(f.name, out, false)
		}
		if f.op == "replace" {
			if out, err = l.table.create(f.want, by); err == nil {
				l.believe(f.name, out, false)
			}
		}
	}
	l.observe(f.name)
	switch {
	case err == nil:
		l.lookAgain(f.name)
		delete(l.fails, f.name)
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err) && f.op == "update":
		delete(l.believed, f.name)
		l.after(f.name, loopConflict)
	default:
		backoff := loopMaxBackoff
		if n := l.fails[f.name]; n < 9 {
			backoff = loopMinBackoff << n
		}
		l.fails[f.name]++
		l.after(f.name, backoff)
	}
	if f.again {
		l.Wake(f.name)
	}
	l.b.tracef("%s %s: %s ends: %v", l.table.name, f.name, f.op, err)
	return true
}

// lookAgain has a name looked at when a write is not believed any more.
func (l *loop[T]) lookAgain(name string) {
	if w, ok := l.believed[name]; ok {
		l.after(name, w.until.Sub(l.b.w.now))
	}
}

// believe notes the answer to a write, unless the informer was faster.
func (l *loop[T]) believe(name string, o T, deleted bool) {
	seen, ok := l.known[name]
	w, wrote := l.believed[name]
	switch {
	case !deleted && ok && version(seen) >= version(o):
		return
	case deleted && !(ok && seen.GetUID() == o.GetUID()) && !(wrote && w.object.GetUID() == o.GetUID()):
		return
	}
	l.believed[name] = belief[T]{o, deleted, l.b.w.now.Add(loopBelieve)}
}

// abandon leaves what is under way to the network: each may still be carried out.
func (l *loop[T]) abandon() []func() {
	var late []func()
	for _, f := range l.flights {
		late = append(late, func() {
			_, err := l.carryOut(f, byLate)
			l.b.tracef("%s %s: late %s: %v", l.table.name, f.name, f.op, err)
		})
	}
	l.flights = nil
	return late
}
