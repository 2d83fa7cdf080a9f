package mirror

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Service is the Service that is wanted under a name. Of its source it has the ports, the headless flag,
// publishNotReadyAddresses, session affinity, traffic distribution and the labels that the operator's list has, and nothing else that a remote could use to
// reach further (R15). It is nil, though one is wanted, while the cluster that decides what it is has not been heard.
func (p *Plan) Service(name string) (s *corev1.Service, wanted bool) {
	t := p.targets[name]
	if t == nil || t.of.name == "" {
		return nil, false
	}
	source := t.decisive()
	if source == nil {
		return nil, true
	}
	out := &corev1.Service{
		ObjectMeta: p.meta(t, t.of.cluster, t.of),
		Spec: corev1.ServiceSpec{
			Type:                     corev1.ServiceTypeClusterIP,
			PublishNotReadyAddresses: source.GetPublishNotReadyAddresses(),
			// Both families where the cluster has both and nothing else is known of the source.
			IPFamilyPolicy:      ptr.To(corev1.IPFamilyPolicyPreferDualStack),
			SessionAffinity:     corev1.ServiceAffinityNone,
			TrafficDistribution: optional(source.GetTrafficDistribution()),
		},
	}
	p.copyLabels(source, &out.ObjectMeta)
	if families := source.GetIpFamilies(); len(families) == 1 {
		// An address of the other family would lead nowhere.
		out.Spec.IPFamilyPolicy, out.Spec.IPFamilies = ptr.To(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPFamily(families[0])}
	}
	if t.global() {
		p.describe(t, out)
	}
	if source.GetHeadless() {
		out.Spec.ClusterIP = corev1.ClusterIPNone
	}
	if seconds := source.GetClientIpAffinitySeconds(); seconds > 0 {
		out.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		out.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(seconds)}}
	}
	for _, port := range source.GetPorts() {
		out.Spec.Ports = append(out.Spec.Ports, corev1.ServicePort{
			Name:        port.GetName(),
			Protocol:    corev1.Protocol(port.GetProtocol()),
			Port:        port.GetPort(),
			TargetPort:  intstr.FromInt32(port.GetPort()), // without a selector the slices' ports count
			AppProtocol: optional(port.GetAppProtocol()),
		})
	}
	return out, true
}

// copyLabels gives a mirror those labels of its source that may cross, and notes which they are, so that they go again when
// the source has them no more.
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

// describe has a global Service say which clusters it is of, and how they are used; for people, and for a broker
// that is started while a cluster cannot be heard.
func (p *Plan) describe(t *target, out *corev1.Service) {
	s := t.settings()
	out.Annotations[naming.AnnotationGlobalClusters] = strings.Join(t.offering(), ",")
	out.Annotations[naming.AnnotationPreferClusters] = strings.Join(s.Prefer, ",")
	out.Annotations[naming.AnnotationMinReady] = strconv.Itoa(s.MinReady)
	out.Annotations[naming.AnnotationWhenGone] = string(s.WhenGone)
	out.Annotations[naming.AnnotationGoneClusters] = strings.Join(t.gone(), ",")
	if t.shape.hints {
		out.Annotations[corev1.AnnotationTopologyMode] = topologyAuto // kube-proxy before Kubernetes 1.33 asks for it
	}
}

// Slice is the EndpointSlice that is wanted under a name, and when that changes by itself; zero for never. It names no node, pod or zone of the
// source: those would be taken for local ones (R16).
func (p *Plan) Slice(name string) (out *discoveryv1.EndpointSlice, due time.Time, wanted bool) {
	s := p.slices[name]
	if s == nil {
		return nil, time.Time{}, false
	}
	h, t := s.share, s.share.target
	out = &discoveryv1.EndpointSlice{
		ObjectMeta:  p.meta(t, h.cluster, h.of),
		AddressType: s.family(),
		Ports:       s.ports(),
		Endpoints:   make([]discoveryv1.Endpoint, 0, len(s.members)),
	}
	out.Name = name
	out.Labels[discoveryv1.LabelServiceName] = t.name
	out.Labels[discoveryv1.LabelManagedBy] = naming.ManagedByBroker
	if t.shape.headless {
		out.Labels[corev1.IsHeadlessService] = ""
	}
	hints := p.hinted(h)
	for i := range s.members {
		m := &s.members[i]
		e := m.endpoint(t.shape.headless)
		e.Hints = hints
		if h.unused || m.drained {
			e.Conditions = masked(e.Conditions)
		}
		out.Endpoints = append(out.Endpoints, e)
	}
	return out, t.due, true
}

// hinted are the hints of all endpoints of a share; nil for none.
func (p *Plan) hinted(h *share) *discoveryv1.EndpointHints {
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

// endpoint is a member as it is when it is in use.
func (m *member) endpoint(headless bool) discoveryv1.Endpoint {
	if m.told == nil {
		out := *m.stood
		out.Conditions = unmasked(out.Conditions)
		return out
	}
	out := discoveryv1.Endpoint{
		Addresses:  m.told.GetAddresses(),
		Conditions: discoveryv1.EndpointConditions{Ready: m.told.Ready, Serving: m.told.Serving, Terminating: m.told.Terminating},
	}
	if isMasked(out.Conditions) {
		out.Conditions.Serving = ptr.To(false) // it says nothing that anybody asks of an endpoint which is not ready and does not end
	}
	if headless {
		out.Hostname = optional(m.told.GetHostname()) // the names of a StatefulSet's pods
	}
	return out
}

// masked are the conditions of an endpoint that is out of use here. No source says that of an endpoint (see endpoint), so that
// it can be told from the cluster alone.
func masked(c discoveryv1.EndpointConditions) discoveryv1.EndpointConditions {
	if !ptr.Deref(c.Ready, true) {
		return c
	}
	return discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(false)}
}

func isMasked(c discoveryv1.EndpointConditions) bool {
	return !ptr.Deref(c.Ready, true) && ptr.Deref(c.Serving, false) && !ptr.Deref(c.Terminating, true)
}

// unmasked are the conditions of an endpoint as they were before it was put out of use.
func unmasked(c discoveryv1.EndpointConditions) discoveryv1.EndpointConditions {
	if isMasked(c) {
		c.Ready = ptr.To(true)
	}
	return c
}

// meta is what an object of ours says of itself. A global Service is of no one cluster.
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
	if t.global() {
		out.Labels[naming.LabelGlobal] = "true"
	} else {
		out.Labels[naming.LabelMirrored] = "true"
		out.Labels[naming.LabelMirrorPrefixSync] = p.prefixes[cluster]
	}
	return out
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
