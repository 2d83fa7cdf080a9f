package mirror

import (
	"iter"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// View shows a Service of the plan to those that describe it or count in it. It is valid until the plan changes.
type View struct {
	*target
	Service string
	// Of is what its sources are named.
	Of types.NamespacedName
	// Global is set for a global service and for one that ServiceExports make, and Imported for the latter alone.
	Global, Imported bool
	// Clusters are those that export it or have endpoints in it, in configured order.
	Clusters []ClusterView
}

type ClusterView struct {
	Cluster string
	// Of is the service of the cluster.
	Of types.NamespacedName
	// InUse means that the Service uses its endpoints, except drained and unreached ones, Lent that its own name leads to
	// them, too, and Gone that the cluster is gone.
	InUse, Lent, Gone bool
	// Ready of the endpoints count when a global service chooses.
	Ready     int
	Endpoints iter.Seq[Endpoint]
}

// Endpoint is one in a slice: whether it is ready at its source, a drain covers it, or no tunnel leads to it.
type Endpoint struct {
	Address                   netip.Addr
	Ready, Drained, Unreached bool
}

// Views shows the Services among names that there are.
func (p *Plan) Views(names []string) (all []View) {
	for _, name := range names {
		t := p.targets[name]
		if t == nil {
			continue
		}
		of := t.of
		if t.shared() {
			of = t.sourceName()
		}
		v := View{target: t, Service: t.name, Global: t.shared(), Imported: t.derived()}
		for _, cluster := range p.clusters {
			if h := t.perCluster[cluster]; h != nil {
				if of.name == "" {
					of = h.of
				}
				v.Clusters = append(v.Clusters, ClusterView{cluster, h.of.inCluster(), !h.unused, h.lent, p.gone[cluster],
					h.ready(), h.endpoints})
			}
		}
		v.Of = of.inCluster()
		all = append(all, v)
	}
	return all
}

func (r ref) inCluster() types.NamespacedName {
	return types.NamespacedName{Namespace: r.namespace, Name: r.name}
}

func (h *clusterEndpoints) endpoints(yield func(Endpoint) bool) {
	for m := range h.members {
		address, err := netip.ParseAddr(m.address)
		if err == nil && !yield(Endpoint{address, m.ready(), m.drained, m.unreached}) {
			return
		}
	}
}

// Conflict names the differences of the exports of one that ServiceExports make.
func (v View) Conflict() (c choice.Conflict) {
	if v.merged != nil {
		c = v.merged.Conflict
	}
	return c
}

// Lenders returns the names of the Services whose own names may lead to other clusters.
func (p *Plan) Lenders() (names []string) {
	for t := range p.lenders {
		names = append(names, t.name)
	}
	return names
}

func (p *Plan) Drains() choice.Drains { return p.drains }

// MadeOf returns of which service a Service is made, and whether a cluster has a part in it.
func (p *Plan) MadeOf(service, cluster string) (of types.NamespacedName, has bool) {
	t := p.targets[service]
	if t == nil || t.of.name == "" {
		return of, false
	}
	return t.of.inCluster(), t.of.cluster == cluster || t.shared() && slices.Contains(t.offeringClusters(), cluster)
}

// TooLong returns the names that are too long for the Services of a cluster's service.
func (p *Plan) TooLong(cluster, namespace, name string) (long []string) {
	of := ref{cluster, namespace, name}
	for _, service := range []string{naming.Mirror(p.prefixes[cluster], namespace, name), naming.Global(namespace, name),
		naming.Import(namespace, name)} {
		if slices.ContainsFunc(p.tooLong.All(service), func(r ref) bool { return slices.Contains(p.exportedAs(r), of) }) {
			long = append(long, service)
		}
	}
	return long
}
