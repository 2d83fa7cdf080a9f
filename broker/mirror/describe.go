package mirror

import (
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// Described describes a Service for people.
type Described struct {
	// Service is its name.
	Service string
	// Namespace and Name are those of its sources.
	Namespace, Name string
	// Global is set for a global service and for one that ServiceExports make, and Imported for the latter alone, whose
	// Conflict is in what its exports differ.
	Global, Imported bool
	Conflict         string
	// Headless is the flag of the authoritative source.
	Headless bool
	// Clusters are those that export it or have endpoints in it, in configured order.
	Clusters []DescribedCluster
	// Prefer, MinReady and WhenGone are the settings of a global service.
	Prefer   []string
	MinReady int
	WhenGone config.WhenGone
	// Due is the time at which it chooses again which clusters it uses; zero for never.
	Due time.Time
}

// DescribedCluster describes the endpoints of one cluster in a Service.
type DescribedCluster struct {
	Cluster string
	// Endpoints is their number; Ready of them are ready at their source, and drains cover Drained of them.
	Endpoints, Ready, Drained int
	// Slices is the number of slices that hold them.
	Slices int
	// InUse means that the Service uses its endpoints, except drained ones.
	InUse bool
	// Gone means that the cluster is gone.
	Gone bool
	// Remembered is the number of unconfirmed endpoints: they exist and the cluster has not exported them since this
	// broker started.
	Remembered int
	// Differs lists the settings that differ from the global service's.
	Differs []string
}

// Describe describes targets, or all Services, sorted by name.
func (p *Plan) Describe(targets ...string) []Described {
	var out []Described
	for _, t := range p.selectTargets(targets) {
		of := t.of
		d := Described{Service: t.name, Global: t.shared(), Imported: t.derived(), Headless: t.shape.headless, Due: t.due}
		if d.Global {
			of = t.sourceName()
			s := t.settings()
			d.Prefer, d.MinReady, d.WhenGone = s.Prefer, s.MinReady, s.WhenGone
		}
		if t.merged != nil {
			d.Conflict = t.merged.Conflict.Message
		}
		for _, cluster := range p.clusters {
			h := t.perCluster[cluster]
			if h == nil {
				continue
			}
			if of.name == "" {
				of = h.of
			}
			c := DescribedCluster{Cluster: cluster, Endpoints: len(h.sliceOf), InUse: !h.unused, Gone: p.gone[cluster],
				Differs: t.differences[cluster]}
			for _, s := range h.all() {
				c.Slices++
				for i := range s.members {
					m := &s.members[i]
					if m.ready() {
						c.Ready++
					}
					if m.drained {
						c.Drained++
					}
					if m.exported == nil {
						c.Remembered++
					}
				}
			}
			d.Clusters = append(d.Clusters, c)
		}
		d.Namespace, d.Name = of.namespace, of.name
		out = append(out, d)
	}
	return out
}
