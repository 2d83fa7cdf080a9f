package mirror

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Service returns the desired Service of a name. It takes from its source the ports, the headless flag,
// publishNotReadyAddresses, session affinity, traffic distribution and the allowed labels, and nothing else by which
// a remote could reach further (R15). While the authoritative cluster is not complete, s is what exists, with today's
// gone clusters and use of its own name, or nil if nothing of it is to change.
func (p *Plan) Service(name string) (s *corev1.Service, wanted bool) {
	t := p.targets[name]
	if t == nil || t.of.name == "" {
		return nil, false
	}
	source := t.authoritative()
	if source == nil {
		return t.noteKnown(), true
	}
	out := &corev1.Service{ObjectMeta: p.meta(t, t.owner(), t.of), Spec: choice.Spec(source)}
	p.copyLabels(source, &out.ObjectMeta)
	if t.shared() {
		p.describe(t, out)
	}
	return out, true
}

// copyLabels copies the allowed labels of the source. An annotation records them, so that they are removed when the
// source drops them.
func (p *Plan) copyLabels(source *semaphorev1.Service, out *metav1.ObjectMeta) {
	var copied []string
	for _, l := range source.GetLabels() {
		if p.labels.Takes(l.GetKey()) {
			out.Labels[l.GetKey()] = l.GetValue()
			copied = append(copied, l.GetKey())
		}
	}
	if len(copied) > 0 {
		out.Annotations[naming.AnnotationCopiedLabels] = strings.Join(copied, ",")
	}
}

// describe annotates a global Service with its clusters and settings, for people and for a broker that starts while a
// cluster cannot be reached.
func (p *Plan) describe(t *target, out *corev1.Service) {
	clusters := t.offeringClusters()
	if t.derived() {
		clusters = t.merged.Order
	}
	out.Annotations[t.clustersAnnotation()] = strings.Join(clusters, ",")
	t.Settings().Annotate(out.Annotations)
	out.Annotations[naming.AnnotationGoneClusters] = strings.Join(t.goneClusters(), ",")
	if t.ownUse != "" {
		out.Annotations[naming.AnnotationOwnName] = t.ownUse // for a broker that starts while its own exporter is silent
	}
	if t.shape.hints {
		out.Annotations[corev1.AnnotationTopologyMode] = topologyAuto // kube-proxy before Kubernetes 1.33 needs it
	}
}

// Retained is noteKnown of a global Service that no cluster exports, and that is not deleted yet; nil for any other.
func (p *Plan) Retained(name string) *corev1.Service {
	if t := p.targets[name]; t != nil && t.of.name == "" {
		return t.noteKnown()
	}
	return nil
}

// noteKnown returns the existing Service with the facts for the next broker that do not depend on the deciding cluster:
// which clusters are gone (until they are here, as they may have no exports yet), and where the own name leads; or nil.
func (t *target) noteKnown() *corev1.Service {
	s := t.existing()
	if s == nil {
		return nil
	}
	offering := t.goneClusters()
	gone := slices.DeleteFunc(slices.Clone(t.plan.clusters), func(cluster string) bool {
		known := t.wasGone(cluster) || slices.Contains(t.clustersBefore(), cluster)
		return !slices.Contains(offering, cluster) && !(known && t.isGone(cluster))
	})
	was, noted := s.Annotations[naming.AnnotationGoneClusters]
	now := strings.Join(gone, ",")
	use, _ := t.ownName()
	if !noted || was == now && s.Annotations[naming.AnnotationOwnName] == use {
		return nil
	}
	out := s.DeepCopy()
	out.Annotations[naming.AnnotationGoneClusters] = now
	if delete(out.Annotations, naming.AnnotationOwnName); use != "" {
		out.Annotations[naming.AnnotationOwnName] = use
	}
	return out
}

// Slice returns the desired EndpointSlice of a name. It names no node, pod or zone of the source, which would be
// mistaken for local ones (R16).
func (p *Plan) Slice(name string) (out *discoveryv1.EndpointSlice, wanted bool) {
	s := p.slices[name]
	if s == nil {
		return nil, false
	}
	h, t := s.owner, s.owner.target
	out = p.emptySlice(s, h.of, t.name)
	hints := p.hinted(h)
	var unused []string
	for i := range s.members {
		m := &s.members[i]
		e := m.endpoint(t.shape.headless)
		e.Hints = hints
		if !h.inUse(m) {
			e.Conditions = choice.NotInUse(e.Conditions)
			if m.ready() {
				unused = append(unused, m.address)
			}
		}
		out.Endpoints = append(out.Endpoints, e)
	}
	if len(unused) > 0 {
		out.Annotations[naming.AnnotationUnusedEndpoints] = strings.Join(unused, ",")
	}
	return out, true
}

// emptySlice returns a slice of a Service without the endpoints, which are those of a service of their cluster.
func (p *Plan) emptySlice(s *slice, of ref, service string) *discoveryv1.EndpointSlice {
	t := s.owner.target
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  p.meta(t, s.owner.cluster, of),
		AddressType: s.Family(),
		Ports:       s.EndpointPorts(),
		Endpoints:   make([]discoveryv1.Endpoint, 0, len(s.members)),
	}
	out.Name = s.name
	out.Labels[discoveryv1.LabelServiceName] = service
	out.Labels[discoveryv1.LabelManagedBy] = naming.ManagedByBroker
	if t.shape.headless {
		out.Labels[corev1.IsHeadlessService] = ""
	}
	return out
}

// hinted returns the topology hints of all endpoints of a cluster in a target; nil for none.
func (p *Plan) hinted(h *clusterEndpoints) *discoveryv1.EndpointHints {
	if !h.target.shape.hints {
		return nil
	}
	zones := []string{remoteZone}
	if h.cluster == p.own {
		zones = p.global.LocalZones
	}
	out := &discoveryv1.EndpointHints{}
	for _, zone := range zones {
		out.ForZones = append(out.ForZones, discoveryv1.ForZone{Name: zone})
	}
	return out
}

// endpoint returns the endpoint as if it were in use.
func (m *member) endpoint(headless bool) discoveryv1.Endpoint {
	out := discoveryv1.Endpoint{Addresses: m.exported.GetAddresses(), Conditions: choice.ExportedConditions(m.exported)}
	if headless || m.unconfirmed { // what exists stays as it is
		out.Hostname = choice.Optional(m.exported.GetHostname()) // the DNS names of a StatefulSet's pods
	}
	return out
}

// owner is the cluster that a Service belongs to; empty for one of several clusters.
func (t *target) owner() string {
	if t.shared() {
		return ""
	}
	return t.of.cluster
}

// meta returns the metadata of an object of semaphore. A global Service belongs to no single cluster.
func (p *Plan) meta(t *target, cluster string, of ref) metav1.ObjectMeta {
	out := metav1.ObjectMeta{
		Name:      t.name,
		Namespace: p.namespace,
		Labels: map[string]string{
			naming.LabelManagedBy:     naming.ManagedByBroker,
			naming.LabelSourceCluster: cluster,
		},
		Annotations: map[string]string{
			naming.AnnotationSourceNamespace: of.namespace,
			naming.AnnotationSourceName:      of.name,
		},
	}
	switch {
	case t.derived():
		out.Labels[naming.LabelImported] = "true"
	case t.shared():
		out.Labels[naming.LabelGlobal] = "true"
	default:
		out.Labels[naming.LabelMirrored] = "true"
		out.Labels[naming.LabelMirrorPrefixSync] = p.prefixes[cluster]
	}
	return out
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
