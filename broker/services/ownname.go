package services

import (
	"cmp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file holds the slices under the own names of Services of this cluster: each slice of a global service that is
// lent, once more, in the namespace of the Service.

// markOwnNames marks the slices under own names that a change of the plan touches.
func (e *Engine) markOwnNames(touches mirror.Touches) {
	if e.loops.OwnSlices == nil {
		return
	}
	for _, t := range touches.Slices {
		if strings.HasPrefix(t.Service, naming.GlobalPrefix+"-") {
			e.loops.OwnSlices.Mark(t.Namespace+"/"+t.Name, t.Cluster, t.ObservedAt)
		}
	}
	for _, change := range touches.Lent {
		e.loops.Lent(change)
	}
}

// DesiredOwnSlices is the input of the loop of slices under own names, whose names are NAMESPACE/NAME.
func (e *Engine) DesiredOwnSlices() writes.Desired[*discoveryv1.EndpointSlice] {
	return writes.Desired[*discoveryv1.EndpointSlice]{
		Names: e.listed(func() (names []string) {
			e.plan.EachOwn(func(namespace, name string) { names = append(names, namespace+"/"+name) })
			return names
		}),
		Want: want(e, func(key, owner string) writes.Answer[*discoveryv1.EndpointSlice] {
			namespace, name, _ := strings.Cut(key, "/")
			slice := e.plan.OwnSlice(name)
			if slice != nil && slice.Namespace != namespace {
				slice = nil
			}
			// It follows the slice of the global service, for which the Retentions decide.
			return writes.Decide(slice, slice != nil, owner, func(string) bool { return true })
		}),
	}
}

var ownNameEndpoints = prometheus.NewDesc("semaphore_broker_own_name_endpoints",
	"Ready endpoints of another cluster to which the own name of a Service of this cluster leads now, by its annotation "+
		"semaphore.uw.io/own-name.", []string{"namespace", "service", "cluster", "use"}, nil)

func (e *Engine) collectOwnNames(ch chan<- prometheus.Metric) {
	var out []prometheus.Metric
	e.mu.RLock()
	for _, v := range e.plan.Views(e.plan.Lenders()) {
		for _, c := range v.Clusters {
			if c.Lent {
				out = append(out, prometheus.MustNewConstMetric(ownNameEndpoints, prometheus.GaugeValue, float64(c.Ready),
					v.Of.Namespace, v.Of.Name, c.Cluster, v.Own().Use))
			}
		}
	}
	e.mu.RUnlock()
	for _, metric := range out {
		ch <- metric
	}
}

// maxOwnNames bounds the Services of a status.
const maxOwnNames = 100

// OwnNames returns the Services whose own names lead to other clusters now, those that the own one does not suffice for
// first, and the number of all of them.
func (e *Engine) OwnNames() (out []*semaphorev1.OwnNameStatus, total int) {
	e.mu.RLock()
	for _, v := range e.plan.Views(e.plan.Lenders()) {
		if o := v.Own(); o != nil && len(o.Clusters) > 0 {
			out = append(out, &semaphorev1.OwnNameStatus{Namespace: v.Of.Namespace, Service: v.Of.Name, Use: o.Use,
				Clusters: o.Clusters, Ready: uint32(o.Ready), All: uint32(o.All), Enough: o.Enough})
		}
	}
	e.mu.RUnlock()
	slices.SortFunc(out, func(a, b *semaphorev1.OwnNameStatus) int { // failover before all
		return cmp.Or(cmp.Compare(b.Use, a.Use), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service))
	})
	return out[:min(len(out), maxOwnNames)], len(out)
}
