// Package networksets is the engine of policy sets: it takes what remotes export of pods in sets, and says which GlobalNetworkSets and
// NetworkSets stand in the own cluster, with which addresses, and in which order these are written.
//
// In go changes of replicas, from a queue that takes the remotes in turn; what stands in the cluster; and which namespaces there are. Out go
// the names that may have to change, to the loops that write, which ask what is to be written under a name; and problems. An engine owns
// its state, behind one lock that is held for a part of a message at a time. It writes nothing, and knows neither streams nor apiservers.
package networksets

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/policy"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/queue"
	"github.com/kube-semaphore/semaphore/broker/retain"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const kindMember = semaphorev1.Kind_KIND_SET_MEMBER

// Engine is that of one broker. Its methods may be called from any goroutine.
type Engine struct {
	warn  apply.Warn
	now   func() time.Time
	queue *queue.Queue

	mu sync.RWMutex
	// kinds of objects that sets are written as.
	kinds []*kind
	names []string // of the remotes, sorted
}

// kind are the sets of all remotes as objects of one kind.
type kind struct {
	namespaced bool
	plan       *policy.Plan
	problems   problem.Board
	loop       apply.Loop
	// guards are the rules for what stands of each remote.
	guards map[string]*retain.Guard
	// namespacesUnknown while it is not known which namespaces there are.
	namespacesUnknown bool
}

// New makes the engine of a broker that has heard nothing yet. now is the clock, time.Now but in a simulation.
func New(cfg *config.Broker, warn apply.Warn, now func() time.Time) *Engine {
	e := &Engine{warn: warn, now: now, queue: queue.New(nil, kindMember)}
	for _, r := range cfg.Remotes {
		e.names = append(e.names, r.Name)
	}
	slices.Sort(e.names)
	add := func(objects string, namespaced bool) {
		k := &kind{namespaced: namespaced, namespacesUnknown: namespaced, guards: map[string]*retain.Guard{}, plan: policy.New(cfg.Remotes, policy.Options{
			LabelDomains: cfg.LabelDomains, ManagedBy: cfg.Sets.ManagedBy, MaxSetSize: cfg.Sets.MaxSize, Namespaced: namespaced,
		})}
		for _, name := range e.names {
			k.guards[name] = retain.New(name, objects, cfg.Brake, kindMember)
		}
		e.kinds = append(e.kinds, k)
	}
	add("globalnetworksets", false)
	if cfg.Sets.Namespaced {
		add("networksets", true)
		policy.Join(e.kinds[0].plan, e.kinds[1].plan)
	}
	return e
}

// Bind says which loops write GlobalNetworkSets and, where there are any, NetworkSets. It is called once, before anything runs: the loops are made with
// what is wanted.
func (e *Engine) Bind(loops ...apply.Loop) {
	for i, loop := range loops {
		e.kinds[i].loop = loop
	}
}

// Queue is where what streams led to waits for the engine.
func (e *Engine) Queue() *queue.Queue { return e.queue }

// Run takes what waits until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	return e.queue.Run(ctx, e.Take, func() time.Time { return time.Time{} }, nil)
}

// Take applies a part of what a message led to.
func (e *Engine) Take(p queue.Part) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range e.kinds {
		for _, t := range k.plan.Apply(p.Cluster, p.Changes) {
			k.loop.Mark(t.Name, t.Cluster, t.ObservedAt)
		}
		k.problems.Take(k.plan.Problems(), e.warn)
		if g := k.guards[p.Cluster]; g != nil && p.Completed == kindMember {
			g.Complete(p.Completed)
			e.evaluate(k)
			k.loop.WakeOwned(p.Cluster)
			k.loop.WakeOwned("")
		}
	}
}

// evaluate asks of each remote whether what stands of it as objects of a kind and is not wanted may go.
func (e *Engine) evaluate(k *kind) {
	if k.namespacesUnknown {
		return // of what is there, nothing can be known to be unwanted
	}
	for _, name := range e.names {
		apply.Evaluate(k.guards[name], k.loop, e.now(), k.plan.Wants, e.warn)
	}
}

// LocalNamespaces takes which namespaces the own cluster has, once they are known.
func (e *Engine) LocalNamespaces(names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range e.kinds {
		if !k.namespacesUnknown {
			continue
		}
		for _, name := range names {
			k.plan.Namespace(name, true)
		}
		k.namespacesUnknown = false
		k.problems.Take(k.plan.Problems(), e.warn)
		e.evaluate(k)
		for _, name := range k.plan.Names() {
			k.loop.Wake(name)
		}
		for _, name := range e.names {
			k.loop.WakeOwned(name)
		}
	}
}

// LocalNamespace takes whether the own cluster has a namespace, whenever that changes.
func (e *Engine) LocalNamespace(name string, there bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range e.kinds {
		if k.namespaced {
			for _, touched := range k.plan.Namespace(name, there) {
				k.loop.Wake(touched)
			}
			k.problems.Take(k.plan.Problems(), e.warn)
		}
	}
}

// DesiredGlobal is what the loop of GlobalNetworkSets asks.
func (e *Engine) DesiredGlobal() apply.Desired[*calicov3.GlobalNetworkSet] {
	same := func(set *calicov3.GlobalNetworkSet) *calicov3.GlobalNetworkSet { return set }
	return desired(e, e.kinds[0], same, same)
}

