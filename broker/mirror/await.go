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

// goneClusters returns the clusters that count as gone, of those that offer a global service or have endpoints in it:
// one that joined while the deciding cluster was silent is not among the clusters of the existing Service.
func (t *target) goneClusters() []string {
	offering := t.offeringClusters()
	return slices.DeleteFunc(slices.Clone(t.plan.clusters), func(cluster string) bool {
		h := t.perCluster[cluster]
		return !t.isGone(cluster) || !slices.Contains(offering, cluster) && (h == nil || len(h.sliceOf) == 0)
	})
}

// isGone reports whether a cluster counts as gone. While its presence is unknown, the previous broker's result counts.
func (t *target) isGone(cluster string) bool {
	return t.plan.gone[cluster] || t.plan.presenceUnknown[cluster] && t.wasGone(cluster)
}

// wasGone reports whether the broker that wrote the Service considered the cluster gone.
func (t *target) wasGone(cluster string) bool {
	s := t.existing()
	return s != nil && slices.Contains(strings.Split(s.Annotations[naming.AnnotationGoneClusters], ","), cluster)
}
