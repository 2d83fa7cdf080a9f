package exporter

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// One of two exporters publishes. When it stops, the other one continues, and the broker always has every object.
func TestTwoExporters(t *testing.T) {
	api := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(api)
	trust := trust.New(t, "c1", "c2")
	c2 := newBroker(t, trust, "c2")
	populate(t, admin)
	host, err := os.Hostname()
	must(t, err)
	// The Lease is long enough for a busy machine. The first exporter releases it.
	const election, want = "leaderElection: {namespace: default, duration: 45s}",
		"endpointslice shop/echo-1, node n1, service shop/echo, setmember shop/web"

	first := startAs(t, api, trust, c2.address, election)
	within(t, "c2 holds what is exported", func() bool { return c2.holds() == want })
	second := startAs(t, api, trust, c2.address, election)
	within(t, "the second can take over", func() bool {
		code, text := second.get("/readyz")
		return code == http.StatusOK && strings.TrimSpace(text) == "ok: standby: "+host+" leads"
	})
	if s := second.status(); !s.GetStandby() || s.GetReady() || s.GetLeader() != host ||
		len(s.GetLinks())+len(s.GetProblems()) > 0 {
		t.Errorf("status of the standby: %v", s)
	}
	if s := first.status(); s.GetStandby() || !s.GetReady() || s.GetLeader() != host || len(s.GetLinks()) != 1 {
		t.Errorf("status of the leader: %v", s)
	}
	for e, want := range map[*running]string{first: "\nsemaphore_leader_term 1\n", second: "\nsemaphore_leader_term 0\n"} {
		if _, text := e.get("/metrics"); !strings.Contains(text, want) {
			t.Errorf("no metric %q", want)
		}
	}

	began := time.Now()
	first.stop()
	within(t, "the second leads and is connected", func() bool {
		if got := c2.holds(); got != want {
			t.Errorf("the broker holds %s", got)
		}
		s := second.status()
		return s.GetReady() && len(s.GetLinks()) == 1 && s.GetLinks()[0].GetConnected() && s.GetLinks()[0].GetBehind() == 0
	})
	t.Logf("the second was connected %s after the first was asked to stop", time.Since(began))
	if _, text := second.get("/metrics"); !strings.Contains(text, "\nsemaphore_leader_term 2\n") {
		t.Error("the second leader's term is not 2")
	}
	if got := c2.holds(); got != want {
		t.Errorf("the broker holds %s", got)
	}
}
