package apply

import (
	"sync"

	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// dropped are the fields that the definition of ServiceImports lacks, as that of v0.2 does: the apiserver drops them
// from each write. Each answer to a write updates them, because definitions are replaced.
type dropped struct {
	mu                                                      sync.Mutex
	families, internal, distribution, conditions, endpoints bool
}

// spec updates it from a write of an object and its answer.
func (d *dropped) spec(sent, answer *mcsv1beta1.ServiceImportSpec) {
	d.mu.Lock()
	defer d.mu.Unlock()
	recordLack(&d.families, len(sent.IPFamilies) > 0, len(answer.IPFamilies) > 0)
	recordLack(&d.internal, sent.InternalTrafficPolicy != nil, answer.InternalTrafficPolicy != nil)
	recordLack(&d.distribution, sent.TrafficDistribution != nil, answer.TrafficDistribution != nil)
}

// status updates it from a write of a status and its answer.
func (d *dropped) status(sent, answer *mcsv1beta1.ServiceImportStatus) {
	d.mu.Lock()
	defer d.mu.Unlock()
	recordLack(&d.conditions, len(sent.Conditions) > 0, len(answer.Conditions) > 0)
	recordLack(&d.endpoints, sent.EndpointSliceObjects != "", answer.EndpointSliceObjects != "")
}

// recordLack records whether the apiserver dropped a field that was sent.
func recordLack(lacks *bool, sent, kept bool) {
	if sent {
		*lacks = !kept
	}
}

// without returns the object as such an apiserver would store it.
func (d *dropped) without(o *mcsv1beta1.ServiceImport) *mcsv1beta1.ServiceImport {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.families && !d.internal && !d.distribution && !d.conditions && !d.endpoints {
		return o
	}
	out := *o
	if d.families {
		out.Spec.IPFamilies = nil
	}
	if d.internal {
		out.Spec.InternalTrafficPolicy = nil
	}
	if d.distribution {
		out.Spec.TrafficDistribution = nil
	}
	if d.conditions {
		out.Status.Conditions = nil
	}
	if d.endpoints {
		out.Status.EndpointSliceObjects = ""
	}
	return &out
}
