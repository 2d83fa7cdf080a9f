package policy

// Engine is the engine of policy sets: it decides which GlobalNetworkSets and NetworkSets exist in the own
// cluster, with which addresses, and in which order they are written, from the pods in sets that remotes export.
//
// Its input are changes of replicas, from a queue that serves the remotes in turn, the existing objects, and the
// existing namespaces. It passes names that may have to change to the loops that write, which request the desired
// object, and it reports problems. The engine owns its state, behind one lock that it holds for a part of a message at
// a time. It writes nothing, and knows neither streams nor apiservers.

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const kindMember = semaphorev1.Kind_KIND_SET_MEMBER

// Engine is the engine of one broker. Its methods are safe for concurrent use.
type Engine struct {
	writes.Retaining

	warn  problem.Warn
	now   func() time.Time
	queue *replica.Queue

	mu sync.RWMutex
	// kinds are the kinds of objects that represent sets.
	kinds []*objectKind
	names []string // of the remotes, sorted
	// holders remembers which pod had which address.
	holders *Holders
}

// objectKind has the sets of all remotes as objects of one kind.
type objectKind struct {
	namespaced bool
	plan       *Plan
	problems   problem.Board
	loop       writes.Loop
	// retained decide whether existing objects of each remote are retained.
	retained *writes.Retentions
	// namespacesUnknown is true until the existing namespaces are known.
	namespacesUnknown bool
}

// NewEngine makes an engine without sets. now is the clock: time.Now except in a simulation.
func NewEngine(cfg *config.Broker, warn problem.Warn, now func() time.Time) *Engine {
	e := &Engine{warn: warn, now: now, queue: replica.NewQueue(nil, kindMember), holders: NewHolders(Room, now())}
	e.Retaining = writes.Retaining{Brake: cfg.Brake, Now: now, Lock: &e.mu, Decide: e.decide}
	add := func(objects writes.ObjectKind, namespaced bool) {
		k := &objectKind{namespaced: namespaced, namespacesUnknown: namespaced, retained: e.Retain(objects, kindMember),
			plan: New(cfg.Remotes, Options{
				LabelDomains: cfg.LabelDomains, ManagedBy: cfg.Sets.ManagedBy, MaxSetSize: cfg.Sets.MaxSize, Namespaced: namespaced,
			})}
		e.kinds = append(e.kinds, k)
	}
	add(writes.GlobalNetworkSet, false)
	if cfg.Sets.Namespaced {
		add(writes.NetworkSet, true)
		Join(e.kinds[0].plan, e.kinds[1].plan)
	}
	e.configure(cfg.Remotes)
	return e
}

func (e *Engine) configure(remotes []config.Remote) {
	e.names = nil
	for _, r := range remotes {
		e.names = append(e.names, r.Name)
	}
	slices.Sort(e.names)
	e.Retaining.Follow(e.names)
}

// Follow replaces the configured remotes. The sets of those that remain continue, under other names if these depend on
// the difference. A new remote begins without sets, and the objects of a missing one are deleted.
func (e *Engine) Follow(remotes []config.Remote) {
	was := e.follow(remotes)
	for _, r := range remotes {
		if slices.Contains(was, r.Name) {
			continue
		}
		for _, k := range e.kinds { // a remote of that name may have left objects
			k.loop.Observe(r.Name)
		}
	}
}

// follow is Follow without the objects of the added remotes. It returns the names of the remotes before.
func (e *Engine) follow(remotes []config.Remote) (was []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was = e.names
	e.configure(remotes)
	for _, name := range was {
		if !slices.Contains(e.names, name) {
			e.holders.End(name, e.kinds[0].plan.remotes[name].pods, e.now())
		}
	}
	for _, k := range e.kinds {
		for _, t := range k.plan.Follow(remotes) {
			k.loop.Mark(t.Name, t.Cluster, t.ObservedAt)
		}
		k.problems.Take(k.plan.Problems(), e.warn)
		e.evaluate(k)
		for _, name := range was {
			if !slices.Contains(e.names, name) {
				k.loop.WakeOwned(name)
			}
		}
	}
	return was
}

// Remind repeats the warnings about problems for which there was no room.
func (e *Engine) Remind() {
	for _, k := range e.kinds {
		k.problems.Remind(e.warn)
	}
}

// Bind sets the loops that write GlobalNetworkSets and, if enabled, NetworkSets, which are made with the engine's
// desired objects. It must be called once, before anything runs.
func (e *Engine) Bind(loops ...writes.Loop) {
	for i, loop := range loops {
		e.kinds[i].loop = loop
	}
}

func (e *Engine) Queue() *replica.Queue { return e.queue }

func (e *Engine) Run(ctx context.Context) error {
	return e.queue.Run(ctx, e.Take, func() time.Time { return time.Time{} }, nil)
}

func (e *Engine) Take(p replica.Part) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Contains(e.names, p.Cluster) {
		return // it was removed with this in the queue
	}
	e.holders.Take(p.Cluster, p.Changes, e.now())
	for _, k := range e.kinds {
		for _, t := range k.plan.Apply(p.Cluster, p.Changes) {
			k.loop.Mark(t.Name, t.Cluster, t.ObservedAt)
		}
		k.problems.Take(k.plan.Problems(), e.warn)
	}
	if e.Retaining.Take(p.Cluster, p.Completed, p.Hello) {
		e.decide(p.Cluster)
	} else if p.Hello != nil {
		for _, k := range e.kinds {
			e.evaluate(k)
		}
	}
}

