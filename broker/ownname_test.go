package broker

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// TestOwnNames checks that the own name of a Service leads to another cluster while its own one has no ready endpoint:
// by slices that have the Service as owner, beside those of Kubernetes, which stay as they are. A restart writes
// nothing, and without the annotation the slices go. Events say so on the Service.
func TestOwnNames(t *testing.T) {
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	ctx := t.Context()
	ownPods(w.cfg)
	w.cfg.GlobalServices.OwnNames, w.cfg.GlobalServices.Settle.Duration = true, 0
	stop := w.start(w.cfg)
	defer func() { stop() }()
	kubetest.Namespace(t, w.admin, "shop")
	service := kubetest.Create(t, w.admin.CoreV1().Services("shop"), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "echo", Labels: map[string]string{"theirs": "so"}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "p80", Port: 80}}}})
	slicesOf := w.admin.DiscoveryV1().EndpointSlices("shop")
	theirs := kubetest.Create(t, slicesOf, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "echo-abc", Labels: map[string]string{discoveryv1.LabelServiceName: "echo",
			discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(80))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.1.5"}}}})

	offer := func(use *string) *semaphorev1.Object {
		o := players.Service("shop", "echo", 80)
		o.GetService().Mirror, o.GetService().Global = false, true
		if use != nil {
			o.GetService().OwnName = &semaphorev1.OwnName{Use: *use, Uid: string(service.UID)}
		}
		return o
	}
	ownExporter := func(head uint64, objects ...*semaphorev1.Object) *players.Exporter {
		t.Helper()
		e := w.exporter("c1")
		kinds := []semaphorev1.Kind{semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE}
		e.Greet(players.Hello("c1", "e1", head, kinds...))
		for _, kind := range kinds {
			e.Send(players.Snapshot(kind, head, slices.DeleteFunc(slices.Clone(objects), func(o *semaphorev1.Object) bool {
				return o.GetKey().GetKind() != kind
			})...)...)
		}
		e.Acked(head)
		return e
	}
	isOwn := func(when, want string) {
		t.Helper()
		eventually(t, when, func() (bool, string) {
			all, err := slicesOf.List(ctx, metav1.ListOptions{LabelSelector: writes.OwnedOwnSlices})
			if err != nil {
				return false, err.Error()
			}
			var got []string
			for _, s := range all.Items {
				owner := "nobody"
				for _, o := range s.OwnerReferences {
					owner = fmt.Sprint(o.Kind, " ", o.Name, " ", o.UID == service.UID)
				}
				for _, e := range s.Endpoints {
					got = append(got, fmt.Sprint(s.Labels[discoveryv1.LabelServiceName], " ", e.Addresses, " of ", owner))
				}
			}
			return strings.Join(got, ", ") == want, strings.Join(got, ", ")
		})
	}
	unready := players.Slice("shop", "echo-1", "echo", "10.1.1.5")
	unready.GetEndpointSlice().Endpoints[0].Ready = ptr.To(false)
	failover, misspelled := ptr.To("failover"), ptr.To("")
	own := ownExporter(100, offer(failover), players.Slice("shop", "echo-1", "echo", "10.1.1.5"))
	c2 := []*semaphorev1.Object{offer(ptr.To("all")), players.Slice("shop", "echo-1", "echo", "10.2.1.5")}
	w.exporter("c2").SendAll("c2", "e1", c2...)
	w.exporter("c3").SendAll("c3", "e1")
	const there = "echo [10.2.1.5] of Service echo true"
	isOwn("the own cluster suffices", "")
	own.Send(players.Upserts(101, unready))
	isOwn("no endpoint is ready here", there)
	own.Send(players.Upserts(102, offer(misspelled)))
	own.Acked(102)
	isOwn("misspelled", there)
	w.saysOn(t, "echo", "ServedElsewhere",
		"endpoints of c2 are used under its own name: 0 of 1 ready in this cluster, and 1 are enough")

	before := kubetest.Get(t, slicesOf, "gl-shop-73736d-echo-c2-1")
	stop()
	stop = w.start(w.cfg)
	own = ownExporter(200, offer(misspelled), unready)
	w.exporter("c2").SendAll("c2", "e2", c2...)
	w.exporter("c3").SendAll("c3", "e2", players.Service("shop", barrier, 80))
	eventually(t, "what c3 exports last", func() (bool, string) {
		_, err := w.admin.CoreV1().Services("semaphore").Get(ctx, "c3-shop-73736d-"+barrier, metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	})
	if s := kubetest.Get(t, slicesOf, before.Name); s.ResourceVersion != before.ResourceVersion {
		t.Errorf("a restart wrote %v", s)
	}

	// Somebody deletes it, and it is there again.
	testkit.Must(t, slicesOf.Delete(ctx, before.Name, metav1.DeleteOptions{}))
	isOwn("deleted by somebody", there)
	own.Send(players.Upserts(201, players.Slice("shop", "echo-1", "echo", "10.1.1.5")))
	isOwn("ready here again", "")
	w.saysOn(t, "echo", "ServedHere",
		"endpoints of c2 are no longer used under its own name: 1 of 1 ready in this cluster, and 1 are enough")
	own.Send(players.Upserts(202, unready))
	isOwn("not ready again", there)
	own.Send(players.Upserts(203, offer(nil)))
	isOwn("without the annotation", "")
	if s := kubetest.Get(t, slicesOf, theirs.Name); s.ResourceVersion != theirs.ResourceVersion {
		t.Errorf("the slice of Kubernetes was written: %v", s)
	}
	if s := kubetest.Get(t, w.admin.CoreV1().Services("shop"), "echo"); s.ResourceVersion != service.ResourceVersion {
		t.Errorf("the Service was written: %v", s)
	}
}

// saysOn checks that an Event on a Service of shop says something.
func (w *world) saysOn(t *testing.T, service, reason, note string) {
	t.Helper()
	eventually(t, reason, func() (bool, string) {
		all, err := w.admin.EventsV1().Events("shop").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		var got []string
		for _, e := range all.Items {
			if e.Regarding.Kind == "Service" && e.Regarding.Name == service && e.Reason == reason {
				got = append(got, e.Note)
			}
		}
		return slices.Contains(got, note), strings.Join(got, "; ")
	})
}
