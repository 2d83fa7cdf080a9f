// Package services is the engine of mirrors and global services: it decides which Services and EndpointSlices exist in
// the own cluster, from those that remotes export.
//
// Its input are changes of replicas, from a queue that serves the remotes in turn, the existing objects, the gone
// remotes, and drains. It passes names that may have to change to the loops that write, which request the desired
// object, and it reports problems. The engine owns its state, behind one lock that it holds for a part of a message at
// a time. It writes nothing, and knows neither streams nor apiservers.
//
// ImportPlan is the addition of the Multi-Cluster Services API (KEP-1645) to the plan of Services: the ServiceImport
// that leads to the Service which is derived from the ServiceExports of one name, and the EndpointSlices beside that
// (docs/adr/0029-multi-cluster-services.md). A broker without mcs.enabled has none of it.
//
// The package is pure, as broker/mirror, whose plans it reads: callers pass the time.
package services

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gaissmai/bart"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	kindNode    = semaphorev1.Kind_KIND_NODE
	kindService = semaphorev1.Kind_KIND_SERVICE
	kindSlice   = semaphorev1.Kind_KIND_ENDPOINT_SLICE
)

// missingServiceRetry is when a slice is tried again whose Service does not exist; it is also tried when the Service
// is created.
const missingServiceRetry = time.Minute

// Engine is the engine of one broker. Its methods are safe for concurrent use.
type Engine struct {
	writes.Retaining
	// retainedServices and retainedSlices decide whether existing objects of a remote are retained.
	retainedServices, retainedSlices *writes.Retentions

	warn     problem.Warn
	own      *config.Remote
	now      func() time.Time
	queue    *replica.Queue
	problems problem.Board

	mu   sync.RWMutex
	plan *mirror.Plan
	// imported is the plan of ServiceImports; nil without mcs.enabled.
	imported *ImportPlan
	remotes  map[string]*remote
	// addresses are those of the existing Services.
	addresses index
	// names of the remotes, sorted.
	names []string
	// drains as operators wrote them.
	drains choice.Drains
	// loops are those that write, and services and slices two of them, each with the others that follow it; nil before
	// Bind.
	loops            Loops
	services, slices writes.Loop
}

// remote is the state of one remote, or of the own cluster if its exporter is accepted.
type remote struct {
	name string
	// nodes of the remote, for drains.
	nodes map[string]*semaphorev1.Node
}

// New makes an engine without objects. now is the clock: time.Now except in a simulation.
func New(cfg *config.Broker, warn problem.Warn, now func() time.Time) *Engine {
	e := &Engine{
		warn: warn, own: cfg.Own(), now: now,
		queue:   replica.NewQueue(split, kindNode, kindService, kindSlice),
		remotes: map[string]*remote{}, addresses: index{},
	}
	e.Retaining = writes.Retaining{Brake: cfg.Brake, Now: now, Lock: &e.mu, Decide: e.decide}
	e.retainedSlices = e.Retain(writes.EndpointSlice, kindService, kindSlice)
	e.retainedServices = e.Retain(writes.Service, kindService)
	e.plan, e.imported = Plans(cfg)
	e.configure(cfg.Remotes)
	return e
}

// configure sets the configured remotes, and returns the names of the removed and of the added ones.
func (e *Engine) configure(remotes []config.Remote) (removed, added []string) {
	all := map[string]*remote{}
	add := func(name string) {
		if all[name] = e.remotes[name]; all[name] == nil {
			added = append(added, name)
			all[name] = &remote{name: name, nodes: map[string]*semaphorev1.Node{}}
		}
	}
	for _, r := range remotes {
		add(r.Name)
	}
	if e.own != nil {
		add(e.own.Name)
	}
	for _, name := range e.names {
		if all[name] == nil {
			removed = append(removed, name)
		}
	}
	e.remotes, e.names = all, slices.Sorted(maps.Keys(all))
	e.Retaining.Follow(e.names)
	return removed, added
}

