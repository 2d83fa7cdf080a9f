// Package services is the engine of mirrors and global services: it takes what remotes export of Services and EndpointSlices, and says
// which of both stand in the own cluster.
//
// In go changes of replicas, from a queue that takes the remotes in turn; what stands in the cluster; which remotes are gone, and drains. Out go
// the names that may have to change, to the loops that write, which ask what is wanted under a name; and problems. An engine owns
// its state, behind one lock that is held for a part of a message at a time. It writes nothing, and knows neither streams nor apiservers.
package services

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/drain"
	"github.com/kube-semaphore/semaphore/broker/endpoints"
	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/queue"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/broker/retain"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	kindNode    = semaphorev1.Kind_KIND_NODE
	kindService = semaphorev1.Kind_KIND_SERVICE
	kindSlice   = semaphorev1.Kind_KIND_ENDPOINT_SLICE
)

// afterService is when a slice is asked for again whose Service does not stand; it is asked for as soon as that does.
const afterService = time.Minute

// Engine is that of one broker. Its methods may be called from any goroutine.
type Engine struct {
	warn     apply.Warn
	now      func() time.Time
	queue    *queue.Queue
	problems problem.Board

	mu      sync.RWMutex
	plan    *mirror.Plan
	remotes map[string]*remote
	// names are those of the remotes, sorted.
	names []string
	// drains are as operators wrote them.
	drains drain.Set
	// services and slices are the loops that write, nil before Bind; endpoints is nil where none are wanted.
	services, slices, endpoints apply.Loop
}

// remote is what is known of one, or of the own cluster where its exporter is taken.
type remote struct {
	name string
	// services and slices are the rules for what stands of it.
	services, slices *retain.Guard
	// nodes are those of the remote, for drains.
	nodes map[string]*semaphorev1.Node
}

// New makes the engine of a broker that has heard nothing yet. now is the clock, time.Now but in a simulation.
func New(cfg *config.Broker, warn apply.Warn, now func() time.Time) *Engine {
	e := &Engine{
		warn: warn, now: now, queue: queue.New(cut, kindNode, kindService, kindSlice),
		plan: mirror.New(cfg), remotes: map[string]*remote{},
	}
	add := func(name string) {
		e.remotes[name] = &remote{
			name:     name,
			services: retain.New(name, "services", cfg.Brake, kindService),
			slices:   retain.New(name, "endpointslices", cfg.Brake, kindService, kindSlice),
			nodes:    map[string]*semaphorev1.Node{},
		}
		e.names = append(e.names, name)
	}
	for _, r := range cfg.Remotes {
		add(r.Name)
	}
	if own := cfg.Own(); own != nil {
		add(own.Name)
	}
	slices.Sort(e.names)
	return e
}

// Bind says which loops write Services and slices. It is called once, before anything runs: the loops are made with what is wanted.
func (e *Engine) Bind(services, slices apply.Loop) { e.services, e.slices = services, slices }

// BindEndpoints says which loop writes Endpoints. It is called after Bind, where they are wanted.
func (e *Engine) BindEndpoints(endpoints apply.Loop) {
	e.endpoints, e.services = endpoints, both{e.services, endpoints}
}

// both are the loops of Services and of Endpoints, which come and go together.
type both struct {
	apply.Loop
	endpoints apply.Loop
}

func (b both) WakeOwned(cluster string) {
	b.Loop.WakeOwned(cluster)
	b.endpoints.WakeOwned(cluster)
}

func (b both) WakeAll() {
	b.Loop.WakeAll()
	b.endpoints.WakeAll()
}

// Queue is where what streams led to waits for the engine.
func (e *Engine) Queue() *queue.Queue { return e.queue }

// Run takes what waits until ctx ends, and decides what time alone changes.
func (e *Engine) Run(ctx context.Context) error {
	return e.queue.Run(ctx, e.Take, e.Next, e.Due)
}

// Take applies a part of what a message led to.
func (e *Engine) Take(p queue.Part) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.remotes[p.Cluster]
	if r == nil {
		return
	}
	drained := false
	for _, c := range p.Changes {
		if c.Key.Kind != kindNode {
			continue
		}
		if n := c.New.GetNode(); n != nil {
			r.nodes[c.Key.Name] = n
		} else {
			delete(r.nodes, c.Key.Name)
		}
		drained = drained || e.drains.Node(p.Cluster, c.Key.Name)
	}
	e.mark(e.plan.Apply(p.Cluster, p.Changes, e.now()))
	if drained {
		e.drain()
	}
	if p.Completed == kindService || p.Completed == kindSlice {
		r.services.Complete(p.Completed)
		r.slices.Complete(p.Completed)
		e.settle()
		e.services.WakeOwned(p.Cluster)
		e.services.WakeOwned("") // global ones, which wait for every cluster
		e.slices.WakeOwned(p.Cluster)
	}
}

