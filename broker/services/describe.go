package services

import (
	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/mirror"
)

type Described struct {
	Service string
	// Namespace and Name are those of its sources.
	Namespace, Name string
	// Global is set for a global service and for one that ServiceExports make, and Imported for the latter alone, whose
	// Conflict is in what its exports differ.
	Global, Imported bool
	Conflict         string
	// Clusters are those that export it or have endpoints in it, in configured order.
	Clusters []DescribedCluster
	// Own is where the own name of the Service leads; nil if its owner does not ask for other clusters.
	Own *choice.OwnName
}

// DescribedCluster describes the endpoints of one cluster in a Service, for the page, too.
type DescribedCluster struct {
	Cluster string `json:"cluster"`
	// Endpoints is their number; Ready of them are ready at their source, and drains cover Drained of them.
	Endpoints int `json:"endpoints"`
	Ready     int `json:"ready"`
	Drained   int `json:"drained"`
	// InUse means that the Service uses its endpoints, except drained ones.
	InUse bool `json:"inUse"`
	Gone  bool `json:"gone"`
}

// Services returns the Services of the broker with endpoints, and the clusters that they use, sorted by name.
func (e *Engine) Services() (out []Described) {
	e.views(func(v mirror.View) {
		d := Described{Service: v.Service, Namespace: v.Of.Namespace, Name: v.Of.Name, Global: v.Global,
			Imported: v.Imported, Conflict: v.Conflict().Message, Own: v.Own()}
		for _, of := range v.Clusters {
			c := DescribedCluster{Cluster: of.Cluster, InUse: of.InUse, Gone: of.Gone}
			for e := range of.Endpoints {
				c.Endpoints++
				c.Ready += count(e.Ready)
				c.Drained += count(e.Drained)
			}
			d.Clusters = append(d.Clusters, c)
		}
		out = append(out, d)
	})
	return out
}

func count(it bool) int {
	if it {
		return 1
	}
	return 0
}