// Follow replaces the configured remotes. The Services of those that remain continue, with another prefix under other
// names. A new remote begins without any, and the objects of a missing one are deleted.
func (e *Engine) Follow(remotes []config.Remote) {
	for _, name := range e.follow(remotes) { // a remote of that name may have left objects
		e.services.Observe(name)
		e.slices.Observe(name)
	}
}

// follow is Follow without the objects of the added remotes, whose names it returns.
func (e *Engine) follow(remotes []config.Remote) (added []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	removed, added := e.configure(remotes)
	e.mark(e.plan.Follow(remotes, e.now()))
	e.drain() // of nodes that are missing now
	e.evaluate()
	for _, name := range removed {
		e.services.WakeOwned(name)
		e.slices.WakeOwned(name)
	}
	if len(removed) > 0 { // global Services may have waited for them
		e.services.WakeOwned("")
		e.slices.WakeOwned("")
	}
	return added
}

// Remind repeats the warnings about problems for which there was no room.
func (e *Engine) Remind() { e.problems.Remind(e.warn) }

// Loops are the loops that write the desired objects of the engine, with which they are made.
type Loops struct {
	Services, Slices writes.Loop
	// Imports writes ServiceImports, and ImportSlices the EndpointSlices beside them; both are nil without mcs.enabled.
	Imports, ImportSlices writes.Loop
	// OwnSlices writes the slices under the own names of Services, and Lent receives where these lead; nil without
	// globalServices.ownNames.
	OwnSlices writes.Loop
	Lent      func(choice.Lent)
}

// Bind sets the loops. It must be called once, before anything runs.
func (e *Engine) Bind(all Loops) {
	e.loops, e.services, e.slices = all, followed{all.Services, []writes.Loop{all.Imports}},
		followed{all.Slices, []writes.Loop{all.ImportSlices, all.OwnSlices}}
}

// KnowNamespaces says that all namespaces of the own cluster have been set: ServiceImports are written only into these.
func (e *Engine) KnowNamespaces() {
	e.mu.Lock()
	touched, importSlices := e.imported.KnowNamespaces()
	e.mu.Unlock()
	e.wakeImports(touched, importSlices)
}

func (e *Engine) SetNamespace(name string, exists bool) {
	e.mu.Lock()
	touched, importSlices := e.imported.SetNamespace(name, exists)
	e.mu.Unlock()
	e.wakeImports(touched, importSlices)
}

func (e *Engine) wakeImports(touched, importSlices []string) {
	for _, name := range touched {
		e.loops.Imports.Wake(name)
	}
	for _, name := range importSlices {
		e.loops.ImportSlices.Wake(name)
	}
}

// followed is a loop with others, or nil, of objects that come and go with those of the first: ServiceImports with
// Services, and the slices beside ServiceImports and under own names with those of Services.
type followed struct {
	writes.Loop
	with []writes.Loop
}

func (b followed) WakeOwned(cluster string) {
	b.each(func(loop writes.Loop) { loop.WakeOwned(cluster) })
}

func (b followed) WakeAll() { b.each(writes.Loop.WakeAll) }

func (b followed) each(do func(writes.Loop)) {
	do(b.Loop)
	for _, loop := range b.with {
		if loop != nil {
			do(loop)
		}
	}
}

func (e *Engine) Queue() *replica.Queue { return e.queue }

// Run handles the queue, and changes that are due by time, until ctx ends, and returns ctx's error.
func (e *Engine) Run(ctx context.Context) error {
	return e.queue.Run(ctx, e.Take, e.Next, e.Due)
}

func (e *Engine) Take(p replica.Part) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.remotes[p.Cluster]
	if r == nil {
		return
	}
	drained := e.setNodes(r, p.Changes)
	e.mark(e.plan.Apply(p.Cluster, p.Changes, e.now()))
	if drained {
		e.drain()
	}
	if e.Retaining.Take(p.Cluster, p.Completed, p.Hello) {
		e.decide(p.Cluster)
	} else if p.Hello != nil {
		e.evaluate()
	}
}

// Restore sets the nodes that an earlier broker had of a remote. They say nothing about its presence.
func (e *Engine) Restore(cluster string, nodes []replica.Change) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.remotes[cluster]; r != nil && e.setNodes(r, nodes) {
		e.drain()
	}
}

