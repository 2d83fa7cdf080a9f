package catalog

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// projectNode is what cluster needs to know of a node. A node whose annotations make no sense is
// exported without its end of the tunnel, and problem says why.
func projectNode(n *corev1.Node, cluster string) (node *semaphorev1.Node, problem string) {
	node = &semaphorev1.Node{}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for _, text := range cidrs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			problem = fmt.Sprintf("spec.podCIDRs: %v", err)
			continue
		}
		node.PodCidrs = append(node.PodCidrs, prefix.Masked().String())
	}
	key, hasKey := n.Annotations[naming.PubKeyAnnotation(cluster)]
	endpoint, hasEndpoint := n.Annotations[naming.EndpointAnnotation(cluster)]
	if !hasKey || !hasEndpoint {
		return node, problem // it has not published its end yet
	}
	public, err := base64.StdEncoding.DecodeString(key)
	if err != nil || len(public) != 32 {
		return node, fmt.Sprintf("annotation %s: %q is no WireGuard public key (32 bytes in base64)", naming.PubKeyAnnotation(cluster), key)
	}
	address, err := netip.ParseAddrPort(endpoint)
	if err != nil || address.Port() == 0 || address.Addr().Zone() != "" {
		return node, fmt.Sprintf("annotation %s: %q is no IP:port", naming.EndpointAnnotation(cluster), endpoint)
	}
	node.Wireguard = &semaphorev1.WireGuardEndpoint{PublicKey: public, Address: address.String()}
	return node, problem
}

// projectService is nil for a Service that is not offered.
func (r Rules) projectService(s *corev1.Service) (service *semaphorev1.Service, problem string) {
	mirror, global := r.Mirror.Matches(labels.Set(s.Labels)), r.Global.Matches(labels.Set(s.Labels))
	if !mirror && !global || mirrored(s.Labels) {
		return nil, ""
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil, "spec.type ExternalName has no endpoints to offer: offer the Service it names"
	}
	service = &semaphorev1.Service{
		Headless:                 s.Spec.ClusterIP == corev1.ClusterIPNone,
		PublishNotReadyAddresses: s.Spec.PublishNotReadyAddresses,
		Mirror:                   mirror,
		Global:                   global,
	}
	for _, p := range s.Spec.Ports {
		service.Ports = append(service.Ports, &semaphorev1.ServicePort{
			Name: p.Name, Protocol: string(p.Protocol), Port: p.Port, AppProtocol: value(p.AppProtocol),
		})
	}
	return service, ""
}

// projectSlice is nil for a slice that is no Service's, or holds no IPs.
func projectSlice(s *discoveryv1.EndpointSlice) *semaphorev1.EndpointSlice {
	service := s.Labels[discoveryv1.LabelServiceName]
	if service == "" || mirrored(s.Labels) || s.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	slice := &semaphorev1.EndpointSlice{Service: service, AddressType: string(s.AddressType)}
	for _, p := range s.Ports {
		port := &semaphorev1.EndpointPort{Name: value(p.Name), Protocol: string(value(p.Protocol)), Port: value(p.Port), AppProtocol: value(p.AppProtocol)}
		if port.Protocol == "" {
			port.Protocol = string(corev1.ProtocolTCP) // the API's default
		}
		slice.Ports = append(slice.Ports, port)
	}
	for _, e := range s.Endpoints {
		slice.Endpoints = append(slice.Endpoints, &semaphorev1.Endpoint{
			Addresses:   e.Addresses,
			Ready:       e.Conditions.Ready,
			Serving:     e.Conditions.Serving,
			Terminating: e.Conditions.Terminating,
			Hostname:    value(e.Hostname),
			Zone:        value(e.Zone),
		})
	}
	return slice
}

// projectPod is nil for a pod that is in no set. In are pods with an IP that may still send, also
// while they are being deleted; out are those that have ended, whose IP may be another's by now, and
// those on the host network, whose IP is the node's.
func projectPod(p *corev1.Pod, labelDomain string) *semaphorev1.SetMember {
	set := p.Labels[labelDomain+"/name"]
	if set == "" || p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	member := &semaphorev1.SetMember{PodUid: string(p.UID), SetName: set}
	for _, ip := range p.Status.PodIPs {
		member.Ips = append(member.Ips, ip.IP)
	}
	if len(member.Ips) == 0 && p.Status.PodIP != "" {
		member.Ips = []string{p.Status.PodIP}
	}
	if len(member.Ips) == 0 {
		return nil
	}
	slices.Sort(member.Ips)
	return member
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
