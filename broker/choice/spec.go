package choice

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file makes a Service of what a cluster exports, and reads it again.

// Spec returns the spec of a Service that is made of an exported one.
func Spec(source *semaphorev1.Service) corev1.ServiceSpec {
	out := corev1.ServiceSpec{
		Type:                     corev1.ServiceTypeClusterIP,
		PublishNotReadyAddresses: source.GetPublishNotReadyAddresses(),
		// If the families of the source are unknown, use both where the cluster has both.
		IPFamilyPolicy:      ptr.To(corev1.IPFamilyPolicyPreferDualStack),
		TrafficDistribution: Optional(source.GetTrafficDistribution()),
	}
	if families := source.GetIpFamilies(); len(families) == 1 {
		// A ClusterIP of the other family would have no endpoints.
		out.IPFamilyPolicy, out.IPFamilies = ptr.To(corev1.IPFamilyPolicySingleStack),
			[]corev1.IPFamily{corev1.IPFamily(families[0])}
	}
	if source.GetHeadless() {
		out.ClusterIP = corev1.ClusterIPNone
	}
	out.SessionAffinity, out.SessionAffinityConfig = Affinity(source)
	for _, port := range source.GetPorts() {
		out.Ports = append(out.Ports, corev1.ServicePort{
			Name:        port.GetName(),
			Protocol:    corev1.Protocol(port.GetProtocol()),
			Port:        port.GetPort(),
			TargetPort:  intstr.FromInt32(port.GetPort()), // there is no selector: the ports of the slices count
			AppProtocol: Optional(port.GetAppProtocol()),
		})
	}
	return out
}

func Affinity(source *semaphorev1.Service) (corev1.ServiceAffinity, *corev1.SessionAffinityConfig) {
	seconds := source.GetClientIpAffinitySeconds()
	if seconds <= 0 {
		return corev1.ServiceAffinityNone, nil
	}
	return corev1.ServiceAffinityClientIP,
		&corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(seconds)}}
}

// SourceOf returns the ports and families of an existing Service as a cluster exports them; nil of nil. Some may be
// those of a cluster that is silent.
func SourceOf(existing *corev1.Service) *semaphorev1.Service {
	if existing == nil {
		return nil
	}
	out := &semaphorev1.Service{}
	for _, p := range existing.Spec.Ports {
		out.Ports = append(out.Ports, &semaphorev1.Port{Name: p.Name, Protocol: string(p.Protocol), Port: p.Port,
			AppProtocol: ptr.Deref(p.AppProtocol, "")})
	}
	for _, family := range existing.Spec.IPFamilies {
		out.IpFamilies = append(out.IpFamilies, string(family))
	}
	return out
}

// Optional returns nil for an empty text.
func Optional[T ~string](s T) *T {
	if s == "" {
		return nil
	}
	return &s
}
