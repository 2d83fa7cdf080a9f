package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Offer is a Service that its owner offers by a label, with its exported form.
type Offer struct {
	Namespace, Name              string
	UID                          types.UID
	Mirror, Global, MultiCluster bool
	// To are the clusters that receive it, at Revision of the journal. Reason reports why no other cluster does; empty if
	// one does.
	To       []string
	Revision uint64
	Reason   string
	// IgnoredSettings lists its settings that are left out; empty for none.
	IgnoredSettings string
}

func (o *Offer) Key() Key { return serviceKey(o.Namespace, o.Name) }

type offered struct {
	uid types.UID
	// withheld is why a valid Service is exported to no cluster; empty if a problem reports why.
	withheld string
}

// setOffer records that a Service is offered; nil if it is not.
func (c *Catalog) setOffer(key Key, o *offered) {
	at := name{key.Namespace, key.Name}
	if was := c.offers[at]; o == nil && was == nil || o != nil && was != nil && *was == *o {
		return
	}
	if c.offersVersion++; o == nil {
		delete(c.offers, at)
		return
	}
	c.offers[at] = o
}

// withheld returns why the audience of a valid Service is empty; by are the values of the annotation that restrict it.
func withheld(ruled Audience, by []string) string {
	if ruled == Nobody {
		return "spec.export of no RemoteCluster offers it: ask the operator of this cluster"
	}
	return fmt.Sprintf("annotation %s: %s names none of the clusters to which RemoteClusters offer it",
		naming.AnnotationExportTo, strings.Join(by, " and "))
}

// OffersVersion changes when the result of Offers changes. It may change without.
func (c *Catalog) OffersVersion() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offersVersion + c.journal.Head()
}

func (c *Catalog) Offers() []Offer {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Offer, 0, len(c.offers))
	for at, is := range c.offers {
		o := Offer{Namespace: at.namespace, Name: at.name, UID: is.uid}
		key, elsewhere := o.Key(), false
		o.IgnoredSettings = c.problems[problemKey{key, finding.InvalidServiceSetting}]
		if e, ok := c.journal.Last(key); ok && !e.Deleted {
			service := e.Value.Object.GetService()
			o.Mirror, o.Global, o.Revision = service.GetMirror(), service.GetGlobal(), e.Revision
			o.MultiCluster = service.GetMultiCluster() != nil
			for _, cluster := range c.clusters {
				if e.Value.To.Has(cluster) {
					o.To, elsewhere = append(o.To, cluster), elsewhere || !c.own.Has(cluster)
				}
			}
		}
		if !elsewhere {
			o.Reason = cmp.Or(c.problems[problemKey{key, finding.UnsupportedServiceType}],
				c.problems[problemKey{key, finding.Unsendable}])
			if is.withheld == "" { // else what is wrong with the Service's annotation is not why
				o.Reason = cmp.Or(o.Reason, c.problems[problemKey{key, finding.InvalidExportTo}])
			}
		}
		switch {
		case o.Reason != "" || elsewhere:
		case len(c.remotes) == 0:
			o.Reason = "no RemoteCluster has a broker to export to: ask the operator of this cluster to link another one"
		default:
			o.Reason = is.withheld
		}
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b Offer) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}
