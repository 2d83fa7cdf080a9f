package services

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
	f.Queue().Push("c2", replica.Result{Completed: kindService,
		Changes: []replica.Change{svc("shop", "s0", web(&semaphorev1.Service{Mirror: true}))}})
	var changes []replica.Change
	for i := range slices {
		addresses := fmt.Sprintf("10.2.%d.0 10.2.%[1]d.1 10.2.%[1]d.2", i)
		changes = append(changes, slc("shop", fmt.Sprint("s", i), endpoints("s0", addresses)))
	}
	f.Queue().Push("c2", replica.Result{Changes: changes, Completed: kindSlice})
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
