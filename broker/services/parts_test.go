package services_test

import (
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// wide is a whole snapshot of c2 with one Service of so many slices, of three endpoints each.
func (f *fixture) wide(slices int) {
	key := &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: "shop", Name: "s0"}
	f.Queue().Push("c2", replica.Result{Completed: semaphorev1.Kind_KIND_SERVICE, Changes: []replica.Change{{
		Key: replica.KeyOf(key), New: &semaphorev1.Object{Key: key, Spec: &semaphorev1.Object_Service{
			Service: &semaphorev1.Service{Mirror: true, Ports: []*semaphorev1.Port{{Protocol: "TCP", Port: 80}}},
		}}}}})
	var changes []replica.Change
	for i := range slices {
		key := &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_ENDPOINT_SLICE, Namespace: "shop", Name: fmt.Sprint("s", i)}
		s := &semaphorev1.EndpointSlice{Service: "s0", Ports: []*semaphorev1.Port{{Protocol: "TCP", Port: 8080}}}
		for j := range 3 {
			s.Endpoints = append(s.Endpoints, &semaphorev1.Endpoint{Addresses: []string{fmt.Sprintf("10.2.%d.%d", i, j)},
				Ready: new(true)})
		}
		changes = append(changes, replica.Change{Key: replica.KeyOf(key), New: &semaphorev1.Object{Key: key,
			Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: s}}})
	}
	f.Queue().Push("c2", replica.Result{Changes: changes, Completed: semaphorev1.Kind_KIND_ENDPOINT_SLICE})
}

// TestASliceStaysWhileASnapshotIsTakenInParts: after a restart, no existing slice loses an endpoint while the first
// snapshot of a Service with many slices is taken in parts.
func TestASliceStaysWhileASnapshotIsTakenInParts(t *testing.T) {
	const slices = 100
	before := newFixture(t, 1)
	before.wide(slices)
	for before.Queue().Turn(before.Take) {
	}
	existing := map[string]*discoveryv1.EndpointSlice{}
	for _, name := range before.DesiredSlices().Names() {
		a := before.DesiredSlices().Want(name, "c2")
		existing[name] = a.Object
	}
	service := before.DesiredServices().Want(mirrorName(0), "c2").Object
	if service == nil || len(existing) < 3 {
		t.Fatalf("%v, %d slices", service, len(existing))
	}
	after := newFixture(t, 1)
	after.DesiredServices().Observed(mirrorName(0), service, true)
	for name, s := range existing {
		after.DesiredSlices().Observed(name, s, true)
	}
	after.DesiredSlices().Synced()
	after.wide(slices)
	parts := 0
	for more := true; more; parts++ {
		for name, s := range existing {
			a := after.DesiredSlices().Want(name, "c2")
			if a.Verdict != writes.Unknown && (a.Object == nil || len(a.Object.Endpoints) != len(s.Endpoints)) {
				t.Errorf("after %d parts, the verdict on %s is %v: %d of %d endpoints", parts, name, a.Verdict,
					len(a.Object.Endpoints), len(s.Endpoints))
			}
		}
		more = after.Queue().Turn(after.Take)
	}
	if parts < slices/32 {
		t.Errorf("it was taken in %d parts", parts)
	}
}
