package status

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestVerbDrains: the output for what is drained, also in a status, and where nothing is. A broker that has not read
// the drains yet, or cannot read one, does not say that nothing is drained.
func TestVerbDrains(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	drains := []*semaphorev1.DrainStatus{
		{Target: &semaphorev1.DrainTarget{Cluster: "c2"}, Since: timestamppb.New(now.Add(-time.Hour)),
			By: "ops\nis moving", Endpoints: 12, Services: 3},
		{Target: &semaphorev1.DrainTarget{Cluster: "c3", Node: "n1"}, Since: timestamppb.New(now.Add(-2 * time.Hour)),
			Until: timestamppb.New(now.Add(90*time.Minute + 30*time.Second)), Prefixes: []string{"10.3.1.0/24"}},
	}
	standby, ready := false, true
	var wrong []finding.Finding
	broker := ctltest.Serve(t, debug.NewRecorder("broker", "c1", ""), func() *semaphorev1.GetStatusResponse {
		s := &semaphorev1.GetStatusResponse{Now: timestamppb.New(now), Ready: ready, Standby: standby, Drains: drains}
		finding.Judge(s, wrong...)
		return s
	})
	agent := ctltest.Serve(t, debug.NewRecorder("agent", "c1", "n1"), ctltest.Well)
	s := ctltest.NewSession(t)
	s.Call("get drains", "--socket", agent, "--socket", broker)
	s.Call("get drains -o yaml", "--socket", broker)
	for _, args := range [][]string{{"status"}, {"get", "drains", "-o", "json"}} {
		if out, code, err := ctltest.Run(t, append(args, "--socket", broker)...); code != 0 ||
			!strings.Contains(strings.ToLower(out), "drain") || !strings.Contains(out, "c3") {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
	drains = nil
	s.Call("get drains", "--socket", broker)
	wrong = finding.Line(finding.DrainsFailed, "", "drain k of ConfigMap semaphore/drains is not active: no JSON")
	s.Call("get drains", "--socket", broker)
	s.Call("get drains -o json", "--socket", broker)
	ready, wrong = false, append(finding.Line(finding.NotReady, "", "not ready: the engines do not work yet"),
		finding.Line(finding.DrainsFailed, "", "drains are not known: ConfigMap semaphore/drains: forbidden")...)
	s.Call("get drains", "--socket", broker)
	standby = true
	s.Call("get drains", "--socket", broker)
	s.Call("get drains", "--socket", agent)
	s.Golden("drains", nil)
}
