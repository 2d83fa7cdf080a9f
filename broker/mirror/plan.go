// Package mirror decides which Services and EndpointSlices stand in the own cluster for services of several clusters: a
// mirror for each service that a remote offers as one, and a global service for each name under which clusters offer to share.
//
// It is pure: changes to replicas and what stands in the cluster in, names whose object may have changed out, and on
// demand the object that is wanted under a name. It keeps no clock: the time is an argument.
//
//	source   what a cluster says of one of its services: its endpoints, each once, whatever slices they are in
//	target   a Service of ours; mirrors have one source, global services one of each cluster
//	share    what one cluster has in a target, in slices of our own
//
// Names that two sources would share go to the first by cluster, namespace and name, whatever the history; the other is told as a
// problem. Which slice an endpoint is in follows from what stands in the cluster (see docs/adr/0009-services.md); all else follows
// from the state alone.
package mirror

import (
	"cmp"
	"container/heap"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/broker/claim"
	"github.com/kube-semaphore/semaphore/broker/drain"
	"github.com/kube-semaphore/semaphore/broker/prefer"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxServiceName is that of the API: a Service's name is a DNS label (RFC 1035).
const maxServiceName = 63

// ref names a service of a cluster. Without a cluster it is the global service of that name, which is before all others.
type ref struct{ cluster, namespace, name string }

func (r ref) compare(o ref) int {
	return cmp.Or(cmp.Compare(r.cluster, o.cluster), cmp.Compare(r.namespace, o.namespace), cmp.Compare(r.name, o.name))
}

// Plan holds what the clusters offer. It is not safe for concurrent use.
type Plan struct {
	namespace string
	own       string
	// clusters are all that may offer, in the order in which they decide what a global service is.
	clusters []string
	prefixes map[string]string
	subnets  map[string][]netip.Prefix // of their pods
	max      int                       // endpoints in a slice
	labels   config.LabelKeys          // of sources, that mirrors have too
	// endpoints says that Endpoints are wanted beside the slices.
	endpoints bool
	global    *config.GlobalServices

	sources map[ref]*source
	// told are the slices of the clusters.
	told map[ref]*semaphorev1.EndpointSlice
	// claims are who has which Service name.
	claims *claim.Table[ref]
	// tooLong are the claimants of names that the API would not take.
	tooLong  map[string][]ref
	problems problem.Set
	targets  map[string]*target
	// slices are those that are wanted, by name. ended are those of which all that they held is known to be gone, until they are.
	slices map[string]*slice
	ended  map[string]string // the cluster of each

	// begun says that what stands in the cluster is known; until then seen has it.
	begun bool
	seen  map[string]*discoveryv1.EndpointSlice
	// standing are the Services of ours in the cluster.
	standing map[string]*corev1.Service
	// whole are the clusters that have been heard so that what they do not say is gone.
	whole map[string]bool

	gone map[string]bool
	// awaited are the clusters of which it is not known yet whether they are.
	awaited map[string]bool
	drains  drain.Set
	drained bool // whether there are any drains
	chooser *prefer.Chooser
	// dirty are the targets of which it is to be decided anew which clusters they use, and waiting those of which time alone
	// decides it.
	dirty, waiting map[*target]bool
	// dues are when it is decided, and may have some that are not so any more.
	dues dues
}

// Touched is the name of an object that may have to change.
type Touched struct {
	Name string
	// Cluster whose change touched it, and when that change was seen there; empty and zero if unknown.
	Cluster    string
	ObservedAt time.Time
}

// Touches are the objects that may have to change.
type Touches struct {
	Services, Slices []Touched
	// Endpoints are those beside the slices, where they are wanted.
	Endpoints []Touched
}

// New makes the plan of a broker that has heard nothing yet and knows nothing of what stands in its cluster. No endpoint
// has a place in a slice before Begin.
func New(cfg *config.Broker) *Plan {
	p := &Plan{
		namespace: cfg.MirrorNamespace,
		own:       cfg.Cluster,
		prefixes:  map[string]string{},
		subnets:   map[string][]netip.Prefix{cfg.Cluster: cfg.GlobalServices.PodPrefixes},
		max:       cfg.Slices.MaxEndpoints,
		labels:    cfg.Services.Labels,
		endpoints: cfg.Services.Endpoints,
		global:    &cfg.GlobalServices,
		sources:   map[ref]*source{},
		told:      map[ref]*semaphorev1.EndpointSlice{},
		claims:    claim.New(ref.compare),
		tooLong:   map[string][]ref{},
		targets:   map[string]*target{},
		slices:    map[string]*slice{},
		ended:     map[string]string{},
		seen:      map[string]*discoveryv1.EndpointSlice{},
		standing:  map[string]*corev1.Service{},
		whole:     map[string]bool{},
		gone:      map[string]bool{},
		awaited:   map[string]bool{},
		chooser:   prefer.New(cfg.GlobalServices.Settle.Duration),
		dirty:     map[*target]bool{},
		waiting:   map[*target]bool{},
	}
	if own := cfg.Own(); own != nil {
		p.clusters = append(p.clusters, own.Name)
	}
	for _, r := range cfg.Remotes {
		p.clusters = append(p.clusters, r.Name)
		p.prefixes[r.Name], p.subnets[r.Name] = r.ServicePrefix, r.PodPrefixes
	}
	return p
}

// Apply takes changes of one cluster's replica. Changes of other kinds are ignored.
func (p *Plan) Apply(cluster string, changes []replica.Change, now time.Time) Touches {
	w := p.work(cluster)
	w.arrived(cluster)
	for _, c := range changes {
		w.observedAt = c.ObservedAt
		r := ref{cluster, c.Key.Namespace, c.Key.Name}
		switch c.Key.Kind {
		case semaphorev1.Kind_KIND_SERVICE:
			w.service(r, c.New.GetService())
		case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
			w.slice(r, c.New.GetEndpointSlice())
		}
	}
	return w.done(now)
}

// Observed takes note of the EndpointSlice of ours that stands under a name; nil for none.
func (p *Plan) Observed(name string, o *discoveryv1.EndpointSlice, now time.Time) Touches {
	if !p.begun {
		if p.seen[name] = o; o == nil {
			delete(p.seen, name)
		}
		return Touches{}
	}
	if o == nil {
		p.Absent(name)
		return Touches{}
	}
	// Of a cluster that has not been heard whole, all that stands is remembered, also what an earlier broker had on its way.
	w := p.work("")
	w.remember(name, o)
	return w.done(now)
}

// ObservedService takes note of the Service of ours that stands under a name; nil for none.
func (p *Plan) ObservedService(name string, o *corev1.Service, now time.Time) Touches {
	begins, family := p.standing[name] == nil && o != nil, p.family(name)
	if p.standing[name] = o; o == nil {
		delete(p.standing, name)
	}
	w := p.work("")
	if begins || family != p.family(name) {
		w.touchEndpoints(name)
	}
	if t := p.targets[name]; t != nil && begins {
		for _, h := range t.shares { // which have waited for it
			w.touchSlices(h)
		}
	}
	if t := p.targets[name]; t != nil && t.decisive() == nil {
		w.feed(name)
	}
	return w.done(now)
}

// Stands says whether there is a Service of ours of that name. Slices are made for no other: whoever has the name
// otherwise would be given endpoints of another cluster.
func (p *Plan) Stands(service string) bool { return p.standing[service] != nil }

// Begin says that all slices that stand in the cluster have been Observed. Endpoints have places from now on: where they are
// already, or where there is room.
func (p *Plan) Begin(now time.Time) Touches {
	if p.begun {
		return Touches{}
	}
	p.begun = true
	w := p.work("")
	for _, name := range sorted(p.seen) {
		w.remember(name, p.seen[name])
	}
	p.seen = nil
	for _, name := range sorted(p.targets) {
		t := p.targets[name]
		for _, cluster := range p.clusters {
			if h := t.shares[cluster]; h != nil && h.source != nil {
				if t.awaits(cluster) {
					w.detach(h)
					continue
				}
				w.place(h)
			}
		}
		w.touchService(name)
		w.reshape(t)
		w.redecide(t)
	}
	return w.done(now)
}

// Begun says whether Begin was called.
func (p *Plan) Begun() bool { return p.begun }

// Complete says that a cluster has been heard whole: what stands of it and was not told is gone.
func (p *Plan) Complete(cluster string, now time.Time) Touches {
	if p.whole[cluster] {
		return Touches{}
	}
	p.whole[cluster] = true
	w := p.work(cluster)
	for _, name := range sorted(p.targets) {
		t := p.targets[name]
		if h := t.shares[cluster]; h != nil {
			w.touchService(name)
			w.forget(h)
		}
		w.feed(name) // it may have waited for the cluster
	}
	return w.done(now)
}

// Whole says whether Complete was called for a cluster.
func (p *Plan) Whole(cluster string) bool { return p.whole[cluster] }

// SetGone takes whether a cluster is gone, of which global services make what their settings say.
func (p *Plan) SetGone(cluster string, gone bool, now time.Time) Touches {
	if p.gone[cluster] == gone && !p.awaited[cluster] || cluster == p.own {
		return Touches{}
	}
	p.gone[cluster] = gone
	w := p.work(cluster)
	delete(p.awaited, cluster)
	w.reconsider(cluster)
	return w.done(now)
}

// SetDrains takes what is to be out of use.
func (p *Plan) SetDrains(all drain.Set, now time.Time) Touches {
	p.drains, p.drained = all, len(all.All()) > 0
	w := p.work("")
	for _, name := range sorted(p.slices) {
		w.drain(p.slices[name])
	}
	return w.done(now)
}

// Next is when time alone changes something; zero for never.
func (p *Plan) Next() time.Time {
	for len(p.dues) > 0 {
		if first := p.dues[0]; first.target.due.Equal(first.at) && p.waiting[first.target] {
			return first.at
		}
		heap.Pop(&p.dues) // it was decided anew since
	}
	return time.Time{}
}

// due is when it is to be decided anew which clusters a target uses.
type due struct {
	at     time.Time
	target *target
}

// dues are ordered by their times.
type dues []due

// Len implements heap.Interface.
func (d dues) Len() int { return len(d) }

// Less implements heap.Interface.
func (d dues) Less(i, j int) bool { return d[i].at.Before(d[j].at) }

// Swap implements heap.Interface.
func (d dues) Swap(i, j int) { d[i], d[j] = d[j], d[i] }

// Push implements heap.Interface.
func (d *dues) Push(x any) { *d = append(*d, x.(due)) }

// Pop implements heap.Interface.
func (d *dues) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}

