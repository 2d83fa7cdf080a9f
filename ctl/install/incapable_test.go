package install

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestLacksWireGuard: of all that an agent reports, only what a component fixes ends the wait for it, and the command
// fixes it.
func TestLacksWireGuard(t *testing.T) {
	of := func(codes ...finding.Code) *semaphorev1.GetStatusResponse {
		s := &semaphorev1.GetStatusResponse{}
		for _, c := range codes {
			s.Findings = append(s.Findings, &semaphorev1.Finding{Code: string(c), First: []string{"why " + string(c)}})
		}
		return s
	}
	for _, test := range []struct {
		name   string
		status *semaphorev1.GetStatusResponse
		want   []show.Finding
	}{
		{name: "no answer"},
		{name: "not attached yet", status: of(finding.NotReady)},
		{name: "another failure", status: of(finding.NotReady, finding.DeviceFailed, finding.Unguarded)},
		{name: "no WireGuard", status: of(finding.NoWireGuard, finding.NotReady), want: []show.Finding{{
			Code: finding.NoWireGuard, Level: finding.Error, Side: "c1", Subject: "c1: node n1", Evidence: "why NoWireGuard",
			Fix: "semaphorectl install --context c1 --components userspace-wireguard"}}},
	} {
		if d := cmp.Diff(test.want, lacksWireGuard(&fleet.Cluster{Context: "c1"}, "n1", test.status)); d != "" {
			t.Errorf("%s: %s", test.name, d)
		}
	}
}
