package mirror

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file holds derived Services: those for which a rule beyond that of global services says which cluster decides
// and which ports they have. broker/services has the rule of ServiceExports. A plan without a rule has none of them.

// Rule decides derived Services.
type Rule interface {
	// Denied says why nothing is derived for a namespace, as the rest of a sentence about an exported service; empty if
	// something is.
	Denied(namespace string) string
	// Merge decides the fields of one derived Service.
	Merge(Exports) Merged
}

// Exports are the exports of one name.
type Exports struct {
	// Services are those that clusters export now, by cluster.
	Services map[string]*semaphorev1.Service
	// Before are the clusters of the derived Service until now, in its order: those that still export it, and those that
	// did and are not complete.
	Before []string
	// Existing is the derived Service as it exists; nil for none.
	Existing *corev1.Service
}

// Merged is what a rule decides.
type Merged struct {
	// Order are the clusters, the first of which decides, and Exporting those of them that export the name now.
	Order, Exporting []string
	// Service is nil while it is not known; then the existing Service does not change.
	Service *semaphorev1.Service
	// Ports are those that the endpoints of a cluster have in the Service; a cluster without an entry has all.
	Ports map[string]replica.Ports
	// Conflict is in what the exports differ.
	Conflict Conflict
}

// Conflict lists how the exports of one name differ; zero for no difference.
type Conflict struct {
	// Reasons are those of the condition Conflict of KEP-1645, sorted as there.
	Reasons []string
	// Message is a sentence for a person.
	Message string
}

// clusterSet stands for the cluster of a ref that names the exports of one name. It is no name of a cluster, and sorts
// after global services and before mirrors.
const clusterSet = "*"

// derived reports whether a rule decides the target.
func (t *target) derived() bool {
	if t.of.name == "" {
		s := t.existing()
		return s != nil && s.Labels[naming.LabelImported] == "true"
	}
	return t.of.cluster == clusterSet
}

// merge has the rule decide a derived target. The caller attaches the sources afterwards.
func (w *work) merge(t *target, exports map[string]*source) {
	if !w.ordered {
		return
	}
	e := Exports{Services: map[string]*semaphorev1.Service{}, Existing: t.existing()}
	for cluster, s := range exports {
		e.Services[cluster] = s.service
	}
	before := t.clustersBefore()
	if t.merged != nil {
		before = t.merged.Order
	}
	for _, cluster := range before {
		if slices.Contains(w.clusters, cluster) && (exports[cluster] != nil || t.offeredBefore(cluster)) {
			e.Before = append(e.Before, cluster)
		}
	}
	merged := w.rule.Merge(e)
	t.merged = &merged
}

// Derived returns what a derived Service is made of; ok is false for another Service. m is zero before Begin.
func (p *Plan) Derived(service string) (of types.NamespacedName, m Merged, ok bool) {
	t := p.targets[service]
	if t == nil || t.of.cluster != clusterSet {
		return of, m, false
	}
	if t.merged != nil {
		m = *t.merged
	}
	return types.NamespacedName{Namespace: t.of.namespace, Name: t.of.name}, m, true
}

// AllDerived iterates over the names of all desired derived Services.
func (p *Plan) AllDerived(yield func(service string) bool) {
	for name := range p.claims.Names {
		if of, ok := p.claims.Winner(name); ok && of.cluster == clusterSet && !yield(name) {
			return
		}
	}
}

// Exports returns how many Services of a cluster ServiceExports export.
func (p *Plan) Exports(cluster string) int { return p.exportCounts[cluster] }
