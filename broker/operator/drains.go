package operator

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/services"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxBy bounds the stored name of who requested a drain, in bytes.
const maxBy = 256

// Drain implements semaphorev1.ControlServiceServer. It fails with InvalidArgument for a request that makes no sense,
// and Unavailable if the drain cannot be stored.
func (c *Server) Drain(ctx context.Context, req *semaphorev1.DrainRequest) (*semaphorev1.DrainResponse, error) {
	w, target, err := c.drainer(req.GetTarget())
	if err != nil {
		return nil, err
	}
	if lasts := req.GetLasts(); lasts != nil && lasts.AsDuration() < time.Second {
		return nil, status.Errorf(codes.InvalidArgument, "lasts: %s; use a second or more", lasts.AsDuration())
	}
	if len(req.GetBy()) > maxBy {
		return nil, status.Errorf(codes.InvalidArgument, "by: %d bytes; use %d or less", len(req.GetBy()), maxBy)
	}
	out := &semaphorev1.DrainResponse{}
	is := choice.Drain{Target: target, By: req.GetBy(), Since: time.Now().UTC().Truncate(time.Second)}
	if lasts := req.GetLasts(); lasts != nil {
		// Times are stored in whole seconds, and rounded up.
		is.Until = is.Since.Add(lasts.AsDuration() + time.Second - 1).Truncate(time.Second)
	}
	if is.Prefixes, err = w.prefixes(target, req.GetPrefixes()); err != nil {
		return nil, err
	}
	if err := is.Validate(); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	out.Drain = drainStatus(is)
	affected := w.Services.Affected(is)
	for _, a := range affected {
		if a.Used > 0 {
			out.Drain.Endpoints += uint64(a.Used)
			out.Drain.Services++
		}
	}
	out.Warnings = warnings(is, affected)
	if req.GetDryRun() {
		return out, nil
	}
	if err := w.Drains.Add(ctx, is); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	c.log.Info("an operator ordered a drain", "target", target.String(), "until", is.Until, "by", is.By, "endpoints",
		out.Drain.Endpoints)
	return out, nil
}

// Undrain implements semaphorev1.ControlServiceServer. It fails with NotFound if the target is not drained, and
// Unavailable if the ConfigMap cannot be written.
func (c *Server) Undrain(ctx context.Context, req *semaphorev1.UndrainRequest) (*semaphorev1.UndrainResponse, error) {
	w, target, err := c.drainer(req.GetTarget())
	if err != nil {
		return nil, err
	}
	removed, err := w.Drains.Remove(ctx, target)
	switch {
	case err != nil:
		return nil, status.Error(codes.Unavailable, err.Error())
	case len(removed) == 0:
		return nil, status.Errorf(codes.NotFound, "%s is not drained", target)
	}
	out := &semaphorev1.UndrainResponse{}
	for _, is := range removed {
		out.Drains = append(out.Drains, drainStatus(is))
	}
	c.log.Info("an operator ended a drain", "target", target.String())
	return out, nil
}

// drainer returns the current broker, and the target of a request, if it can be drained.
func (c *Server) drainer(t *semaphorev1.DrainTarget) (*Broker, choice.Target, error) {
	w := c.leading.Load()
	target := choice.Target{Cluster: t.GetCluster(), Namespace: t.GetNamespace(), Service: t.GetService(),
		Node: t.GetNode()}
	switch {
	case w == nil:
		return nil, target, status.Error(codes.FailedPrecondition,
			"this broker is a standby and writes nothing: ask the leader")
	case w.Drains == nil:
		return nil, target, status.Error(codes.FailedPrecondition,
			"this broker has no endpoints to drain: features lacks services")
	}
	if err := target.Validate(); err != nil {
		return nil, target, status.Error(codes.InvalidArgument, err.Error())
	}
	return w, target, nil
}

// prefixes returns the subnets of a node's pods: those given, or those that are known.
func (w *Broker) prefixes(target choice.Target, given []string) ([]netip.Prefix, error) {
	cfg := w.Config()
	if _, ok := cfg.Remote(target.Cluster); !ok && target.Cluster != "" && target.Cluster != cfg.Cluster {
		return nil, status.Errorf(codes.NotFound, "%q is neither this cluster nor a configured remote", target.Cluster)
	}
	if target.Node != "" && len(given) == 0 {
		if target.Cluster == cfg.Cluster && w.Networks != nil {
			given = w.Networks.Network(target.Node).GetPodPrefixes()
		} else if target.Cluster != cfg.Cluster {
			given = w.Services.PodCIDRs(target.Cluster, target.Node)
		}
		if len(given) == 0 {
			return nil, status.Errorf(codes.FailedPrecondition,
				"the subnets of the pods of node %s/%s are not known here: give them (--prefix)", target.Cluster, target.Node)
		}
	}
	var out []netip.Prefix
	for i, text := range given {
		prefix, err := choice.ParsePrefix(text)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "prefixes[%d]: %v", i, err)
		}
		out = append(out, prefix)
	}
	return out, nil
}

func drainStatus(d choice.Drain) *semaphorev1.DrainStatus {
	out := &semaphorev1.DrainStatus{
		Target: &semaphorev1.DrainTarget{Cluster: d.Cluster, Namespace: d.Namespace, Service: d.Service,
			Node: d.Node}, By: d.By,
	}
	for _, p := range d.Prefixes {
		out.Prefixes = append(out.Prefixes, p.String())
	}
	out.Since = semaphorev1.Time(d.Since)
	out.Until = semaphorev1.Time(d.Until)
	return out
}

const maxNamed = 5

func warnings(d choice.Drain, affected []services.Affected) []string {
	if len(affected) == 0 {
		return []string{fmt.Sprintf("no service here has endpoints of %s", d)}
	}
	var empty []string
	for _, a := range affected {
		if a.Used > 0 && a.Left == 0 {
			empty = append(empty, a.Service)
		}
	}
	switch n := len(empty); {
	case n == 0:
		return nil
	case n > maxNamed:
		empty = append(empty[:maxNamed], fmt.Sprintf("%d more", n-maxNamed))
	}
	return []string{"no ready endpoint is left to: " + strings.Join(empty, ", ")}
}

func (w *Broker) DrainsStatus() []*semaphorev1.DrainStatus {
	if w.Drains == nil {
		return nil
	}
	held := w.Drains.Held().All()
	if len(held) == 0 {
		return nil
	}
	counts := w.Services.Drained()
	var out []*semaphorev1.DrainStatus
	for _, d := range held {
		s := drainStatus(d)
		s.Endpoints, s.Services = uint64(counts[d.Target].Endpoints), uint64(counts[d.Target].Services)
		out = append(out, s)
	}
	return out
}
