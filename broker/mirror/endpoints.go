package mirror

import (
	"cmp"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// clusterEndpoints are the endpoints of one cluster in a target. An endpoint stays in its slice, and a new one goes
// into the first slice with room, so the slices do not depend on how the source's controller arranges its own.
type clusterEndpoints struct {
	target  *target
	cluster string
	// of is the source service. source is the cluster's export for it; nil while the target does not use it.
	of     ref
	source *source
	// ports are those that the target has of the endpoints; nil for all.
	ports replica.Ports
	// unused means that the target does not use these endpoints at present.
	unused bool
	// sliceOf maps each endpoint to its slice.
	sliceOf map[replica.EndpointKey]*slice
	groups  map[replica.PortGroup]*sliceGroup
	// families are the ready endpoints that serve the target, IPv4 and IPv6, and known those that are not about to end,
	// ready or not.
	families, known [2]int
	// lent means that the own name of the target's Service in the own cluster leads to these endpoints, too.
	lent bool
	// number is a lower bound of the free slice numbers.
	number int
}

type sliceGroup struct {
	slices []*slice
	// open is a lower bound of the index of the first slice with room.
	open int
	// ready endpoints that are usable, and known ones that are not about to end.
	ready, known int
	// family is the index in clusterEndpoints.families. serves is true if the endpoints have a family of the target, and
	// serve all its ports.
	family int
	serves bool
}

type slice struct {
	name  string
	owner *clusterEndpoints
	replica.PortGroup
	members []member
	// number is the number in its name; 0 if it has none.
	number int
}

// member is an endpoint in a slice.
type member struct {
	address string
	// exported is the endpoint as the cluster exports it; of an unconfirmed one, as the slice says that exists.
	exported    *semaphorev1.Endpoint
	unconfirmed bool
	// drained means that a drain covers the endpoint, and unreached that no tunnel leads to it.
	drained, unreached bool
}

// usable reports whether the endpoint can be used, if it is ready.
func (m *member) usable() bool { return !m.drained && !m.unreached }

// inUse reports whether the Service sends traffic to an endpoint as far as this cluster decides; the endpoint may be
// not ready nevertheless.
func (h *clusterEndpoints) inUse(m *member) bool { return !h.unused && m.usable() }

func (m *member) ready() bool { return replica.IsReady(m.exported) }

// hostname returns the hostname that the endpoint has under a headless Service; empty for none, and for no member.
func (m *member) hostname() string {
	if m == nil {
		return ""
	}
	return m.exported.GetHostname()
}

func (h *clusterEndpoints) all() (all []*slice) {
	for _, b := range h.groups {
		all = append(all, b.slices...)
	}
	return all
}

func (h *clusterEndpoints) members(yield func(*member) bool) {
	for _, s := range h.all() {
		for i := range s.members {
			if !yield(&s.members[i]) {
				return
			}
		}
	}
}

func (s *slice) find(address string) int {
	return slices.IndexFunc(s.members, func(m member) bool { return m.address == address })
}

// count adds (by = 1) or removes (by = -1) an endpoint from the counters.
func (h *clusterEndpoints) count(b *sliceGroup, m *member, by int) {
	if m.ready() && m.usable() {
		b.ready += by
		if b.serves {
			h.families[b.family] += by
		}
	}
	if !m.exported.GetTerminating() {
		b.known += by
		if b.serves {
			h.known[b.family] += by
		}
	}
}

// ready is the number of usable endpoints: ready, not drained, reached, and serving all ports of the target. A pod
// with an address of each family counts once.
func (h *clusterEndpoints) ready() int { return max(h.families[0], h.families[1]) }

// notEnding is the number of endpoints that are not about to end, ready or not, and serve all ports of the target. A
// pod with an address of each family counts once.
func (h *clusterEndpoints) notEnding() int { return max(h.known[0], h.known[1]) }

// upsert adds an endpoint to a slice, or updates it in the slice that holds it.
func (w *work) upsert(h *clusterEndpoints, k replica.EndpointKey, m member) {
	m.address = k.Address
	m.drained, m.unreached = w.excluded(h, k.Address)
	if s := h.sliceOf[k]; s != nil {
		old := &s.members[s.find(k.Address)]
		b := h.groups[k.PortGroup]
		h.count(b, old, -1)
		h.count(b, &m, +1)
		w.updateHostname(h, old, &m)
		if !old.same(&m) {
			w.markDirty(h.target)
			w.touchSlice(s)
		}
		*old = m
		return
	}
	s := w.sliceWithRoom(h, k.PortGroup)
	w.appendTo(s, k, m)
}

// appendTo adds an endpoint to a slice that has room.
func (w *work) appendTo(s *slice, k replica.EndpointKey, m member) {
	h := s.owner
	s.members = append(s.members, m)
	h.sliceOf[k] = s
	h.count(h.groups[k.PortGroup], &m, +1)
	w.updateHostname(h, nil, &m)
	w.markDirty(h.target)
	w.touchSlice(s)
}

// same reports whether both result in the same object.
func (m *member) same(o *member) bool {
	a, b := m.exported, o.exported
	return m.unconfirmed == o.unconfirmed && m.usable() == o.usable() && a.GetHostname() == b.GetHostname() &&
		slices.Equal(a.GetAddresses(), b.GetAddresses()) &&
		ptr.Equal(a.Ready, b.Ready) && ptr.Equal(a.Serving, b.Serving) && ptr.Equal(a.Terminating, b.Terminating)
}

// sliceWithRoom returns the first slice of a group that has room, or a new one.
func (w *work) sliceWithRoom(h *clusterEndpoints, g replica.PortGroup) *slice {
	b := h.groupFor(g)
	for ; b.open < len(b.slices); b.open++ {
		if len(b.slices[b.open].members) < w.max {
			return b.slices[b.open]
		}
	}
	for {
		number := h.number
		h.number++
		name := naming.Slice(h.target.name, h.cluster, number)
		if w.slices[name] == nil {
			return w.newSlice(h, g, name, number)
		}
	}
}

// serves reports whether endpoints of a group have a family of the Service, and serve all ports that they must serve to
// count as ready: all of a global service, and of a derived Service those that their own cluster has.
func (h *clusterEndpoints) serves(g replica.PortGroup) bool {
	t := h.target
	return (len(t.families) == 0 || slices.Contains(t.families, string(g.Family()))) &&
		(t.derived() || g.Serves(t.served))
}

func (h *clusterEndpoints) groupFor(g replica.PortGroup) *sliceGroup {
	b := h.groups[g]
	if b == nil {
		b = &sliceGroup{serves: h.serves(g)}
		if g.Family() == discoveryv1.AddressTypeIPv6 {
			b.family = 1
		}
		h.groups[g] = b
	}
	return b
}

func (w *work) newSlice(h *clusterEndpoints, g replica.PortGroup, name string, number int) *slice {
	s := &slice{name: name, owner: h, PortGroup: g, number: number}
	b := h.groupFor(g)
	b.slices = append(b.slices, s)
	w.slices[name] = s
	delete(w.ended, name)
	return s
}

// remove removes an endpoint from its slice, and the slice if it is then empty.
func (w *work) remove(h *clusterEndpoints, k replica.EndpointKey) {
	s := h.sliceOf[k]
	if s == nil {
		return
	}
	b := h.groups[k.PortGroup]
	i := s.find(k.Address)
	h.count(b, &s.members[i], -1)
	w.updateHostname(h, &s.members[i], nil)
	s.members = slices.Delete(s.members, i, i+1)
	delete(h.sliceOf, k)
	w.markDirty(h.target)
	w.touchSlice(s)
	at := slices.Index(b.slices, s)
	if b.open = min(b.open, at); len(s.members) > 0 {
		return
	}
	delete(w.slices, s.name)
	w.ended[s.name] = h.cluster
	if s.number > 0 {
		h.number = min(h.number, s.number)
	}
	if b.slices = slices.Delete(b.slices, at, at+1); len(b.slices) == 0 {
		delete(h.groups, k.PortGroup)
	}
}

// adoptSlice takes over the endpoints of an existing slice: as unconfirmed endpoints if their cluster is not
// complete, and to keep exported endpoints in the slice that already holds them.
func (w *work) adoptSlice(name string, o *discoveryv1.EndpointSlice) {
	service, cluster := o.Labels[discoveryv1.LabelServiceName], o.Labels[naming.LabelSourceCluster]
	if service == "" || !slices.Contains(w.clusters, cluster) || w.complete[cluster] {
		return
	}
	t := w.target(service)
	h := t.endpointsOf(cluster)
	if h.source == nil && len(h.sliceOf) == 0 {
		h.of = ref{cluster, o.Annotations[naming.AnnotationSourceNamespace], o.Annotations[naming.AnnotationSourceName]}
	}
	g := replica.GroupOfSlice(o)
	s := w.slices[name]
	if s != nil && (s.owner != h || s.PortGroup != g) {
		if s.owner != h || slices.ContainsFunc(s.members, func(m member) bool { return !m.unconfirmed }) {
			return
		}
		// An earlier broker reused the name after the endpoints in s were withdrawn.
		for _, m := range slices.Clone(s.members) {
			w.remove(h, replica.EndpointKey{PortGroup: s.PortGroup, Address: m.address})
		}
		s = nil
	}
	unused, outside := choice.UnusedIn(o), false
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if len(e.Addresses) == 0 || !w.inPodSubnets(cluster, e.Addresses) {
			outside = outside || len(e.Addresses) > 0 && len(w.subnets[cluster]) > 0
			continue
		}
		k := replica.EndpointKey{PortGroup: g, Address: e.Addresses[0]}
		if h.sliceOf[k] != nil {
			continue
		}
		m := member{address: k.Address, exported: choice.AsExported(e, unused), unconfirmed: true}
		m.drained, m.unreached = w.excluded(h, k.Address)
		if h.source != nil {
			if sent := h.source.Get(k, h.ports); sent != nil {
				m.exported, m.unconfirmed = sent, false
			}
		}
		if s == nil {
			s = w.newSlice(h, g, name, 0)
		}
		if len(s.members) < w.max {
			w.appendTo(s, k, m)
		} else { // the slice limit was higher before
			w.appendTo(w.sliceWithRoom(h, g), k, m)
		}
	}
	if s == nil && outside { // no snapshot needs to confirm this
		w.ended[name], w.ofSlices[name] = cluster, Touched{Name: name, Service: service, Namespace: h.of.namespace}
	}
	w.collect(t, cluster)
}

