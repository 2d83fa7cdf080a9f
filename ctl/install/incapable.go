package install

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxAsked are the agents that are asked at the same time why they are not ready, each askEvery.
const maxAsked, askEvery = 4, 3 * time.Second

// ready waits until the agents are ready. It ends at once when one reports that its node cannot have devices, which
// only another installation fixes.
func (i *installation) ready(ctx context.Context, w io.Writer, ref apply.Ref) error {
	var asked time.Time
	return i.ReadyUnless(ctx, ref, func() error {
		if time.Since(asked) < askEvery {
			return nil
		}
		asked = time.Now()
		found := i.incapable(ctx)
		if len(found) == 0 {
			return nil
		}
		return show.Report(w, found, "table")
	})
}

// incapable asks agents that run and are not ready. One that cannot be asked is none of its findings: the pods' status
// names its fault.
func (i *installation) incapable(ctx context.Context) []show.Finding {
	pods, err := i.Cluster.Pods(ctx, fleet.Agent, "")
	if err != nil {
		return nil
	}
	pods = slices.DeleteFunc(pods, func(p *fleet.Pod) bool { return p.Ready })
	answers, _ := fleet.All(pods[:min(len(pods), maxAsked)], func(p *fleet.Pod) (*semaphorev1.GetStatusResponse, error) {
		return i.Cluster.Status(ctx, fleet.Agent, p.Node, askEvery)
	})
	var out []show.Finding
	for n, s := range answers {
		out = append(out, lacksWireGuard(i.Cluster, pods[n].Node, s)...)
	}
	return out
}

// lacksWireGuard returns the findings of an agent that a component fixes.
func lacksWireGuard(c *fleet.Cluster, node string, s *semaphorev1.GetStatusResponse) (out []show.Finding) {
	for _, f := range s.GetFindings() {
		if f.GetCode() == string(finding.NoWireGuard) {
			out = append(out, show.Blocker(c.Context, finding.NoWireGuard, "node "+node,
				fleet.CommandFor(c, "install")+" --components userspace-wireguard", "%s", strings.Join(f.GetFirst(), "; ")))
		}
	}
	return out
}
