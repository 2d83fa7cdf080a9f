package sim

import (
	"testing"

	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestReachedStatesAreInOrder: the check of a replica accepts later states of an object, and no earlier one.
func TestReachedStatesAreInOrder(t *testing.T) {
	object := func(headless bool) *semaphorev1.Object {
		return &semaphorev1.Object{Spec: &semaphorev1.Object_Service{Service: &semaphorev1.Service{Headless: headless}}}
	}
	first, second := object(false), object(true)
	d := &dest{name: "c1"}
	p := newReached(&source{past: map[pastKey]*past{{d.name, kindService, ref{"shop", "echo"}}: {
		states: []string{"", held(first), held(second)}}}}, d)
	for _, step := range []struct {
		old, new  *semaphorev1.Object
		invariant string
	}{{nil, first, ""}, {first, second, ""}, {second, first, "I3"}, {second, nil, "I2"}} {
		key := replica.Key{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: "shop", Name: "echo"}
		if got, problem := p.follow(replica.Change{Key: key, Old: step.old, New: step.new}); got != step.invariant {
			t.Errorf("from %q to %q: %q, %s; want %q", held(step.old), held(step.new), got, problem, step.invariant)
		}
	}
}

// TestAcknowledgementsAreInOrder: an acknowledgement of an earlier revision in the same epoch is a failure.
func TestAcknowledgementsAreInOrder(t *testing.T) {
	b := &broker{w: &world{}, d: &dest{name: "c1"}, acked: map[[2]string]uint64{}}
	c := &conn{client: &upLink{x: &exporter{}}, session: &replica.Session{}}
	for _, step := range []struct {
		revision uint64
		failed   bool
	}{{5, false}, {5, false}, {6, false}, {5, true}} {
		ack := &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Ack{Ack: &semaphorev1.Ack{
			Revision: step.revision}}}
		b.follow(c, "c2", &semaphorev1.PublishRequest{}, replica.Result{Responses: []*semaphorev1.PublishResponse{ack}}, nil)
		if failed := b.w.failure != nil; failed != step.failed {
			t.Errorf("revision %d: %v", step.revision, b.w.failure)
		}
	}
}
