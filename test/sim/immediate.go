package sim

import (
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// immediate is a writes.Loop without an apiserver: what an engine desires exists once the name is taken from the queue.
// It has no pace, no failures and no lag, so that the one thing left is what the engine wants.
type immediate[T writes.Object] struct {
	marked[T]

	m    *memory
	kind writes.ObjectKind
	// stored is what the apiserver has after a write of want; have is what it had, if anything.
	stored func(m *memory, have T, there bool, want T) T
	// objects outlive the leader.
	objects map[string]T
}

// leading is an immediate of any type.
type leading interface {
	list()
	reconcile() bool
	due(now time.Time) bool
}

func newImmediate[T writes.Object](m *memory, kind writes.ObjectKind, objects map[string]T, desired writes.Desired[T],
	stored func(m *memory, have T, there bool, want T) T) *immediate[T] {
	l := &immediate[T]{m: m, kind: kind, stored: stored, objects: objects, marked: marked[T]{desired: desired,
		have: objects, newest: store[T](objects).Get, later: map[string]time.Time{}}}
	m.loops = append(m.loops, l)
	return l
}

func (l *immediate[T]) Mark(name, _ string, _ time.Time) { l.Wake(name) }

// list is the first list of what exists.
func (l *immediate[T]) list() {
	for _, name := range sortedKeys(l.objects) {
		l.observe(name)
		l.Wake(name)
	}
	l.listed()
}

// reconcile writes any queued name; false if there is none.
func (l *immediate[T]) reconcile() bool {
	if !l.synced || len(l.queue) == 0 {
		return false
	}
	name := l.take(l.m.rng)
	have, there := l.objects[name]
	owner := ""
	if there {
		owner = have.GetLabels()[naming.LabelSourceCluster]
	}
	answer := l.desired.Start(name, owner)
	if answer.Again > 0 {
		l.later[name] = l.m.now.Add(answer.Again)
	}
	switch {
	case answer.Verdict == writes.Absent && there:
		delete(l.objects, name)
		var none T
		l.m.wrote("deletes", l.kind, name, have, none)
	case answer.Verdict == writes.Present:
		is := l.stored(l.m, have, there, answer.Object)
		if there && equality.Semantic.DeepEqual(have, is) {
			return true
		}
		l.objects[name] = is
		if there {
			l.m.wrote("updates", l.kind, name, have, is)
		} else {
			l.m.wrote("creates", l.kind, name, have, is)
		}
	default:
		return true
	}
	l.observe(name)
	return true
}

// wrote checks a write: between two leaders, while nothing changes, there is none.
func (m *memory) wrote(verb string, kind writes.ObjectKind, name string, have, is any) {
	if m.succeeding {
		m.fail("memory", "a leader that finds everything as it was %s %s %s:\n%s%s", verb, kind, name,
			cmp.Diff(have, is), m.history())
	}
}

// asWritten is what an apiserver has of an object to which it adds nothing.
func asWritten[T writes.Object](_ *memory, _ T, _ bool, want T) T { return want.DeepCopyObject().(T) }

// owned is a slice that keeps its owner while nobody knows another one.
func owned(_ *memory, have *discoveryv1.EndpointSlice, there bool,
	want *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	out := want.DeepCopy()
	if there && len(want.OwnerReferences) == 0 {
		out.OwnerReferences = have.OwnerReferences
	}
	return out
}

// withAddresses is a Service with the ClusterIPs that an apiserver assigns to it.
func withAddresses(m *memory, have *corev1.Service, there bool, want *corev1.Service) *corev1.Service {
	out := want.DeepCopy()
	if len(out.Spec.IPFamilies) == 0 {
		out.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
	switch {
	case out.Spec.ClusterIP == corev1.ClusterIPNone:
		out.Spec.ClusterIPs = []string{corev1.ClusterIPNone}
	case there && have.Spec.ClusterIP != corev1.ClusterIPNone:
		out.Spec.ClusterIP, out.Spec.ClusterIPs = have.Spec.ClusterIP, have.Spec.ClusterIPs
	default:
		m.ids++
		out.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", m.ids>>8, m.ids&255)
		out.Spec.ClusterIPs = []string{out.Spec.ClusterIP, fmt.Sprintf("fd00:96::%x", m.ids)}
	}
	return out
}
