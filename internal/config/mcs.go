package config

import (
	"fmt"
	"path"
	"slices"
	"time"
)

// ExporterMCS configures the Multi-Cluster Services API (KEP-1645) in the exporter.
type ExporterMCS struct {
	// Enabled makes the exporter export Services that have a ServiceExport.
	Enabled bool `json:"enabled"`
}

// BrokerMCS configures the Multi-Cluster Services API in the broker.
type BrokerMCS struct {
	// Enabled makes the broker import Services that have a ServiceExport.
	Enabled bool `json:"enabled"`
	// DenyNamespaces are patterns, such as kube-*, of namespaces into which the broker imports nothing. The namespaces
	// of the mirrors and of the parts are always denied.
	DenyNamespaces []string `json:"denyNamespaces"`
	// Precedence lists clusters in order. It decides between exports that the broker first observes at the same time.
	Precedence []string `json:"precedence"`
	// EndpointSlices selects the ServiceImports that get EndpointSlices in their namespace.
	EndpointSlices ImportSlices `json:"endpointSlices"`
	// Settle is how long a derived Service must have had its IPs before the broker writes them to the ServiceImport,
	// from which DNS takes them.
	Settle Duration `json:"settle"`
}

// ImportSlices selects the ServiceImports that get EndpointSlices in their namespace.
type ImportSlices string

const (
	AllImportSlices      ImportSlices = "all"
	HeadlessImportSlices ImportSlices = "headless"
	NoImportSlices       ImportSlices = "none"
)

// defaultDenied matches namespaces with a special meaning in each cluster.
var defaultDenied = []string{"kube-*", "calico-*", "tigera-operator"}

// SystemNamespace reports whether a namespace has a special meaning in each cluster. The admission policies of
// deploy/features deny the same ones.
func SystemNamespace(namespace string) bool { return matches(defaultDenied, namespace) }

func matches(patterns []string, namespace string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, _ := path.Match(pattern, namespace) // complete checks the patterns
		return ok
	})
}

func (m *BrokerMCS) setDefaults() { m.Settle.Duration = 1500 * time.Millisecond }

func (m *BrokerMCS) Denies(namespace string) bool { return matches(m.DenyNamespaces, namespace) }

func (m *BrokerMCS) complete(p *problems, field string, c *Broker) {
	if m.DenyNamespaces == nil {
		m.DenyNamespaces = slices.Clone(defaultDenied)
	}
	for i, pattern := range m.DenyNamespaces {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			p.add(fmt.Sprintf("%s.denyNamespaces[%d]", field, i), "%q is no pattern of namespaces, such as kube-*", pattern)
		}
	}
	refuseTwice(p, field+".precedence", m.Precedence)
	d := m.Settle.Duration
	m.Settle.check(p, field+".settle", d >= 0 && d <= time.Minute, "0s to %s", time.Minute)
	orDefault(&m.EndpointSlices, AllImportSlices)
	if !slices.Contains([]ImportSlices{AllImportSlices, HeadlessImportSlices, NoImportSlices}, m.EndpointSlices) {
		p.add(field+".endpointSlices", "%q is not one of all, headless, none", m.EndpointSlices)
	}
	if !m.Enabled {
		return
	}
	switch {
	case !c.Features.Has(Services):
		p.add(field+".enabled", "needs the feature services: add it to features")
	case len(c.GlobalServices.PodSubnets) == 0:
		p.add(field+".enabled", "needs globalServices.podSubnets: an import has the endpoints of this cluster too, which "+
			"its own exporter publishes here")
	}
}