// Due decides what time alone has changed.
func (p *Plan) Due(now time.Time) Touches {
	w := p.work("")
	for at := p.Next(); !at.IsZero() && !now.Before(at); at = p.Next() {
		w.redecide(heap.Pop(&p.dues).(due).target)
	}
	return w.done(now)
}

// Names are the names of all Services and slices that are wanted.
func (p *Plan) Names() (services, slices []string) {
	for name := range p.claims.Names {
		services = append(services, name)
	}
	for name := range p.slices {
		slices = append(slices, name)
	}
	return services, slices
}

// Wants says whether a Service of that name is wanted.
func (p *Plan) Wants(service string) bool {
	_, wanted := p.claims.Winner(service)
	return wanted
}

// Tells says whether a slice holds an endpoint of which a cluster has told, and is not there for the sake of what
// is remembered alone.
func (p *Plan) Tells(cluster, slice string) bool {
	s := p.slices[slice]
	return s != nil && s.share.cluster == cluster && slices.ContainsFunc(s.members, func(m member) bool { return m.told != nil })
}

// Targets are the names of all Services of which something is known, in order.
func (p *Plan) Targets() []string { return sorted(p.targets) }

// some are the targets of some names that there are; all for none.
func (p *Plan) some(names []string) (all []*target) {
	if len(names) == 0 {
		names = p.Targets()
	}
	for _, name := range names {
		if t := p.targets[name]; t != nil {
			all = append(all, t)
		}
	}
	return all
}

