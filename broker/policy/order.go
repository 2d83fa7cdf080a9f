package policy

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// This file is about order: what is in the cluster now, and which of the writes that are wanted wait for others.

// Observed takes note of the object that is under a name in the cluster; nil for none. It returns the
// names of sets that may have waited for that. See Touched for those of other kinds.
func (p *Plan) Observed(name string, o *calicov3.GlobalNetworkSet) []string {
	return p.Touched(p, name, o)
}

// Touched are the names of the objects of this kind that may have waited for what is under a name in the cluster now, as an object of the
// kind of another plan, which was joined with this one, or this one. The plan that it is of takes note of it; it is called with all plans, that one first.
func (p *Plan) Touched(of *Plan, name string, o *calicov3.GlobalNetworkSet) []string {
	touched := map[string]bool{}
	if p == of {
		p.moved = map[string][]netip.Addr{}
	}
	for cluster, r := range p.remotes {
		if p != of {
			// Who joined waits for the address to leave there, and who keeps it for it to come.
			for _, ip := range of.moved[cluster] {
				if owner, owned := r.owner(ip); owned {
					touched[p.homeName(owner.set, ip)] = true
				}
				for _, at := range r.present[ip] {
					touched[at.object] = true
				}
			}
			continue
		}
		var ips []netip.Addr
		var set setRef
		if o != nil && o.Labels[naming.LabelSourceCluster] == cluster {
			set = setRef{cluster, o.Annotations[naming.AnnotationSourceNamespace], o.Annotations[naming.AnnotationSourceName]}
			ips = singles(o.Spec.Nets)
		}
		// What is not there yet may be on its way still: this can be the state before the write that is under way.
		r.arrived(name, ips)
		for ip := range difference(r.observed[name], ips) {
			p.moved[cluster] = append(p.moved[cluster], ip)
		}
		p.observe(r, name, set, ips, touched)
	}
	if p == of {
		delete(touched, name)
	}
	return slices.Sorted(maps.Keys(touched))
}

// Urgent says whether an object in the cluster has an IP that does not belong there any more: what has not come yet can wait
// for others, and what is to go should not.
func (p *Plan) Urgent(name string) bool {
	_, in := p.setOf(name)
	for _, r := range p.remotes {
		if slices.ContainsFunc(r.observed[name], func(ip netip.Addr) bool { return !in[ip] }) {
			return true
		}
	}
	return false
}

func (p *Plan) observe(r *remote, name string, set setRef, ips []netip.Addr, touched map[string]bool) {
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
			for _, other := range r.present[ip] {
				touched[other.object] = true // kept it for this, perhaps
			}
			if owned && p.resettle(r, o.set, ip, name, touched) {
				resettled[o.set] = true
			}
			at := presence{object: name, set: set}
			if owned && o.set == set && p.homeName(o.set, ip) == name {
				at.uid = o.uid
			}
			r.present[ip] = append(r.present[ip], at)
			continue
		}
		r.present[ip] = slices.DeleteFunc(r.present[ip], func(at presence) bool { return at.object == name })
		if len(r.present[ip]) == 0 {
			delete(r.present, ip)
		}
		if owned {
			touched[p.homeName(o.set, ip)] = true // waits for this, perhaps
		}
	}
	for set := range resettled {
		_, part := naming.SplitSetPart(name)
		p.makeRoom(r, set, part, touched)
	}
	for _, ip := range ips {
		for i := range r.present[ip] {
			if r.present[ip][i].object == name {
				r.present[ip][i].set = set
			}
		}
	}
}

