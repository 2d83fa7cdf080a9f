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

// takenForGone says whether the cluster of a share is gone, or was to the broker before when all that it had ready stands out of use.
func (h *share) takenForGone() bool {
	p := h.target.plan
	return p.gone[h.cluster] || p.awaited[h.cluster] && h.stoodUnused()
}

// stoodUnused says whether of what stands of a share, and of which nobody has told yet, something is out of use and nothing in use.
func (h *share) stoodUnused() bool {
	unused := false
	for _, b := range h.groups {
		for _, s := range b.slices {
			for i := range s.members {
				m := &s.members[i]
				switch {
				case m.stood == nil || !m.ready():
				case !isMasked(m.stood.Conditions):
					return false
				case !m.drained:
					unused = true
				}
			}
		}
	}
	return unused
}
