package broker

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// TestTraceSaysWhy checks that one line of a trace says what delays a Service, since when and until when: others have
// the names of a slice and of a Service, and nobody may delete another Service and a slice.
func TestTraceSaysWhy(t *testing.T) {
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	services, ofSlices := w.admin.CoreV1().Services("semaphore"), w.admin.DiscoveryV1().EndpointSlices("semaphore")
	kubetest.Create(t, ofSlices, &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		ObjectMeta: metav1.ObjectMeta{Name: mirrorOf("s0") + "-c2-1"},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.1.1.1"}}}})
	kubetest.Create(t, services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: mirrorOf("s1")},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}})
	defer w.start(w.cfg)()
	e, all := w.exporter("c2"), shopOf(4)
	e.SendAll("c2", "e1", all...)
	w.has("what can be written", "c2-shop-73736d-s2 c2 10.2.1.3+\nc2-shop-73736d-s3 c2 10.2.1.4+")
	w.made(t, mirrorOf("s0"))
	w.mayNotDelete(t, mirrorOf("s2"), mirrorOf("s3")+"-c2-1")
	for i, o := range all[4:] {
		e.Send(players.Deletion(uint64(101+i), o))
	}

	asked := w.debugger(t)
	const gone = `; no cluster is known to offer it, and it is not deleted yet; `
	const failed = `its write is delayed \(failed\) since \d\d:\d\d:\d\dZ, until \d\d:\d\d:\d\dZ: `
	for name, want := range map[string]string{
		"s0": `waiting IP \S+; slices: 0, endpoints: 0; endpointslice c2-shop-73736d-s0-c2-1: ` + failed +
			`there is a endpointslice c2-shop-73736d-s0-c2-1 that semaphore did not create: .*`,
		"s1": `failed there is a service with its name that semaphore did not create; service c2-shop-73736d-s1: ` + failed +
			`there is a service c2-shop-73736d-s1 that semaphore did not create: .*`,
		"s2": `failed the apiserver refuses its service \(Invalid\).*` + gone +
			`service c2-shop-73736d-s2: ` + failed + `.* it stays.*`,
		"s3": `waiting the Service is gone; slices: 1, endpoints: 1` + gone +
			`endpointslice c2-shop-73736d-s3-c2-1: ` + failed + `.* it stays.*`,
	} {
		t.Run(name, func(t *testing.T) {
			pattern := regexp.MustCompile("^" + want + "$")
			eventually(t, "the trace", func() (bool, string) {
				answer, err := asked.Locate(t.Context(), &semaphorev1.LocateRequest{
					Object: players.Service("shop", name).GetKey()})
				var lines []string
				for _, p := range answer.GetPlaces() {
					if p.GetHop() == debug.HopWrite {
						lines = append(lines, semaphorev1.PlaceStateName(p.GetState())+" "+p.GetDetail())
					}
				}
				return len(lines) == 1 && pattern.MatchString(lines[0]), fmt.Sprint(strings.Join(lines, "\n"), err)
			})
		})
	}
}

// mayNotDelete has the apiserver refuse the deletion of some Services and slices.
func (w *world) mayNotDelete(t *testing.T, names ...string) {
	t.Helper()
	kubetest.Refuse(t, w.admin, onMirrors(admissionv1.Delete),
		"!(oldObject.metadata.name in ['"+strings.Join(names, "', '")+"'])", "it stays")
	eventually(t, "the policy holds", func() (bool, string) {
		err := w.admin.CoreV1().Services("semaphore").Delete(t.Context(), names[0],
			metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "it stays"), fmt.Sprint(err)
	})
}
