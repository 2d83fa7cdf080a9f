package mirror

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/broker/choice"
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
	// Own is where the own name of the Service leads; nil if its owner does not ask for other clusters.
	Own *OwnName
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

// OwnName describes where the own name of a Service leads.
type OwnName struct {
	// Use is how its owner wants it, and Clusters are the others to which it leads now.
	Use      string
	Clusters []string
	// Ready of All endpoints of the own cluster are ready, and Enough is what suffices.
	Ready, All int
	Enough     string
}

func (o OwnName) String() string {
	by, are := o.Clusters, "are"
	if len(by) == 0 || o.Ready > 0 {
		by = append([]string{"this cluster"}, by...)
	}
	if o.Enough == "1" || strings.HasSuffix(o.Enough, "%") {
		are = "is"
	}
	return fmt.Sprintf("own name: %s, served by %s: %d of %d ready here, %s %s enough", o.Use, strings.Join(by, " and "),
		o.Ready, o.All, o.Enough, are)
}

// own describes where the own name of a target leads; nil if its owner does not ask for other clusters.
func (t *target) own() *OwnName {
	if t.ownUse == "" {
		return nil
	}
	o := t.leads(t.settings())
	return &o
}

// leads describes where the own name of a target leads by these settings, also to its own cluster alone.
func (t *target) leads(s choice.Settings) OwnName {
	o := OwnName{Use: t.ownUse, Clusters: t.lent(), Enough: s.MinReadyText()}
	if h := t.perCluster[t.plan.own]; h != nil {
		o.Ready, o.All = h.ready(), h.notEnding()
	}
	return o
}

// OwnNames describes the Services whose own names lead to other clusters now, with Namespace, Name and Own alone: those
// for which the own cluster does not suffice first.
func (p *Plan) OwnNames() (out []Described) {
	for t := range p.lenders {
		if o := t.own(); o != nil && len(o.Clusters) > 0 {
			of := t.sourceName()
			out = append(out, Described{Namespace: of.namespace, Name: of.name, Own: o})
		}
	}
	slices.SortFunc(out, func(a, b Described) int { // failover before all
		return cmp.Or(cmp.Compare(b.Own.Use, a.Own.Use), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// Describe describes targets, or all Services, sorted by name.
func (p *Plan) Describe(targets ...string) []Described {
	var out []Described
	for _, t := range p.selectTargets(targets) {
		of := t.of
		d := Described{Service: t.name, Global: t.shared(), Imported: t.derived(), Headless: t.shape.headless, Due: t.due,
			Own: t.own()}
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
