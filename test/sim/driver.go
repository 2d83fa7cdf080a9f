package sim

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
)

// As in internal/kube/reconcile: keys that fail are tried again after increasing delays.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 30 * time.Second
)

var (
	errAway = errors.New("the apiserver is away")
	errCut  = errors.New("the connection was cut before the answer came")
)

// driver drives a writes.Machine, as broker/apply.Objects does, with a table in place of informer and client: one step
// at a time, in an order that the seed chooses. A request takes two steps, so that any event can happen in between.
type driver[T writes.Object] struct {
	marked[T]

	b       *broker
	kind    writes.Kind[T]
	table   *table[T]
	machine *writes.Machine[T]
	// prepared checks a write before it is sent: want is nil for a delete, have for a create.
	prepared func(b *broker, name string, have, want T)

	// at is the informer's position in the table's log; known is its store.
	at    int
	known store[T]

	fails   map[string]int
	flights []flight[T]
}

// store is the writes.Store of an informer.
type store[T writes.Object] map[string]T

func (s store[T]) Get(name string) (T, bool) {
	o, there := s[name]
	return o, there
}

// flight is a request in flight.
type flight[T writes.Object] struct {
	*writes.Write[T]
	// again means that the name was marked meanwhile.
	again bool
}

func newDriver[T writes.Object](b *broker, t *table[T], desired writes.Desired[T], kind writes.Kind[T],
	prepared func(*broker, string, T, T)) *driver[T] {
	known := store[T]{}
	l := &driver[T]{b: b, kind: kind, table: t, prepared: prepared, known: known, machine: writes.New(kind, nil),
		fails: map[string]int{}}
	l.marked = marked[T]{desired: desired, have: known, newest: l.withWrites, busy: l.againInFlight,
		later: map[string]time.Time{}}
	return l
}

// runner is a driver of any type.
type runner interface {
	inform(all bool) bool
	reconcile() bool
	land(lost, fails bool) bool
	abandon() []func()
	due(now time.Time) bool
}

func (l *driver[T]) Mark(name, cluster string, observedAt time.Time) {
	l.machine.Changed(l.b.w.now, name, writes.Change{Cluster: cluster, ObservedAt: observedAt})
	l.Wake(name)
}

// againInFlight notes that a name was marked, if a request for it is in flight.
func (l *driver[T]) againInFlight(name string) bool {
	i := slices.IndexFunc(l.flights, func(f flight[T]) bool { return f.Name == name })
	if i >= 0 {
		l.flights[i].again = true
	}
	return i >= 0
}

func (l *driver[T]) after(name string, d time.Duration) {
	at := l.b.w.now.Add(d)
	if was, ok := l.later[name]; !ok || at.Before(was) {
		l.later[name] = at
	}
}

// inform gives the informer the next event, or the complete state, as after a lost watch.
func (l *driver[T]) inform(all bool) bool {
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

func (l *driver[T]) relist() bool {
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
		l.listed()
	}
	l.b.tracef("%ss listed: %d", l.table.name, len(now))
	return true
}

// see handles a report of the informer.
func (l *driver[T]) see(name string, o T, gone bool) {
	if gone {
		delete(l.known, name)
	} else {
		l.known[name] = o
	}
	l.machine.Informed(name, o, gone)
	l.observe(name)
	l.Wake(name)
	l.b.tracef("informer: %s %s version %s gone=%t", l.table.name, name, o.GetResourceVersion(), gone)
}

// withWrites returns the object under a name, own writes included.
func (l *driver[T]) withWrites(name string) (T, bool) {
	l.expire(name)
	return l.machine.Newest(l.b.w.now, name)
}

// expire discards a write that the informer has not reported in time.
func (l *driver[T]) expire(name string) (expired bool) {
	o, expired := l.machine.Expire(l.b.w.now, name)
	if expired {
		l.table.d.disorder(o) // the informer is so late that the order is unknown
	}
	return expired
}

