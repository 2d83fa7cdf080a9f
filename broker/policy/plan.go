// Package policy decides which GlobalNetworkSets or NetworkSets should exist in the own cluster, and with which IPs:
// one object for each set of each remote, or several for a set with many IPs. It remembers which pods had an IP before.
//
// The package is pure. Its inputs are changes of replicas and the objects that exist. Its outputs are the names of
// objects whose desired state may have changed and, on request, the object to write under a name.
//
// Members. Pods, identified by UID, claim their IPs. An IP belongs to the set of the pod that claimed it last: if a new
// pod already has the IP of a pod whose deletion is not known yet, the old pod's set loses the IP.
//
// Order of writes. Set takes into account which objects exist, as reported to Observed, and which writes are under way,
// as recorded by Reserve, and delays two kinds of change:
//   - An IP that passes to another pod is not added to the new set while an object of the old set contains it, or is
//     being written with it.
//   - An IP of a pod whose set changed (its label changed) is not removed from the old set before an object of the new
//     set contains it, for at most holdRemoval: a set that cannot be written must not keep another one open.
//
// Observed returns the objects that waited for the reported one. After a restart of the broker the former owner of an
// existing IP is unknown; the plan then assumes another pod.
package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// holdRemoval limits how long an object keeps an IP until the pod's new object has it.
const holdRemoval = 2 * time.Second

// inFlightRetry is the time after which an object that waits for the write of another object is decided again: the
// plan observes a successful write, but not a failed one.
const inFlightRetry = 2 * time.Second

type setRef struct{ cluster, namespace, name string }

func (s setRef) compare(o setRef) int {
	return cmp.Or(cmp.Compare(s.namespace, o.namespace), cmp.Compare(s.name, o.name), cmp.Compare(s.cluster, o.cluster))
}

type Options struct {
	// ManagedBy is the value of the label managed-by, as the original tools set it (config.Sets).
	ManagedBy string
	// LabelDomains are the domains of the labels by which policies select sets. Each object has the labels of all.
	LabelDomains []string
	// MaxSetSize is the maximum number of IPs in one object.
	MaxSetSize int
	// Namespaced selects NetworkSets, named NAMESPACE/NAME, in namespaces that exist in the own cluster.
	Namespaced bool
}

// preferredName returns the name of a set that no other set of its remote claims. It never belongs to the set of
// another remote, whatever both export: names that begin with the name of a longer-named remote (c2-eu) are reserved
// for that remote, and a set of a shorter-named one (c2) that would have such a name gets another one.
func (p *Plan) preferredName(s setRef) string {
	name := naming.Set(s.cluster, s.namespace, s.name)
	if p.inSetsOfAnother(s.cluster, name) {
		name = naming.SetApart(s.cluster, s.namespace, s.name)
	}
	return p.objectName(s, name)
}

func (p *Plan) fallbackName(s setRef) string {
	name := naming.SetWithSuffix(s.cluster, s.namespace, s.name)
	if p.inSetsOfAnother(s.cluster, name) {
		name = naming.SetApart(s.cluster, s.namespace, s.name)
	}
	return p.objectName(s, name)
}

// inSetsOfAnother reports whether a name of a remote's set is for the sets of another remote.
func (p *Plan) inSetsOfAnother(cluster, name string) bool {
	return slices.ContainsFunc(p.longer[cluster], func(other string) bool { return naming.InSetsOf(other, name) })
}

// Plan holds the sets of all remotes and their members.
type Plan struct {
	options Options
	remotes map[string]*remote
	// longer are the remotes by remote whose labels begin with its label and a dash.
	longer map[string][]string
	// sets holds the members of each set; no set is empty.
	sets map[setRef]*members
	// namespaces are those of the own cluster; only with Options.Namespaced.
	namespaces map[string]bool
	// preferred are the claims to names. fallback are the claims to the second name of the sets that lost the first.
	preferred, fallback *problem.Claims[setRef]
	problems            problem.Set
	// joined are the plans that write the same sets as objects of other kinds.
	joined []*Plan
	// movedIPs are the IPs by remote that the last observed object gained or lost.
	movedIPs map[string][]netip.Addr
}

