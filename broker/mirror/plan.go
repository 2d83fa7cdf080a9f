// Package mirror decides which Services and EndpointSlices should exist in the own cluster for services of other
// clusters: a mirror for each service that a remote exports as a mirror, a global service for each name that one or
// more clusters export as global, and, by choice.Rule, a derived Service for each name that one or more clusters export
// by a ServiceExport.
//
// The package is pure. Its inputs are changes of replicas and the objects that exist in the own cluster. Its outputs
// are the names of objects whose desired state may have changed and, on request, the desired object of a name. It has
// no clock: callers pass the time.
//
//	source            what a cluster exports for one service: each endpoint once, in whatever exported slice it is
//	target            a Service of semaphore; a mirror has one source, others one per cluster
//	clusterEndpoints  the endpoints of one cluster in a target, in slices that semaphore names
//
// If two sources claim the same Service name, the first by cluster, namespace and name wins, independent of history;
// the other becomes a problem. The slice of an endpoint depends on the slices that exist (docs/adr/0009-services.md);
// everything else depends only on the current inputs.
package mirror

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/broker/choice"
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

// Plan holds the clusters' exports and the existing objects of the own cluster. It is not safe for concurrent use.
type Plan struct {
	namespace string
	own       string
	// clusters are all clusters that may export. The first one that exports a global service is authoritative for it.
	clusters []string
	prefixes map[string]string
	subnets  map[string][]netip.Prefix // of the cluster's pods
	families []string                  // of the own cluster's subnets
	max      int                       // endpoints per slice
	labels   config.LabelKeys          // labels of the source that its mirror has, too
	global   *config.GlobalServices
	// rule decides derived Services; nil for none. ordered is true once it is known in which order an earlier broker
	// observed the exports. denied are the exports for which nothing is derived, by the name of their Service.
	rule    *choice.Rule
	ordered bool
	denied  map[string]ref

	sources map[ref]*source
	// exportedSlices are the EndpointSlices in the replicas.
	exportedSlices map[ref]*semaphorev1.EndpointSlice
	// claims decide which service owns which Service name. tooLong are those to names that exceed maxServiceName.
	claims, tooLong *problem.Claims[ref]
	problems        problem.Set
	targets         map[string]*target
	// slices are the desired slices by name. ended are slices whose endpoints were all withdrawn, until they are
	// deleted.
	slices map[string]*slice
	ended  map[string]string // slice name to cluster

	// begun is true once all existing slices are known. Until then seen holds them.
	begun bool
	seen  map[string]*discoveryv1.EndpointSlice
	// existing are the Services of semaphore that exist in the own cluster.
	existing map[string]*corev1.Service
	// complete are the clusters whose snapshots are complete: an object that they do not export is removed.
	complete map[string]bool

	gone map[string]bool
	// presenceUnknown are clusters for which it is not yet known whether they are gone.
	presenceUnknown map[string]bool
	drains          choice.Drains
	// reach are the addresses to which tunnels lead, by cluster; nil for all.
	reach   map[string]*choice.Reachable
	chooser *choice.Chooser
	// lenders are the targets whose own name leads to other clusters.
	lenders map[*target]bool
	// dirty are targets that must choose again which clusters they use.
	dirty map[*target]bool
	// dues are the times at which targets choose again, in order. Some may be outdated.
	dues []due
}

// Touched is the name of an object whose desired state may have changed.
type Touched struct {
	Name string
	// Cluster is the source of the change, and ObservedAt when its exporter saw it; empty and zero if unknown.
	Cluster    string
	ObservedAt time.Time
	// Service is that of a slice, and Namespace that of the services which it is made from.
	Service, Namespace string
}

// Touches are the objects whose desired state may have changed.
type Touches struct {
	Services, Slices []Touched
	// Lent are the changes of the clusters to which own names lead.
	Lent []choice.Lent
}

