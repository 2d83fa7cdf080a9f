package services

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// This file holds the EndpointSlices of KEP-1645: beside a ServiceImport, each slice of its derived Service once more,
// in the namespace of the ServiceImport. Nothing sends traffic by them; CoreDNS answers from them for headless names,
// and Gateway implementations read them.

// hasImportSlices reports whether a derived Service has slices in the namespace of its ServiceImport.
func (p *ImportPlan) hasImportSlices(headless bool) bool {
	switch p.EndpointSlices {
	case config.AllImportSlices:
		return true
	case config.HeadlessImportSlices:
		return headless
	}
	return false
}

// ImportSlices returns the names of all desired EndpointSlices beside ServiceImports, NAMESPACE/NAME.
func (p *ImportPlan) ImportSlices() (names []string) {
	p.services.EachSlice(func(name, service, namespace string, headless bool) {
		if isDerived(service) && p.hasImportSlices(headless) {
			names = append(names, namespace+"/"+name)
		}
	})
	return names
}

// ImportSlice returns the desired EndpointSlice of a name, NAMESPACE/NAME, beside a ServiceImport. It exists as long as
// the slice of the derived Service that has its endpoints. It is nil although wanted is true while the namespaces are
// not known.
func (p *ImportPlan) ImportSlice(imported string) (out *discoveryv1.EndpointSlice, wanted bool) {
	namespace, name, _ := strings.Cut(imported, "/")
	out, wanted = p.services.Slice(name)
	if !wanted || !isDerived(out.Labels[discoveryv1.LabelServiceName]) ||
		out.Annotations[naming.AnnotationSourceNamespace] != namespace || p.Denied(namespace) != "" {
		return nil, false
	}
	if _, headless := out.Labels[corev1.IsHeadlessService]; !p.hasImportSlices(headless) {
		return nil, false
	}
	if !p.namespacesKnown {
		return nil, true
	}
	if !p.namespaces[namespace] {
		return nil, false
	}
	out.Namespace = namespace
	delete(out.Annotations, naming.AnnotationUnusedEndpoints) // the slice of the Service remembers them
	// With this label kube-proxy would take it for a slice of a local Service of that name.
	delete(out.Labels, discoveryv1.LabelServiceName)
	out.Labels[mcsv1beta1.LabelServiceName] = out.Annotations[naming.AnnotationSourceName]
	out.Labels[mcsv1beta1.LabelSourceCluster] = naming.ClusterLabel(out.Labels[naming.LabelSourceCluster])
	// kube-proxy watches all slices but those with this label, on every node.
	out.Labels[corev1.IsHeadlessService] = ""
	return out, true
}