// Ended says whether everything that a slice held is known to be gone, whatever else its cluster may offer, and which cluster's it was.
func (p *Plan) Ended(slice string) (cluster string, ended bool) {
	cluster, ended = p.ended[slice]
	return cluster, ended
}

// Absent says that a slice is known not to stand.
func (p *Plan) Absent(slice string) { delete(p.ended, slice) }

// Remembers says whether a Service that nobody offers has endpoints still, of a cluster that has not been heard whole.
func (p *Plan) Remembers(service string) bool {
	t := p.targets[service]
	if t == nil {
		return false
	}
	for _, h := range t.shares {
		if len(h.home) > 0 {
			return true
		}
	}
	return false
}

// work is one call of the plan, and what it touches.
type work struct {
	*Plan
	cluster    string
	observedAt time.Time
	touches    Touches
	touched    map[touchedName]bool
	// troubled are the names of which it has to be seen anew what is wrong with them.
	troubled map[string]bool
	// speech is of which endpoints slices have spoken, in order.
	speech []utterance
	spoken map[spokenOf]bool
}

type touchedName struct {
	kind byte // one of s(ervice), (s)l(ice), e(ndpoints)
	name string
}

func (p *Plan) work(cluster string) *work {
	return &work{Plan: p, cluster: cluster, touched: map[touchedName]bool{}, troubled: map[string]bool{}, spoken: map[spokenOf]bool{}}
}

func (w *work) touchService(name string) {
	if key := (touchedName{'s', name}); !w.touched[key] {
		w.touched[key] = true
		w.touches.Services = append(w.touches.Services, Touched{name, w.cluster, w.observedAt})
	}
	w.touchEndpoints(name)
}

// touchEndpoints touches those of a Service.
func (w *work) touchEndpoints(service string) {
	if key := (touchedName{'e', service}); w.endpoints && !w.touched[key] {
		w.touched[key] = true
		w.touches.Endpoints = append(w.touches.Endpoints, Touched{service, w.cluster, w.observedAt})
	}
}

func (w *work) touchSlice(s *slice) {
	if key := (touchedName{'l', s.name}); !w.touched[key] {
		w.touched[key] = true
		w.touches.Slices = append(w.touches.Slices, Touched{s.name, w.cluster, w.observedAt})
	}
	w.touchEndpoints(s.share.target.name)
}

func (w *work) touchSlices(h *share) {
	for _, s := range h.all() {
		w.touchSlice(s)
	}
}

// done decides which clusters are used, once for all that this call has changed.
func (w *work) done(now time.Time) Touches {
	w.hear()
	if w.begun {
		for t := range w.dirty {
			w.choose(t, now)
		}
		clear(w.dirty)
	}
	for name := range w.troubled {
		w.problems.Replace(name, w.problemsOf(name))
	}
	// In an order that depends on nothing but what happened.
	slices.SortStableFunc(w.touches.Slices, func(a, b Touched) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(w.touches.Services, func(a, b Touched) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(w.touches.Endpoints, func(a, b Touched) int { return cmp.Compare(a.Name, b.Name) })
	return w.touches
}
