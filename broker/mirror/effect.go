package mirror

import (
	"net/netip"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/internal/config"
)

// Affected is a Service that has endpoints which a drain covers.
type Affected struct {
	// Service is its name.
	Service string
	// Covered is the number of covered endpoints that are ready at their source; Used of them are in use now.
	Covered, Used int
	// Left is the number of other ready endpoints that the Service has or could use.
	Left int
}

// Affected returns the Services, of targets or of all, that a drain affects or would affect, sorted by name.
func (p *Plan) Affected(d choice.Drain, targets ...string) []Affected {
	set := choice.NewDrains(d)
	var out []Affected
	for _, t := range p.selectTargets(targets) {
		a := Affected{Service: t.name}
		covers := false
		for cluster, h := range t.perCluster {
			withdrawn := t.shared() && p.gone[cluster] && t.settings().WhenGone == config.Withdraw
			h.each(func(m *member, address netip.Addr) {
				_, covered := set.Covers(cluster, h.of.namespace, h.of.name, address)
				covers = covers || covered
				switch {
				case !m.ready():
				case covered:
					a.Covered++
					if h.inUse(m) {
						a.Used++
					}
				case m.usable() && !withdrawn:
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

// Drained is the effect of an active drain.
type Drained struct {
	// Endpoints is the number of drained endpoints that are ready at their source; Services have at least one of
	// them.
	Endpoints, Services int
}

// Drained returns the effect of each drain on targets, or on all. An endpoint counts for the first drain that covers
// it.
func (p *Plan) Drained(targets ...string) map[choice.Target]Drained {
	out := map[choice.Target]Drained{}
	for _, t := range p.selectTargets(targets) {
		of := map[choice.Target]bool{}
		for cluster, h := range t.perCluster {
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

func (h *clusterEndpoints) each(f func(*member, netip.Addr)) {
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