// remote is one remote cluster. The pod subnets of remotes do not overlap, so neither do their IPs.
type remote struct {
	// subnets are those of the pods; none for no bounds.
	subnets []netip.Prefix
	pods    map[podRef]*pod
	// claims are the pods that have an IP, oldest claim first.
	claims map[netip.Addr][]*pod
	// placements are the existing objects that contain an IP.
	placements map[netip.Addr][]placement
	// observed are the IPs of each existing object.
	observed map[string][]netip.Addr
	// inFlight are the writes under way that add an IP to an object; inFlightByObject are their IPs.
	inFlight         map[netip.Addr][]inFlight
	inFlightByObject map[string][]netip.Addr
}

type podRef struct{ namespace, name string }

func (r podRef) compare(o podRef) int {
	return cmp.Or(cmp.Compare(r.namespace, o.namespace), cmp.Compare(r.name, o.name))
}

type pod struct {
	uid string
	set setRef
	ips []netip.Addr
}

// placement is an IP in an existing object.
type placement struct {
	object string
	// set is the set that the object's annotations name.
	set setRef
	// uid is the pod that had the IP when the object got it; empty if unknown.
	uid string
	// held is when the removal was first delayed; zero if it is not.
	held time.Time
}

// inFlight is an IP in an object whose write was decided and not observed yet.
type inFlight struct {
	object string
	// uid is the pod that has the IP.
	uid string
}

// Touched is the name of an object whose desired state may have changed.
type Touched struct {
	Name string
	// Cluster is the source of the change, and ObservedAt when its exporter saw it; zero if unknown.
	Cluster    string
	ObservedAt time.Time
}

func New(remotes []config.Remote, options Options) *Plan {
	p := &Plan{
		options:    options,
		remotes:    map[string]*remote{},
		sets:       map[setRef]*members{},
		namespaces: map[string]bool{},
		preferred:  problem.NewClaims(setRef.compare),
		fallback:   problem.NewClaims(setRef.compare),
	}
	p.configure(remotes)
	return p
}

func (p *Plan) configure(remotes []config.Remote) {
	p.longer = map[string][]string{}
	for _, r := range remotes {
		if p.remotes[r.Name] == nil {
			p.remotes[r.Name] = &remote{
				pods:             map[podRef]*pod{},
				claims:           map[netip.Addr][]*pod{},
				placements:       map[netip.Addr][]placement{},
				observed:         map[string][]netip.Addr{},
				inFlight:         map[netip.Addr][]inFlight{},
				inFlightByObject: map[string][]netip.Addr{},
			}
		}
		p.remotes[r.Name].subnets = r.PodPrefixes
		if longer := longerThan(r.Name, remotes); len(longer) > 0 {
			p.longer[r.Name] = longer
		}
	}
}

// longerThan returns the remotes whose labels begin with the label of a remote and a dash: the names of that remote's
// sets depend on them.
func longerThan(name string, remotes []config.Remote) (longer []string) {
	for _, other := range remotes {
		if other.Name != name && naming.InSetsOf(name, naming.ClusterLabel(other.Name)) {
			longer = append(longer, other.Name)
		}
	}
	return longer
}

