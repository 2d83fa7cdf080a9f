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
		if t.shared() && (t.perCluster[cluster] != nil || slices.Contains(t.clustersBefore(), cluster)) {
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
		if t.plan.gone[cluster] || t.wasGoneLast(cluster) {
			all = append(all, cluster)
		}
	}
	return all
}

// wasGone reports whether the broker that wrote the Service considered the cluster gone.
func (t *target) wasGone(cluster string) bool {
	s := t.existing()
	return s != nil && slices.Contains(strings.Split(s.Annotations[naming.AnnotationGoneClusters], ","), cluster)
}

// wasGoneLast reports whether nothing newer is known of a cluster than that the previous broker considered it gone.
func (t *target) wasGoneLast(cluster string) bool {
	return t.plan.presenceUnknown[cluster] && t.wasGone(cluster)
}

// treatedAsGone reports whether the cluster counts as gone. While its presence is unknown the previous broker's
// result counts: the Service's annotation, and that no ready endpoint was in use. Unused endpoints alone prove
// nothing, as those of a cluster that is not needed are unused, too.
func (h *clusterEndpoints) treatedAsGone() bool {
	p := h.target.plan
	if !p.presenceUnknown[h.cluster] || p.gone[h.cluster] {
		return p.gone[h.cluster]
	}
	return h.wasUnused && !h.wasUsed && h.target.wasGone(h.cluster)
}

// recordPreviousUse records whether the previous broker used an adopted endpoint. Of a drained endpoint, and of one to
// which no tunnel leads, that says nothing.
func (h *clusterEndpoints) recordPreviousUse(m *member, wasUnused bool) {
	switch {
	case !m.usable() || !m.ready():
	case wasUnused:
		h.wasUnused = true
	default:
		h.wasUsed = true
	}
}
