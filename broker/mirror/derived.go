package mirror

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file holds derived Services: those for which choice.Rule says which cluster decides and which ports they have. A
// plan without a rule has none of them.

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
	e := choice.Exports{Services: map[string]*semaphorev1.Service{}, Existing: t.existing()}
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
func (p *Plan) Derived(service string) (of types.NamespacedName, m choice.Merged, ok bool) {
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

// Exports returns how many Services of each cluster ServiceExports export.
func (p *Plan) Exports() map[string]int {
	all := map[string]int{}
	for r, s := range p.sources {
		if s.service.GetMultiCluster() != nil {
			all[r.cluster]++
		}
	}
	return all
}