// setNodes takes the changes of nodes, and reports whether one of them is drained.
func (e *Engine) setNodes(r *remote, changes []replica.Change) (drained bool) {
	for _, c := range changes {
		if c.Key.Kind != kindNode {
			continue
		}
		if n := c.New.GetNode(); n != nil {
			r.nodes[c.Key.Name] = n
		} else {
			delete(r.nodes, c.Key.Name)
		}
		drained = drained || e.drains.Node(r.name, c.Key.Name)
	}
	return drained
}

// decide is evaluate, after which the loops decide on the objects that waited for a remote: its own, and those of
// several clusters, which wait for every one.
func (e *Engine) decide(cluster string) {
	e.evaluate()
	for _, owner := range []string{cluster, ""} {
		e.services.WakeOwned(owner)
		e.slices.WakeOwned(owner)
	}
}

// evaluate decides which objects of each remote are retained, and completes the remotes that retain none.
func (e *Engine) evaluate() {
	for _, name := range e.names {
		ofServices, ofSlices := e.retainedServices.Of(name), e.retainedSlices.Of(name)
		writes.Evaluate(ofServices, e.services, e.now(), e.plan.Wants,
			func() int { return e.plan.OfferedBefore(name) }, e.warn)
		if !e.plan.Begun() {
			continue // endpoints are not assigned to slices yet
		}
		writes.Evaluate(ofSlices, e.slices, e.now(),
			func(slice string) bool { return e.plan.HoldsExported(name, slice) }, nil, e.warn)
		if !e.plan.IsComplete(name) && !ofSlices.Retains() && ofServices.Heard() {
			e.mark(e.plan.Complete(name, e.now()))
		}
	}
}

// synced is called when one loop knows the existing objects. Decisions begin when both do: then all names are
// evaluated.
func (e *Engine) synced() {
	e.mu.Lock()
	begins := !e.plan.Begun() && e.services.Synced() && e.slices.Synced()
	if begins {
		touches := e.plan.Begin(e.now())
		touches.Lent = nil // as an earlier broker had it, as far as is known
		e.mark(touches)
	}
	e.evaluate()
	e.mu.Unlock()
	if begins { // the loops evaluate all names
		e.services.WakeAll()
		e.slices.WakeAll()
	}
}

// Next returns when something changes by time alone; zero for never.
func (e *Engine) Next() time.Time {
	e.mu.Lock() // it drops outdated times
	defer e.mu.Unlock()
	return e.plan.Next()
}

func (e *Engine) Due() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mark(e.plan.Due(e.now()))
}

// mark makes the loops evaluate the touched names again, and updates the problems.
func (e *Engine) mark(touches mirror.Touches) {
	for _, t := range touches.Services {
		e.services.Mark(t.Name, t.Cluster, t.ObservedAt)
	}
	for _, t := range touches.Slices {
		e.slices.Mark(t.Name, t.Cluster, t.ObservedAt)
	}
	if e.imported != nil {
		e.markImports(e.imported.Touched(touches))
	}
	e.markOwnNames(touches)
	e.problems.Take(e.plan.Problems(), e.warn)
	e.queue.Wake() // the next due time may have changed
}

func (e *Engine) markImports(touches Touches) {
	if e.loops.Imports == nil {
		return
	}
	for _, t := range touches.Imports {
		e.loops.Imports.Mark(t.Name, t.Cluster, t.ObservedAt)
	}
	for _, t := range touches.Slices {
		e.loops.ImportSlices.Mark(t.Name, t.Cluster, t.ObservedAt)
	}
}

// SetGone sets whether a cluster is gone. Global services with other endpoints then use none of its endpoints, if so
// configured.
func (e *Engine) SetGone(cluster string, gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mark(e.plan.SetGone(cluster, gone, e.now()))
}

// MarkLivenessUnknown marks clusters as not yet known to be present or gone, until SetGone is called. Meanwhile global
// services keep the decision of the previous broker.
func (e *Engine) MarkLivenessUnknown(clusters ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.plan.MarkPresenceUnknown(clusters...)
}