// settle evaluates what must stay of each remote, and takes what is gone of those of which all was heard.
func (e *Engine) settle() {
	for _, name := range e.names {
		r := e.remotes[name]
		apply.Evaluate(r.services, e.services, e.now(), e.plan.Wants, e.warn)
		if !e.plan.Begun() {
			continue // no endpoint has a place yet
		}
		apply.Evaluate(r.slices, e.slices, e.now(), func(slice string) bool { return e.plan.HoldsExported(name, slice) }, e.warn)
		if !e.plan.IsComplete(name) && !r.slices.Retains() {
			e.mark(e.plan.Complete(name, e.now()))
		}
	}
}

// synced is called when it has become known what stands in the cluster, as far as one loop knows. Decisions are made once both do: all names are
// asked for again then, and none before.
func (e *Engine) synced() {
	e.mu.Lock()
	begins := !e.plan.Begun() && e.services.Synced() && e.slices.Synced()
	if begins {
		e.mark(e.plan.Begin(e.now()))
	}
	e.settle()
	e.mu.Unlock()
	if begins { // the loops ask for all names
		e.services.WakeAll()
		e.slices.WakeAll()
	}
}

// Next is when time alone changes something; zero for never.
func (e *Engine) Next() time.Time {
	e.mu.Lock() // it forgets times that are none any more
	defer e.mu.Unlock()
	return e.plan.Next()
}

// Due decides what time alone has changed.
func (e *Engine) Due() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mark(e.plan.Due(e.now()))
}

// mark has the loops ask again for what was touched, and shows what is wrong now.
func (e *Engine) mark(touches mirror.Touches) {
	for _, t := range touches.Services {
		e.services.Mark(t.Name, t.Cluster, t.ObservedAt)
	}
	for _, t := range touches.Slices {
		e.slices.Mark(t.Name, t.Cluster, t.ObservedAt)
	}
	if e.endpoints != nil {
		for _, t := range touches.Endpoints {
			e.endpoints.Mark(t.Name, t.Cluster, t.ObservedAt)
		}
	}
	e.problems.Take(e.plan.Problems(), e.warn)
	e.queue.Wake() // it may be another time that is next
}

// SetGone takes whether a cluster is gone, by whatever signs. Global services that have other endpoints do without its
// own, as their settings say.
func (e *Engine) SetGone(cluster string, gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mark(e.plan.SetGone(cluster, gone, e.now()))
}

// Await says that it is being found out whether clusters are there: SetGone says so of each. Until then global services keep to
// what the broker before found.
func (e *Engine) Await(clusters ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.plan.MarkPresenceUnknown(clusters...)
}

// SetDrains takes what operators want out of use.
func (e *Engine) SetDrains(all drain.Set) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drains = all
	e.drain()
}

// drain takes the drains to the services, those of nodes with all that is known of the nodes.
func (e *Engine) drain() {
	e.mark(e.plan.SetDrains(e.drains.With(func(cluster, node string) (out []netip.Prefix) {
		r := e.remotes[cluster]
		if r == nil {
			return nil
		}
		for _, cidr := range r.nodes[node].GetPodCidrs() {
			if prefix, err := netip.ParsePrefix(cidr); err == nil { // admission lets no other in
				out = append(out, prefix.Masked())
			}
		}
		return out
	}), e.now()))
}

// PodCIDRs are those that a remote says its node has; none for a node that is not known.
func (e *Engine) PodCIDRs(cluster, node string) []string {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if r := e.remotes[cluster]; r != nil {
		return r.nodes[node].GetPodCidrs()
	}
	return nil
}

// Affected are the Services that have endpoints which a drain covers, or would.
func (e *Engine) Affected(d drain.Drain) (out []mirror.Affected) {
	e.inParts(func(targets []string) { out = append(out, e.plan.Affected(d, targets...)...) })
	return out
}

// Drained is what the drains that hold keep out of use.
func (e *Engine) Drained() map[drain.Target]mirror.Drained {
	out := map[drain.Target]mirror.Drained{}
	e.inParts(func(targets []string) {
		for target, n := range e.plan.Drained(targets...) {
			counts := out[target]
			counts.Endpoints, counts.Services = counts.Endpoints+n.Endpoints, counts.Services+n.Services
			out[target] = counts
		}
	})
	return out
}

// Services are the Services of ours that hold endpoints, and which clusters they use.
func (e *Engine) Services() (out []mirror.Described) {
	e.inParts(func(targets []string) { out = append(out, e.plan.Describe(targets...)...) })
	return out
}