// singles are the addresses among nets, sorted.
func singles(nets []string) []netip.Addr {
	ips := make([]netip.Addr, 0, len(nets))
	for _, text := range nets {
		if n, err := netip.ParsePrefix(text); err == nil && n.IsSingleIP() {
			ips = append(ips, n.Addr())
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return slices.Compact(ips)
}

// difference ranges over the addresses that are in one of two sorted lists: false for
// those that are in before only, true for those that are in after only.
func difference(before, after []netip.Addr) func(func(netip.Addr, bool) bool) {
	return func(yield func(netip.Addr, bool) bool) {
		for len(before) > 0 || len(after) > 0 {
			var c int
			switch {
			case len(before) == 0:
				c = 1
			case len(after) == 0:
				c = -1
			default:
				c = before[0].Compare(after[0])
			}
			switch {
			case c < 0:
				if !yield(before[0], false) {
					return
				}
				before = before[1:]
			case c > 0:
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

// Decision is what is to be done under a name now.
type Decision struct {
	// Set is to be in the cluster; nil for none.
	Set *calicov3.GlobalNetworkSet
	// Again is after how long to ask again; 0 for when Apply or Observed names the set.
	Again time.Duration
}

// Set decides what is to be written under a name now, and which of the changes that are wanted wait.
func (p *Plan) Set(name string, now time.Time) Decision {
	for _, r := range p.remotes {
		// A name is decided on only when the write that was decided before has ended, or was not made.
		r.arrived(name, slices.SortedFunc(slices.Values(r.arrivals[name]), netip.Addr.Compare))
	}
	set, in := p.setOf(name)
	wanted := in != nil
	var d Decision
	var nets, kept []netip.Addr
	var keeper setRef // the set whose IPs are kept
	for _, r := range p.remotes {
		for _, ip := range r.observed[name] {
			if in[ip] {
				continue
			}
			if left, of := p.holdRemoval(r, ip, name, now); left > 0 {
				d.Again = max(d.Again, left)
				kept, keeper = append(kept, ip), of
			}
		}
	}
	if len(kept) > 0 && (!wanted || keeper != set) {
		// The set that had the name goes, or passes the name to another, under whose labels its IPs
		// would be wrong. Until then it is what it was, less what no longer belongs to it.
		d.Set = p.object(name, keeper, kept)
		return d
	}
	if !wanted {
		return d
	}
	r := p.remotes[set.cluster]
	room := p.options.MaxSetSize - len(kept)
	for ip := range in {
		if r.isIn(ip, name) {
			room--
		}
	}
	for ip := range in {
		switch {
		case r.isIn(ip, name):
			nets = append(nets, ip)
		case len(kept) > 0 && room <= 0:
			// What is about to leave has its place still, and may come back to it. The object would have too many for good.
		case r.leaves(ip, name), p.leavesOther(set.cluster, ip):
		case r.arrives(ip, name), p.arrivesOther(set.cluster, ip):
			d.Again = max(d.Again, askAgain)
		default:
			nets = append(nets, ip)
			r.arrive(ip, name)
			room--
		}
	}
	nets = append(nets, kept...)
	if len(nets) > 0 || r.observed[name] != nil { // else all it would hold has to leave another set first
		d.Set = p.object(name, set, nets)
	}
	return d
}

// isArriving says whether an IP is about to be written into an object.
func (r *remote) isArriving(ip netip.Addr, object string) bool {
	return slices.ContainsFunc(r.arriving[ip], func(a arrival) bool { return a.object == object })
}

func (r *remote) isIn(ip netip.Addr, object string) bool {
	return slices.ContainsFunc(r.present[ip], func(at presence) bool { return at.object == object })
}

// leaves says whether an IP that is wanted under name is still in another object, as another pod's.
func (r *remote) leaves(ip netip.Addr, name string) bool {
	o, _ := r.owner(ip)
	return slices.ContainsFunc(r.present[ip], func(at presence) bool { return at.object != name && at.uid != o.uid })
}

// leavesOther says whether an IP is still in an object of another kind, as another pod's.
func (p *Plan) leavesOther(cluster string, ip netip.Addr) bool {
	return slices.ContainsFunc(p.others, func(other *Plan) bool { return other.remotes[cluster].leaves(ip, "") })
}

// arrivesOther says whether an IP is about to be in an object of another kind, as another pod's.
func (p *Plan) arrivesOther(cluster string, ip netip.Addr) bool {
	return slices.ContainsFunc(p.others, func(other *Plan) bool { return other.remotes[cluster].arrives(ip, "") })
}

// isHome says whether an IP is where it belongs, in the objects of all kinds.
func (p *Plan) isHome(set setRef, ip netip.Addr) bool {
	home := func(p *Plan) bool { return !p.local(set) || p.remotes[set.cluster].isIn(ip, p.homeName(set, ip)) }
	return home(p) && !slices.ContainsFunc(p.others, func(other *Plan) bool { return !home(other) })
}

// arrive notes that an IP is about to be written into an object. Several sets are written at a time, and what one
// of them is about to bring in counts for the others as if it were there.
func (r *remote) arrive(ip netip.Addr, object string) {
	o, _ := r.owner(ip)
	r.arriving[ip] = append(r.arriving[ip], arrival{object, o.uid})
	r.arrivals[object] = append(r.arrivals[object], ip)
}

// arrives says whether an IP that is wanted under name is about to be in another object, as another pod's.
func (r *remote) arrives(ip netip.Addr, name string) bool {
	o, _ := r.owner(ip)
	return slices.ContainsFunc(r.arriving[ip], func(a arrival) bool { return a.object != name && a.uid != o.uid })
}

// arrived forgets that sorted IPs are on their way into an object: they are there, or the write has ended.
func (r *remote) arrived(object string, ips []netip.Addr) {
	r.arrivals[object] = slices.DeleteFunc(r.arrivals[object], func(ip netip.Addr) bool {
		if _, there := slices.BinarySearchFunc(ips, ip, netip.Addr.Compare); !there {
			return false
		}
		r.arriving[ip] = slices.DeleteFunc(r.arriving[ip], func(a arrival) bool { return a.object == object })
		if len(r.arriving[ip]) == 0 {
			delete(r.arriving, ip)
		}
		return true
	})
	if len(r.arrivals[object]) == 0 {
		delete(r.arrivals, object)
	}
}

// holdRemoval is for how long yet an IP that is to leave the object name has to stay in it,
// because its pod moves to a set that is not written yet; and the set whose it is there.
func (p *Plan) holdRemoval(r *remote, ip netip.Addr, name string, now time.Time) (time.Duration, setRef) {
	o, ok := r.owner(ip)
	if !ok || len(r.claims[ip]) > 1 || !p.local(o.set) || p.isHome(o.set, ip) {
		return 0, setRef{}
	}
	for i := range r.present[ip] {
		at := &r.present[ip][i]
		if at.object != name || at.uid != o.uid {
			continue
		}
		if at.held.IsZero() {
			at.held = now
		}
		return holdRemoval - now.Sub(at.held), at.set
	}
	return 0, setRef{}
}
