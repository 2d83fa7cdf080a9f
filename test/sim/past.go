package sim

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file checks that what a broker holds only moves forward through the states that an object really had.

type pastKey struct {
	dest string // what is exported, and of nodes which fields, differs by destination
	kind int
	ref  ref
}

// past are the states of an object in order, as a destination may hold them; "" while it did not exist or was not
// exported. It begins with "".
type past struct {
	states []string
	// services, for a slice, is its Service in each state.
	services []string
	// nodes, for a node, is its value in each state: a node may be exported without CIDRs that overlap another's.
	nodes []node
}

// exported reports whether the object was ever exported.
func (p *past) exported() bool { return p != nil && len(p.states) > 1 }

// was reports whether the object in its i-th state was what is held.
func (p *past) was(i int, held *semaphorev1.Object, state string) bool {
	if held.GetNode() == nil || p.states[i] == "" {
		return p.states[i] == state
	}
	n, of := heldNode(held.GetNode()), p.nodes[i]
	for _, cidr := range n.cidrs {
		if !slices.Contains(of.cidrs, cidr) {
			return false
		}
	}
	return n.key == of.key && n.address == of.address
}

// remember records an object's new state.
func (s *source) remember(kind int, r ref, o metav1.Object) {
	for _, d := range s.w.dests {
		state, of, n := "", "", node{}
		switch o := o.(type) {
		case *corev1.Node:
			n = s.wantNode(o, d)
			state = n.String()
		case *corev1.Service:
			if w, ok := s.wantService(o, d); ok {
				state = w.String()
			}
		case *discoveryv1.EndpointSlice:
			if w, ok := s.wantSlice(o); ok {
				state, of = w.String(), w.service
			}
		case *corev1.Pod:
			if w, ok := s.wantMember(o, d); ok {
				state = w.String()
			}
		}
		key := pastKey{d.name, kind, r}
		p := s.past[key]
		if p == nil {
			p = &past{states: []string{""}, services: []string{""}, nodes: []node{{}}}
			s.past[key] = p
		}
		if p.states[len(p.states)-1] != state {
			p.states, p.services, p.nodes = append(p.states, state), append(p.services, of), append(p.nodes, n)
		}
	}
}

// reached is the position of one broker in the past of each object of a source.
type reached struct {
	source *source
	dest   *dest
	at     map[pastKey]int
	// now is what it holds, "" for nothing.
	now map[pastKey]string
}

func newReached(s *source, d *dest) *reached {
	return &reached{s, d, map[pastKey]int{}, map[pastKey]string{}}
}

var kindOf = map[semaphorev1.Kind]int{
	semaphorev1.Kind_KIND_NODE:           kindNode,
	semaphorev1.Kind_KIND_SERVICE:        kindService,
	semaphorev1.Kind_KIND_ENDPOINT_SLICE: kindSlice,
	semaphorev1.Kind_KIND_SET_MEMBER:     kindPod,
}

// follow handles a change of the replica. It must be to a state that the object had at or after the state that was held
// before: the earliest such one is assumed, so that no valid order is reported as invalid.
func (p *reached) follow(c replica.Change) (invariant, problem string) {
	key := pastKey{p.dest.name, kindOf[c.Key.Kind], ref{c.Key.Namespace, c.Key.Name}}
	state := held(c.New)
	if was := held(c.Old); was != p.now[key] {
		return "I3", fmt.Sprintf("%s %s changes from %q, but was %q", kindNames[key.kind], key.ref, was, p.now[key])
	}
	all := p.source.past[key]
	if all == nil {
		return "I3", fmt.Sprintf("%s %s never was, and is held as %q", kindNames[key.kind], key.ref, state)
	}
	for i := p.at[key]; i < len(all.states); i++ {
		if all.was(i, c.New, state) || state == "" && key.kind == kindSlice && all.services[i] != "" &&
			p.hidden(ref{key.ref.namespace, all.services[i]}) {
			p.at[key], p.now[key] = i, state
			return "", ""
		}
	}
	if state == "" {
		return "I2", fmt.Sprintf("%s %s is removed, and was not deleted in %s since it was %q", kindNames[key.kind], key.ref,
			p.source.name, p.now[key])
	}
	return "I3", fmt.Sprintf("%s %s goes back to %q from %q", kindNames[key.kind], key.ref, state, all.states[p.at[key]])
}

// hidden reports whether a Service is not exported now, or was not at some time that the broker may know.
func (p *reached) hidden(r ref) bool {
	key := pastKey{p.dest.name, kindService, r}
	all := p.source.past[key]
	if all == nil {
		return true
	}
	if p.source.w.settled == settledBraked {
		return true // what the brake retained can be removed long after its Service was removed and exported again
	}
	for _, state := range all.states[p.at[key]:] {
		if state == "" {
			return true
		}
	}
	return false
}

// mayKnow reports whether a destination may receive an object, or its name, at all (R26).
func (s *source) mayKnow(d *dest, of *semaphorev1.ObjectKey) bool {
	key := pastKey{d.name, kindOf[of.GetKind()], ref{of.GetNamespace(), of.GetName()}}
	all := s.past[key]
	if key.kind != kindSlice {
		return all.exported()
	}
	return all.exported() && slices.ContainsFunc(all.services, func(name string) bool {
		return s.past[pastKey{d.name, kindService, ref{key.ref.namespace, name}}].exported()
	})
}