// New returns a plan that knows neither exports nor existing objects. It places no endpoint before Begin.
func New(cfg *config.Broker) *Plan {
	p := &Plan{
		namespace:       cfg.MirrorNamespace,
		own:             cfg.Cluster,
		prefixes:        map[string]string{},
		subnets:         map[string][]netip.Prefix{cfg.Cluster: cfg.GlobalServices.PodPrefixes},
		families:        cfg.LocalFamilies(),
		max:             cfg.Slices.MaxEndpoints,
		labels:          cfg.Services.Labels,
		global:          &cfg.GlobalServices,
		rule:            choice.NewRule(cfg),
		denied:          map[string]ref{},
		sources:         map[ref]*source{},
		exportedSlices:  map[ref]*semaphorev1.EndpointSlice{},
		claims:          problem.NewClaims(ref.compare),
		tooLong:         problem.NewClaims(ref.compare),
		targets:         map[string]*target{},
		slices:          map[string]*slice{},
		ended:           map[string]string{},
		seen:            map[string]*discoveryv1.EndpointSlice{},
		existing:        map[string]*corev1.Service{},
		complete:        map[string]bool{},
		gone:            map[string]bool{},
		presenceUnknown: map[string]bool{}, reach: map[string]*choice.Reachable{},
		chooser: choice.NewChooser(cfg.GlobalServices.Settle.Duration),
		dirty:   map[*target]bool{},
		lenders: map[*target]bool{},
	}
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
// withdrawn, and the others continue: with another prefix, the mirrors of a remote get other names; and what existing
// slices have outside of its present subnets is no endpoint of it.
func (p *Plan) Follow(remotes []config.Remote, now time.Time) Touches {
	w := p.work("")
	removed := false
	for _, cluster := range p.clusters {
		if cluster != p.own && !slices.ContainsFunc(remotes, func(r config.Remote) bool { return r.Name == cluster }) {
			w.removeCluster(cluster)
			removed = true
		}
	}
	order, prefixes, subnets := p.clusters, maps.Clone(p.prefixes), maps.Clone(p.subnets)
	p.configure(remotes)
	for _, r := range remotes {
		if prefix, had := prefixes[r.Name]; had && prefix != r.ServicePrefix {
			w.renameMirrors(r.Name, prefix)
		}
		if was, had := subnets[r.Name]; had && !slices.Equal(was, r.PodPrefixes) {
			w.removeOutside(r.Name)
		}
	}
	// Which cluster decides on a global service may be another one, also where nothing is known from one that was removed.
	if removed || !sameOrder(order, p.clusters) {
		for _, name := range sorted(p.targets) {
			p.targets[name].hostnames.Decide(w.clusters)
			w.problemsDirty[name] = true
			w.rebindSources(name)
		}
	}
	return w.finish(now)
}

// sameOrder reports whether the names that are in both lists have the same order in them.
func sameOrder(a, b []string) bool {
	only := func(list, in []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return !slices.Contains(in, name) })
	}
	return slices.Equal(only(a, b), only(b, a))
}

// renameMirrors gives the mirrors of a cluster, which had a prefix until now, the names with its present one.
func (w *work) renameMirrors(cluster, was string) {
	for _, r := range slices.SortedFunc(maps.Keys(w.sources), ref.compare) {
		if r.cluster != cluster {
			continue
		}
		before, now := naming.Mirror(was, r.namespace, r.name), naming.Mirror(w.prefixes[cluster], r.namespace, r.name)
		w.setClaim(before, r, false)
		w.setClaim(now, r, w.sources[r].service.GetMirror())
		w.rebindSources(before)
		w.rebindSources(now)
	}
}