// decide is evaluate, after which the loops decide on the objects that waited for a remote, or for each.
func (e *Engine) decide(cluster string) {
	for _, k := range e.kinds {
		e.evaluate(k)
		k.loop.WakeOwned(cluster)
		k.loop.WakeOwned("")
	}
}

// evaluate decides for each remote whether its undesired objects of a kind are retained.
func (e *Engine) evaluate(k *objectKind) {
	if k.namespacesUnknown {
		return // no existing object is known to be undesired
	}
	for _, name := range e.names {
		writes.Evaluate(k.retained.Of(name), k.loop, e.now(), k.plan.Wants, nil, e.warn)
	}
}

func (e *Engine) KnowLocalNamespaces() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range e.kinds {
		if !k.namespacesUnknown {
			continue
		}
		k.namespacesUnknown = false
		e.evaluate(k)
		for _, name := range k.plan.Names() {
			k.loop.Wake(name)
		}
		for _, name := range e.names {
			k.loop.WakeOwned(name)
		}
	}
}

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

func (e *Engine) DesiredGlobal() writes.Desired[*calicov3.GlobalNetworkSet] {
	same := func(set *calicov3.GlobalNetworkSet) *calicov3.GlobalNetworkSet { return set }
	return desired(e, e.kinds[0], same, same)
}

func (e *Engine) DesiredNamespaced() writes.Desired[*calicov3.NetworkSet] {
	return desired(e, e.kinds[1],
		func(set *calicov3.GlobalNetworkSet) *calicov3.NetworkSet {
			return &calicov3.NetworkSet{ObjectMeta: set.ObjectMeta, Spec: calicov3.NetworkSetSpec{Nets: set.Spec.Nets}}
		},
		func(set *calicov3.NetworkSet) *calicov3.GlobalNetworkSet {
			return &calicov3.GlobalNetworkSet{ObjectMeta: set.ObjectMeta,
				Spec: calicov3.GlobalNetworkSetSpec{Nets: set.Spec.Nets}}
		})
}

// desired returns sets as objects of another type.
func desired[T writes.Pointer[O], O any](e *Engine, k *objectKind, to func(*calicov3.GlobalNetworkSet) T,
	from func(T) *calicov3.GlobalNetworkSet) writes.Desired[T] {
	return writes.Desired[T]{
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
		Want: func(name, owner string) writes.Answer[T] {
			e.mu.RLock()
			defer e.mu.RUnlock()
			return answer(e, k, name, owner, to, k.plan.Set)
		},
		Reserve: func(name, owner string) writes.Answer[T] {
			e.mu.Lock()
			defer e.mu.Unlock()
			return answer(e, k, name, owner, to, k.plan.Reserve)
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
					for _, touched := range other.plan.Moved(k.plan) {
						other.loop.Wake(touched)
					}
				}
			}
		},
	}
}

// answer returns the answer for a decision about a name. The caller must hold mu.
func answer[T writes.Pointer[O], O any](e *Engine, k *objectKind, name, owner string,
	to func(*calicov3.GlobalNetworkSet) T, decide func(name string, now time.Time) Decision) (a writes.Answer[T]) {
	as := func(set *calicov3.GlobalNetworkSet, mayGo func(owner string) bool) writes.Answer[T] {
		var want T
		if set != nil {
			want = to(set)
		}
		return writes.Decide(want, set != nil, owner, mayGo)
	}
	// The first snapshot of a remote comes in parts: until the last of them, an existing set has addresses that the plan
	// lacks.
	if g := k.retained.Of(owner); !k.namespacesUnknown && (g == nil || g.Heard()) {
		d := decide(name, e.now())
		a = as(d.Set, k.retained.MayDelete)
		a.Again = d.Again
	}
	if a.Verdict == writes.Unknown {
		if set, outside := k.plan.Inside(name, owner); outside {
			a = as(set, func(string) bool { return true })
		}
	}
	return a
}

// Findings returns the sets without an object, and the retained objects of an earlier broker.
func (e *Engine) Findings() []finding.Finding {
	found := e.Retaining.Findings()
	for _, k := range e.kinds {
		found = append(found, k.problems.Findings()...)
	}
	return found
}

// Sets returns the sets that a request selects, as policy.Plan.Describe does, merged over all kinds of objects.
func (e *Engine) Sets(req *semaphorev1.ListSetsRequest, address netip.Addr) []*semaphorev1.PolicySet {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var out []*semaphorev1.PolicySet
	for _, k := range e.kinds {
		for _, set := range k.plan.Describe(req, address) {
			i, found := slices.BinarySearchFunc(out, set, CompareDescribed)
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

// Holders returns the holders of an address, newest first, and the time from which the list is complete.
func (e *Engine) Holders(address netip.Addr) ([]*semaphorev1.Holder, time.Time) {
	sets := e.Sets(&semaphorev1.ListSetsRequest{Address: address.String()}, address)
	var now []Holder
	for _, s := range sets {
		for _, pod := range s.GetPods() {
			if slices.Contains(pod.GetIps(), address.String()) {
				now = append(now, Holder{Cluster: s.GetCluster(), Namespace: s.GetNamespace(), Pod: pod.GetName(),
					UID: pod.GetUid(), Set: s.GetName()})
			}
		}
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.holders.Holders(address, now)
}

// union returns each element once, in the order of a and then b.
func union(a, b []string) []string {
	for _, one := range b {
		if !slices.Contains(a, one) {
			a = append(a, one)
		}
	}
	return a
}