// reconcile takes any queued name, and begins the write that it needs.
func (l *driver[T]) reconcile() bool {
	if !l.synced || len(l.queue) == 0 {
		return false
	}
	l.b.doubt()
	name := l.take(l.b.w.rng)
	urgent := func() bool {
		have, there := l.newest(name)
		return l.desired.IsUrgent(l.kind, name, have, there)
	}
	if wait := l.machine.Wait(l.b.w.now, name, urgent); wait > 0 {
		l.b.tracef("%s %s: waits %s", l.table.name, name, wait)
		l.after(name, wait)
		return true
	}
	if l.expire(name) {
		l.observe(name)
	}
	seen := l.machine.Begin(l.b.w.now, name)
	answer := l.desired.Start(name, seen.Owner)
	step := l.machine.Decide(l.b.w.now, seen, answer)
	if step.Again {
		l.after(name, step.After)
	}
	if step.Write == nil {
		delete(l.fails, name)
		l.b.tracef("%s %s: nothing to do (verdict %d, again %t after %s)", l.table.name, name, answer.Verdict, step.Again,
			step.After)
		return true
	}
	w := step.Write
	want := w.Want
	if w.Op == writes.Update {
		want = w.Object
	}
	l.prepared(l.b, name, w.Have, want)
	l.flights = append(l.flights, flight[T]{Write: w})
	l.b.tracef("%s %s: %s begins (again %t after %s)", l.table.name, name, w.Op, step.Again, step.After)
	return true
}

// carryOut executes a request at the apiserver.
func (l *driver[T]) carryOut(w *writes.Write[T], by writer) (out T, err error) {
	switch w.Request {
	case writes.SendCreate:
		return l.table.create(w.Object, by)
	case writes.SendUpdate:
		return l.table.update(w.Object, by)
	case writes.SendDelete:
		return w.Object, l.table.delete(w.Object, by)
	case writes.SendRead:
		return l.table.read(w.Name)
	}
	return out, writes.NotOurs{Kind: l.kind.Name, Name: w.Name}
}

// land ends one request in flight: lost means that it is not executed, fails that it seems to have failed.
func (l *driver[T]) land(lost, fails bool) bool {
	if len(l.flights) == 0 {
		return false
	}
	by := byBroker
	if l.b.d.leader != l.b {
		by = byLate
	}
	i := l.b.w.rng.IntN(len(l.flights))
	f := l.flights[i]
	err := errAway
	var out T
	if !lost {
		if out, err = l.carryOut(f.Write, by); fails {
			l.table.d.disorder(f.Object) // until the informer reports it, the broker counts it as not written
			err = errCut
		}
	}
	step := l.machine.Settle(l.b.w.now, f.Write, out, err)
	l.b.tracef("%s %s: %s, request %d, ends: %v", l.table.name, f.Name, f.Op, f.Request, err)
	if step.Write != nil {
		l.flights[i].Write = step.Write
		return true
	}
	l.flights = slices.Delete(l.flights, i, i+1)
	l.observe(f.Name)
	if step.Err != nil {
		l.after(f.Name, maxBackoff)
		if n := l.fails[f.Name]; n < 9 {
			l.after(f.Name, minBackoff<<n)
		}
		l.fails[f.Name]++
	} else {
		delete(l.fails, f.Name)
	}
	if step.Again {
		l.after(f.Name, step.After)
	}
	if f.again {
		l.Wake(f.Name)
	}
	return true
}

// abandon leaves the requests in flight to the network: each may still be executed.
func (l *driver[T]) abandon() []func() {
	var late []func()
	for _, f := range l.flights {
		late = append(late, func() {
			_, err := l.carryOut(f.Write, byLate)
			l.b.tracef("%s %s: late %s: %v", l.table.name, f.Name, f.Op, err)
		})
	}
	l.flights = nil
	return late
}
