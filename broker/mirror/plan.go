// Package mirror decides which Services and EndpointSlices should exist in the own cluster for services of other
// clusters: a mirror for each service that a remote exports as a mirror, a global service for each name that one or
// more clusters export as global, and a derived Service with a ServiceImport for each name that one or more clusters
// export by a ServiceExport.
//
// The package is pure. Its inputs are changes of replicas and the objects that exist in the own cluster. Its outputs
// are the names of objects whose desired state may have changed and, on request, the desired object of a name. It has
// no clock: callers pass the time.
//
//	source            what a cluster exports for one service: each endpoint once, in whatever exported slice it is
//	target            a Service of semaphore; a mirror has one source, a global service one per cluster
//	clusterEndpoints  the endpoints of one cluster in a target, in slices that semaphore names
//
// If two sources claim the same Service name, the first by cluster, namespace and name wins, independent of history;
// the other becomes a problem. The slice of an endpoint depends on the slices that exist (docs/adr/0009-services.md);
// everything else depends only on the current inputs.
//
// Of the broker's packages it may import claim, drain, endpoints, prefer, problem and replica.
package mirror

import (
	"cmp"
	"container/heap"
	"iter"
	"maps"
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
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxServiceName is the length limit of a Service name, which is a DNS label (RFC 1035).
const maxServiceName = 63

// ref names a service of a cluster. A ref without a cluster names a global service; it sorts before all others.
type ref struct{ cluster, namespace, name string }

func (r ref) compare(o ref) int {
	return cmp.Or(cmp.Compare(r.cluster, o.cluster), cmp.Compare(r.namespace, o.namespace), cmp.Compare(r.name, o.name))
}

// Plan holds what the clusters export and what exists in the own cluster. It is not safe for concurrent use.
type Plan struct {
	namespace string
	own       string
	// clusters are all clusters that may export. The first one that exports a global service is authoritative for it.
	clusters []string
	prefixes map[string]string
	subnets  map[string][]netip.Prefix // of the cluster's pods
	max      int                       // endpoints per slice
	labels   config.LabelKeys          // labels of the source that its mirror has, too
	// legacy enables Endpoints beside the slices.
	legacy bool
	global *config.GlobalServices
	// mcs are the settings of imports; nothing is imported into deniedNamespaces. ordered is true once it is known in
	// which order an earlier broker observed the exports. namespaces are those of the own cluster, nil while unknown.
	// denied are the exports that are not imported, by the name of their Service.
	mcs              *config.BrokerMCS
	deniedNamespaces []string
	ordered          bool
	namespaces       map[string]bool
	denied           map[string]ref
	// exportCounts counts, by cluster, the Services that ServiceExports export.
	exportCounts map[string]int

	sources map[ref]*source
	// exportedSlices are the EndpointSlices in the replicas.
	exportedSlices map[ref]*semaphorev1.EndpointSlice
	// claims decide which service owns which Service name.
	claims *claim.Table[ref]
	// tooLong are the claimants of names that exceed maxServiceName.
	tooLong  map[string][]ref
	problems problem.Set
	targets  map[string]*target
	// slices are the desired slices by name. ended are slices whose endpoints were all withdrawn, until they are
	// deleted.
	slices map[string]*slice
	ended  map[string]string // slice name to cluster

	// begun is true once all existing slices are known. Until then seen holds them.
	begun bool
	seen  map[string]*discoveryv1.EndpointSlice
	// existing are the Services of semaphore that exist in the own cluster.
	existing map[string]*corev1.Service
	// serviceOf are their names by ClusterIP.
	serviceOf map[netip.Addr]string
	// addressed is when the derived Services of imports were first observed with their present IPs.
	addressed map[string]time.Time
	// complete are the clusters whose snapshots are complete: what they do not export is removed.
	complete map[string]bool

	gone map[string]bool
	// presenceUnknown are clusters for which it is not yet known whether they are gone.
	presenceUnknown map[string]bool
	drains          drain.Set
	drained         bool // whether there are any drains
	chooser         *prefer.Chooser
	// dirty are targets that must choose again which clusters they use. waiting are targets that do so when time
	// passes.
	dirty, waiting map[*target]bool
	// dues is a heap of the times at which targets choose again. It may hold outdated entries.
	dues dues
}

// Touched is the name of an object whose desired state may have changed.
type Touched struct {
	Name string
	// Cluster is the source of the change, and ObservedAt when its exporter saw it; empty and zero if unknown.
	Cluster    string
	ObservedAt time.Time
}

// Touches are the objects whose desired state may have changed.
type Touches struct {
	Services, Slices []Touched
	// Endpoints are the Endpoints objects beside the slices, where they are enabled.
	Endpoints []Touched
	// Imports are ServiceImports, NAMESPACE/NAME, and ImportSlices the EndpointSlices beside them.
	Imports, ImportSlices []Touched
}

// New returns a plan that knows neither exports nor existing objects. It places no endpoint before Begin.
func New(cfg *config.Broker) *Plan {
	p := &Plan{
		namespace:       cfg.MirrorNamespace,
		own:             cfg.Cluster,
		prefixes:        map[string]string{},
		subnets:         map[string][]netip.Prefix{cfg.Cluster: cfg.GlobalServices.PodPrefixes},
		max:             cfg.Slices.MaxEndpoints,
		labels:          cfg.Services.Labels,
		legacy:          cfg.Services.Endpoints,
		global:          &cfg.GlobalServices,
		mcs:             &cfg.MCS,
		denied:          map[string]ref{},
		exportCounts:    map[string]int{},
		sources:         map[ref]*source{},
		exportedSlices:  map[ref]*semaphorev1.EndpointSlice{},
		claims:          claim.New(ref.compare),
		tooLong:         map[string][]ref{},
		targets:         map[string]*target{},
		slices:          map[string]*slice{},
		ended:           map[string]string{},
		seen:            map[string]*discoveryv1.EndpointSlice{},
		existing:        map[string]*corev1.Service{},
		serviceOf:       map[netip.Addr]string{},
		addressed:       map[string]time.Time{},
		complete:        map[string]bool{},
		gone:            map[string]bool{},
		presenceUnknown: map[string]bool{},
		chooser:         prefer.New(cfg.GlobalServices.Settle.Duration),
		dirty:           map[*target]bool{},
		waiting:         map[*target]bool{},
	}
	p.deniedNamespaces = []string{cfg.MirrorNamespace, cfg.Agents.Namespace}
	p.configure(cfg.Remotes)
	return p
}

// configure sets the configured remotes, in their order. The own cluster comes first, if its exporter is accepted.
func (p *Plan) configure(remotes []config.Remote) {
	p.clusters = nil
	if len(p.subnets[p.own]) > 0 {
		p.clusters = append(p.clusters, p.own)
	}
	for _, r := range remotes {
		p.clusters = append(p.clusters, r.Name)
		p.prefixes[r.Name], p.subnets[r.Name] = r.ServicePrefix, r.PodPrefixes
	}
}

// Follow replaces the configured remotes. A new remote begins without exports, the exports of a missing one are
// withdrawn, and the others continue. Those that remain must have the same order, prefixes and subnets as before.
func (p *Plan) Follow(remotes []config.Remote, now time.Time) Touches {
	w := p.work("")
	for _, cluster := range p.clusters {
		if cluster != p.own && !slices.ContainsFunc(remotes, func(r config.Remote) bool { return r.Name == cluster }) {
			w.removeCluster(cluster)
		}
	}
	p.configure(remotes)
	return w.finish(now)
}

// removeCluster withdraws all exports of a cluster, and drops its state.
func (w *work) removeCluster(cluster string) {
	of := func(refs iter.Seq[ref]) []ref {
		var all []ref
		for r := range refs {
			if r.cluster == cluster {
				all = append(all, r)
			}
		}
		slices.SortFunc(all, ref.compare)
		return all
	}
	for _, r := range of(maps.Keys(w.exportedSlices)) {
		w.setSlice(r, nil)
	}
	w.flush()
	for _, r := range of(maps.Keys(w.sources)) {
		w.setService(r, nil)
	}
	for _, name := range sorted(w.targets) {
		if h := w.targets[name].perCluster[cluster]; h != nil {
			w.touchService(name)
			w.removeUnconfirmed(h)
		}
	}
	delete(w.prefixes, cluster)
	delete(w.subnets, cluster)
	delete(w.complete, cluster)
	delete(w.gone, cluster)
	delete(w.presenceUnknown, cluster)
}

// Apply applies changes of one cluster's replica. It ignores other kinds.
func (p *Plan) Apply(cluster string, changes []replica.Change, now time.Time) Touches {
	w := p.work(cluster)
	w.presenceKnown(cluster)
	for _, c := range changes {
		w.observedAt = c.ObservedAt
		r := ref{cluster, c.Key.Namespace, c.Key.Name}
		switch c.Key.Kind {
		case semaphorev1.Kind_KIND_SERVICE:
			w.setService(r, c.New.GetService())
		case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
			w.setSlice(r, c.New.GetEndpointSlice())
		}
	}
	return w.finish(now)
}

// ObserveSlice records an existing EndpointSlice of semaphore; nil if none of that name exists.
func (p *Plan) ObserveSlice(name string, o *discoveryv1.EndpointSlice, now time.Time) Touches {
	if !p.begun {
		if p.seen[name] = o; o == nil {
			delete(p.seen, name)
		}
		return Touches{}
	}
	if o == nil {
		p.ForgetEnded(name)
		return Touches{}
	}
	// While a cluster is not complete the plan adopts every existing slice, including writes of an earlier broker
	// that arrive late.
	w := p.work("")
	w.adoptSlice(name, o)
	return w.finish(now)
}

// ObserveService records an existing Service of semaphore; nil if none of that name exists.
func (p *Plan) ObserveService(name string, o *corev1.Service, now time.Time) Touches {
	begins, family := p.existing[name] == nil && o != nil, p.family(name)
	ips := clusterIPs(p.existing[name])
	if p.existing[name] = o; o == nil {
		delete(p.existing, name)
	}
	w := p.work("")
	if begins || family != p.family(name) {
		w.touchEndpoints(name)
	}
	if !slices.Equal(ips, clusterIPs(o)) {
		p.indexAddresses(name, ips, clusterIPs(o))
		p.noteAddresses(name, o, now)
		w.touchImport(name)
	}
	if t := p.targets[name]; t != nil && begins {
		for _, h := range t.perCluster { // their writes wait for the Service
			w.touchSlices(h)
		}
	}
	if t := p.targets[name]; t != nil && t.authoritative() == nil {
		w.rebindSources(name)
	}
	return w.finish(now)
}

// clusterIPs are those of an existing Service.
func clusterIPs(s *corev1.Service) []string {
	if s == nil {
		return nil
	}
	return s.Spec.ClusterIPs
}

// indexAddresses replaces the ClusterIPs of a Service in the index.
func (p *Plan) indexAddresses(name string, was, is []string) {
	for _, text := range was {
		if ip, err := netip.ParseAddr(text); err == nil && p.serviceOf[ip] == name {
			delete(p.serviceOf, ip)
		}
	}
	for _, text := range is {
		if ip, err := netip.ParseAddr(text); err == nil { // "None" for a headless Service
			p.serviceOf[ip] = name
		}
	}
}

// ServiceOf returns the Service of semaphore that has a ClusterIP; empty for none.
func (p *Plan) ServiceOf(ip netip.Addr) string { return p.serviceOf[ip] }

// ServiceExists reports whether a Service of semaphore with that name exists. Slices are written only for such a
// Service: a Service that somebody else made would otherwise send its traffic to another cluster.
func (p *Plan) ServiceExists(service string) bool { return p.existing[service] != nil }

// Begin reports that ObserveSlice was called for all existing slices. From now on the plan places endpoints: in the
// slice that already holds them, or in one with room.
func (p *Plan) Begin(now time.Time) Touches {
	if p.begun {
		return Touches{}
	}
	w := p.work("")
	p.ordered = true
	for _, name := range sorted(p.targets) { // before endpoints are placed: it decides on their ports
		if p.targets[name].imported() {
			w.rebindSources(name)
		}
	}
	p.begun = true
	for _, name := range sorted(p.seen) {
		w.adoptSlice(name, p.seen[name])
	}
	p.seen = nil
	for _, name := range sorted(p.targets) {
		t := p.targets[name]
		for _, cluster := range p.clusters {
			if h := t.perCluster[cluster]; h != nil && h.source != nil {
				if t.waitsFor(cluster) {
					w.detach(h)
					continue
				}
				w.placeAll(h)
			}
		}
		w.touchService(name)
		w.updateShape(t)
		w.markDirty(t)
	}
	return w.finish(now)
}

// Begun reports whether Begin was called.
func (p *Plan) Begun() bool { return p.begun }

// Complete reports that a cluster's snapshots are complete: existing endpoints that it does not export are removed.
func (p *Plan) Complete(cluster string, now time.Time) Touches {
	if p.complete[cluster] {
		return Touches{}
	}
	p.complete[cluster] = true
	w := p.work(cluster)
	for _, name := range sorted(p.targets) {
		t := p.targets[name]
		if h := t.perCluster[cluster]; h != nil {
			w.touchService(name)
			w.removeUnconfirmed(h)
		}
		w.rebindSources(name) // it may have waited for the cluster
	}
	return w.finish(now)
}

// IsComplete reports whether Complete was called for the cluster.
func (p *Plan) IsComplete(cluster string) bool { return p.complete[cluster] }

// SetGone records whether a cluster is gone. Global services react as their whenGone setting says.
func (p *Plan) SetGone(cluster string, gone bool, now time.Time) Touches {
	if p.gone[cluster] == gone && !p.presenceUnknown[cluster] || cluster == p.own {
		return Touches{}
	}
	p.gone[cluster] = gone
	w := p.work(cluster)
	delete(p.presenceUnknown, cluster)
	w.markClusterDirty(cluster)
	return w.finish(now)
}

// SetDrains replaces the drains.
func (p *Plan) SetDrains(all drain.Set, now time.Time) Touches {
	p.drains, p.drained = all, len(all.All()) > 0
	w := p.work("")
	for _, name := range sorted(p.slices) {
		w.updateDrains(p.slices[name])
	}
	return w.finish(now)
}

// Next returns the time at which Due must be called; zero for never.
func (p *Plan) Next() time.Time {
	for len(p.dues) > 0 {
		if first := p.dues[0]; first.target.due.Equal(first.at) && p.waiting[first.target] {
			return first.at
		}
		heap.Pop(&p.dues) // outdated: the target chose again in the meantime
	}
	return time.Time{}
}

// due is the time at which a target chooses again which clusters it uses.
type due struct {
	at     time.Time
	target *target
}

// dues is a heap, ordered by time.
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

// Due makes the targets whose time has come choose again.
func (p *Plan) Due(now time.Time) Touches {
	w := p.work("")
	for at := p.Next(); !at.IsZero() && !now.Before(at); at = p.Next() {
		w.markDirty(heap.Pop(&p.dues).(due).target)
	}
	return w.finish(now)
}

// Names returns the names of all desired Services and slices.
func (p *Plan) Names() (services, slices []string) {
	for name := range p.claims.Names {
		services = append(services, name)
	}
	for name := range p.slices {
		slices = append(slices, name)
	}
	return services, slices
}

// Wants reports whether a Service of that name is desired.
func (p *Plan) Wants(service string) bool {
	_, wanted := p.claims.Winner(service)
	return wanted
}

// HoldsExported reports whether a slice holds an endpoint that the cluster exports, and not only unconfirmed ones.
func (p *Plan) HoldsExported(cluster, slice string) bool {
	s := p.slices[slice]
	return s != nil && s.owner.cluster == cluster &&
		slices.ContainsFunc(s.members, func(m member) bool { return m.exported != nil })
}

// Targets returns the names of all known Services, sorted.
func (p *Plan) Targets() []string { return sorted(p.targets) }

// selectTargets returns the existing targets among names, or all targets if names is empty.
func (p *Plan) selectTargets(names []string) (all []*target) {
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

// Ended reports whether all endpoints of a slice were withdrawn, and the cluster that owned it.
func (p *Plan) Ended(slice string) (cluster string, ended bool) {
	cluster, ended = p.ended[slice]
	return cluster, ended
}

// ForgetEnded records that a slice does not exist.
func (p *Plan) ForgetEnded(slice string) { delete(p.ended, slice) }

// HasUnconfirmedEndpoints reports whether a Service that no cluster exports still has endpoints of a cluster that is
// not complete.
func (p *Plan) HasUnconfirmedEndpoints(service string) bool {
	t := p.targets[service]
	if t == nil {
		return false
	}
	for _, h := range t.perCluster {
		if len(h.sliceOf) > 0 {
			return true
		}
	}
	return false
}

// work is one call of the plan and collects what the call touches.
type work struct {
	*Plan
	cluster    string
	observedAt time.Time
	touches    Touches
	touched    map[touchedName]bool
	// problemsDirty are the names whose problems must be determined again.
	problemsDirty map[string]bool
	// pending are the endpoints that changed in the call, in order.
	pending   []pendingEndpoint
	isPending map[endpointRef]bool
}

type touchedName struct {
	// 's' for a Service, 'l' for a slice, 'e' for Endpoints, 'i' for a ServiceImport
	kind byte
	name string
}

func (p *Plan) work(cluster string) *work {
	return &work{Plan: p, cluster: cluster, touched: map[touchedName]bool{}, problemsDirty: map[string]bool{},
		isPending: map[endpointRef]bool{}}
}

func (w *work) touchService(name string) {
	if key := (touchedName{'s', name}); !w.touched[key] {
		w.touched[key] = true
		w.touches.Services = append(w.touches.Services, Touched{name, w.cluster, w.observedAt})
	}
	w.touchEndpoints(name)
	w.touchImport(name)
}

// touchImport touches the ServiceImport that leads to a Service.
func (w *work) touchImport(service string) {
	s := w.existing[service]
	switch t := w.targets[service]; {
	case t != nil && t.of.cluster == clusterSet:
		w.touchImportOf(t.of)
	case s != nil && s.Labels[naming.LabelImported] == "true":
		w.touchImportOf(ref{clusterSet, s.Annotations[naming.AnnotationSourceNamespace],
			s.Annotations[naming.AnnotationSourceName]})
	}
}

func (w *work) touchImportOf(of ref) {
	name := of.namespace + "/" + of.name
	if key := (touchedName{'i', name}); !w.touched[key] {
		w.touched[key] = true
		w.touches.Imports = append(w.touches.Imports, Touched{name, w.cluster, w.observedAt})
	}
}

func (w *work) touchEndpoints(service string) {
	if key := (touchedName{'e', service}); w.legacy && !w.touched[key] {
		w.touched[key] = true
		w.touches.Endpoints = append(w.touches.Endpoints, Touched{service, w.cluster, w.observedAt})
	}
}

func (w *work) touchSlice(s *slice) {
	if key := (touchedName{'l', s.name}); !w.touched[key] {
		w.touched[key] = true
		w.touches.Slices = append(w.touches.Slices, Touched{s.name, w.cluster, w.observedAt})
		if name, ok := w.importSlice(s); ok {
			w.touches.ImportSlices = append(w.touches.ImportSlices, Touched{name, w.cluster, w.observedAt})
		}
	}
	w.touchEndpoints(s.owner.target.name)
}

func (w *work) touchSlices(h *clusterEndpoints) {
	for _, s := range h.all() {
		w.touchSlice(s)
	}
}

// finish applies pending endpoints and lets each dirty target choose once, whatever the call changed.
func (w *work) finish(now time.Time) Touches {
	w.flush()
	if w.begun {
		for t := range w.dirty {
			w.choose(t, now)
		}
		clear(w.dirty)
	}
	for name := range w.problemsDirty {
		w.problems.Replace(name, w.problemsOf(name))
	}
	// The order depends only on the input.
	slices.SortStableFunc(w.touches.Slices, func(a, b Touched) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(w.touches.ImportSlices, func(a, b Touched) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(w.touches.Services, func(a, b Touched) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(w.touches.Endpoints, func(a, b Touched) int { return cmp.Compare(a.Name, b.Name) })
	return w.touches
}