// removeOutside removes the unconfirmed endpoints of a cluster that are outside of its subnets.
func (w *work) removeOutside(cluster string) {
	for _, name := range sorted(w.targets) {
		h := w.targets[name].perCluster[cluster]
		if h == nil {
			continue
		}
		for _, k := range h.keys(func(m *member) bool { return m.unconfirmed }) {
			s := h.sliceOf[k]
			if m := s.members[s.find(k.Address)]; !w.inPodSubnets(cluster, m.exported.GetAddresses()) {
				w.touchService(name)
				w.remove(h, k)
			}
		}
		w.collect(h.target, cluster)
	}
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
	delete(w.reach, cluster)
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
	was := p.existing[name]
	begins := was == nil && o != nil
	if p.existing[name] = o; o == nil {
		delete(p.existing, name)
	}
	w := p.work("")
	if t := p.targets[name]; t != nil && begins {
		for _, h := range t.perCluster { // their writes wait for the Service
			w.touchSlices(h)
		}
	}
	changes := !slices.Equal(choice.SourceOf(was).GetIpFamilies(), choice.SourceOf(o).GetIpFamilies())
	if t := p.targets[name]; t != nil && (t.authoritative() == nil || changes && t.shared()) {
		w.rebindSources(name)
	}
	return w.finish(now)
}

// Existing returns the Service of semaphore with that name; nil if none exists. Slices are written only for such a
// Service: one of another owner would otherwise send its traffic to another cluster.
func (p *Plan) Existing(service string) *corev1.Service { return p.existing[service] }

