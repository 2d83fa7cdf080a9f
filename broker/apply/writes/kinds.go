package writes

import semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"

// This file names the types of objects that the broker writes or follows in its own cluster: in metrics, Events,
// records and messages. The kinds that remotes export are semaphorev1.Kind, named by semaphorev1.KindName; WrittenAs
// leads from these to those.

// ObjectKind is a type of objects of the own cluster, in lower case and in the singular.
type ObjectKind string

const (
	Node             ObjectKind = "node"
	Namespace        ObjectKind = "namespace"
	Pod              ObjectKind = "pod"
	Service          ObjectKind = "service"
	EndpointSlice    ObjectKind = "endpointslice"
	Endpoints        ObjectKind = "endpoints"
	GlobalNetworkSet ObjectKind = "globalnetworkset"
	NetworkSet       ObjectKind = "networkset"
	IPPool           ObjectKind = "ippool"
	IPReservation    ObjectKind = "ipreservation"
	ServiceImport    ObjectKind = "serviceimport"
	// ImportSlice is an EndpointSlice beside a ServiceImport.
	ImportSlice ObjectKind = "importslice"
	// OwnSlice is an EndpointSlice under the own name of a Service.
	OwnSlice ObjectKind = "ownslice"
	// Drains is the ConfigMap of drains.
	Drains ObjectKind = "drains"
)

func (k ObjectKind) Plural() string {
	if k == Endpoints || k == Drains {
		return string(k)
	}
	return string(k) + "s"
}

// WrittenAs returns the kind by which an exported kind takes effect in the own cluster: the broker's object for it, or
// for nodes the Node whose agent programs it. Empty for an unknown kind.
func WrittenAs(exported semaphorev1.Kind) ObjectKind {
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