func (e *Engine) SetDrains(all choice.Drains) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drains = all
	e.drain()
}

// drain passes the drains to the plan, those of nodes with the known pod CIDRs of the nodes.
func (e *Engine) drain() {
	e.mark(e.plan.SetDrains(e.drains.With(func(cluster, node string) (out []netip.Prefix) {
		r := e.remotes[cluster]
		if r == nil {
			return nil
		}
		for _, cidr := range r.nodes[node].GetPodCidrs() {
			if prefix, err := netip.ParsePrefix(cidr); err == nil { // admission refuses others
				out = append(out, prefix.Masked())
			}
		}
		return out
	}), e.now()))
}

// SetReach sets to which addresses of a remote tunnels lead; nil for all.
func (e *Engine) SetReach(cluster string, set *choice.Reachable) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.remotes[cluster] == nil {
		return
	}
	e.mark(e.plan.SetReach(cluster, set, e.now()))
}

// Unreached are ready endpoints of a remote to which no tunnel leads: how many, by node, "" for those in no node's
// subnets. Keyless are the nodes among them without a public key.
type Unreached struct {
	Nodes   map[string]int
	Keyless map[string]bool
}

// Unreached returns them by cluster.
func (e *Engine) Unreached() map[string]Unreached {
	all, addresses := map[string]Unreached{}, map[string]map[netip.Addr]bool{}
	e.views(func(v mirror.View) {
		for _, c := range v.Clusters {
			for endpoint := range c.Endpoints {
				if !endpoint.Unreached || !endpoint.Ready {
					continue
				}
				if addresses[c.Cluster] == nil {
					addresses[c.Cluster] = map[netip.Addr]bool{}
				}
				addresses[c.Cluster][endpoint.Address] = true
			}
		}
	})
	e.mu.RLock()
	defer e.mu.RUnlock()
	for cluster, of := range addresses {
		if r := e.remotes[cluster]; r != nil {
			all[cluster] = r.unreached(of)
		}
	}
	return all
}

// unreached returns the nodes of some addresses.
func (r *remote) unreached(addresses map[netip.Addr]bool) Unreached {
	u := Unreached{Nodes: map[string]int{}, Keyless: map[string]bool{}}
	var of bart.Table[string]
	for name, node := range r.nodes {
		for _, cidr := range node.GetPodCidrs() {
			if prefix, err := netip.ParsePrefix(cidr); err == nil {
				of.Insert(prefix.Masked(), name)
			}
		}
	}
	for address := range addresses {
		name, _ := of.Lookup(address.Unmap())
		u.Nodes[name]++
		if name != "" && len(r.nodes[name].GetWireguard().GetPublicKey()) == 0 {
			u.Keyless[name] = true
		}
	}
	return u
}

// PodCIDRs returns the pod CIDRs that a remote exports for a node; none for an unknown node.
func (e *Engine) PodCIDRs(cluster, node string) []string {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if r := e.remotes[cluster]; r != nil {
		return r.nodes[node].GetPodCidrs()
	}
	return nil
}

// MultiCluster counts exports, imports and conflicts; nil where the Multi-Cluster Services API is off.
func (e *Engine) MultiCluster() *semaphorev1.MultiClusterStatus {
	if e.imported == nil {
		return nil
	}
	out := &semaphorev1.MultiClusterStatus{}
	e.mu.RLock()
	names, exports := e.names, e.plan.Exports()
	for _, name := range names {
		if n := exports[name]; n > 0 {
			out.Exports = append(out.Exports, &semaphorev1.ClusterExports{Cluster: name, Services: uint64(n)})
		}
	}
	out.Imports = uint64(e.imported.Count())
	e.mu.RUnlock()
	for _, name := range names { // a conflict is a problem of the cluster that decides
		out.Conflicts += uint64(e.problems.Of(name).Counts[finding.ExportsConflict])
	}
	return out
}

// ServiceOf returns the name of the Service of the broker that has a ClusterIP; empty for none.
func (e *Engine) ServiceOf(ip netip.Addr) string {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.addresses[ip]
}

func (e *Engine) ServiceExists(name string) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.plan.Existing(name) != nil
}

