package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file projects a Service to the fields that are exported.

// maxPreferred bounds the clusters that a global service prefers. A broker refuses more.
const maxPreferred = 64

// trafficDistributions are the values that the Kubernetes API defines.
var trafficDistributions = []string{
	corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone,
	corev1.ServiceTrafficDistributionPreferSameNode,
}

// projectService returns nil for a Service that is not exported; problem reports why if it has a label that offers it,
// or a ServiceExport. ignored lists its settings that are invalid and left out.
func (r Rules) projectService(s *corev1.Service, export *mcsv1beta1.ServiceExport) (service *semaphorev1.Service,
	problem, ignored string) {
	mirror, global := r.Mirror.Matches(labels.Set(s.Labels)), r.Global.Matches(labels.Set(s.Labels))
	if !mirror && !global && export == nil || isImported(s.Labels) {
		return nil, "", ""
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil, "spec.type ExternalName has no endpoints to offer: offer the Service it names", ""
	}
	var left []string
	service = &semaphorev1.Service{
		Headless:                 s.Spec.ClusterIP == corev1.ClusterIPNone,
		PublishNotReadyAddresses: s.Spec.PublishNotReadyAddresses,
		Mirror:                   mirror,
		Global:                   global,
	}
	for _, family := range s.Spec.IPFamilies {
		service.IpFamilies = append(service.IpFamilies, string(family))
	}
	var more int
	if service.Labels, more = r.exportedLabels(s.Labels); more > 0 {
		left = append(left, fmt.Sprintf("%d of its labels are not exported: the limit is %d, and the first by key are "+
			"exported", more, config.MaxServiceLabels))
	}
	for _, p := range s.Spec.Ports {
		service.Ports = append(service.Ports, &semaphorev1.Port{
			Name: p.Name, Protocol: string(p.Protocol), Port: p.Port, AppProtocol: value(p.AppProtocol),
		})
	}
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		service.ClientIpAffinitySeconds = corev1.DefaultClientIPServiceAffinitySeconds
		if config := s.Spec.SessionAffinityConfig; config != nil && config.ClientIP != nil &&
			config.ClientIP.TimeoutSeconds != nil {
			service.ClientIpAffinitySeconds = *config.ClientIP.TimeoutSeconds
		}
	}
	if d := value(s.Spec.TrafficDistribution); slices.Contains(trafficDistributions, d) {
		service.TrafficDistribution = d
	} else if d != "" {
		left = append(left, fmt.Sprintf("spec.trafficDistribution %.100q is not known and not exported: use %s", d,
			strings.Join(trafficDistributions, ", ")))
	}
	if export != nil {
		multiCluster, wrong := multiClusterExport(s, export)
		service.MultiCluster = multiCluster
		left = append(left, wrong...)
	}
	if global || export != nil {
		settings, wrong := globalSettings(s)
		service.GlobalSettings = settings
		left = append(left, wrong...)
	}
	if use, asked := s.Annotations[naming.AnnotationOwnName]; asked {
		if service.OwnName = (&semaphorev1.OwnName{Use: use, Uid: string(s.UID)}); !naming.IsOwnNameUse(use) {
			service.OwnName.Use = ""
			left = append(left, fmt.Sprintf("annotation %s: %.200q is ignored, and what was valid before stays: use %s or %s, "+
				"or remove it", naming.AnnotationOwnName, use, naming.OwnNameFailover, naming.OwnNameAll))
		}
		if !global {
			service.OwnName = nil
			left = append(left, fmt.Sprintf("annotation %s has no effect: the Service is part of no global service; set its "+
				"label %s", naming.AnnotationOwnName, naming.DefaultGlobalSelector))
		}
	}
	return service, "", strings.Join(left, "; ")
}

// exportedLabels returns the labels that are exported, and how many are left out because of the limit.
func (r Rules) exportedLabels(all map[string]string) (exported []*semaphorev1.Label, more int) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		switch {
		case !r.ServiceLabels.Takes(key):
		case len(exported) == config.MaxServiceLabels:
			more++
		default:
			exported = append(exported, &semaphorev1.Label{Key: key, Value: all[key]})
		}
	}
	return exported, more
}