// Follow replaces the configured remotes. A new remote begins without pods, the pods of a missing one are withdrawn,
// and the others continue. Their sets get other names where that depends on the remotes. Touched are, too, the
// objects with addresses outside of changed subnets; see Inside.
func (p *Plan) Follow(remotes []config.Remote) []Touched {
	var touched []Touched
	for _, cluster := range slices.Sorted(maps.Keys(p.remotes)) {
		if slices.ContainsFunc(remotes, func(r config.Remote) bool { return r.Name == cluster }) {
			continue
		}
		r, names := p.remotes[cluster], map[string]bool{}
		for _, pod := range slices.SortedFunc(maps.Keys(r.pods), podRef.compare) {
			maps.Copy(names, p.change(cluster, r, pod, nil))
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			touched = append(touched, Touched{Name: name, Cluster: cluster})
		}
		delete(p.remotes, cluster)
	}
	before := map[string][]netip.Prefix{}
	for cluster, r := range p.remotes {
		before[cluster] = r.subnets
	}
	touched = append(touched, p.rename(func() { p.configure(remotes) })...)
	for _, cluster := range slices.Sorted(maps.Keys(before)) {
		r := p.remotes[cluster]
		if slices.Equal(before[cluster], r.subnets) {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(r.observed)) {
			if slices.ContainsFunc(r.observed[name], r.isOutside) {
				touched = append(touched, Touched{Name: name, Cluster: cluster})
			}
		}
	}
	return touched
}

// rename calls change, and gives the sets whose names depend on it the names that they have then.
func (p *Plan) rename(change func()) (touched []Touched) {
	was := p.longer
	change()
	is := p.longer
	if maps.EqualFunc(was, is, slices.Equal) {
		return nil
	}
	names := map[setRef][2]string{}
	for set := range p.sets {
		names[set] = [2]string{p.preferredName(set), p.fallbackName(set)}
	}
	p.longer = was
	var renamed []setRef
	for set, now := range names {
		if now != [2]string{p.preferredName(set), p.fallbackName(set)} {
			renamed = append(renamed, set)
		}
	}
	slices.SortFunc(renamed, setRef.compare)
	all := map[string]bool{}
	for _, set := range renamed {
		p.updateClaim(set, p.preferred.Remove, all)
	}
	p.longer = is
	for _, set := range renamed {
		p.updateClaim(set, p.preferred.Add, all)
		p.reassignParts(set, all)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		touched = append(touched, Touched{Name: name})
	}
	return touched
}

// Join makes the order of writes common to several plans. The plans write the same sets as objects of several kinds,
// and receive the same changes: an IP must not be in an object of one kind for its new pod while an object of another
// kind still has it for the old pod.
func Join(plans ...*Plan) {
	for _, p := range plans {
		p.joined = slices.DeleteFunc(slices.Clone(plans), func(o *Plan) bool { return o == p })
	}
}

func (p *Plan) Wants(name string) bool {
	_, in := p.setForName(name)
	return in != nil
}

// Apply applies changes of one remote's replica, in order. It ignores other kinds.
func (p *Plan) Apply(cluster string, changes []replica.Change) []Touched {
	r, ok := p.remotes[cluster]
	if !ok {
		return nil
	}
	var touched []Touched
	for _, c := range changes {
		if c.Key.Kind != semaphorev1.Kind_KIND_SET_MEMBER {
			continue
		}
		for name := range p.change(cluster, r, podRef{c.Key.Namespace, c.Key.Name}, c.New.GetSetMember()) {
			touched = append(touched, Touched{name, cluster, c.ObservedAt})
		}
	}
	return touched
}

// owner is the pod that has an IP; the zero one if none has.
func (r *remote) owner(ip netip.Addr) (_ pod, owned bool) {
	if claims := r.claims[ip]; len(claims) > 0 {
		return *claims[len(claims)-1], true
	}
	return pod{}, false
}