func (e *Engine) SlicesOf(service string) []string {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.plan.SlicesOf(service)
}

// servicesPerLock is how many Services are read under one lock, so that an operator's request delays nothing.
const servicesPerLock = 32

// views calls do with each Service, in order, holding the read lock.
func (e *Engine) views(do func(mirror.View)) {
	e.mu.RLock()
	names := e.plan.Targets()
	e.mu.RUnlock()
	for part := range slices.Chunk(names, servicesPerLock) {
		e.mu.RLock()
		for _, v := range e.plan.Views(part) {
			do(v)
		}
		e.mu.RUnlock()
	}
}

// ServicesComplete reports whether a cluster's services and endpoints are complete and none is retained; of all
// clusters if the name is empty.
func (e *Engine) ServicesComplete(cluster string) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.retainedServices.MayDelete(cluster) && e.retainedSlices.MayDelete(cluster)
}

// mayDeleteSlice reports whether an undesired slice may be deleted: one without a label waits for Services, too.
func (e *Engine) mayDeleteSlice(owner string) bool {
	return e.retainedSlices.MayDelete(owner) && (owner != "" || e.retainedServices.MayDelete(owner))
}

// listed reads names of the plan under the lock.
func (e *Engine) listed(names func() []string) func() []string {
	return func() []string {
		e.mu.RLock()
		defer e.mu.RUnlock()
		return names()
	}
}

// want returns what an engine wants of a name, read under its lock. Before the plan has begun it is unknown.
func want[T writes.Object](e *Engine, answer func(name, owner string) writes.Answer[T]) func(
	name, owner string) writes.Answer[T] {
	return func(name, owner string) writes.Answer[T] {
		e.mu.RLock()
		defer e.mu.RUnlock()
		if !e.plan.Begun() {
			return writes.Answer[T]{Verdict: writes.Unknown}
		}
		return answer(name, owner)
	}
}