// atOnce is how many Services are read with the lock held once: what a person asks keeps nobody waiting.
const atOnce = 32

// inParts calls do with some names of Services after the other, in order, and the lock held for reading.
func (e *Engine) inParts(do func(targets []string)) {
	e.mu.RLock()
	names := e.plan.Targets()
	e.mu.RUnlock()
	for part := range slices.Chunk(names, atOnce) {
		e.mu.RLock()
		do(part)
		e.mu.RUnlock()
	}
}

// Heard says whether a cluster has told all its services and endpoints, and nothing that it withdraws by that is held
// back; all clusters, for an empty name.
func (e *Engine) Heard(cluster string) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if cluster != "" {
		r := e.remotes[cluster]
		return r == nil || !r.services.Retains() && !r.slices.Retains()
	}
	return !slices.ContainsFunc(e.names, func(name string) bool {
		return e.remotes[name].services.Retains() || !e.remotes[name].slices.Heard()
	})
}

// mayGo says whether a Service that came from a cluster may go when nobody wants it. One that does not say where it came from, because it is a global one
// or because its label was taken off by hand, may when it can be of no remote. The caller holds mu.
func (e *Engine) mayGo(owner string) bool {
	if owner != "" {
		r := e.remotes[owner]
		return r == nil || !r.services.Retains() // of a remote that is not configured: the operator's word
	}
	return !slices.ContainsFunc(e.names, func(name string) bool { return e.remotes[name].services.Retains() })
}

// slicesMayGo is mayGo of slices. One without a label may when all clusters were heard.
func (e *Engine) slicesMayGo(owner string) bool {
	if owner != "" {
		r := e.remotes[owner]
		return r == nil || !r.slices.Retains()
	}
	return !slices.ContainsFunc(e.names, func(name string) bool { return !e.remotes[name].slices.Heard() })
}

// serviceNames are the names of the desired Services.
func (e *Engine) serviceNames() []string {
	e.mu.RLock()
	defer e.mu.RUnlock()
	services, _ := e.plan.Names()
	return services
}

// answerOfService is the answer for a Service, or for an object that comes and goes with it. desired returns a zero object
// although it is wanted while the object is not known.
func answerOfService[T interface {
	apply.Object
	comparable
}](e *Engine, name, owner string, desired func(name string) (object T, wanted bool)) apply.Answer[T] {
	e.mu.RLock()
	defer e.mu.RUnlock()
	unknown := apply.Answer[T]{Verdict: apply.Unknown}
	if !e.plan.Begun() {
		return unknown
	}
	object, wanted := desired(name)
	if wanted && object == *new(T) || !wanted && e.plan.HasUnconfirmedEndpoints(name) {
		return unknown
	}
	return apply.Decide(object, wanted, owner, e.mayGo)
}

