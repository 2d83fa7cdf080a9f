package exporter

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// TestOneKindThatCannotBeRead checks that a kind that cannot be read delays no other, and follows when it can be.
func TestOneKindThatCannotBeRead(t *testing.T) {
	api := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(api)
	trust := trust.New(t, "c1", "c2")
	c2 := newBroker(t, trust, "c2")
	populate(t, admin)
	grant := func(group string, resources ...string) {
		t.Helper()
		kubetest.AllowReading(t, admin, "exporter", group, resources...)
	}
	grant("", "namespaces", "nodes", "services")
	limited := rest.CopyConfig(api)
	limited.Impersonate.UserName = "exporter"
	e := start(t, limited, trust, c2.address)
	within(t, "what can be read is sent", func() bool { return c2.holds() == "node n1, service shop/echo" })
	if code, text := e.get("/readyz"); code != http.StatusServiceUnavailable ||
		!strings.Contains(text, "pods is forbidden") {
		t.Errorf("/readyz: %d %s", code, text)
	}
	within(t, "/readyz, metrics and status have the same codes", func() bool {
		code, page := e.get("/readyz?verbose")
		_, metrics := e.get("/metrics")
		if err := testkit.SameCodes(page, metrics, e.status().GetFindings()); err != nil {
			t.Log(err)
			return false
		}
		return code == http.StatusServiceUnavailable && strings.HasPrefix(page, "NotReady, WatchFailed: ")
	})
	for _, k := range e.status().GetLinks()[0].GetKinds() {
		if want := k.GetKind() == semaphorev1.Kind_KIND_NODE ||
			k.GetKind() == semaphorev1.Kind_KIND_SERVICE; k.GetComplete() != want {
			t.Errorf("status has %v", k)
		}
	}
	grant("discovery.k8s.io", "endpointslices")
	within(t, "slices are sent when they can be read", func() bool {
		return c2.holds() == "endpointslice shop/echo-1, node n1, service shop/echo"
	})
	grant("", "pods")
	within(t, "and pods", func() bool {
		return c2.holds() == "endpointslice shop/echo-1, node n1, service shop/echo, setmember shop/web"
	})
	within(t, "all is well", func() bool { return e.status().GetReady() && len(e.status().GetProblems()) == 0 })
	if code, page := e.get("/readyz?verbose"); code != http.StatusOK || page != "ok\n" {
		t.Errorf("/readyz: %d %s", code, page)
	}
	c2.mu.Lock()
	defer c2.mu.Unlock()
	if len(c2.unexported) > 0 {
		t.Errorf("the broker takes for no longer exported: %v", c2.unexported)
	}
}