func (e *Engine) DesiredServices() writes.Desired[*corev1.Service] {
	return writes.Desired[*corev1.Service]{
		Names:  e.listed(func() []string { all, _ := e.plan.Names(); return all }),
		Synced: e.synced,
		Want: want(e, func(name, owner string) writes.Answer[*corev1.Service] {
			service, wanted := e.plan.Service(name)
			a := writes.Decide(service, wanted, owner, e.retainedServices.MayDelete)
			if known := e.plan.Retained(name); a.Verdict == writes.Unknown && known != nil {
				a = writes.Answer[*corev1.Service]{Verdict: writes.Present, Object: known}
			}
			return a
		}),
		Observed: func(name string, service *corev1.Service, there bool) {
			if !there {
				service = nil
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.addresses.replace(name, e.plan.Existing(name), service)
			e.mark(e.plan.ObserveService(name, service, e.now()))
			if e.imported != nil {
				e.markImports(e.imported.ObserveService(name, service, e.now()))
			}
		},
	}
}

func (e *Engine) DesiredSlices() writes.Desired[*discoveryv1.EndpointSlice] {
	wanted := want(e, e.desiredSlice)
	return writes.Desired[*discoveryv1.EndpointSlice]{
		Names:  e.listed(func() []string { _, all := e.plan.Names(); return all }),
		Synced: e.synced,
		Want:   wanted,
		Reserve: func(name, owner string) writes.Answer[*discoveryv1.EndpointSlice] {
			answer := wanted(name, owner)
			if owner == "" { // it does not exist
				e.mu.Lock()
				defer e.mu.Unlock()
				e.plan.ForgetEnded(name)
			}
			return answer
		},
		Observed: func(name string, slice *discoveryv1.EndpointSlice, there bool) {
			if !there {
				slice = nil
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.mark(e.plan.ObserveSlice(name, slice, e.now()))
		},
	}
}

// DesiredImports is the input of the loop of ServiceImports, whose names are NAMESPACE/NAME.
func (e *Engine) DesiredImports() writes.Desired[*mcsv1beta1.ServiceImport] {
	return writes.Desired[*mcsv1beta1.ServiceImport]{
		Names: e.listed(func() []string { return e.imported.Imports() }),
		Want: want(e, func(name, owner string) writes.Answer[*mcsv1beta1.ServiceImport] {
			object, wanted := e.imported.Import(name)
			if object != nil {
				if again := e.imported.ImportDue(name, e.now()); again > 0 {
					return writes.Answer[*mcsv1beta1.ServiceImport]{Verdict: writes.Unknown, Again: again}
				}
			}
			return writes.Decide(object, wanted, owner, e.retainedServices.MayDelete)
		}),
	}
}

// DesiredImportSlices is the input of the loop of the slices beside ServiceImports, whose names are NAMESPACE/NAME.
func (e *Engine) DesiredImportSlices() writes.Desired[*discoveryv1.EndpointSlice] {
	return writes.Desired[*discoveryv1.EndpointSlice]{
		Names: e.listed(func() []string { return e.imported.ImportSlices() }),
		Want: want(e, func(name, owner string) writes.Answer[*discoveryv1.EndpointSlice] {
			slice, wanted := e.imported.ImportSlice(name)
			// It follows the slice of the derived Service, for which the Retentions decide.
			return writes.Decide(slice, wanted, owner, func(string) bool { return true })
		}),
	}
}

func (e *Engine) desiredSlice(name, owner string) writes.Answer[*discoveryv1.EndpointSlice] {
	if of, ended := e.plan.Ended(name); ended && of == owner {
		return writes.Answer[*discoveryv1.EndpointSlice]{Verdict: writes.Absent}
	}
	s, wanted := e.plan.Slice(name)
	a := writes.Decide(s, wanted, owner, e.mayDeleteSlice)
	if a.Verdict == writes.Present && owner == "" && e.plan.Existing(s.Labels[discoveryv1.LabelServiceName]) == nil {
		return writes.Answer[*discoveryv1.EndpointSlice]{Verdict: writes.Unknown, Again: missingServiceRetry}
	}
	return a
}

// Findings returns the services of remotes without a mirror, or with one that differs from the export, and the retained
// objects of an earlier broker.
func (e *Engine) Findings() []finding.Finding {
	return append(e.Retaining.Findings(), e.problems.Findings()...)
}

// few changes make a part of a message together. maxMoves bounds a part of one Service between whose slices endpoints
// move.
const few, maxMoves = replica.PartChanges, 256

// split splits the changes of one message between Services, so that an endpoint that moves between slices of a Service
// within a message is not removed in between. A slice that moves to another Service joins both.
func split(changes []replica.Change) (parts [][]replica.Change) {
	type service struct{ namespace, name string }
	group := map[service]int{}
	var joined groups
	of := func(namespace, name string) int {
		s := service{namespace, name}
		i, ok := group[s]
		if !ok {
			i = joined.add()
			group[s] = i
		}
		return i
	}
	ids := make([]int, len(changes))
	for i, c := range changes {
		ids[i] = -1
		switch c.Key.Kind {
		case kindService:
			ids[i] = of(c.Key.Namespace, c.Key.Name)
		case kindSlice:
			was, is := c.Old.GetEndpointSlice().GetService(), c.New.GetEndpointSlice().GetService()
			ids[i] = of(c.Key.Namespace, cmp.Or(is, was))
			if was != "" && is != "" && was != is {
				joined.join(of(c.Key.Namespace, was), ids[i])
			}
		}
	}
	for _, of := range joined.split(changes, ids) {
		switch last := len(parts) - 1; {
		case len(of) > few:
			parts = append(parts, splitService(of)...)
		case last >= 0 && len(parts[last])+len(of) <= few:
			parts[last] = append(parts[last], of...)
		default:
			parts = append(parts, of)
		}
	}
	return parts
}

// splitService splits many changes of one Service, so that no remote has a turn as long as its largest Service takes:
// first all but slices, then new slices, which remove no endpoint, then the others. Slices between which an endpoint
// moves stay together, but for so many that only an attacker has them.
func splitService(changes []replica.Change) (parts [][]replica.Change) {
	var first, added, others []replica.Change
	changed := map[replica.Key]bool{}
	for _, c := range changes {
		switch {
		case c.Key.Kind != kindSlice:
			first = append(first, c)
		case c.Old == nil && !changed[c.Key]:
			added = append(added, c)
		default:
			others = append(others, c)
		}
		changed[c.Key] = true
	}
	var joined groups
	ids := make([]int, len(others))
	gained, of := map[string]int{}, map[replica.Key]int{}
	for i, c := range others {
		ids[i] = joined.add()
		if before, twice := of[c.Key]; twice {
			joined.join(before, i)
		}
		of[c.Key] = i
		for address := range addressesOf(c.New) {
			gained[address] = i
		}
	}
	for i, c := range others {
		has := addressesOf(c.New)
		for address := range addressesOf(c.Old) {
			if to, moved := gained[address]; moved && !has[address] {
				joined.join(i, to)
			}
		}
	}
	parts = slices.Collect(slices.Chunk(first, few))
	parts = slices.AppendSeq(parts, slices.Chunk(added, few))
	begin := len(parts)
	for _, together := range joined.split(others, ids) {
		if last := len(parts) - 1; last >= begin && len(parts[last])+len(together) <= few {
			parts[last] = append(parts[last], together...)
		} else {
			parts = slices.AppendSeq(parts, slices.Chunk(together, maxMoves))
		}
	}
	return parts
}

func addressesOf(o *semaphorev1.Object) map[string]bool {
	all := map[string]bool{}
	for _, e := range o.GetEndpointSlice().GetEndpoints() {
		for _, address := range e.GetAddresses() {
			all[address] = true
		}
	}
	return all
}

// groups joins numbers from 0 on into groups: each has another one of its group, or itself.
type groups []int

// add adds a group of one, and returns its number.
func (g *groups) add() int {
	*g = append(*g, len(*g))
	return len(*g) - 1
}

func (g groups) find(i int) int {
	for g[i] != i {
		g[i] = g[g[i]]
		i = g[i]
	}
	return i
}

func (g groups) join(a, b int) { g[g.find(a)] = g.find(b) }

// split returns the changes by their groups, which ids numbers; those of -1 are a group, too. Their order remains.
func (g groups) split(changes []replica.Change, ids []int) (all [][]replica.Change) {
	at := map[int]int{}
	for i, c := range changes {
		id := ids[i]
		if id >= 0 {
			id = g.find(id)
		}
		n, had := at[id]
		if !had {
			n = len(all)
			at[id], all = n, append(all, nil)
		}
		all[n] = append(all[n], c)
	}
	return all
}

var serviceProblems = prometheus.NewDesc("semaphore_broker_service_problems",
	"Services of a remote that are not mirrored, or not as configured, by reason: NameTooLong and NameTaken (the name "+
		"of its mirror or global service), SettingsDiffer (its global service has another cluster's), HostnameTwice "+
		"(another cluster's pod has the same name in its global service), NamespaceDenied (its ServiceExport is of a "+
		"denied namespace), ExportsConflict (exports of other clusters differ from it, and it decides), OwnName (it asks "+
		"for endpoints of other clusters under its own name, and does not get them as it asks).",
	[]string{"cluster", "reason"}, nil)

var exportedServices = prometheus.NewDesc("semaphore_broker_exports",
	"Services of a cluster, the own one too, that ServiceExports export.", []string{"cluster"}, nil)

func (e *Engine) Describe(ch chan<- *prometheus.Desc) {
	ch <- serviceProblems
	ch <- exportedServices
	ch <- ownNameEndpoints
}

func (e *Engine) Collect(ch chan<- prometheus.Metric) {
	e.collectOwnNames(ch)
	e.mu.RLock()
	names, exports := e.names, e.plan.Exports()
	e.mu.RUnlock()
	for _, cluster := range names {
		ch <- prometheus.MustNewConstMetric(exportedServices, prometheus.GaugeValue, float64(exports[cluster]), cluster)
		of := e.problems.Of(cluster)
		for _, code := range mirror.Codes { // also zeros, so that the metric exists
			ch <- prometheus.MustNewConstMetric(serviceProblems, prometheus.GaugeValue, float64(of.Counts[code]), cluster,
				string(code))
		}
	}
}