// DesiredServices is what the loop of Services asks.
func (e *Engine) DesiredServices() apply.Desired[*corev1.Service] {
	return apply.Desired[*corev1.Service]{
		Names:  e.serviceNames,
		Synced: e.synced,
		Want: func(name, owner string) apply.Answer[*corev1.Service] {
			return answerOfService(e, name, owner, e.plan.Service)
		},
		Observed: func(name string, service *corev1.Service, there bool) {
			if !there {
				service = nil
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.mark(e.plan.ObserveService(name, service, e.now()))
		},
	}
}

// DesiredSlices is what the loop of EndpointSlices asks.
func (e *Engine) DesiredSlices() apply.Desired[*discoveryv1.EndpointSlice] {
	return apply.Desired[*discoveryv1.EndpointSlice]{
		Names: func() []string {
			e.mu.RLock()
			defer e.mu.RUnlock()
			_, names := e.plan.Names()
			return names
		},
		Synced: e.synced,
		Want: func(name, owner string) apply.Answer[*discoveryv1.EndpointSlice] {
			answer, ended := e.wantSlice(name, owner)
			if ended && owner == "" {
				e.mu.Lock()
				defer e.mu.Unlock()
				e.plan.ForgetEnded(name) // nothing is to be remembered of it any more
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

// DesiredEndpoints is what the loop of Endpoints asks. They come and go with their Services.
func (e *Engine) DesiredEndpoints() apply.Desired[*endpoints.Endpoints] {
	return apply.Desired[*endpoints.Endpoints]{
		Names: e.serviceNames,
		Want: func(name, owner string) apply.Answer[*endpoints.Endpoints] {
			return answerOfService(e, name, owner, e.plan.Endpoints)
		},
	}
}

// wantSlice is what is wanted under the name of a slice. ended says that something is remembered of one that has ended.
func (e *Engine) wantSlice(name, owner string) (a apply.Answer[*discoveryv1.EndpointSlice], ended bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if !e.plan.Begun() {
		return apply.Answer[*discoveryv1.EndpointSlice]{Verdict: apply.Unknown}, false
	}
	of, ended := e.plan.Ended(name)
	if ended && of == owner {
		return apply.Answer[*discoveryv1.EndpointSlice]{Verdict: apply.Absent}, true
	}
	s, _, wanted := e.plan.Slice(name)
	a = apply.Decide(s, wanted, owner, e.slicesMayGo)
	if a.Verdict == apply.Present && owner == "" && !e.plan.ServiceExists(s.Labels[discoveryv1.LabelServiceName]) {
		return apply.Answer[*discoveryv1.EndpointSlice]{Verdict: apply.Unknown, Again: afterService}, ended
	}
	return a, ended
}

// ResyncDue says whether another whole snapshot of a remote would let go what its first one seemed to withdraw.
func (e *Engine) ResyncDue(cluster string) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	r := e.remotes[cluster]
	return r != nil && (r.services.Due(e.now()) || r.slices.Due(e.now()))
}

// Release lets go what the first snapshot of a remote withdrew and the brake holds, of some kinds or of all. It returns
// how many objects go, by the kind that they were made for.
func (e *Engine) Release(cluster string, kinds ...semaphorev1.Kind) map[semaphorev1.Kind]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	released := map[semaphorev1.Kind]int{}
	r := e.remotes[cluster]
	if r == nil {
		return released
	}
	for kind, g := range map[semaphorev1.Kind]*retain.Guard{kindService: r.services, kindSlice: r.slices} {
		if len(kinds) == 0 || slices.Contains(kinds, kind) {
			if n := g.Release(); n > 0 {
				released[kind] = n
			}
		}
	}
	if len(released) > 0 {
		e.settle()
		e.services.WakeOwned(cluster)
		e.slices.WakeOwned(cluster)
	}
	return released
}

// Problems are what is held back, a line each, and some of what is wrong with each remote's services.
func (e *Engine) Problems() (lines []string) {
	e.mu.RLock()
	for _, name := range e.names {
		for _, g := range []*retain.Guard{e.remotes[name].slices, e.remotes[name].services} {
			if line := g.Problem(); line != "" {
				lines = append(lines, line)
			}
		}
	}
	e.mu.RUnlock()
	return append(lines, e.problems.Lines()...)
}

// cut takes the changes of one message apart at borders of Services: an endpoint that passes from one slice of a Service to another within
// a message has not gone. What a slice says that passes from one Service to another belongs to both.
func cut(changes []replica.Change) [][]replica.Change {
	type service struct{ namespace, name string }
	group := map[service]int{}
	parent := []int{}
	find := func(i int) int {
		for parent[i] != i {
			parent[i] = parent[parent[i]]
			i = parent[i]
		}
		return i
	}
	of := func(namespace, name string) int {
		s := service{namespace, name}
		i, ok := group[s]
		if !ok {
			i = len(parent)
			group[s], parent = i, append(parent, i)
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
				parent[find(of(c.Key.Namespace, was))] = find(ids[i])
			}
		}
	}
	byGroup := map[int][]replica.Change{}
	var order []int
	for i, c := range changes {
		id := -1
		if ids[i] >= 0 {
			id = find(ids[i])
		}
		if byGroup[id] == nil {
			order = append(order, id)
		}
		byGroup[id] = append(byGroup[id], c)
	}
	const few = 32
	var parts [][]replica.Change
	for _, id := range order {
		if last := len(parts) - 1; last >= 0 && len(parts[last])+len(byGroup[id]) <= few {
			parts[last] = append(parts[last], byGroup[id]...)
		} else {
			parts = append(parts, byGroup[id])
		}
	}
	return parts
}

var serviceProblems = prometheus.NewDesc("semaphore_broker_service_problems",
	"Services of a remote that are not mirrored, or not as they say, by reason: TooLong and NameTaken (the name that a mirror or global service would have), Settings (its global service has another cluster's), Hostname (another cluster's pod has the same name in its global service).",
	[]string{"cluster", "reason"}, nil)

// Describe implements prometheus.Collector.
func (e *Engine) Describe(ch chan<- *prometheus.Desc) { ch <- serviceProblems }

// Collect implements prometheus.Collector.
func (e *Engine) Collect(ch chan<- prometheus.Metric) {
	for _, cluster := range e.names {
		of := e.problems.Of(cluster)
		for _, code := range mirror.Codes { // also those of 0, so that it can be seen
			ch <- prometheus.MustNewConstMetric(serviceProblems, prometheus.GaugeValue, float64(of.Counts[code]), cluster, code)
		}
	}
}
