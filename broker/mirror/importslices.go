package mirror

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
func (p *Plan) hasImportSlices(headless bool) bool {
	switch p.mcs.EndpointSlices {
	case config.AllImportSlices:
		return true
	case config.HeadlessImportSlices:
		return headless
	}
	return false
}

// importSlice returns the name, NAMESPACE/NAME, under which the namespace of the ServiceImport has a slice; ok is false
// for a slice of no derived Service. It asks the name of the Service, which alone is known of one that ends.
func (p *Plan) importSlice(s *slice) (name string, ok bool) {
	if !p.mcs.Enabled || !strings.HasPrefix(s.owner.target.name, naming.ImportPrefix+"-") {
		return "", false
	}
	return s.owner.of.namespace + "/" + s.name, true
}

// ImportSlices returns the names of all desired EndpointSlices beside ServiceImports, NAMESPACE/NAME.
func (p *Plan) ImportSlices() (names []string) {
	for _, s := range p.slices {
		if name, ok := p.importSlice(s); ok && p.hasImportSlices(s.owner.target.shape.headless) {
			names = append(names, name)
		}
	}
	return names
}

// ImportSlice returns the desired EndpointSlice of a name, NAMESPACE/NAME, beside a ServiceImport. It exists as long as
// the slice of the derived Service that has its endpoints. It is nil although wanted is true while the namespaces are
// not known.
func (p *Plan) ImportSlice(imported string) (out *discoveryv1.EndpointSlice, wanted bool) {
	namespace, name, _ := strings.Cut(imported, "/")
	s := p.slices[name]
	if s == nil {
		return nil, false
	}
	if at, ok := p.importSlice(s); !ok || at != imported || !p.hasImportSlices(s.owner.target.shape.headless) ||
		p.denies(namespace) {
		return nil, false
	}
	if p.namespaces == nil {
		return nil, true
	}
	if !p.namespaces[namespace] {
		return nil, false
	}
	out, _, _ = p.Slice(name)
	out.Namespace = namespace
	// With this label kube-proxy would take it for a slice of a local Service of that name.
	delete(out.Labels, discoveryv1.LabelServiceName)
	out.Labels[mcsv1beta1.LabelServiceName] = s.owner.of.name
	out.Labels[mcsv1beta1.LabelSourceCluster] = naming.ClusterLabel(s.owner.cluster)
	// kube-proxy watches all slices but those with this label, on every node.
	out.Labels[corev1.IsHeadlessService] = ""
	return out, true
}
