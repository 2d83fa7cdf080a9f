package config

import (
	"fmt"
	"path"
	"slices"
	"time"
)

// ExporterMCS is the Multi-Cluster Services API (KEP-1645) as the exporter has it.
type ExporterMCS struct {
	// Enabled says that ServiceExports export Services.
	Enabled bool `json:"enabled"`
}

// BrokerMCS is the Multi-Cluster Services API as the broker has it.
type BrokerMCS struct {
	// Enabled says that Services that ServiceExports export are imported.
	Enabled bool `json:"enabled"`
	// DenyNamespaces are patterns of namespaces into which nothing is imported, such as kube-*. The namespaces of the
	// mirrors and of the parts are always denied.
	DenyNamespaces []string `json:"denyNamespaces"`
	// Precedence lists clusters: of several exports that are first observed at once, the one of the first of them
	// decides.
	Precedence []string `json:"precedence"`
	// EndpointSlices says for which ServiceImports there are EndpointSlices in their namespace.
	EndpointSlices ImportSlices `json:"endpointSlices"`
	// Settle is how long a derived Service has had its IPs before its ServiceImport names them, and so before DNS does.
	Settle Duration `json:"settle"`
}

// ImportSlices says for which ServiceImports there are EndpointSlices in their namespace.
type ImportSlices string

// The values of ImportSlices.
const (
	AllImportSlices      ImportSlices = "all"
	HeadlessImportSlices ImportSlices = "headless"
	NoImportSlices       ImportSlices = "none"
)

// defaultDenied are the namespaces whose names mean something to a cluster.
var defaultDenied = []string{"kube-*", "calico-*", "tigera-operator"}

func (m *BrokerMCS) setDefaults() { m.Settle.Duration = 1500 * time.Millisecond }

// Denies reports whether nothing is imported into a namespace.
func (m *BrokerMCS) Denies(namespace string) bool {
	return slices.ContainsFunc(m.DenyNamespaces, func(pattern string) bool {
		ok, _ := path.Match(pattern, namespace) // complete checks the patterns
		return ok
	})
}

func (m *BrokerMCS) complete(p *problems, field string, c *Broker) {
	if m.DenyNamespaces == nil {
		m.DenyNamespaces = slices.Clone(defaultDenied)
	}
	for i, pattern := range m.DenyNamespaces {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			p.add(fmt.Sprintf("%s.denyNamespaces[%d]", field, i), "%q is no pattern of namespaces, such as kube-*", pattern)
		}
	}
	checkClusters(p, field+".precedence", m.Precedence, c)
	m.Settle.check(p, field+".settle")
	if d := m.Settle.Duration; d < 0 || d > time.Minute {
		p.add(field+".settle", "%s: use 0s to %s", d, time.Minute)
	}
	switch m.EndpointSlices {
	case "":
		m.EndpointSlices = AllImportSlices
	case AllImportSlices, HeadlessImportSlices, NoImportSlices:
	default:
		p.add(field+".endpointSlices", "%q is not one of all, headless, none", m.EndpointSlices)
	}
	if !m.Enabled {
		return
	}
	switch {
	case !c.Features.Has(Services):
		p.add(field+".enabled", "needs the feature services: add it to features")
	case len(c.GlobalServices.PodSubnets) == 0:
		p.add(
			field+".enabled",
			"needs globalServices.podSubnets: an import has the endpoints of this cluster too, which its "+
				"own exporter publishes here",
		)
	}
}
