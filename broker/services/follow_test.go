package services

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestARemoteThatComesBack: the slices of a remote that was removed go. If it comes back before they have gone, they
// stay until it is complete, and its endpoints stay in the slices that they are in.
func TestARemoteThatComesBack(t *testing.T) {
	f := newFixture(t, 1)
	name := naming.Slice(mirrorName(0), "c2", 2)
	there := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: mirrorName(0), naming.LabelSourceCluster: "c2"}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.2.0.1"}}}}
	loop := &ownCluster{synced: true, names: []string{name}, observe: func(of string) {
		if of == "c2" {
			f.DesiredSlices().Observed(name, there, true)
		}
	}}
	f.Bind(Loops{Services: f.loop, Slices: loop})
	c2 := config.Remote{Name: "c2", ServicePrefix: "c2", PodPrefixes: testkit.Prefixes("10.2.0.0/16")}
	c3 := config.Remote{Name: "c3", ServicePrefix: "c3", PodPrefixes: testkit.Prefixes("10.3.0.0/16")}
	verdict := func() writes.Verdict { return f.DesiredSlices().Want(name, "c2").Verdict }

	f.Follow([]config.Remote{c3})
	if v := verdict(); v != writes.Absent {
		t.Errorf("c2 is removed, and the verdict is %v", v)
	}
	f.Follow([]config.Remote{c3, c2})
	if v := verdict(); v == writes.Absent {
		t.Error("c2 is back, and its slice goes")
	}
	f.take("c2", replica.Result{Changes: []replica.Change{slc("shop", "s", &semaphorev1.EndpointSlice{Service: "s0",
		AddressType: "IPv4", Endpoints: []*semaphorev1.Endpoint{{Addresses: []string{"10.2.0.1"}}}})}})
	f.snapshot(1)
	a := f.DesiredSlices().Want(name, "c2")
	if a.Verdict != writes.Present || len(a.Object.Endpoints) != 1 || a.Object.Endpoints[0].Addresses[0] != "10.2.0.1" {
		t.Errorf("c2 is complete, and the verdict is %v: %v", a.Verdict, a.Object)
	}
}
