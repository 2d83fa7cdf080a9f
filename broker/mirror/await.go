package mirror

import (
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Await says that it is being found out whether clusters are there, which takes a broker that has just started a while. Until it is
// known, by SetGone or because the cluster says something, they are to global services what they were to the broker before.
func (p *Plan) Await(clusters ...string) {
	for _, cluster := range clusters {
		p.awaited[cluster] = true
	}
}

// arrived says that it is known of a cluster.
func (w *work) arrived(cluster string) {
	if !w.awaited[cluster] {
		return
	}
	delete(w.awaited, cluster)
	w.reconsider(cluster)
}

// reconsider decides anew for every target of a cluster, of which it is known now whether it is gone.
func (w *work) reconsider(cluster string) {
	for name, t := range w.targets {
		if t.shares[cluster] != nil && t.global() {
			w.redecide(t)
			w.touchService(name) // which names the clusters that are gone
		}
	}
}

// gone are the clusters of a global service that are gone, or were to the broker before.
func (t *target) gone() []string {
	var all []string
	for _, cluster := range t.offering() {
		if before, _ := t.wasGone(cluster); t.plan.gone[cluster] || t.plan.awaited[cluster] && before {
			all = append(all, cluster)
		}
	}
	return all
}

// wasGone says whether a cluster was gone to the broker that wrote the Service; known is false where an earlier release wrote it,
// which did not say.
func (t *target) wasGone(cluster string) (gone, known bool) {
	s := t.stands()
	if s == nil {
		return false, false
	}
	text, known := s.Annotations[naming.AnnotationGoneClusters]
	return slices.Contains(strings.Split(text, ","), cluster), known
}

// takenForGone says whether the cluster of a share is gone, or was to the broker before: the Service says so, and all that the cluster
// had ready was out of use. That alone says nothing: a cluster that is not needed is out of use as well. Of a Service that an earlier
// release wrote, nothing more is known.
func (h *share) takenForGone() bool {
	p := h.target.plan
	if !p.awaited[h.cluster] || p.gone[h.cluster] {
		return p.gone[h.cluster]
	}
	gone, known := h.target.wasGone(h.cluster)
	return h.stoodOut && !h.stoodIn && (gone || !known)
}

// stoodAs takes note of how an endpoint stood that is remembered. One that is drained was out of use in any case.
func (h *share) stoodAs(m *member) {
	switch {
	case m.stood == nil || m.drained || !m.ready():
	case isMasked(m.stood.Conditions):
		h.stoodOut = true
	default:
		h.stoodIn = true
	}
}