// change applies the newest state of one pod and records the names of the objects that it touches.
func (p *Plan) change(cluster string, r *remote, ref podRef, m *semaphorev1.SetMember) map[string]bool {
	old := r.pods[ref]
	var now *pod
	if m != nil {
		now = &pod{uid: m.GetPodUid(), set: setRef{cluster, ref.namespace, m.GetSetName()}}
		for _, text := range m.GetIps() {
			if ip, err := netip.ParseAddr(text); err == nil { // admission checked it
				now.ips = append(now.ips, ip)
			}
		}
	}
	var affected []netip.Addr // sorted, as the order decides which part an IP gets
	for _, one := range []*pod{old, now} {
		if one != nil {
			affected = append(affected, one.ips...)
		}
	}
	slices.SortFunc(affected, netip.Addr.Compare)
	touched := map[string]bool{}
	for _, ip := range slices.Compact(affected) {
		before, had := r.owner(ip)
		r.updateClaim(ip, old, now)
		after, has := r.owner(ip)
		switch {
		case had && has && before.set == after.set:
			if before.uid != after.uid {
				name := p.objectNameOf(after.set, ip)
				r.updateOwner(ip, name, after)
				if !r.isIn(ip, name) {
					touched[name] = true // it may have waited for the IP
				}
			}
		default:
			if had {
				p.removeIP(before.set, ip, touched)
			}
			if has {
				p.addIP(r, after, ip, touched)
			}
		}
		// Objects that keep the IP for a while decide again.
		for _, at := range r.placements[ip] {
			if !has || at.object != p.objectNameOf(after.set, ip) {
				touched[at.object] = true
			}
		}
	}
	if now == nil {
		delete(r.pods, ref)
	} else {
		r.pods[ref] = now
	}
	return touched
}

// updateClaim replaces a pod's claim to an IP. The same pod keeps its position.
func (r *remote) updateClaim(ip netip.Addr, old, now *pod) {
	claims := r.claims[ip]
	at := slices.Index(claims, old) // -1 for nil, too
	has := now != nil && slices.Contains(now.ips, ip)
	switch {
	case at >= 0 && has && old.uid == now.uid:
		claims[at] = now
	case at >= 0:
		claims = slices.Delete(claims, at, at+1)
		fallthrough
	default:
		if has {
			claims = append(claims, now)
		}
	}
	if len(claims) == 0 {
		delete(r.claims, ip)
	} else {
		r.claims[ip] = claims
	}
}

// updateOwner records the pod that has an IP in an object, if the object already belongs to the pod's set.
func (r *remote) updateOwner(ip netip.Addr, object string, o pod) {
	for i := range r.placements[ip] {
		if at := &r.placements[ip][i]; at.object == object && at.set == o.set {
			at.uid, at.held = o.uid, time.Time{}
		}
	}
}

func (p *Plan) removeIP(set setRef, ip netip.Addr, touched map[string]bool) {
	touched[p.objectNameOf(set, ip)] = true
	m := p.sets[set]
	m.remove(ip)
	if len(m.partOf) == 0 {
		delete(p.sets, set)
		p.updateClaim(set, p.preferred.Remove, touched)
	}
}

func (p *Plan) addIP(r *remote, o pod, ip netip.Addr, touched map[string]bool) {
	if p.sets[o.set] == nil {
		p.sets[o.set] = newMembers()
		p.updateClaim(o.set, p.preferred.Add, touched)
	}
	p.assignPart(r, o.set, ip, touched)
	name := p.objectNameOf(o.set, ip)
	touched[name] = true
	r.updateOwner(ip, name, o)
}

// updateClaim claims or releases the preferred name of a set. Sets that win or lose a name by that are renamed.
func (p *Plan) updateClaim(set setRef, claim func(string, setRef), touched map[string]bool) {
	name := p.preferredName(set)
	touched[name] = true
	before, reviewed := map[setRef]string{}, append(p.contenders(name), set)
	for _, other := range p.preferred.All(name) {
		before[other] = p.baseName(other)
	}
	for _, loser := range p.touchClaimants(name, touched) {
		p.fallback.Remove(p.fallbackName(loser), loser)
	}
	claim(name, set)
	for _, loser := range p.touchClaimants(name, touched) {
		p.fallback.Add(p.fallbackName(loser), loser)
	}
	for other, was := range before {
		if p.sets[other] != nil && p.baseName(other) != was {
			p.reassignParts(other, touched)
		}
	}
	for _, other := range append(reviewed, p.contenders(name)...) {
		p.updateProblems(other)
		for _, third := range p.contenders(p.fallbackName(other)) {
			p.updateProblems(third)
		}
	}
}

