// Package mirror decides which Services and EndpointSlices stand for remote services in
// the own cluster: a Service without selector for each one that a remote offers, and a
// slice of ours for each slice of the source.
//
// It is pure: changes to replicas in, names whose object may have changed out, and on
// demand the object that is wanted under a name. Names that two sources would share go to
// the first by cluster, namespace and name, whatever the history; the other is told as a problem.
//
// Global services will be a second claim on the same replicas (issue: services); nothing of
// them is here yet.
package mirror

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/broker/claim"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// maxServiceName is that of the API: a Service's name is a DNS label (RFC 1035).
	maxServiceName = 63
	// maxEndpoints in one of our slices, as the endpointslice controller's default.
	maxEndpoints = 100
)

// ref names a remote object.
type ref struct{ cluster, namespace, name string }

func (r ref) compare(o ref) int {
	return cmp.Or(cmp.Compare(r.cluster, o.cluster), cmp.Compare(r.namespace, o.namespace), cmp.Compare(r.name, o.name))
}

// part is what of a remote slice one of our slices holds: usually all of it.
type part struct {
	slice ref
	index int
}

// Plan holds what the remotes offer.
type Plan struct {
	namespace string
	prefixes  map[string]string
	services  map[ref]*semaphorev1.Service
	slices    map[ref]*semaphorev1.EndpointSlice
	// ofService are the slices of a service, whether it is offered or not.
	ofService map[ref]map[ref]bool
	// mirrors is who has which Service name, parts which slice of ours holds what.
	mirrors *claim.Table[ref]
	parts   *claim.Table[part]
	// tooLong are the services whose mirror's name the API would not take.
	tooLong map[ref]string
}

// Touched is the name of an object that may have to change.
type Touched struct {
	Name string
	// Cluster whose change touched it, and when that change was seen there; zero if unknown.
	Cluster    string
	ObservedAt time.Time
}

// Touches are the objects that may have to change.
type Touches struct {
	Services, Slices []Touched
}

// New makes an empty plan for mirrors in namespace.
func New(remotes []config.Remote, namespace string) *Plan {
	p := &Plan{
		namespace: namespace,
		prefixes:  map[string]string{},
		services:  map[ref]*semaphorev1.Service{},
		slices:    map[ref]*semaphorev1.EndpointSlice{},
		ofService: map[ref]map[ref]bool{},
		mirrors:   claim.New(ref.compare),
		parts:     claim.New(func(a, b part) int { return cmp.Or(a.slice.compare(b.slice), cmp.Compare(a.index, b.index)) }),
		tooLong:   map[ref]string{},
	}
	for _, r := range remotes {
		p.prefixes[r.Name] = r.ServicePrefix
	}
	return p
}

// Apply takes changes of one remote's replica. Changes of other kinds are ignored.
func (p *Plan) Apply(cluster string, changes []replica.Change) Touches {
	var t Touches
	for _, c := range changes {
		r := ref{cluster, c.Key.Namespace, c.Key.Name}
		touch := toucher{p, &t, cluster, c.ObservedAt}
		switch c.Key.Kind {
		case semaphorev1.Kind_KIND_SERVICE:
			touch.service(r, c.New.GetService())
		case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
			touch.slice(r, c.New.GetEndpointSlice())
		}
	}
	return t
}

// Names are the names of all Services and slices that are wanted.
func (p *Plan) Names() (services, slices []string) {
	for name := range p.mirrors.Names {
		services = append(services, name)
	}
	for name := range p.parts.Names {
		slices = append(slices, name)
	}
	return services, slices
}

// Problem is a remote service that has no mirror, and why.
type Problem struct {
	Cluster, Namespace, Name string
	// Reason is a sentence.
	Reason string
}

// Problems are in the order of their clusters and services.
func (p *Plan) Problems() []Problem {
	var out []Problem
	for r, name := range p.tooLong {
		out = append(out, Problem{r.cluster, r.namespace, r.name, fmt.Sprintf(
			"its mirror would be named %s, %d characters where a Service may have %d: shorten its name, its namespace's or the servicePrefix of %s", name, len(name), maxServiceName, r.cluster)})
	}
	for name, all := range p.mirrors.Contested {
		for _, r := range all[1:] {
			out = append(out, Problem{r.cluster, r.namespace, r.name, fmt.Sprintf(
				"its mirror would be named %s, which is that of %s/%s of %s", name, all[0].namespace, all[0].name, all[0].cluster)})
		}
	}
	slices.SortFunc(out, func(a, b Problem) int {
		return ref{a.Cluster, a.Namespace, a.Name}.compare(ref{b.Cluster, b.Namespace, b.Name})
	})
	return out
}

func (p *Plan) mirrorName(r ref) string {
	return naming.Mirror(p.prefixes[r.cluster], r.namespace, r.name)
}

func serviceOf(r ref, s *semaphorev1.EndpointSlice) ref {
	return ref{r.cluster, r.namespace, s.GetService()}
}

// partNames are the names of the slices of ours that stand for slice r.
func (p *Plan) partNames(r ref, s *semaphorev1.EndpointSlice) []string {
	first := naming.MirrorSlice(p.mirrorName(serviceOf(r, s)), r.namespace, r.name)
	names := []string{first}
	for i := maxEndpoints; i < len(s.GetEndpoints()); i += maxEndpoints {
		names = append(names, fmt.Sprintf("%s-%d", first, i/maxEndpoints))
	}
	return names
}

// toucher notes what one change touches.
type toucher struct {
	*Plan
	touches    *Touches
	cluster    string
	observedAt time.Time
}

func (t toucher) touched(name string) Touched { return Touched{name, t.cluster, t.observedAt} }

func (t toucher) service(r ref, s *semaphorev1.Service) {
	name := t.mirrorName(r)
	if s == nil {
		delete(t.services, r)
	} else {
		t.services[r] = s
	}
	delete(t.tooLong, r)
	before, _ := t.mirrors.Winner(name)
	switch {
	case s == nil || !s.GetMirror():
		t.mirrors.Remove(name, r)
	case len(name) > maxServiceName:
		t.tooLong[r] = name
	default:
		t.mirrors.Add(name, r)
	}
	t.touches.Services = append(t.touches.Services, t.touched(name))
	// Slices follow their Service: when it goes or comes, becomes headless, or wins or loses its name.
	after, _ := t.mirrors.Winner(name)
	t.slicesOf(r)
	for _, other := range []ref{before, after} {
		if other != r {
			t.slicesOf(other)
		}
	}
}

func (t toucher) slicesOf(service ref) {
	for r := range t.ofService[service] {
		for _, name := range t.partNames(r, t.slices[r]) {
			t.touches.Slices = append(t.touches.Slices, t.touched(name))
		}
	}
}

func (t toucher) slice(r ref, s *semaphorev1.EndpointSlice) {
	old, had := t.slices[r]
	if had {
		for i, name := range t.partNames(r, old) {
			t.parts.Remove(name, part{r, i})
			t.touches.Slices = append(t.touches.Slices, t.touched(name))
		}
		of := serviceOf(r, old)
		delete(t.ofService[of], r)
		if len(t.ofService[of]) == 0 {
			delete(t.ofService, of)
		}
		delete(t.slices, r)
	}
	if s == nil {
		return
	}
	t.slices[r] = s
	of := serviceOf(r, s)
	if t.ofService[of] == nil {
		t.ofService[of] = map[ref]bool{}
	}
	t.ofService[of][r] = true
	for i, name := range t.partNames(r, s) {
		t.parts.Add(name, part{r, i})
		t.touches.Slices = append(t.touches.Slices, t.touched(name))
	}
}
