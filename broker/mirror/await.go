package mirror

import (
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// MarkPresenceUnknown records that it is not yet known whether the clusters are gone, as after the start of a broker.
// Until SetGone is called or the cluster sends something, global services treat it as the previous broker did.
func (p *Plan) MarkPresenceUnknown(clusters ...string) {
	for _, cluster := range clusters {
		p.presenceUnknown[cluster] = true
	}
}

// presenceKnown records that a cluster is present.
func (w *work) presenceKnown(cluster string) {
	if !w.presenceUnknown[cluster] {
		return
	}
	delete(w.presenceUnknown, cluster)
	w.markClusterDirty(cluster)
}

// markClusterDirty makes all global services of a cluster choose again.
func (w *work) markClusterDirty(cluster string) {
	for name, t := range w.targets {
		if t.perCluster[cluster] != nil && t.shared() {
			w.markDirty(t)
			w.touchService(name) // its annotations name the gone clusters
		}
	}
}

// goneClusters returns the gone clusters of a global service. While presence is unknown, the previous broker's result
// counts.
func (t *target) goneClusters() []string {
	var all []string
	for _, cluster := range t.offeringClusters() {
		if before, _ := t.wasGone(cluster); t.plan.gone[cluster] || t.plan.presenceUnknown[cluster] && before {
			all = append(all, cluster)
		}
	}
	return all
}

// wasGone reports whether the broker that wrote the Service considered the cluster gone. known is false if an earlier
// release wrote the Service without that annotation.
func (t *target) wasGone(cluster string) (gone, known bool) {
	s := t.existing()
	if s == nil {
		return false, false
	}
	text, known := s.Annotations[naming.AnnotationGoneClusters]
	return slices.Contains(strings.Split(text, ","), cluster), known
}

// treatedAsGone reports whether the cluster counts as gone. While its presence is unknown the previous broker's
// result counts: the Service's annotation, and that all ready endpoints were masked. Masked endpoints alone prove
// nothing, as a cluster that is not needed is masked, too; for a Service without the annotation nothing else is
// known.
func (h *clusterEndpoints) treatedAsGone() bool {
	p := h.target.plan
	if !p.presenceUnknown[h.cluster] || p.gone[h.cluster] {
		return p.gone[h.cluster]
	}
	gone, known := h.target.wasGone(h.cluster)
	return h.wasMasked && !h.wasUsed && (gone || !known)
}

// recordPreviousUse records whether the previous broker used or masked an adopted endpoint. Drained endpoints were
// masked anyway.
func (h *clusterEndpoints) recordPreviousUse(m *member) {
	switch {
	case m.existing == nil || m.drained || !m.ready():
	case isMasked(m.existing.Conditions):
		h.wasMasked = true
	default:
		h.wasUsed = true
	}
}
