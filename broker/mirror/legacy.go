package mirror

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	legacy "github.com/kube-semaphore/semaphore/broker/endpoints"
)

// Endpoints returns the desired Endpoints beside the slices of a Service, of the Service's first family. The result is
// nil while the authoritative cluster is not known or the Service does not exist.
func (p *Plan) Endpoints(service string) (out *legacy.Endpoints, wanted bool) {
	t := p.targets[service]
	switch {
	case t == nil || t.of.name == "":
		return nil, false
	case t.authoritative() == nil || !p.ServiceExists(service):
		return nil, true
	}
	out = &legacy.Endpoints{ObjectMeta: p.meta(t, t.owner(), t.of)}
	out.Labels[legacy.SkipMirror] = "true"
	if t.shape.headless {
		out.Labels[corev1.IsHeadlessService] = ""
	}
	var all []*discoveryv1.EndpointSlice
	for _, cluster := range sorted(t.perCluster) {
		of := t.perCluster[cluster].all()
		slices.SortFunc(of, func(a, b *slice) int { return cmp.Compare(a.name, b.name) })
		for _, s := range of {
			if slice, _, wanted := p.Slice(s.name); wanted {
				all = append(all, slice)
			}
		}
	}
	var truncated bool
	if out.Subsets, truncated = legacy.Of(all, p.family(service)); truncated {
		out.Annotations[legacy.OverCapacity] = legacy.Truncated
	}
	return out, true
}

// family is the first address family of an existing Service.
func (p *Plan) family(service string) discoveryv1.AddressType {
	if s := p.existing[service]; s != nil && len(s.Spec.IPFamilies) > 0 {
		return discoveryv1.AddressType(s.Spec.IPFamilies[0])
	}
	return discoveryv1.AddressTypeIPv4
}
