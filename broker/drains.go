package broker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/broker/drain"
	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxBy is how much of who asked for a drain is kept.
const maxBy = 256

// Drain implements semaphorev1.ControlServiceServer.
func (c *control) Drain(ctx context.Context, req *semaphorev1.DrainRequest) (*semaphorev1.DrainResponse, error) {
	w, target, err := c.drainer(req.GetTarget())
	if err != nil {
		return nil, err
	}
	if lasts := req.GetLasts(); lasts != nil && lasts.AsDuration() < time.Second {
		return nil, status.Errorf(codes.InvalidArgument, "lasts: %s; use a second or more", lasts.AsDuration())
	}
	if len(req.GetBy()) > maxBy {
		return nil, status.Errorf(codes.InvalidArgument, "by: %d bytes, and %d is the most", len(req.GetBy()), maxBy)
	}
	out := &semaphorev1.DrainResponse{}
	is := drain.Drain{Target: target, By: req.GetBy(), Since: time.Now().UTC().Truncate(time.Second)}
	if lasts := req.GetLasts(); lasts != nil {
		// It is kept in whole seconds, and lasts no shorter than was asked.
		is.Until = is.Since.Add(lasts.AsDuration() + time.Second - 1).Truncate(time.Second)
	}
	if is.Prefixes, err = w.prefixes(target, req.GetPrefixes()); err != nil {
		return nil, err
	}
	if err := is.Validate(); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	out.Drain = drainStatus(is)
	affected := w.engines.services.Affected(is)
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
	if err := w.drains.Add(ctx, is); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	c.log.Warn("an operator drains", "what", target.String(), "until", is.Until, "by", is.By, "endpoints", out.Drain.Endpoints)
	return out, nil
}

// Undrain implements semaphorev1.ControlServiceServer.
func (c *control) Undrain(ctx context.Context, req *semaphorev1.UndrainRequest) (*semaphorev1.UndrainResponse, error) {
	w, target, err := c.drainer(req.GetTarget())
	if err != nil {
		return nil, err
	}
	removed, err := w.drains.Remove(ctx, target)
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
	c.log.Warn("an operator undrains", "what", target.String())
	return out, nil
}

// drainer is the broker at work, and the target of a request, if there can be a drain of it.
func (c *control) drainer(t *semaphorev1.DrainTarget) (*working, drain.Target, error) {
	w := c.working.Load()
	target := drain.Target{Cluster: t.GetCluster(), Namespace: t.GetNamespace(), Service: t.GetService(), Node: t.GetNode()}
	switch {
	case w == nil:
		return nil, target, status.Error(codes.FailedPrecondition, "this broker is a standby and writes nothing: ask the one that leads")
	case w.drains == nil:
		return nil, target, status.Error(codes.FailedPrecondition, "this broker has no endpoints to drain: features lacks services")
	}
	if err := target.Validate(); err != nil {
		return nil, target, status.Error(codes.InvalidArgument, err.Error())
	}
	return w, target, nil
}

// prefixes are the subnets of a node's pods: those given, or those that are known.
func (w *working) prefixes(target drain.Target, given []string) ([]netip.Prefix, error) {
	cluster := func(r config.Remote) bool { return r.Name == target.Cluster }
	if target.Cluster != "" && target.Cluster != w.cluster && !slices.ContainsFunc(w.remotes, cluster) {
		return nil, status.Errorf(codes.NotFound, "%q is neither this cluster nor a configured remote", target.Cluster)
	}
	if target.Node != "" && len(given) == 0 {
		if target.Cluster == w.cluster && w.networks != nil {
			given = w.networks.Network(target.Node).GetPodPrefixes()
		} else if target.Cluster != w.cluster {
			given = w.engines.services.PodCIDRs(target.Cluster, target.Node)
		}
		if len(given) == 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "the subnets of the pods of node %s/%s are not known here: give them (--prefix)", target.Cluster, target.Node)
		}
	}
	var out []netip.Prefix
	for i, text := range given {
		prefix, err := drain.ParsePrefix(text)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "prefixes[%d]: %v", i, err)
		}
		out = append(out, prefix)
	}
	return out, nil
}

func drainStatus(d drain.Drain) *semaphorev1.DrainStatus {
	out := &semaphorev1.DrainStatus{
		Target: &semaphorev1.DrainTarget{Cluster: d.Cluster, Namespace: d.Namespace, Service: d.Service, Node: d.Node}, By: d.By,
	}
	for _, p := range d.Prefixes {
		out.Prefixes = append(out.Prefixes, p.String())
	}
	if !d.Since.IsZero() {
		out.Since = timestamppb.New(d.Since)
	}
	if !d.Until.IsZero() {
		out.Until = timestamppb.New(d.Until)
	}
	return out
}

// maxNamed is how many services a warning names.
const maxNamed = 5

// warnings are what whoever drains should know.
func warnings(d drain.Drain, affected []mirror.Affected) []string {
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

// drained are the drains that hold, for semaphorectl.
func (b *broker) drained() []*semaphorev1.DrainStatus {
	if b.drains == nil {
		return nil
	}
	held := b.drains.Held().All()
	if len(held) == 0 {
		return nil
	}
	counts := b.services.Drained()
	var out []*semaphorev1.DrainStatus
	for _, d := range held {
		s := drainStatus(d)
		s.Endpoints, s.Services = uint64(counts[d.Target].Endpoints), uint64(counts[d.Target].Services)
		out = append(out, s)
	}
	return out
}
