package status

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestVerbDrains: the output for what is drained, also in a status, and where nothing is.
func TestVerbDrains(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	drains := []*semaphorev1.DrainStatus{
		{Target: &semaphorev1.DrainTarget{Cluster: "c2"}, Since: timestamppb.New(now.Add(-time.Hour)),
			By: "ops\nis moving", Endpoints: 12, Services: 3},
		{Target: &semaphorev1.DrainTarget{Cluster: "c3", Node: "n1"}, Since: timestamppb.New(now.Add(-2 * time.Hour)),
			Until: timestamppb.New(now.Add(90*time.Minute + 30*time.Second)), Prefixes: []string{"10.3.1.0/24"}},
	}
	standby := false
	broker := ctltest.Serve(t, debug.NewRecorder("broker", "c1", ""), func() *semaphorev1.GetStatusResponse {
		return &semaphorev1.GetStatusResponse{Now: timestamppb.New(now), Ready: !standby, Standby: standby, Drains: drains}
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
	standby = true
	s.Call("get drains", "--socket", broker)
	s.Call("get drains", "--socket", agent)
	s.Golden("drains", nil)
}
