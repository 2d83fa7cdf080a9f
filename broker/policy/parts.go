package policy

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// This file splits sets that have more IPs than one object may contain. Each IP is assigned to one part and stays
// there, so that the cost of a change depends on the size of a part and not of the set.
//
// The part of an IP is the existing object that already contains it; a new IP goes into the first part with room. A
// restart therefore moves nothing, and the last parts empty as their pods are replaced. Parts are not merged, as that
// would cost two writes to save one object. A part that exceeds a lowered limit keeps its IPs and gets no new ones.

type members struct {
	// partOf maps an IP to the number of its part, from 1.
	partOf map[netip.Addr]int
	parts  map[int]map[netip.Addr]bool
	// firstRoom is a lower bound of the parts that have room.
	firstRoom int
}

func newMembers() *members {
	return &members{partOf: map[netip.Addr]int{}, parts: map[int]map[netip.Addr]bool{}, firstRoom: 1}
}

func (m *members) assign(ip netip.Addr, part int) {
	m.remove(ip)
	m.partOf[ip] = part
	if m.parts[part] == nil {
		m.parts[part] = map[netip.Addr]bool{}
	}
	m.parts[part][ip] = true
}

func (m *members) remove(ip netip.Addr) {
	part, ok := m.partOf[ip]
	if !ok {
		return
	}
	delete(m.partOf, ip)
	if delete(m.parts[part], ip); len(m.parts[part]) == 0 {
		delete(m.parts, part)
	}
	m.firstRoom = min(m.firstRoom, part)
}

func (m *members) partWithRoom(size int) int {
	for len(m.parts[m.firstRoom]) >= size {
		m.firstRoom++
	}
	return m.firstRoom
}

func (p *Plan) objectNameOf(set setRef, ip netip.Addr) string {
	return naming.SetPart(p.baseName(set), p.sets[set].partOf[ip])
}

func (p *Plan) assignPart(r *remote, set setRef, ip netip.Addr, touched map[string]bool) {
	m, part := p.sets[set], p.existingPart(r, set, ip)
	if part == 0 {
		m.assign(ip, m.partWithRoom(p.options.MaxSetSize))
		return
	}
	m.assign(ip, part)
	p.makeRoom(r, set, part, touched)
}

// existingPart returns the first part whose existing object contains an IP, or is being written with it; 0 for none.
func (p *Plan) existingPart(r *remote, set setRef, ip netip.Addr) (part int) {
	base := p.baseName(set)
	take := func(object string) {
		if of, n := naming.SplitSetPart(object); of == base && (part == 0 || n < part) {
			part = n
		}
	}
	for _, at := range r.placements[ip] {
		take(at.object)
	}
	if part > 0 {
		return part // a write that is under way can fail
	}
	for _, a := range r.inFlight[ip] {
		take(a.object)
	}
	return part
}

// reassignParts assigns IPs to parts by the existing objects after the name of a set has changed. After a restart, a
// set can lose its name to one that becomes known later.
func (p *Plan) reassignParts(set setRef, touched map[string]bool) {
	r, m := p.remotes[set.cluster], p.sets[set]
	for _, ip := range slices.SortedFunc(maps.Keys(m.partOf), netip.Addr.Compare) {
		if part := p.existingPart(r, set, ip); part != 0 && part != m.partOf[ip] {
			m.assign(ip, part)
		}
	}
	for _, part := range slices.Sorted(maps.Keys(m.parts)) {
		p.makeRoom(r, set, part, touched)
	}
	p.touchParts(set, touched)
}

// followExisting assigns an IP to the part whose existing object contains it, if that of the assigned part does not:
// the IP was assigned before the existing objects were known. A write under way does not count, as it can fail. It
// returns whether it moved the IP.
func (p *Plan) followExisting(r *remote, set setRef, ip netip.Addr, object string, touched map[string]bool) bool {
	of, part := naming.SplitSetPart(object)
	home := p.objectNameOf(set, ip)
	if of != p.baseName(set) || home == object || r.isIn(ip, home) {
		return false
	}
	p.sets[set].assign(ip, part)
	touched[home], touched[object] = true, true
	return true
}

// makeRoom moves IPs out of a part that has too many, unless its existing object contains them.
func (p *Plan) makeRoom(r *remote, set setRef, part int, touched map[string]bool) {
	m, object := p.sets[set], naming.SetPart(p.baseName(set), part)
	if len(m.parts[part]) <= p.options.MaxSetSize {
		return
	}
	for _, ip := range slices.SortedFunc(maps.Keys(m.parts[part]), netip.Addr.Compare) {
		if r.isIn(ip, object) || r.isInFlight(ip, object) {
			continue
		}
		// The part has too many, so partWithRoom does not return it.
		m.assign(ip, m.partWithRoom(p.options.MaxSetSize))
		touched[object], touched[p.objectNameOf(set, ip)] = true, true
		if len(m.parts[part]) <= p.options.MaxSetSize {
			return
		}
	}
}

func (p *Plan) touchParts(set setRef, touched map[string]bool) {
	if m := p.sets[set]; m != nil {
		for part := range m.parts {
			touched[naming.SetPart(p.baseName(set), part)] = true
		}
	}
}