// inPodSubnets reports whether all addresses lie in the pod subnets of the cluster.
func (p *Plan) inPodSubnets(cluster string, addresses []string) bool {
	return !slices.ContainsFunc(addresses, func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err != nil || !slices.ContainsFunc(p.subnets[cluster], func(s netip.Prefix) bool { return s.Contains(ip) })
	})
}

func (w *work) placeAll(h *clusterEndpoints) {
	all := slices.SortedFunc(h.source.Keys(h.ports), func(a, b replica.EndpointKey) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), a.Compare(b.PortGroup))
	})
	for _, k := range slices.Compact(all) {
		w.upsert(h, k, member{exported: h.source.Get(k, h.ports)})
	}
}

// removeUnconfirmed removes the endpoints that the cluster does not export.
func (w *work) removeUnconfirmed(h *clusterEndpoints) {
	for _, k := range h.keys(func(m *member) bool { return m.unconfirmed }) {
		w.remove(h, k)
	}
	w.collect(h.target, h.cluster)
}

// detach disconnects the source and removes its endpoints.
func (w *work) detach(h *clusterEndpoints) {
	if h.source == nil {
		return
	}
	h.source.users = slices.DeleteFunc(h.source.users, func(o *clusterEndpoints) bool { return o == h })
	h.source = nil
	for _, k := range h.keys(func(m *member) bool { return !m.unconfirmed }) {
		w.remove(h, k)
	}
}

