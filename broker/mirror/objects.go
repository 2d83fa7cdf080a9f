package mirror

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Service is the mirror that is wanted under a name. Of the source it has the ports, the
// headless flag and publishNotReadyAddresses, and nothing else that a remote could use to
// reach further (R15).
func (p *Plan) Service(name string) (*corev1.Service, bool) {
	r, ok := p.mirrors.Winner(name)
	if !ok {
		return nil, false
	}
	s := p.services[r]
	out := &corev1.Service{
		ObjectMeta: p.meta(name, r),
		Spec: corev1.ServiceSpec{
			Type:                     corev1.ServiceTypeClusterIP,
			PublishNotReadyAddresses: s.GetPublishNotReadyAddresses(),
			// Both families where the cluster has both; the slices of the other one are just not used elsewhere.
			IPFamilyPolicy:  ptr.To(corev1.IPFamilyPolicyPreferDualStack),
			SessionAffinity: corev1.ServiceAffinityNone,
		},
	}
	if s.GetHeadless() {
		out.Spec.ClusterIP = corev1.ClusterIPNone
	}
	for _, port := range s.GetPorts() {
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

// Slice is the EndpointSlice that is wanted under a name. It names no node, pod or zone: those
// of the source would be taken for local ones (R16).
func (p *Plan) Slice(name string) (*discoveryv1.EndpointSlice, bool) {
	of, ok := p.parts.Winner(name)
	if !ok {
		return nil, false
	}
	source := p.slices[of.slice]
	service := serviceOf(of.slice, source)
	mirror := p.mirrorName(service)
	if winner, ok := p.mirrors.Winner(mirror); !ok || winner != service {
		return nil, false
	}
	headless := p.services[service].GetHeadless()
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  p.meta(name, of.slice),
		AddressType: discoveryv1.AddressType(source.GetAddressType()),
	}
	out.Labels[discoveryv1.LabelServiceName] = mirror
	out.Labels[discoveryv1.LabelManagedBy] = naming.ManagedByBroker
	if headless {
		out.Labels[corev1.IsHeadlessService] = ""
	}
	for _, port := range source.GetPorts() {
		out.Ports = append(out.Ports, discoveryv1.EndpointPort{
			Name:        ptr.To(port.GetName()),
			Protocol:    ptr.To(corev1.Protocol(port.GetProtocol())),
			Port:        ptr.To(port.GetPort()),
			AppProtocol: optional(port.GetAppProtocol()),
		})
	}
	all := source.GetEndpoints()
	for _, e := range all[min(of.index*maxEndpoints, len(all)):min((of.index+1)*maxEndpoints, len(all))] {
		out.Endpoints = append(out.Endpoints, endpoint(e, headless))
	}
	return out, true
}

func endpoint(e *semaphorev1.Endpoint, headless bool) discoveryv1.Endpoint {
	out := discoveryv1.Endpoint{
		Addresses:  e.GetAddresses(),
		Conditions: discoveryv1.EndpointConditions{Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating},
	}
	if headless {
		out.Hostname = optional(e.GetHostname()) // the names of a StatefulSet's pods
	}
	return out
}

func (p *Plan) meta(name string, source ref) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:      name,
		Namespace: p.namespace,
		Labels: map[string]string{
			naming.LabelManagedBy:        naming.ManagedByBroker,
			naming.LabelSourceCluster:    source.cluster,
			naming.LabelMirrored:         "true",
			naming.LabelMirrorPrefixSync: p.prefixes[source.cluster],
		},
		Annotations: map[string]string{
			naming.AnnotationSourceNamespace: source.namespace,
			naming.AnnotationSourceName:      source.name,
		},
	}
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
