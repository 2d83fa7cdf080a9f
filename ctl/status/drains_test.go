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

// TestVerbDrains: the output for what is drained.
func TestVerbDrains(t *testing.T) {
	now := time.Now()
	broker := ctltest.Serve(t, debug.NewRecorder("broker", "c1", ""), func() *semaphorev1.GetStatusResponse {
		return &semaphorev1.GetStatusResponse{Now: timestamppb.New(now), Ready: true, Drains: []*semaphorev1.DrainStatus{
			{Target: &semaphorev1.DrainTarget{Cluster: "c2"}, Since: timestamppb.New(now.Add(-time.Hour)),
				By: "ops: new kernels", Endpoints: 12, Services: 3},
			{Target: &semaphorev1.DrainTarget{Cluster: "c3", Node: "n1"}, Since: timestamppb.New(now.Add(-2 * time.Hour)),
				Until: timestamppb.New(now.Add(90*time.Minute + 30*time.Second)), Prefixes: []string{"10.3.1.0/24"}},
		}}
	})
	s := ctltest.NewSession(t)
	s.Call("get drains", "--socket", broker)
	s.Golden("drains", nil)
}

func TestDrains(t *testing.T) {
	now := time.Now()
	drains := []*semaphorev1.DrainStatus{
		{Target: &semaphorev1.DrainTarget{Cluster: "c2"}, Since: timestamppb.New(now.Add(-time.Hour)), By: "ops\nis moving",
			Endpoints: 12, Services: 3},
		{Target: &semaphorev1.DrainTarget{Cluster: "c3", Node: "n1"},
			Until: timestamppb.New(now.Add(90*time.Minute + 30*time.Second)), Prefixes: []string{"10.3.1.0/24"}},
	}
	standby := false
	broker := ctltest.Serve(t, debug.NewRecorder("broker", "c1", ""), func() *semaphorev1.GetStatusResponse {
		return &semaphorev1.GetStatusResponse{Now: timestamppb.New(now), Ready: !standby, Standby: standby, Drains: drains}
	})
	agent := ctltest.Serve(t, debug.NewRecorder("agent", "c1", "n1"), ctltest.Well)
	out, _, err := ctltest.Run(t, "get", "drains", "--socket", agent, "--socket", broker)
	must(t, err)
	for _, want := range []string{"DRAINED     ", "\ncluster c2  ",
		"until undrained  12         3         ops is moving\n", "\nnode c3/n1  ", "  1h30m", "  10.3.1.0/24\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if out, _, err := ctltest.Run(t, "status", "--socket", broker); err != nil || !strings.Contains(out, "DRAINED") ||
		!strings.Contains(out, "node c3/n1") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err := ctltest.Run(t, "get", "drains", "-o", "json", "--socket", broker); err != nil ||
		!strings.Contains(out, `"drains"`) || !strings.Contains(out, `"c3"`) {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err := ctltest.Run(t, "get", "drains", "-o", "yaml", "--socket", broker); err != nil ||
		!strings.HasPrefix(out, "drains:\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, _, err := ctltest.Run(t, "get", "drains", "-o", "xml", "--socket", broker); err == nil {
		t.Error("no error")
	}
	drains = nil
	if out, _, err := ctltest.Run(t, "get", "drains", "--socket", broker); err != nil ||
		!strings.HasPrefix(out, "nothing is drained in c1; ") {
		t.Errorf("%v\n%s", err, out)
	}
	standby = true
	if _, code, err := ctltest.Run(t, "get", "drains", "--socket", broker); code != 1 ||
		!strings.Contains(err.Error(), "this broker is a standby") {
		t.Errorf("%d, %v", code, err)
	}
	if _, code, err := ctltest.Run(t, "get", "drains", "--socket", agent); code != 1 ||
		!strings.Contains(err.Error(), "none of the parts asked is a broker") {
		t.Errorf("%d, %v", code, err)
	}
}
