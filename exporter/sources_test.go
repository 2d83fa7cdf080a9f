package exporter

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// TestTwoExportersOfOneName: two real exporters with one certificate read two apiservers, as after a backup was
// restored beside the original. The second changes nothing at the broker while it tries, nor after the first has ended,
// and its status says why. The first keeps its stream.
func TestTwoExportersOfOneName(t *testing.T) {
	original, restored := kubetest.Start(t), kubetest.Start(t)
	trust := trust.New(t, "c1", "c2")
	c2 := &counting{broker: broker{objects: map[string]*semaphorev1.Object{}}}
	c2.address = serveSink(t, trust, c2)
	populate(t, kubernetes.NewForConfigOrDie(original))
	admin := kubernetes.NewForConfigOrDie(restored)
	populate(t, admin)
	must(t, admin.CoreV1().Services("shop").Delete(t.Context(), "echo", metav1.DeleteOptions{}))

	first := start(t, original, trust, c2.address)
	const want = "endpointslice shop/echo-1, node n1, service shop/echo, setmember shop/web"
	within(t, "c2 holds what is exported", func() bool { return c2.holds() == want })
	before, since := c2.changes(), first.status().GetLinks()[0].GetSince().AsTime()

	second := start(t, restored, trust, c2.address)
	refused := func(times float64) {
		t.Helper()
		within(t, "the second is refused again and again", func() bool {
			_, page := second.get("/metrics")
			var ended float64
			for line := range strings.Lines(page) {
				if value, ok := strings.CutPrefix(line, `semaphore_exporter_streams_ended_total{cluster="c2"} `); ok {
					fmt.Sscan(value, &ended)
				}
			}
			return ended >= times
		})
		if n := c2.changes() - before; n != 0 || c2.holds() != want {
			t.Errorf("it made %d changes: c2 holds %s", n, c2.holds())
		}
	}
	refused(3)
	if l := first.status().GetLinks()[0]; !l.GetConnected() || !l.GetSince().AsTime().Equal(since) {
		t.Errorf("the first has another stream: %v", l)
	}
	namespace := kubetest.Get(t, admin.CoreV1().Namespaces(), metav1.NamespaceSystem)
	s := second.status()
	if l := s.GetLinks()[0]; l.GetConnected() || l.GetRefusedSourceId() != string(namespace.UID) ||
		!strings.Contains(l.GetLastError(), "patch remotecluster c1 --type merge") {
		t.Errorf("the second has %v", l)
	}
	if !slices.ContainsFunc(s.GetFindings(), func(f *semaphorev1.Finding) bool { return f.GetCode() == "SourceRefused" }) {
		t.Errorf("its status finds %v", s.GetFindings())
	}
	first.stop()
	refused(5)
}