// Begin reports that ObserveSlice was called for all existing slices. From now on the plan places endpoints: in the
// slice that already holds them, or in one with room.
func (p *Plan) Begin(now time.Time) Touches {
	if p.begun {
		return Touches{}
	}
	w := p.work("")
	p.ordered = true
	for _, name := range sorted(p.targets) { // before endpoints are placed: it decides on their ports
		if p.targets[name].derived() {
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

func (p *Plan) Begun() bool { return p.begun }

// Complete reports that a cluster's snapshots are complete: existing endpoints that it does not export are removed.
func (p *Plan) Complete(cluster string, now time.Time) Touches {
	if p.complete[cluster] {
		return Touches{}
	}
	// Each of many clusters completes on its own, and most targets are mirrors of the others.
	var concerned []string
	for name, t := range p.targets {
		s := t.existing()
		if t.shared() || t.perCluster[cluster] != nil || s != nil && s.Labels[naming.LabelSourceCluster] == cluster {
			concerned = append(concerned, name)
		}
	}
	slices.Sort(concerned)
	p.complete[cluster] = true
	w := p.work(cluster)
	for _, name := range concerned {
		if h := p.targets[name].perCluster[cluster]; h != nil {
			w.touchService(name)
			w.removeUnconfirmed(h)
		}
		w.rebindSources(name) // it may have waited for the cluster
	}
	return w.finish(now)
}

func (p *Plan) IsComplete(cluster string) bool { return p.complete[cluster] }

// OfferedBefore returns how many existing Services of several clusters name a cluster as one of them.
func (p *Plan) OfferedBefore(cluster string) (n int) {
	for _, s := range p.existing {
		if of := s.Annotations; slices.Contains(strings.Split(of[naming.AnnotationGlobalClusters], ","), cluster) ||
			slices.Contains(strings.Split(of[naming.AnnotationExportingClusters], ","), cluster) {
			n++
		}
	}
	return n
}

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

func (p *Plan) SetDrains(all choice.Drains, now time.Time) Touches {
	p.drains = all
	w := p.work("")
	for _, name := range sorted(p.slices) {
		w.updateUsable(p.slices[name])
	}
	return w.finish(now)
}

// SetReach sets to which addresses of a cluster tunnels lead; nil for all. Endpoints at others are not used.
func (p *Plan) SetReach(cluster string, set *choice.Reachable, now time.Time) Touches {
	p.reach[cluster] = set
	w := p.work(cluster)
	var own []string // sorted are only these: others may have many more
	for name, s := range p.slices {
		if s.owner.cluster == cluster {
			own = append(own, name)
		}
	}
	slices.Sort(own)
	for _, name := range own {
		w.updateUsable(p.slices[name])
	}
	return w.finish(now)
}

// Next returns the time at which Due must be called; zero for never.
func (p *Plan) Next() time.Time {
	for len(p.dues) > 0 {
		if first := p.dues[0]; first.target.due.Equal(first.at) {
			return first.at
		}
		p.popDue() // outdated: the target chose again in the meantime
	}
	return time.Time{}
}

// due is the time at which a target chooses again which clusters it uses.
type due struct {
	at     time.Time
	target *target
}

func (p *Plan) popDue() (t *target) {
	t, p.dues[0].target = p.dues[0].target, nil
	p.dues = p.dues[1:]
	return t
}

// Due makes the targets whose time has come choose again.
func (p *Plan) Due(now time.Time) Touches {
	w := p.work("")
	for at := p.Next(); !at.IsZero() && !now.Before(at); at = p.Next() {
		w.markDirty(p.popDue())
	}
	return w.finish(now)
}

// EachSlice calls do for each desired slice, with its Service and the namespace of the services that it is made from.
func (p *Plan) EachSlice(do func(name, service, namespace string, headless bool)) {
	for name, s := range p.slices {
		do(name, s.owner.target.name, s.owner.of.namespace, s.owner.target.shape.headless)
	}
}

func (p *Plan) SlicesOf(service string) (names []string) {
	if t := p.targets[service]; t != nil {
		for _, h := range t.perCluster {
			for _, s := range h.all() {
				names = append(names, s.name)
			}
		}
	}
	return names
}

func (p *Plan) Names() (services, ofSlices []string) {
	return slices.Collect(p.claims.Names), slices.Collect(maps.Keys(p.slices))
}

func (p *Plan) Wants(service string) bool {
	_, wanted := p.claims.Winner(service)
	return wanted
}

// HoldsExported reports whether a slice holds an endpoint that the cluster exports, and not only unconfirmed ones.
func (p *Plan) HoldsExported(cluster, slice string) bool {
	s := p.slices[slice]
	return s != nil && s.owner.cluster == cluster &&
		slices.ContainsFunc(s.members, func(m member) bool { return !m.unconfirmed })
}

// Targets returns the names of all known Services, sorted.
func (p *Plan) Targets() []string { return sorted(p.targets) }

// Ended reports whether all endpoints of a slice were withdrawn, and the cluster that owned it.
func (p *Plan) Ended(slice string) (cluster string, ended bool) {
	cluster, ended = p.ended[slice]
	return cluster, ended
}

// ForgetEnded records that a slice does not exist.
func (p *Plan) ForgetEnded(slice string) { delete(p.ended, slice) }

// work is one call of the plan and collects the names that the call touches.
type work struct {
	*Plan
	cluster    string
	observedAt time.Time
	touches    Touches
	// services and ofSlices are those Services and slices that the call touches, by name.
	services, ofSlices map[string]Touched
	// problemsDirty are the names whose problems must be determined again.
	problemsDirty map[string]bool
	// pending are the endpoints that changed in the call, in order.
	pending   []pendingEndpoint
	isPending map[endpointRef]bool
}

func (p *Plan) work(cluster string) *work {
	return &work{Plan: p, cluster: cluster, services: map[string]Touched{}, ofSlices: map[string]Touched{},
		problemsDirty: map[string]bool{}, isPending: map[endpointRef]bool{}}
}

func (w *work) touchService(name string) {
	if _, twice := w.services[name]; !twice {
		w.services[name] = Touched{Name: name, Cluster: w.cluster, ObservedAt: w.observedAt}
	}
}

func (w *work) touchSlice(s *slice) {
	if _, twice := w.ofSlices[s.name]; !twice {
		w.ofSlices[s.name] = Touched{s.name, w.cluster, w.observedAt, s.owner.target.name, s.owner.of.namespace}
	}
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
	for _, name := range sorted(w.services) { // their order depends only on the input
		w.touches.Services = append(w.touches.Services, w.services[name])
	}
	for _, name := range sorted(w.ofSlices) {
		w.touches.Slices = append(w.touches.Slices, w.ofSlices[name])
	}
	return w.touches
}
