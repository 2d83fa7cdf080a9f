package mirror

import (
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// Described is a Service of ours, for people.
type Described struct {
	// Service is its name.
	Service string
	// Namespace and Name are those of its sources.
	Namespace, Name string
	Global          bool
	// Headless is as its deciding source says.
	Headless bool
	// Clusters are those that have endpoints in it, or offer it, in the order in which they decide what it is.
	Clusters []DescribedCluster
	// Prefer, MinReady and WhenGone are its settings; of a global one only.
	Prefer   []string
	MinReady int
	WhenGone config.WhenGone
	// Due is when time alone changes which clusters it uses; zero for never.
	Due time.Time
}

// DescribedCluster is what one cluster has in a Service of ours.
type DescribedCluster struct {
	Cluster string
	// Endpoints, those of them that are ready at their source, and those that a drain covers.
	Endpoints, Ready, Drained int
	// Slices that they are in.
	Slices int
	// InUse says that its endpoints are used, but for those that are drained.
	InUse bool
	// Gone says that the cluster is.
	Gone bool
	// Remembered are endpoints that stand in the cluster and of which the cluster has not told since this broker began.
	Remembered int
	// Differs is what the service there says of itself and is not so here; a phrase each.
	Differs []string
}

// Describe describes some Services of ours, or all, in the order of their names.
func (p *Plan) Describe(targets ...string) []Described {
	var out []Described
	for _, t := range p.some(targets) {
		of := t.of
		d := Described{Service: t.name, Global: t.global(), Headless: t.shape.headless, Due: t.due}
		if d.Global {
			of = t.named()
			s := t.settings()
			d.Prefer, d.MinReady, d.WhenGone = s.Prefer, s.MinReady, s.WhenGone
		}
		for _, cluster := range p.clusters {
			h := t.shares[cluster]
			if h == nil {
				continue
			}
			if of.name == "" {
				of = h.of
			}
			c := DescribedCluster{Cluster: cluster, Endpoints: len(h.home), InUse: !h.unused, Gone: p.gone[cluster], Differs: t.clashes[cluster]}
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
					if m.told == nil {
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
