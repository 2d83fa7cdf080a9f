package services

import (
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

// BindOwnNames sets the loop that writes slices under the own names of Services, and what receives a change of the
// clusters to which such a name leads. It must be called after Bind.
func (e *Engine) BindOwnNames(loop writes.Loop, lent func(mirror.Lent)) {
	e.ownSlices, e.lent, e.slices = loop, lent, loops{e.slices, loop}
}

// markOwnNames marks the slices under own names that a change of the plan touches.
func (e *Engine) markOwnNames(touches mirror.Touches) {
	if e.ownSlices == nil {
		return
	}
	for _, t := range touches.Slices {
		if strings.HasPrefix(t.Service, naming.GlobalPrefix+"-") {
			e.ownSlices.Mark(t.Namespace+"/"+t.Name, t.Cluster, t.ObservedAt)
		}
	}
	for _, change := range touches.Lent {
		e.lent(change)
	}
}

// DesiredOwnSlices is the input of the loop of slices under own names, whose names are NAMESPACE/NAME.
func (e *Engine) DesiredOwnSlices() writes.Desired[*discoveryv1.EndpointSlice] {
	return writes.Desired[*discoveryv1.EndpointSlice]{
		Names: func() (names []string) {
			e.mu.RLock()
			defer e.mu.RUnlock()
			e.plan.EachOwn(func(namespace, name string) { names = append(names, namespace+"/"+name) })
			return names
		},
		Want: func(key, owner string) writes.Answer[*discoveryv1.EndpointSlice] {
			e.mu.RLock()
			defer e.mu.RUnlock()
			if !e.plan.Begun() {
				return writes.Answer[*discoveryv1.EndpointSlice]{Verdict: writes.Unknown}
			}
			namespace, name, _ := strings.Cut(key, "/")
			slice := e.plan.OwnSlice(name)
			if slice != nil && slice.Namespace != namespace {
				slice = nil
			}
			// It follows the slice of the global service, for which the guards decide.
			return writes.Decide(slice, slice != nil, owner, func(string) bool { return true })
		},
	}
}

var ownNameEndpoints = prometheus.NewDesc("semaphore_broker_own_name_endpoints",
	"Ready endpoints of another cluster to which the own name of a Service of this cluster leads now, by its annotation "+
		"semaphore.uw.io/own-name.", []string{"namespace", "service", "cluster", "use"}, nil)

func (e *Engine) collectOwnNames(ch chan<- prometheus.Metric) {
	e.mu.RLock()
	all := e.plan.LentEndpoints()
	e.mu.RUnlock()
	for _, l := range all {
		ch <- prometheus.MustNewConstMetric(ownNameEndpoints, prometheus.GaugeValue, float64(l.Ready), l.Namespace, l.Name,
			l.Cluster, l.Use)
	}
}

// maxOwnNames bounds the Services of a status.
const maxOwnNames = 100

// OwnNames returns the Services whose own names lead to other clusters now, those that the own one does not suffice for
// first, and the number of all of them.
func (e *Engine) OwnNames() (out []*semaphorev1.OwnNameStatus, total int) {
	e.mu.RLock()
	all := e.plan.OwnNames()
	e.mu.RUnlock()
	for _, d := range all[:min(len(all), maxOwnNames)] {
		out = append(out, &semaphorev1.OwnNameStatus{Namespace: d.Namespace, Service: d.Name, Use: d.Own.Use,
			Clusters: d.Own.Clusters, Ready: uint32(d.Own.Ready), All: uint32(d.Own.All), Enough: d.Own.Enough})
	}
	return out, len(all)
}
