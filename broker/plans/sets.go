package plans

import (
	"net/netip"
	"slices"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/policy"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The kinds of objects that sets are written as, in the words of the brake.
const (
	globalNetworkSets = "globalnetworksets"
	networkSets       = "networksets"
)

// sets are the sets of all remotes as objects of one kind.
type sets struct {
	kind       string
	namespaced bool
	plan       *policy.Plan
	problems   problem.Board
	loop       Loop
	// homeless while it is not known which namespaces there are.
	homeless bool
}

func newSets(cfg *config.Broker) []*sets {
	options := policy.Options{LabelDomains: cfg.LabelDomains, MaxSetSize: cfg.Sets.MaxSize}
	all := []*sets{{kind: globalNetworkSets, plan: policy.New(cfg.Remotes, options)}}
	if cfg.Sets.Namespaced {
		options.Namespaced = true
		all = append(all, &sets{kind: networkSets, namespaced: true, homeless: true, plan: policy.New(cfg.Remotes, options)})
	}
	return all
}

func (p *Plans) takeSets(cluster string, r replica.Result) {
	for _, s := range p.sets {
		for _, t := range s.plan.Apply(cluster, r.Changes) {
			s.loop.Mark(t.Name, t.Cluster, t.ObservedAt)
		}
		p.publish(s.plan.Problems(), &s.problems)
		if r.Completed == semaphorev1.Kind_KIND_SET_MEMBER {
			s.loop.WakeOwned(cluster)
		}
	}
}

func (p *Plans) heldSets(s *sets, cluster string) bool {
	p.mu.RLock()
	homeless := s.homeless
	p.mu.RUnlock()
	if homeless {
		return true // of what is there, nothing can be known to be unwanted
	}
	return p.held(cluster, s.kind, s.loop, s.plan.Names, semaphorev1.Kind_KIND_SET_MEMBER)
}

// LocalNamespaces takes which namespaces the own cluster has, once they are known.
func (p *Plans) LocalNamespaces(names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sets {
		if !s.homeless {
			continue
		}
		for _, name := range names {
			s.plan.Namespace(name, true)
		}
		s.homeless = false
		p.publish(s.plan.Problems(), &s.problems)
		for _, name := range s.plan.Names() {
			s.loop.Wake(name)
		}
		for cluster := range p.configured {
			s.loop.WakeOwned(cluster)
		}
	}
}

// LocalNamespace takes whether the own cluster has a namespace, whenever that changes.
func (p *Plans) LocalNamespace(name string, there bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sets {
		if s.namespaced {
			for _, touched := range s.plan.Namespace(name, there) {
				s.loop.Wake(touched)
			}
			p.publish(s.plan.Problems(), &s.problems)
		}
	}
}

// DesiredSets is what the loop of GlobalNetworkSets asks.
func (p *Plans) DesiredSets() apply.Desired[*calicov3.GlobalNetworkSet] {
	same := func(set *calicov3.GlobalNetworkSet) *calicov3.GlobalNetworkSet { return set }
	return desiredSets(p, p.sets[0], same, same)
}

// DesiredNetworkSets is what the loop of NetworkSets asks, where there is one.
func (p *Plans) DesiredNetworkSets() apply.Desired[*calicov3.NetworkSet] {
	return desiredSets(p, p.sets[1],
		func(set *calicov3.GlobalNetworkSet) *calicov3.NetworkSet {
			return &calicov3.NetworkSet{ObjectMeta: set.ObjectMeta, Spec: calicov3.NetworkSetSpec{Nets: set.Spec.Nets}}
		},
		func(set *calicov3.NetworkSet) *calicov3.GlobalNetworkSet {
			return &calicov3.GlobalNetworkSet{ObjectMeta: set.ObjectMeta, Spec: calicov3.GlobalNetworkSetSpec{Nets: set.Spec.Nets}}
		})
}

// desiredSets are sets as objects of another type, which differ in that alone.
func desiredSets[T apply.Object](p *Plans, s *sets, to func(*calicov3.GlobalNetworkSet) T, from func(T) *calicov3.GlobalNetworkSet) apply.Desired[T] {
	return apply.Desired[T]{
		Names: func() []string {
			p.mu.RLock()
			defer p.mu.RUnlock()
			return s.plan.Names()
		},
		Want: func(name, owner string) apply.Answer[T] {
			held := p.heldSets(s, owner)
			p.mu.Lock() // Set notes since when it holds something back
			defer p.mu.Unlock()
			if s.homeless {
				return apply.Answer[T]{Verdict: apply.Unknown}
			}
			d := s.plan.Set(name, p.now())
			var want T
			if d.Set != nil {
				want = to(d.Set)
			}
			a := answer(p, want, d.Set != nil, owner, held, semaphorev1.Kind_KIND_SET_MEMBER)
			a.Again = d.Again
			return a
		},
		Urgent: func(name string) bool {
			p.mu.RLock()
			defer p.mu.RUnlock()
			return s.plan.Urgent(name)
		},
		Observed: func(name string, object T, there bool) {
			var set *calicov3.GlobalNetworkSet
			if there {
				set = from(object)
			}
			p.mu.Lock()
			woken := s.plan.Observed(name, set)
			p.mu.Unlock()
			for _, other := range woken {
				s.loop.Wake(other)
			}
		},
	}
}

// Sets tells the sets that a request asks for, as policy.Plan.Describe does; those of all kinds of objects as one.
func (p *Plans) Sets(req *semaphorev1.ListSetsRequest, address netip.Addr) []*semaphorev1.PolicySet {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var out []*semaphorev1.PolicySet
	for _, s := range p.sets {
		for _, set := range s.plan.Describe(req, address) {
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
