package config

import (
	"fmt"
	"slices"
)

// EndpointKind is a kind of addresses at which other clusters reach a node.
type EndpointKind string

const (
	// InternalIP is an InternalIP in the node's status, and ExternalIP each ExternalIP.
	InternalIP EndpointKind = "InternalIP"
	ExternalIP EndpointKind = "ExternalIP"
	// ByAnnotation is what an operator writes on the node: naming.ReachableAt. With "none" the node has no address.
	ByAnnotation EndpointKind = "Annotation"
)

func completeNodeEndpoints(p *problems, all *[]EndpointKind) {
	if *all == nil {
		*all = []EndpointKind{InternalIP}
	}
	if len(*all) == 0 {
		p.add("nodeEndpoints", "none: name at least one of InternalIP, ExternalIP, Annotation, or leave the key out")
	}
	for i, kind := range *all {
		if !slices.Contains([]EndpointKind{InternalIP, ExternalIP, ByAnnotation}, kind) {
			p.add(fmt.Sprintf("nodeEndpoints[%d]", i), "%q is no kind of addresses: use InternalIP, ExternalIP, Annotation",
				string(kind))
		}
	}
	refuseTwice(p, "nodeEndpoints", *all)
}
