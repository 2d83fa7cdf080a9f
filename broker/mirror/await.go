package mirror

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
	for _, t := range w.targets {
		if t.shares[cluster] != nil {
			w.redecide(t)
		}
	}
}

// takenForGone says whether the cluster of a share is gone, or was to the broker before when all that it had ready stood out of use.
func (h *share) takenForGone() bool {
	p := h.target.plan
	return p.gone[h.cluster] || p.awaited[h.cluster] && h.stoodOut && !h.stoodIn
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
