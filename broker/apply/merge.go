package apply

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// mergeMeta sets the broker's labels and annotations as desired, and keeps those of others: ADR 14.
func mergeMeta(have, want *metav1.ObjectMeta) {
	labels := maps.Clone(have.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return ourLabel(key) })
	have.Labels = merged(labels, want.Labels)
	have.Annotations = merged(maps.Clone(have.Annotations), want.Annotations)
}

func merged[V any](into, from map[string]V) map[string]V {
	if into == nil {
		into = map[string]V{}
	}
	maps.Copy(into, from)
	return into
}

// ourLabel reports whether the broker owns a label, because a different value would have an effect: labels that select
// the broker's objects, those of the original tools, and those by which kube-proxy, CoreDNS and the EndpointSlice
// controllers select theirs.
func ourLabel(key string) bool {
	switch key {
	case naming.LabelManagedBy, naming.LabelSetManagedBy, naming.LabelGlobal, naming.LabelMirrored,
		naming.LabelMirrorPrefixSync,
		discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy, corev1.IsHeadlessService,
		mcsv1beta1.LabelServiceName, mcsv1beta1.LabelSourceCluster:
		return true
	}
	domain, _, prefixed := strings.Cut(key, "/")
	return prefixed && slices.Contains(ourDomains, domain)
}

// ourDomains are the domains of the labels that the broker owns: semaphore's own, those of the original tools, and
// service.kubernetes.io, whose service-proxy-name makes kube-proxy ignore a Service.
var ourDomains = []string{"semaphore.uw.io", "mirror.semaphore.uw.io", naming.DefaultLabelDomain,
	naming.PolicyLabelDomain, "service.kubernetes.io"}
