package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// marked is what a driver and an immediate have in common: the names that wait for a look, and their part of
// writes.Loop.
type marked[T writes.Object] struct {
	desired writes.Desired[T]
	// have are the objects as the leader lists them, and newest is one with its own writes.
	have   map[string]T
	newest func(name string) (T, bool)
	// busy takes a mark of a name with a request in flight; nil if there are no requests.
	busy func(name string) bool
	// queue is sorted: changes mark names in any order.
	queue  []string
	later  map[string]time.Time
	synced bool
}

func (l *marked[T]) Wake(name string) {
	if l.busy != nil && l.busy(name) {
		return
	}
	if i, there := slices.BinarySearch(l.queue, name); !there {
		l.queue = slices.Insert(l.queue, i, name)
	}
}

func (l *marked[T]) WakeOwned(cluster string) {
	names, _ := l.Owned(cluster)
	for _, name := range names {
		l.Wake(name)
	}
}

func (l *marked[T]) Observe(cluster string) {
	names, _ := l.Owned(cluster)
	for _, name := range names {
		l.observe(name)
	}
}

func (l *marked[T]) WakeAll() {
	for name := range l.have {
		l.Wake(name)
	}
	for _, name := range l.desired.Names() {
		l.Wake(name)
	}
}

func (l *marked[T]) Synced() bool { return l.synced }

func (l *marked[T]) Owned(cluster string) (names []string, ok bool) {
	for _, name := range sortedKeys(l.have) {
		if l.have[name].GetLabels()[naming.LabelSourceCluster] == cluster {
			names = append(names, name)
		}
	}
	return names, l.synced
}

func (l *marked[T]) observe(name string) {
	if l.desired.Observed != nil {
		o, there := l.newest(name)
		l.desired.Observed(name, o, there)
	}
}

// listed begins the looks, once all objects are known.
func (l *marked[T]) listed() {
	l.synced = true
	if l.desired.Synced != nil {
		l.desired.Synced()
	}
	for _, name := range l.desired.Names() {
		l.Wake(name)
	}
}

// due wakes what was delayed until now.
func (l *marked[T]) due(now time.Time) (any bool) {
	for _, name := range sortedKeys(l.later) {
		if !now.Before(l.later[name]) {
			delete(l.later, name)
			l.Wake(name)
			any = true
		}
	}
	return any
}

// take takes any name from the queue, which has some.
func (l *marked[T]) take(rng *rand.Rand) string {
	i := rng.IntN(len(l.queue))
	name := l.queue[i]
	l.queue = slices.Delete(l.queue, i, i+1)
	return name
}
