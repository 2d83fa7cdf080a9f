package explain

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// This file follows a Service of the source's own cluster whose own name leads to other clusters, too.

// isOwnDomain reports whether a name is that of a Service of the source's own cluster.
func (g *pathGatherer) isOwnDomain(host string) bool {
	return strings.HasSuffix(host, ".svc."+g.domain)
}

// findOwn continues with the Service of the source's cluster that an end may mean, if its own name leads, or may lead,
// to other clusters; else it leaves facts.Name as it is.
func (g *pathGatherer) findOwn(ctx context.Context, e end) error {
	if e.cluster != "" && e.cluster != g.source.name && !g.isOwnDomain(e.host) {
		return nil
	}
	service, err := fleet.Get[corev1.Service](ctx, g.source.objects, fleet.ServicesGVR, e.namespace, e.name)
	if err == nil && service != nil {
		err = g.readOwn(ctx, service)
	}
	if err != nil {
		return fmt.Errorf("TO %w", err)
	}
	if g.facts.Name != nil {
		g.byOwn(ctx)
	}
	return nil
}

// readOwn reads the slices of a Service, and sets facts.Name if its own name leads, or may lead, to other clusters.
func (g *pathGatherer) readOwn(ctx context.Context, service *corev1.Service) error {
	all, err := g.source.slicesOf(ctx, service.Namespace, service.Name)
	if err != nil {
		return err
	}
	use, asks := service.Annotations[naming.AnnotationOwnName]
	lent := slices.ContainsFunc(all, func(s fleet.EndpointSlice) bool {
		return s.Metadata.Labels[naming.LabelOwnName] != ""
	})
	if !asks && !lent {
		return nil
	}
	g.mirror, g.slices = service, all
	g.facts.Name = &policy.Name{Text: service.Name + "." + service.Namespace + ".svc." + g.domain, Remote: g.source.name,
		Namespace: service.Namespace, Service: service.Name, Known: true, Own: &policy.Own{Use: use}}
	return nil
}

// byOwn collects the facts between the own name of a Service and an endpoint: one of another cluster if there is one,
// as semaphore is between them.
func (g *pathGatherer) byOwn(ctx context.Context) {
	s, own := g.mirror, g.facts.Name.Own
	g.facts.Mirror = g.mirrorOf(s)
	all, ready := g.count()
	out := &policy.Slices{NoTunnel: g.noTunnel("")}
	own.Total, own.Ready = all[g.source.name], len(ready[g.source.name])
	chosen := g.source.name
	for _, cluster := range slices.Sorted(maps.Keys(all)) {
		n := len(ready[cluster])
		out.Total, out.Ready = out.Total+all[cluster], out.Ready+n
		if cluster != g.source.name && n > 0 {
			own.Others = append(own.Others, fmt.Sprintf("%d of %s", n, cluster))
			if chosen == g.source.name {
				chosen = cluster
			}
		}
	}
	out.Drains = g.drains(s.Namespace, s.Name, func(string) bool { return true })
	for _, o := range g.source.broker.GetOwnNames() {
		if o.GetNamespace() == s.Namespace && o.GetService() == s.Name {
			own.Says = fmt.Sprintf("%s is in use: %d of %d ready here, and enough is %s", strings.Join(o.GetClusters(), ", "),
				o.GetReady(), o.GetAll(), o.GetEnough())
		}
	}
	g.facts.Slices = out
	g.facts.Target.Cluster, g.target = chosen, g.side(chosen)
	g.slices = slices.DeleteFunc(g.slices, func(s fleet.EndpointSlice) bool {
		return clusterOf(s, g.source.name) != chosen
	})
	g.targetPort() // pods of two clusters may have a named port in different places
	if err := g.choose(ctx, ready[chosen]); err != nil {
		g.notRead(finding.PathSlices, "%v", err)
	}
}

// clusterOf returns the cluster whose endpoints a slice of a Service has: own, unless the broker wrote the slice.
func clusterOf(s fleet.EndpointSlice, own string) string {
	if s.Metadata.Labels[naming.LabelOwnName] == "" {
		return own
	}
	return s.Metadata.Labels[naming.LabelSourceCluster]
}

// count returns how many addresses of the source's family each cluster has in the slices, and those that are ready.
func (g *pathGatherer) count() (all map[string]int, ready map[string][]netip.Addr) {
	all, ready = map[string]int{}, map[string][]netip.Addr{}
	for _, slice := range g.slices {
		of := clusterOf(slice, g.source.name)
		for _, e := range slice.Endpoints {
			for _, text := range e.Addresses {
				a, err := netip.ParseAddr(text)
				if err != nil || g.facts.Source.IP.IsValid() && a.Is4() != g.facts.Source.IP.Is4() {
					continue
				}
				if all[of]++; e.Ready() {
					ready[of] = append(ready[of], a)
				}
			}
		}
	}
	return all, ready
}

// noTunnel returns the findings of the broker about endpoints of a remote, or of any, to which no tunnel leads.
func (g *pathGatherer) noTunnel(remote string) (out []string) {
	for _, f := range g.source.broker.GetFindings() {
		if f.GetCode() == string(finding.NoTunnel) && (remote == "" || f.GetCluster() == remote) {
			out = append(out, f.GetFirst()...)
		}
	}
	return out
}
