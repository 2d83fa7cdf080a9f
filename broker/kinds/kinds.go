// Package kinds names the types of objects that the broker writes or follows in its own cluster: in metrics, Events,
// records and messages. The kinds that remotes export are semaphorev1.Kind, named by semaphorev1.KindName; WrittenAs
// leads from these to those.
//
// It is pure. It may import no other package of the broker.
package kinds

import semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"

// Kind is a type of objects of the own cluster, in lower case and in the singular.
type Kind string

// The kinds.
const (
	Node             Kind = "node"
	Namespace        Kind = "namespace"
	Pod              Kind = "pod"
	Service          Kind = "service"
	EndpointSlice    Kind = "endpointslice"
	Endpoints        Kind = "endpoints"
	GlobalNetworkSet Kind = "globalnetworkset"
	NetworkSet       Kind = "networkset"
	IPPool           Kind = "ippool"
	IPReservation    Kind = "ipreservation"
	ServiceImport    Kind = "serviceimport"
	// ImportSlice is an EndpointSlice beside a ServiceImport.
	ImportSlice Kind = "importslice"
	// Drains is the ConfigMap of drains.
	Drains Kind = "drains"
)

// Plural is the word for several objects of a kind.
func (k Kind) Plural() string {
	if k == Endpoints || k == Drains {
		return string(k)
	}
	return string(k) + "s"
}

// WrittenAs returns the kind by which an exported kind takes effect in the own cluster: what the broker writes for it,
// or for nodes the Node whose agent programs it. Empty for an unknown kind.
func WrittenAs(exported semaphorev1.Kind) Kind {
	switch exported {
	case semaphorev1.Kind_KIND_NODE:
		return Node
	case semaphorev1.Kind_KIND_SERVICE:
		return Service
	case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
		return EndpointSlice
	case semaphorev1.Kind_KIND_SET_MEMBER:
		return GlobalNetworkSet
	}
	return ""
}
