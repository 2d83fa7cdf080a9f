package policy

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// This file orders writes: which objects exist, and which desired changes wait for others.

// Observed records an existing object; nil if none of that name exists. It returns the names of objects that may have
// waited for it. Moved returns those of joined plans.
func (p *Plan) Observed(name string, o *calicov3.GlobalNetworkSet) []string {
	touched := map[string]bool{}
	p.movedIPs = map[string][]netip.Addr{}
	for cluster, r := range p.remotes {
		var ips []netip.Addr
		var set setRef
		if o != nil && o.Labels[naming.LabelSourceCluster] == cluster {
			set = setRef{cluster, o.Annotations[naming.AnnotationSourceNamespace], o.Annotations[naming.AnnotationSourceName]}
			ips = addressesOf(o.Spec.Nets)
		}
		// An IP that is missing may be in flight: this can be the state before the write.
		r.endWrite(name, ips)
		for ip := range difference(r.observed[name], ips) {
			p.movedIPs[cluster] = append(p.movedIPs[cluster], ip)
		}
		p.updatePlacements(r, name, set, ips, touched)
	}
	delete(touched, name)
	return slices.Sorted(maps.Keys(touched))
}

// Moved returns the names of objects that may have waited for the object that a joined plan observed last, to add an IP
// or to remove it.
func (p *Plan) Moved(by *Plan) []string {
	touched := map[string]bool{}
	for cluster, ips := range by.movedIPs {
		r := p.remotes[cluster]
		for _, ip := range ips {
			if owner, owned := r.owner(ip); owned {
				touched[p.objectNameOf(owner.set, ip)] = true
			}
			for _, at := range r.placements[ip] {
				touched[at.object] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(touched))
}

// Urgent reports whether an existing object contains an IP that no longer belongs in it. Removals must not wait;
// additions may.
func (p *Plan) Urgent(name string) bool {
	_, in := p.setForName(name)
	for _, r := range p.remotes {
		if slices.ContainsFunc(r.observed[name], func(ip netip.Addr) bool { return !in[ip] }) {
			return true
		}
	}
	return false
}

func (p *Plan) updatePlacements(r *remote, name string, set setRef, ips []netip.Addr, touched map[string]bool) {
	before := r.observed[name]
	if len(ips) == 0 {
		delete(r.observed, name)
	} else {
		r.observed[name] = ips
	}
	resettled := map[setRef]bool{}
	for ip, there := range difference(before, ips) {
		o, owned := r.owner(ip)
		if there {
			for _, other := range r.placements[ip] {
				touched[other.object] = true // it may keep the IP until this object has it
			}
			if owned && p.followExisting(r, o.set, ip, name, touched) {
				resettled[o.set] = true
			}
			at := placement{object: name, set: set}
			if owned && o.set == set && p.objectNameOf(o.set, ip) == name {
				at.uid = o.uid
			}
			r.placements[ip] = append(r.placements[ip], at)
			continue
		}
		r.placements[ip] = slices.DeleteFunc(r.placements[ip], func(at placement) bool { return at.object == name })
		if len(r.placements[ip]) == 0 {
			delete(r.placements, ip)
		}
		if owned {
			touched[p.objectNameOf(o.set, ip)] = true // it may wait for this removal
		}
	}
	for set := range resettled {
		_, part := naming.SplitSetPart(name)
		p.makeRoom(r, set, part, touched)
	}
	for _, ip := range ips {
		for i := range r.placements[ip] {
			if r.placements[ip][i].object == name {
				r.placements[ip][i].set = set
			}
		}
	}
}

// addressesOf returns the single addresses among nets, sorted.
func addressesOf(nets []string) []netip.Addr {
	ips := make([]netip.Addr, 0, len(nets))
	for _, text := range nets {
		if n, err := netip.ParsePrefix(text); err == nil && n.IsSingleIP() {
			ips = append(ips, n.Addr())
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return slices.Compact(ips)
}

// difference yields the addresses that are in only one of two sorted lists: false for before, true for after.
func difference(before, after []netip.Addr) func(func(netip.Addr, bool) bool) {
	return func(yield func(netip.Addr, bool) bool) {
		for len(before) > 0 || len(after) > 0 {
			switch {
			case len(after) == 0 || len(before) > 0 && before[0].Less(after[0]):
				if !yield(before[0], false) {
					return
				}
				before = before[1:]
			case len(before) == 0 || after[0].Less(before[0]):
				if !yield(after[0], true) {
					return
				}
				after = after[1:]
			default:
				before, after = before[1:], after[1:]
			}
		}
	}
}

type Decision struct {
	// Set is the object to write; nil for none.
	Set *calicov3.GlobalNetworkSet
	// Again is the time after which to call Set again; 0 to wait until Apply or Observed returns the name.
	Again time.Duration

	// held are the IPs whose removal the decision delays, and added those that its write adds.
	held, added []netip.Addr
}

// Reserve is Set at the start of a write: it also records which IPs the write adds and whose removal it delays, so that
// concurrent writes of other names take it into account. Writes under one name must not overlap: the previous one has
// ended.
func (p *Plan) Reserve(name string, now time.Time) Decision {
	for _, r := range p.remotes {
		r.endWrite(name, slices.SortedFunc(slices.Values(r.inFlightByObject[name]), netip.Addr.Compare))
	}
	d := p.Set(name, now)
	for _, r := range p.remotes {
		for _, ip := range d.held {
			r.beginHold(ip, name, now)
		}
	}
	if set, in := p.setForName(name); in != nil {
		for _, ip := range d.added {
			p.remotes[set.cluster].beginWrite(ip, name)
		}
	}
	return d
}

// Set decides which object to write under a name, and which of the desired changes wait. It changes nothing.
func (p *Plan) Set(name string, now time.Time) Decision {
	set, in := p.setForName(name)
	d, keeper := p.heldRemovals(name, in, now)
	switch {
	case len(d.held) > 0 && (in == nil || keeper != set):
		// The set that had this name ends or gets another name. The object keeps the old labels and the held IPs
		// until then.
		d.Set = p.object(name, keeper, slices.Clone(d.held))
		return d
	case in == nil:
		return d
	}
	r := p.remotes[set.cluster]
	nets := slices.Clone(d.held)
	for ip := range in {
		if r.isIn(ip, name) {
			nets = append(nets, ip)
		}
	}
	room := p.options.MaxSetSize - len(nets)
	for ip := range in {
		switch {
		case r.isIn(ip, name):
		case len(d.held) > 0 && room <= 0:
			// The IPs to be removed still count, and may return: the object would otherwise exceed the limit for
			// good.
		case p.elsewhere(set.cluster, ip, name, (*remote).mustLeaveOther):
		case p.elsewhere(set.cluster, ip, name, (*remote).inFlightElsewhere):
			d.Again = max(d.Again, inFlightRetry)
		default:
			d.added = append(d.added, ip)
			room--
		}
	}
	nets = append(nets, d.added...)
	if len(nets) > 0 || r.observed[name] != nil { // otherwise all of its IPs wait for another set
		d.Set = p.object(name, set, nets)
	}
	return d
}

// Inside returns what an existing object of a remote is without the addresses outside of the remote's subnets, nil if
// it has no others, and whether it has such addresses. Nothing keeps these: neither a remote's silence nor the brake.
func (p *Plan) Inside(name, cluster string) (set *calicov3.GlobalNetworkSet, outside bool) {
	r := p.remotes[cluster]
	if r == nil || !slices.ContainsFunc(r.observed[name], r.isOutside) {
		return nil, false
	}
	nets := slices.DeleteFunc(slices.Clone(r.observed[name]), r.isOutside)
	for _, ip := range nets {
		for _, at := range r.placements[ip] {
			if at.object == name {
				return p.object(name, at.set, nets), true
			}
		}
	}
	return nil, true
}

// isOutside reports whether an address cannot be that of a pod of the remote.
func (r *remote) isOutside(ip netip.Addr) bool {
	return len(r.subnets) > 0 && !slices.ContainsFunc(r.subnets, func(s netip.Prefix) bool { return s.Contains(ip) })
}

// heldRemovals returns the decision to delay the removal of IPs from an object that in does not have, and the set that
// they belong to.
func (p *Plan) heldRemovals(name string, in map[netip.Addr]bool, now time.Time) (d Decision, keeper setRef) {
	for _, r := range p.remotes {
		for _, ip := range r.observed[name] {
			if in[ip] {
				continue
			}
			if left, of := p.holdRemoval(r, ip, name, now); left > 0 {
				d.Again = max(d.Again, left)
				d.held, keeper = append(d.held, ip), of
			}
		}
	}
	return d, keeper
}

func (r *remote) isInFlight(ip netip.Addr, object string) bool {
	return slices.ContainsFunc(r.inFlight[ip], func(a inFlight) bool { return a.object == object })
}

func (r *remote) isIn(ip netip.Addr, object string) bool {
	return slices.ContainsFunc(r.placements[ip], func(at placement) bool { return at.object == object })
}

// mustLeaveOther reports whether another object still contains an IP for another pod.
func (r *remote) mustLeaveOther(ip netip.Addr, name string) bool {
	o, _ := r.owner(ip)
	return slices.ContainsFunc(r.placements[ip], func(at placement) bool { return at.object != name && at.uid != o.uid })
}

// elsewhere reports whether an IP is so in another object than one of a name, or in any of another kind.
func (p *Plan) elsewhere(cluster string, ip netip.Addr, name string, is func(*remote, netip.Addr, string) bool) bool {
	return is(p.remotes[cluster], ip, name) || slices.ContainsFunc(p.joined,
		func(other *Plan) bool { return is(other.remotes[cluster], ip, "") })
}

// isSettled reports whether the objects of all kinds contain an IP where it belongs.
func (p *Plan) isSettled(set setRef, ip netip.Addr) bool {
	home := func(p *Plan) bool {
		return !p.hasNamespace(set) || p.remotes[set.cluster].isIn(ip, p.objectNameOf(set, ip))
	}
	return home(p) && !slices.ContainsFunc(p.joined, func(other *Plan) bool { return !home(other) })
}

// beginWrite records that a write adds an IP to an object. Several objects are written concurrently, so each must
// take the others' writes into account.
func (r *remote) beginWrite(ip netip.Addr, object string) {
	o, _ := r.owner(ip)
	r.inFlight[ip] = append(r.inFlight[ip], inFlight{object, o.uid})
	r.inFlightByObject[object] = append(r.inFlightByObject[object], ip)
}

// inFlightElsewhere reports whether a write under way adds an IP to another object, for another pod.
func (r *remote) inFlightElsewhere(ip netip.Addr, name string) bool {
	o, _ := r.owner(ip)
	return slices.ContainsFunc(r.inFlight[ip], func(a inFlight) bool { return a.object != name && a.uid != o.uid })
}

// endWrite records that an object contains sorted IPs, or that their write has ended.
func (r *remote) endWrite(object string, ips []netip.Addr) {
	r.inFlightByObject[object] = slices.DeleteFunc(r.inFlightByObject[object], func(ip netip.Addr) bool {
		if _, there := slices.BinarySearchFunc(ips, ip, netip.Addr.Compare); !there {
			return false
		}
		r.inFlight[ip] = slices.DeleteFunc(r.inFlight[ip], func(a inFlight) bool { return a.object == object })
		if len(r.inFlight[ip]) == 0 {
			delete(r.inFlight, ip)
		}
		return true
	})
	if len(r.inFlightByObject[object]) == 0 {
		delete(r.inFlightByObject, object)
	}
}

// holdRemoval returns how much longer an object must keep an IP whose pod moved to a set that is not written yet, and
// the set that the object belongs to.
func (p *Plan) holdRemoval(r *remote, ip netip.Addr, name string, now time.Time) (time.Duration, setRef) {
	o, ok := r.owner(ip)
	if !ok || len(r.claims[ip]) > 1 || p.isSettled(o.set, ip) {
		return 0, setRef{}
	}
	for _, at := range r.placements[ip] {
		if at.object != name || at.uid != o.uid {
			continue
		}
		if at.held.IsZero() {
			return holdRemoval, at.set
		}
		return holdRemoval - now.Sub(at.held), at.set
	}
	return 0, setRef{}
}

// beginHold records since when an object keeps an IP of a pod that moved to another set.
func (r *remote) beginHold(ip netip.Addr, name string, now time.Time) {
	o, owned := r.owner(ip)
	for i := range r.placements[ip] {
		if at := &r.placements[ip][i]; owned && at.object == name && at.uid == o.uid && at.held.IsZero() {
			at.held = now
		}
	}
}
