package mirror

import (
	"net/netip"

	"github.com/kube-semaphore/semaphore/broker/drain"
	"github.com/kube-semaphore/semaphore/internal/config"
)

// Affected is a Service of ours that has endpoints which a drain covers.
type Affected struct {
	// Service is its name.
	Service string
	// Covered are those of them that are ready at their source, and Used those that are in use now.
	Covered, Used int
	// Left are ready endpoints that it has besides, or that it could use.
	Left int
}

// Affected are those of some Services of ours, or of all, that have endpoints which a drain covers, or would; in the order of their names.
func (p *Plan) Affected(d drain.Drain, targets ...string) []Affected {
	set := drain.NewSet(d)
	var out []Affected
	for _, t := range p.some(targets) {
		a := Affected{Service: t.name}
		covers := false
		for cluster, h := range t.shares {
			withdrawn := t.global() && p.gone[cluster] && t.settings().WhenGone == config.Withdraw
			h.each(func(m *member, address netip.Addr) {
				_, covered := set.Covers(cluster, h.of.namespace, h.of.name, address)
				covers = covers || covered
				switch {
				case !m.ready():
				case covered:
					a.Covered++
					if !m.drained && !h.unused {
						a.Used++
					}
				case !m.drained && !withdrawn:
					a.Left++
				}
			})
		}
		if covers {
			out = append(out, a)
		}
	}
	return out
}

// Drained is what a drain that holds keeps out of use.
type Drained struct {
	// Endpoints that are ready at their source, and Services of ours that have some of them.
	Endpoints, Services int
}

// Drained is what each drain keeps out of use in some Services of ours, or in all. An endpoint that several cover counts for the first.
func (p *Plan) Drained(targets ...string) map[drain.Target]Drained {
	out := map[drain.Target]Drained{}
	for _, t := range p.some(targets) {
		of := map[drain.Target]bool{}
		for cluster, h := range t.shares {
			h.each(func(m *member, address netip.Addr) {
				if !m.drained || !m.ready() {
					return
				}
				if d, ok := p.drains.Covers(cluster, h.of.namespace, h.of.name, address); ok {
					counts := out[d.Target]
					counts.Endpoints++
					if !of[d.Target] {
						of[d.Target] = true
						counts.Services++
					}
					out[d.Target] = counts
				}
			})
		}
	}
	return out
}

// each calls f with every endpoint of a share.
func (h *share) each(f func(*member, netip.Addr)) {
	for _, b := range h.groups {
		for _, s := range b.slices {
			for i := range s.members {
				if address, err := netip.ParseAddr(s.members[i].address); err == nil {
					f(&s.members[i], address)
				}
			}
		}
	}
}
