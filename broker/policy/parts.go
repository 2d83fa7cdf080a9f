package policy

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// This file is about sets with more IPs than one object shall hold. Each IP has a home, which is one of the set's
// parts, and an IP does not move: what a change costs is the size of a part, whatever the size of the set.
//
// Where an IP's home is follows from what the cluster holds: the part that has the IP already, and for an IP that is
// new, the first part with room. So a restart moves nothing, and parts at the end drain as their pods are
// replaced. Parts are not merged otherwise: that would write two objects to save one. A part that has more than it may,
// because less is allowed than before, keeps what it has and gets no more.

// members are the IPs of one set.
type members struct {
	// home is the number of the part that an IP is in; parts are counted from 1.
	home  map[netip.Addr]int
	parts map[int]map[netip.Addr]bool
	// room is a part before which none has room.
	room int
}

func newMembers() *members {
	return &members{home: map[netip.Addr]int{}, parts: map[int]map[netip.Addr]bool{}, room: 1}
}

// put gives an IP its home, which it may have had elsewhere.
func (m *members) put(ip netip.Addr, part int) {
	m.remove(ip)
	m.home[ip] = part
	if m.parts[part] == nil {
		m.parts[part] = map[netip.Addr]bool{}
	}
	m.parts[part][ip] = true
}

func (m *members) remove(ip netip.Addr) {
	part, ok := m.home[ip]
	if !ok {
		return
	}
	delete(m.home, ip)
	if delete(m.parts[part], ip); len(m.parts[part]) == 0 {
		delete(m.parts, part)
	}
	m.room = min(m.room, part)
}

// withRoom is the first part that has fewer IPs than size.
func (m *members) withRoom(size int) int {
	for len(m.parts[m.room]) >= size {
		m.room++
	}
	return m.room
}

// homeName is the name of the object that an IP of a set belongs in.
func (p *Plan) homeName(set setRef, ip netip.Addr) string {
	return naming.SetPart(p.nameOf(set), p.sets[set].home[ip])
}

// settle gives an IP that joins a set its home.
func (p *Plan) settle(r *remote, set setRef, ip netip.Addr, touched map[string]bool) {
	m, part := p.sets[set], p.partWith(r, set, ip)
	if part == 0 {
		m.put(ip, m.withRoom(p.options.MaxSetSize))
		return
	}
	m.put(ip, part)
	p.makeRoom(r, set, part, touched)
}

// partWith is the first of a set's parts that has an IP in the cluster, or else is about to; 0 for none.
func (p *Plan) partWith(r *remote, set setRef, ip netip.Addr) (part int) {
	base := p.nameOf(set)
	take := func(object string) {
		if of, n := naming.SplitSetPart(object); of == base && (part == 0 || n < part) {
			part = n
		}
	}
	for _, at := range r.present[ip] {
		take(at.object)
	}
	if part > 0 {
		return part // a write that is under way can fail
	}
	for _, a := range r.arriving[ip] {
		take(a.object)
	}
	return part
}

// rehome gives the IPs of a set that has another name now the homes that the objects of that name are to them: after a restart a
// set can be heard of whose name is another's as soon as that one is heard of too.
func (p *Plan) rehome(set setRef, touched map[string]bool) {
	r, m := p.remotes[set.cluster], p.sets[set]
	for _, ip := range slices.SortedFunc(maps.Keys(m.home), netip.Addr.Compare) {
		if part := p.partWith(r, set, ip); part != 0 && part != m.home[ip] {
			m.put(ip, part)
		}
	}
	for _, part := range slices.Sorted(maps.Keys(m.parts)) {
		p.makeRoom(r, set, part, touched)
	}
	p.touchParts(set, touched)
}

// resettle makes the object that has an IP its home, where the home it was given has not: the IP was given one before
// it was known what the cluster holds. A write that is about to bring the IP into that home can fail, and does not count. It
// returns whether it did.
func (p *Plan) resettle(r *remote, set setRef, ip netip.Addr, object string, touched map[string]bool) bool {
	of, part := naming.SplitSetPart(object)
	home := p.homeName(set, ip)
	if of != p.nameOf(set) || home == object || r.isIn(ip, home) {
		return false
	}
	p.sets[set].put(ip, part)
	touched[home], touched[object] = true, true
	return true
}

// makeRoom gives IPs that are in a part and not yet in the cluster another home, where there are too many.
func (p *Plan) makeRoom(r *remote, set setRef, part int, touched map[string]bool) {
	m, object := p.sets[set], naming.SetPart(p.nameOf(set), part)
	if len(m.parts[part]) <= p.options.MaxSetSize {
		return
	}
	for _, ip := range slices.SortedFunc(maps.Keys(m.parts[part]), netip.Addr.Compare) {
		if r.isIn(ip, object) || r.isArriving(ip, object) {
			continue
		}
		// The part is too full to be taken again.
		m.put(ip, m.withRoom(p.options.MaxSetSize))
		touched[object], touched[p.homeName(set, ip)] = true, true
		if len(m.parts[part]) <= p.options.MaxSetSize {
			return
		}
	}
}

// touchParts names all objects of a set.
func (p *Plan) touchParts(set setRef, touched map[string]bool) {
	if m := p.sets[set]; m != nil {
		for part := range m.parts {
			touched[naming.SetPart(p.nameOf(set), part)] = true
		}
	}
}