// Kept returns the annotations that keep selects; nil for none.
func Kept(annotations map[string]string, keep func(key string) bool) (kept map[string]string) {
	for key, value := range annotations {
		if keep(key) {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = value
		}
	}
	return kept
}

// IsExportTo selects the annotation that all kinds of objects may have.
func IsExportTo(key string) bool { return key == naming.AnnotationExportTo }

// ofServices are the annotations of Services that decide their export.
var ofServices = []string{naming.AnnotationExportTo, naming.AnnotationPreferClusters, naming.AnnotationMinReady,
	naming.AnnotationWhenGone, naming.AnnotationOwnName}

// TrimService removes all fields that neither identify a Service nor decide its export.
func TrimService(s *corev1.Service) {
	s.ObjectMeta = metav1.ObjectMeta{
		Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion, Labels: s.Labels,
		Annotations: Kept(s.Annotations, func(key string) bool { return slices.Contains(ofServices, key) }),
	}
	s.Spec = corev1.ServiceSpec{
		Type: s.Spec.Type, ClusterIP: s.Spec.ClusterIP, IPFamilies: s.Spec.IPFamilies, Ports: s.Spec.Ports,
		PublishNotReadyAddresses: s.Spec.PublishNotReadyAddresses,
		SessionAffinity:          s.Spec.SessionAffinity, SessionAffinityConfig: s.Spec.SessionAffinityConfig,
		TrafficDistribution: s.Spec.TrafficDistribution, InternalTrafficPolicy: s.Spec.InternalTrafficPolicy,
	}
	s.Status = corev1.ServiceStatus{}
}

// globalSettings returns what a Service requests for its global service, nil for nothing. wrong lists the values that
// are invalid and left out.
func globalSettings(s *corev1.Service) (settings *semaphorev1.GlobalSettings, wrong []string) {
	settings = &semaphorev1.GlobalSettings{}
	said := false
	bad := func(kind, key, value, use string) {
		wrong = append(wrong, fmt.Sprintf("%s %s: %.200q is ignored: use %s", kind, key, value, use))
		if kind == "annotation" {
			settings.Unreadable, said = append(settings.Unreadable, strings.TrimPrefix(key, naming.Domain)), true
		}
	}
	if text, ok := s.Annotations[naming.AnnotationPreferClusters]; ok {
		if prefer, ok := clusterList(text); ok {
			settings.Prefer, said = prefer, true
		} else {
			bad("annotation", naming.AnnotationPreferClusters, text,
				fmt.Sprintf("cluster names, each once and %d at most, such as \"c2,c3\"", maxPreferred))
		}
	}
	if text, ok := s.Annotations[naming.AnnotationMinReady]; ok {
		if count, percent, err := config.ParseMinReady(text); err == nil {
			settings.MinReady, settings.MinReadyPercent, said = int32(count), int32(percent), true
		} else {
			bad("annotation", naming.AnnotationMinReady, text, fmt.Sprintf("a number of ready endpoints from 1 to %d, or a "+
				"share of all such as 50%%", config.MaxMinReady))
		}
	}
	if text, ok := s.Annotations[naming.AnnotationWhenGone]; ok {
		if when := semaphorev1.WhenGoneOf(text); when != semaphorev1.WhenGone_WHEN_GONE_UNSPECIFIED &&
			semaphorev1.WhenGoneName(when) == text {
			settings.WhenGone, said = when, true
		} else {
			bad("annotation", naming.AnnotationWhenGone, text, "keep, demote or withdraw")
		}
	}
	if text, ok := s.Labels[naming.LabelRouting]; ok {
		if text == naming.RoutingLocalFirst {
			settings.LocalFirst, said = true, true
		} else {
			bad("label", naming.LabelRouting, text, naming.RoutingLocalFirst)
		}
	}
	if !said {
		settings = nil
	}
	return settings, wrong
}

func clusterList(text string) (clusters []string, ok bool) {
	for _, part := range strings.Split(text, ",") {
		cluster := strings.TrimSpace(part)
		if config.ClusterName(cluster) != nil || slices.Contains(clusters, cluster) || len(clusters) == maxPreferred {
			return nil, false
		}
		clusters = append(clusters, cluster)
	}
	return clusters, true
}
