package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/kerneltest"
)

// TestNoWireGuard: an agent whose node can have no device says so before there is a remote, to the kubelet and to its
// broker, and is ready once the node can.
func TestNoWireGuard(t *testing.T) {
	policy(t, func(t *testing.T, s *scripted) {
		codes := func(all []*semaphorev1.Finding) (out []string) {
			for _, f := range all {
				out = append(out, f.GetCode())
			}
			return out
		}
		ready := func() error { return status.Ready(s.board.Get(), s.session.View(time.Now())) }
		known := func() []string {
			found := s.board.Get().Found(s.session.View(time.Now()))
			return codes(finding.Messages(finding.Merge(found)))
		}
		if err := ready(); err == nil || !strings.Contains(err.Error(), "no WireGuard here") ||
			!slices.Equal(codes(finding.Messages(finding.Blocks(err))), []string{"NoWireGuard", "NotReady"}) {
			t.Errorf("before a broker is attached: %v", err)
		}
		var told []string
		for _, m := range s.Begin() {
			told = append(told, codes(m.GetReport().GetFindings())...)
		}
		if !slices.Equal(told, []string{"NoWireGuard"}) {
			t.Errorf("a broker learns %q when the agent attaches", told)
		}
		s.attach(t)
		synctest.Wait()
		if got := known(); !slices.Equal(got, []string{"NoWireGuard", "NotReady"}) || ready() == nil {
			t.Errorf("without a remote: ready %v, findings %q", ready(), got)
		}
		s.kernel.Fail("LacksWireGuard", nil) // the module was installed
		time.Sleep(plan.FullCheck)
		synctest.Wait()
		if err := ready(); err != nil || len(known()) > 0 || len(s.report.GetFindings()) > 0 {
			t.Errorf("once the kernel has it: %v, findings %q, the broker knows %v", err, known(), s.report)
		}
	}, func(n *kerneltest.Node, _ *config.Agent) { n.Fail("LacksWireGuard", errors.New("no WireGuard here")) })
}