func (w *work) attach(h *clusterEndpoints, s *source) {
	h.source, h.of = s, s.ref
	s.users = append(s.users, h)
	if w.begun {
		w.placeAll(h)
	}
}

func (h *clusterEndpoints) keys(holds func(*member) bool) (keys []replica.EndpointKey) {
	for _, s := range h.all() {
		for i := range s.members {
			if holds(&s.members[i]) {
				keys = append(keys, replica.EndpointKey{PortGroup: s.PortGroup, Address: s.members[i].address})
			}
		}
	}
	return keys
}

// excluded reports whether a drain covers an endpoint, and whether no tunnel leads to it.
func (w *work) excluded(h *clusterEndpoints, address string) (drained, unreached bool) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return false, false
	}
	_, drained = w.drains.Covers(h.cluster, h.of.namespace, h.of.name, ip)
	return drained, !w.reach[h.cluster].Has(ip)
}

func (w *work) updateUsable(s *slice) {
	b := s.owner.groups[s.PortGroup]
	for i := range s.members {
		m := &s.members[i]
		drained, unreached := w.excluded(s.owner, m.address)
		if drained == m.drained && unreached == m.unreached {
			continue
		}
		s.owner.count(b, m, -1)
		m.drained, m.unreached = drained, unreached
		s.owner.count(b, m, +1)
		w.markDirty(s.owner.target)
		w.touchSlice(s)
	}
}