// touchClaimants touches all objects of the sets that claim a preferred name, and returns the sets that lost it.
func (p *Plan) touchClaimants(name string, touched map[string]bool) (losers []setRef) {
	for _, set := range p.preferred.All(name) {
		p.touchParts(set, touched)
	}
	for _, loser := range p.preferred.Losers(name) {
		touched[p.fallbackName(loser)] = true
	}
	return p.preferred.Losers(name)
}

// baseName is the name of a set's first object. The names of further parts are derived from it.
func (p *Plan) baseName(set setRef) string {
	name := p.preferredName(set)
	if winner, ok := p.preferred.Winner(name); ok && winner != set {
		return p.fallbackName(set)
	}
	return name
}

// setForName returns the set that owns an object's name, and the IPs that belong in the object; nil if no such object
// is desired.
func (p *Plan) setForName(name string) (setRef, map[netip.Addr]bool) {
	name, part := naming.SplitSetPart(name)
	set, ok := p.preferred.Winner(name)
	if !ok {
		set, ok = p.fallback.Winner(name)
	}
	if !ok || !p.hasNamespace(set) {
		return setRef{}, nil
	}
	return set, p.sets[set].parts[part]
}

func (p *Plan) Names() []string {
	var names []string
	for set, m := range p.sets {
		if !p.hasNamespace(set) {
			continue
		}
		name := p.baseName(set)
		for part := range m.parts {
			names = append(names, naming.SetPart(name, part))
		}
	}
	return names
}

func (p *Plan) object(name string, set setRef, nets []netip.Addr) *calicov3.GlobalNetworkSet {
	slices.SortFunc(nets, netip.Addr.Compare)
	namespace, name := p.split(name)
	out := &calicov3.GlobalNetworkSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      name,
			Labels: map[string]string{
				naming.LabelManagedBy:     naming.ManagedByBroker,
				naming.LabelSourceCluster: set.cluster,
				naming.LabelSetManagedBy:  p.options.ManagedBy,
			},
			Annotations: map[string]string{
				naming.AnnotationSourceNamespace: set.namespace,
				naming.AnnotationSourceName:      set.name,
			},
		},
	}
	for _, domain := range p.options.LabelDomains {
		out.Labels[domain+"/name"], out.Labels[domain+"/namespace"], out.Labels[domain+"/cluster"] = set.name, set.namespace,
			set.cluster
	}
	for _, ip := range nets {
		out.Spec.Nets = append(out.Spec.Nets, netip.PrefixFrom(ip, ip.BitLen()).String())
	}
	return out
}

// Problems returns the sets that have no object.
func (p *Plan) Problems() *problem.Set { return &p.problems }

func (p *Plan) updateProblems(set setRef) {
	p.problems.Replace(set.cluster+"/"+set.namespace+"/"+set.name, p.problemsOf(set))
}

func (p *Plan) problemsOf(set setRef) []problem.Problem {
	plain, suffixed := p.preferredName(set), p.fallbackName(set)
	if p.sets[set] == nil || !p.hasNamespace(set) {
		return nil
	}
	if winner, ok := p.preferred.Winner(plain); !ok || winner == set {
		return nil
	}
	winner, _ := p.fallback.Winner(suffixed)
	if _, taken := p.preferred.Winner(suffixed); winner == set && !taken {
		return nil
	}
	kind := "GlobalNetworkSet"
	if p.options.Namespaced {
		kind = "NetworkSet"
	}
	return []problem.Problem{{
		Cluster: set.cluster, Object: set.namespace + "/" + set.name, Code: finding.NoSet,
		Text: fmt.Sprintf("set %s/%s of cluster %s has no %s: both names it could have, %s and %s, are those of other sets",
			set.namespace, set.name, set.cluster, kind, plain, suffixed),
	}}
}

// contenders returns the sets that claim a name, as the preferred one or as the fallback.
func (p *Plan) contenders(name string) []setRef {
	return slices.Concat(p.preferred.All(name), p.fallback.All(name))
}
