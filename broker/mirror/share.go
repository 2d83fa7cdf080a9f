package mirror

import (
	"cmp"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// share is what one cluster has in a Service of ours, in slices of our own: an endpoint stays in the slice it is in, and
// a new one goes into the first that has room. What the source's controller does with its slices is of no consequence.
type share struct {
	target  *target
	cluster string
	// of is the service that the endpoints are of; source what is known of it, nil while that is not wanted here.
	of     ref
	source *source
	// unused says that the target does without these endpoints now.
	unused bool
	// stoodIn and stoodOut say that endpoints which were remembered were in use, and out of it, to the broker before.
	stoodIn, stoodOut bool
	// home is the slice that each endpoint is in.
	home   map[key]*slice
	groups map[group]*bundle
	// families are the ready endpoints, IPv4 and IPv6, that are there for all ports of the target.
	families [2]int
	// number is one under which no slice has a lower one free.
	number int
}

// bundle are the slices of one group.
type bundle struct {
	slices []*slice
	// open is where the first slice with room can be.
	open int
	// ready endpoints that are not drained.
	ready int
	// family is the place among the families of the share; serves says that the endpoints are there for all ports of the target.
	family int
	serves bool
}

// slice is an EndpointSlice of ours.
type slice struct {
	name  string
	share *share
	group
	members []member
	// number is the one in its name, 0 where an earlier version chose the name.
	number int
}

// member is an endpoint in a slice.
type member struct {
	address string
	// told is what the cluster says of it; nil while it has said nothing, and stood is what stands of it.
	told  *semaphorev1.Endpoint
	stood *discoveryv1.Endpoint
	// drained says that an operator wants it out of use.
	drained bool
}

func (m *member) ready() bool {
	if m.told != nil {
		return isReady(m.told)
	}
	return ptr.Deref(unmasked(m.stood.Conditions).Ready, true)
}

// all are the slices of a share.
func (h *share) all() (all []*slice) {
	for _, b := range h.groups {
		all = append(all, b.slices...)
	}
	return all
}

func (s *slice) find(address string) int {
	return slices.IndexFunc(s.members, func(m member) bool { return m.address == address })
}

// count counts an endpoint that came (1) or went (-1).
func (h *share) count(b *bundle, m *member, by int) {
	if m.ready() && !m.drained {
		b.ready += by
		if b.serves {
			h.families[b.family] += by
		}
	}
}

// ready is how many endpoints of the share could be used: those that are there for all ports of the target. Pods that have an
// address of each family count once.
func (h *share) ready() int { return max(h.families[0], h.families[1]) }

// put gives an endpoint its place, or says anew what it is.
func (w *work) put(h *share, k key, m member) {
	m.address = k.address
	m.drained = w.covered(h, k.address)
	if s := h.home[k]; s != nil {
		old := &s.members[s.find(k.address)]
		b := h.groups[k.group]
		h.count(b, old, -1)
		h.count(b, &m, +1)
		w.host(h, old.told, m.told)
		if old.ready() != m.ready() || old.drained != m.drained {
			w.redecide(h.target)
		}
		if !old.same(&m) {
			w.touchSlice(s)
		}
		*old = m
		return
	}
	s := w.room(h, k.group)
	w.join(s, k, m)
}

// join adds an endpoint to a slice with room.
func (w *work) join(s *slice, k key, m member) {
	h := s.share
	s.members = append(s.members, m)
	h.home[k] = s
	h.count(h.groups[k.group], &m, +1)
	w.host(h, nil, m.told)
	w.redecide(h.target)
	w.touchSlice(s)
}

// same says whether two are written alike.
func (m *member) same(o *member) bool {
	if m.told == nil || o.told == nil {
		return m.told == o.told && m.stood == o.stood && m.drained == o.drained
	}
	a, b := m.told, o.told
	return m.drained == o.drained && a.GetHostname() == b.GetHostname() && slices.Equal(a.GetAddresses(), b.GetAddresses()) &&
		ptr.Equal(a.Ready, b.Ready) && ptr.Equal(a.Serving, b.Serving) && ptr.Equal(a.Terminating, b.Terminating)
}

// room is the first slice of a group with room.
func (w *work) room(h *share, g group) *slice {
	b := h.bundle(g)
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

func (h *share) bundle(g group) *bundle {
	b := h.groups[g]
	if b == nil {
		b = &bundle{serves: g.serves(h.target.served)}
		if g.family() == discoveryv1.AddressTypeIPv6 {
			b.family = 1
		}
		h.groups[g] = b
	}
	return b
}

func (w *work) newSlice(h *share, g group, name string, number int) *slice {
	s := &slice{name: name, share: h, group: g, number: number}
	b := h.bundle(g)
	b.slices = append(b.slices, s)
	w.slices[name] = s
	delete(w.ended, name)
	return s
}

// drop ends an endpoint's place, and a slice that is empty then.
func (w *work) drop(h *share, k key) {
	s := h.home[k]
	if s == nil {
		return
	}
	b := h.groups[k.group]
	i := s.find(k.address)
	h.count(b, &s.members[i], -1)
	w.host(h, s.members[i].told, nil)
	s.members = slices.Delete(s.members, i, i+1)
	delete(h.home, k)
	w.redecide(h.target)
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
		delete(h.groups, k.group)
	}
}

// remember takes a slice that stands for what a cluster offered, as far as the cluster has not been heard whole; and
// for the place of what it does offer.
func (w *work) remember(name string, o *discoveryv1.EndpointSlice) {
	service, cluster := o.Labels[discoveryv1.LabelServiceName], o.Labels[naming.LabelSourceCluster]
	if service == "" || !slices.Contains(w.clusters, cluster) || w.whole[cluster] {
		return
	}
	t := w.target(service)
	h := t.share(cluster)
	if h.source == nil && len(h.home) == 0 {
		h.of = ref{cluster, o.Annotations[naming.AnnotationSourceNamespace], o.Annotations[naming.AnnotationSourceName]}
	}
	g := groupStanding(o)
	s := w.slices[name]
	if s != nil && (s.share != h || s.group != g) {
		if s.share != h || slices.ContainsFunc(s.members, func(m member) bool { return m.told != nil }) {
			return
		}
		// An earlier broker used it for others, when it had been heard that these are gone.
		for _, m := range slices.Clone(s.members) {
			w.drop(h, key{s.group, m.address})
		}
		s = nil
	}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if len(e.Addresses) == 0 || !w.belongs(cluster, e.Addresses) {
			continue
		}
		k := key{g, e.Addresses[0]}
		if h.home[k] != nil {
			continue
		}
		m := member{address: k.address, stood: e, drained: w.covered(h, k.address)}
		h.stoodAs(&m)
		if h.source != nil {
			if told, ok := h.source.endpoints[k]; ok {
				m.told, m.stood = told.endpoint, nil
			}
		}
		if s == nil {
			s = w.newSlice(h, g, name, 0)
		}
		if len(s.members) < w.max {
			w.join(s, k, m)
		} else { // the limit was higher
			w.join(w.room(h, g), k, m)
		}
	}
	w.tidy(t, cluster)
}

