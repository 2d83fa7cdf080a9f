package catalog

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Offer is a Service that its owner offers, by a label, and what is published of it.
type Offer struct {
	Namespace, Name string
	UID             types.UID
	// Mirror and Global say as what it is published.
	Mirror, Global bool
	// To are the clusters that it is published to, at Revision of the journal; none where it is not, and then Why says why.
	To       []string
	Revision uint64
	Why      string
	// Unheeded is what of its settings is left out; empty for nothing.
	Unheeded string
}

// Key is the key of what is published.
func (o *Offer) Key() Key { return serviceKey(o.Namespace, o.Name) }

// offered is what is kept of a Service that is offered.
type offered struct {
	uid types.UID
	// withheld is why nobody is told of it though it could be published; empty where the problems say why.
	withheld string
}

// offer notes that a Service is offered, or with nil that it is not.
func (c *Catalog) offer(key Key, o *offered) {
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

// withheld says why a Service that could be published is for nobody.
func (c *Catalog) withheld(ruled Audience, annotations map[string]string) string {
	if ruled == Nobody {
		return "exportRules of this cluster's exporter let no other cluster see it: ask the operator of this cluster"
	}
	return fmt.Sprintf("annotation %s: %.100q lets no cluster see it that exportRules of this cluster's exporter let see it", naming.AnnotationExportTo, annotations[naming.AnnotationExportTo])
}

// OffersVersion changes with what Offers says, and may change without.
func (c *Catalog) OffersVersion() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offersVersion + c.journal.Head()
}

// Offers are all Services that are offered, in the order of their names.
func (c *Catalog) Offers() []Offer {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Offer, 0, len(c.offers))
	for at, is := range c.offers {
		o := Offer{Namespace: at.namespace, Name: at.name, UID: is.uid, Why: is.withheld}
		key := o.Key()
		o.Unheeded = c.problems[problem{key, ServiceSettings}]
		if e, ok := c.journal.Last(key); ok && !e.Deleted {
			service := e.Value.Object.GetService()
			o.Mirror, o.Global, o.Revision = service.GetMirror(), service.GetGlobal(), e.Revision
			for _, cluster := range c.all {
				if e.Value.To.Has(cluster) {
					o.To = append(o.To, cluster)
				}
			}
		} else if o.Why == "" {
			for _, reason := range []Reason{NotOffered, Unsendable, ExportTo} {
				if o.Why = c.problems[problem{key, reason}]; o.Why != "" {
					break
				}
			}
		}
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b Offer) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}