// DesiredNamespaced is what the loop of NetworkSets asks, where there is one.
func (e *Engine) DesiredNamespaced() apply.Desired[*calicov3.NetworkSet] {
	return desired(e, e.kinds[1],
		func(set *calicov3.GlobalNetworkSet) *calicov3.NetworkSet {
			return &calicov3.NetworkSet{ObjectMeta: set.ObjectMeta, Spec: calicov3.NetworkSetSpec{Nets: set.Spec.Nets}}
		},
		func(set *calicov3.NetworkSet) *calicov3.GlobalNetworkSet {
			return &calicov3.GlobalNetworkSet{ObjectMeta: set.ObjectMeta, Spec: calicov3.GlobalNetworkSetSpec{Nets: set.Spec.Nets}}
		})
}

// desired are sets as objects of another type, which differ in that alone.
func desired[T apply.Object](e *Engine, k *kind, to func(*calicov3.GlobalNetworkSet) T, from func(T) *calicov3.GlobalNetworkSet) apply.Desired[T] {
	return apply.Desired[T]{
		Names: func() []string {
			e.mu.RLock()
			defer e.mu.RUnlock()
			return k.plan.Names()
		},
		Synced: func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.evaluate(k)
		},
		Want: func(name, owner string) apply.Answer[T] {
			e.mu.Lock() // Set notes what is about to be written, and since when it holds something back
			defer e.mu.Unlock()
			if k.namespacesUnknown {
				return apply.Answer[T]{Verdict: apply.Unknown}
			}
			d := k.plan.Set(name, e.now())
			var want T
			if d.Set != nil {
				want = to(d.Set)
			}
			a := apply.Decide(want, d.Set != nil, owner, func(owner string) bool { return e.mayGo(k, owner) })
			a.Again = d.Again
			return a
		},
		Urgent: func(name string) bool {
			e.mu.RLock()
			defer e.mu.RUnlock()
			return k.plan.Urgent(name)
		},
		Observed: func(name string, object T, there bool) {
			var set *calicov3.GlobalNetworkSet
			if there {
				set = from(object)
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, touched := range k.plan.Observed(name, set) {
				k.loop.Wake(touched)
			}
			for _, other := range e.kinds {
				if other != k {
					for _, touched := range other.plan.Touched(k.plan, name, nil) {
						other.loop.Wake(touched)
					}
				}
			}
		},
	}
}

// mayGo says whether what stands of a remote may go when it is not wanted. An object that does not say where it came from (its label
// was taken off by hand) may when all remotes were heard.
func (e *Engine) mayGo(k *kind, owner string) bool {
	if owner != "" {
		g := k.guards[owner]
		return g == nil || !g.Retains() // of a remote that is not configured: the operator's word
	}
	return !slices.ContainsFunc(e.names, func(name string) bool { return !k.guards[name].Heard() })
}

// ResyncDue says whether another whole snapshot of a remote would let go what its first one seemed to withdraw.
func (e *Engine) ResyncDue(cluster string) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return slices.ContainsFunc(e.kinds, func(k *kind) bool { return k.guards[cluster] != nil && k.guards[cluster].Due(e.now()) })
}

// Release lets go what the first snapshot of a remote withdrew and the brake holds, and returns how many objects go.
func (e *Engine) Release(cluster string, kinds ...semaphorev1.Kind) map[semaphorev1.Kind]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	released := map[semaphorev1.Kind]int{}
	if len(kinds) > 0 && !slices.Contains(kinds, kindMember) {
		return released
	}
	for _, k := range e.kinds {
		if g := k.guards[cluster]; g != nil {
			if n := g.Release(); n > 0 {
				released[kindMember] += n
				k.loop.WakeOwned(cluster)
			}
		}
	}
	return released
}

// Problems are what is held back, a line each, and some of the sets of each remote that have no object.
func (e *Engine) Problems() (lines []string) {
	e.mu.RLock()
	for _, k := range e.kinds {
		for _, name := range e.names {
			if line := k.guards[name].Problem(); line != "" {
				lines = append(lines, line)
			}
		}
	}
	e.mu.RUnlock()
	for _, k := range e.kinds {
		lines = append(lines, k.problems.Lines()...)
	}
	return lines
}

// Sets are the sets that a request asks for, as policy.Plan.Describe does; those of all kinds of objects as one.
func (e *Engine) Sets(req *semaphorev1.ListSetsRequest, address netip.Addr) []*semaphorev1.PolicySet {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var out []*semaphorev1.PolicySet
	for _, k := range e.kinds {
		for _, set := range k.plan.Describe(req, address) {
			i, found := slices.BinarySearchFunc(out, set, policy.CompareDescribed)
			if !found {
				out = slices.Insert(out, i, set)
				continue
			}
			out[i].Objects = append(out[i].Objects, set.Objects...)
			out[i].Missing = union(out[i].Missing, set.Missing)
			out[i].Leftover = union(out[i].Leftover, set.Leftover)
			if out[i].Problem == "" {
				out[i].Problem = set.Problem
			}
		}
	}
	return out
}

// union has each once, in the order of a and then b.
func union(a, b []string) []string {
	for _, one := range b {
		if !slices.Contains(a, one) {
			a = append(a, one)
		}
	}
	return a
}