// belongs says whether addresses can be those of a cluster's pods.
func (p *Plan) belongs(cluster string, addresses []string) bool {
	return !slices.ContainsFunc(addresses, func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err != nil || !slices.ContainsFunc(p.subnets[cluster], func(s netip.Prefix) bool { return s.Contains(ip) })
	})
}

// place gives all endpoints of a share's source their places.
func (w *work) place(h *share) {
	all := make([]key, 0, len(h.source.endpoints))
	for k := range h.source.endpoints {
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b key) int {
		return cmp.Or(cmp.Compare(a.address, b.address), cmp.Compare(a.text.Value(), b.text.Value()))
	})
	for _, k := range all {
		w.put(h, k, member{told: h.source.endpoints[k].endpoint})
	}
}

// forget ends the places of the endpoints of a share of which its cluster has not told.
func (w *work) forget(h *share) {
	for _, k := range h.keys(func(m *member) bool { return m.told == nil }) {
		w.drop(h, k)
	}
	w.tidy(h.target, h.cluster)
}

// detach ends the places of all endpoints of which the cluster has told.
func (w *work) detach(h *share) {
	if h.source == nil {
		return
	}
	h.source.shares = slices.DeleteFunc(h.source.shares, func(o *share) bool { return o == h })
	h.source = nil
	for _, k := range h.keys(func(m *member) bool { return m.told != nil }) {
		w.drop(h, k)
	}
}

// attach has a share have the endpoints of a source.
func (w *work) attach(h *share, s *source) {
	h.source, h.of = s, s.ref
	s.shares = append(s.shares, h)
	if w.begun {
		w.place(h)
	}
}

// keys are the endpoints of which something holds.
func (h *share) keys(holds func(*member) bool) (keys []key) {
	for _, s := range h.all() {
		for i := range s.members {
			if holds(&s.members[i]) {
				keys = append(keys, key{s.group, s.members[i].address})
			}
		}
	}
	return keys
}

// covered says whether an operator wants an endpoint out of use.
func (w *work) covered(h *share, address string) bool {
	if !w.drained {
		return false
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	_, covered := w.drains.Covers(h.cluster, h.of.namespace, h.of.name, ip)
	return covered
}

// drain looks at the endpoints of a slice anew.
func (w *work) drain(s *slice) {
	b := s.share.groups[s.group]
	for i := range s.members {
		m := &s.members[i]
		covered := w.covered(s.share, m.address)
		if covered == m.drained {
			continue
		}
		s.share.count(b, m, -1)
		m.drained = covered
		s.share.count(b, m, +1)
		w.redecide(s.share.target)
		w.touchSlice(s)
	}
}
