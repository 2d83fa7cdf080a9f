package redteam

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// global returns a Service that is part of a global service, and says of its own name what use is; "" for nothing.
func global(of, use, uid string) *semaphorev1.Object {
	namespace, name, _ := strings.Cut(of, "/")
	s := players.Web(&semaphorev1.Service{Global: true})
	if use != "" {
		s.OwnName = &semaphorev1.OwnName{Use: use, Uid: uid}
	}
	return players.ServiceOf(namespace, name, s)
}

// endpointsOf returns a slice of a Service with an address.
func endpointsOf(of, address string) *semaphorev1.Object {
	namespace, name, _ := strings.Cut(of, "/")
	return players.SliceOf(namespace, name+"-1", players.Endpoints(name, address))
}

// underOwnNames lists the slices under own names as NAMESPACE/SERVICE USE CLUSTER.
func (v *victim) underOwnNames() (all []string) {
	v.t.Helper()
	list := testkit.Value(v.kube.DiscoveryV1().EndpointSlices("").List(v.t.Context(),
		metav1.ListOptions{LabelSelector: naming.LabelOwnName}))(v.t)
	for _, s := range list.Items {
		all = append(all, fmt.Sprintf("%s/%s %s %s", s.Namespace, s.Labels[discoveryv1.LabelServiceName],
			s.Labels[naming.LabelOwnName], s.Labels[naming.LabelSourceCluster]))
	}
	slices.Sort(all)
	return all
}

// TestNobodyJoinsAServiceThatDoesNotAsk checks that no remote adds endpoints to a Service of this cluster whose owner
// does not ask for them, whatever it sends: Services of the same names, with own_name and the UID of the owner, of
// Services that are not offered here, and of the cluster itself. The Service that asks gets them as its owner says. A
// remote that joins and leaves all the time delays no Event about another one.
func TestNobodyJoinsAServiceThatDoesNotAsk(t *testing.T) {
	v := prepare(t)
	v.cfg["globalServices"].(map[string]any)["ownNames"] = true
	uids := map[string]string{}
	kubetest.Namespace(t, v.kube, "shop")
	kubetest.Namespace(t, v.kube, "calico-system")
	for _, of := range []string{"shop/asks", "shop/offers", "shop/nothing", "calico-system/typha"} {
		namespace, name, _ := strings.Cut(of, "/")
		uids[of] = string(kubetest.Create(t, v.kube.CoreV1().Services(namespace), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}).UID)
	}
	v.run()
	if _, refused := v.sends("c1", "e1", 10, ofMirrors,
		global("shop/asks", naming.OwnNameFailover, uids["shop/asks"]), global("shop/offers", "", ""),
		global("default/kubernetes", naming.OwnNameAll, "u"),
		global("calico-system/typha", naming.OwnNameAll, uids["calico-system/typha"])); len(refused) > 0 {
		t.Fatalf("of the own exporter are refused: %v", refused)
	}

	var all []*semaphorev1.Object
	for i, of := range []string{"shop/offers", "shop/nothing", "calico-system/typha", "default/kubernetes"} {
		all = append(all, global(of, naming.OwnNameAll, uids[of]), endpointsOf(of, fmt.Sprint("10.2.0.", i+1)))
	}
	hostile, _ := v.sends("c2", "e1", 10, ofMirrors, all...)
	// The last object that takes the same way is written.
	asks := global("shop/asks", naming.OwnNameAll, "another")
	hostile.tell(players.Upserts(11, asks, endpointsOf("shop/asks", "10.2.0.9")))
	hostile.acked(12)
	only := func(want ...string) {
		t.Helper()
		v.eventually(fmt.Sprint("the slices under own names are ", want), func() error {
			if got := v.underOwnNames(); !slices.Equal(got, want) {
				return fmt.Errorf("%q", got)
			}
			return nil
		})
	}
	only("shop/asks failover c2")
	slice := testkit.Value(v.kube.DiscoveryV1().EndpointSlices("shop").List(t.Context(),
		metav1.ListOptions{LabelSelector: naming.LabelOwnName}))(t).Items[0]
	if o := slice.OwnerReferences; len(o) != 1 || string(o[0].UID) != uids["shop/asks"] {
		t.Errorf("the slice is owned by %v, and not by the Service of this cluster", o)
	}

	at := uint64(13)
	for range 300 {
		hostile.tell(players.Deletion(at, asks), players.Upserts(at+1, asks))
		at += 2
	}
	hostile.acked(at - 1)
	v.sends("c3", "e1", 10, ofMirrors, global("shop/asks", "", ""), endpointsOf("shop/asks", "10.3.0.9"))
	only("shop/asks failover c2", "shop/asks failover c3")
	v.eventually("an Event names c3", func() error {
		events := testkit.Value(v.kube.EventsV1().Events("shop").List(t.Context(), metav1.ListOptions{}))(t)
		for _, e := range events.Items {
			if e.Reason == string(finding.ServedElsewhere) && strings.Contains(e.Note, "c3") {
				return nil
			}
		}
		return fmt.Errorf("none of %d", len(events.Items))
	})
}
