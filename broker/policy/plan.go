// Package policy decides which GlobalNetworkSets, or NetworkSets, the own cluster needs: for each set of
// each remote one or, where it has many IPs, several, with the IPs of its pods.
//
// It is pure: changes to replicas in, and what is in the cluster now; names of sets that may
// have to change out, and on demand the set that is to be written under a name.
//
// Who is in a set. Pods, told apart by UID, claim their IPs. An IP is in the set of the pod that
// claimed it last: when a new pod already has the IP of one whose end has not been heard of yet, the
// old one's set loses it. Inside one set this changes nothing.
//
// In which order. Set also looks at what is in the cluster, as Observed told it, and holds back:
//   - an IP that passes to another pod is not added to the new set while the old set, that still is
//     to lose it, has it in the cluster, or is just being written with it;
//   - an IP of the same pod that moves to another set (its label changed) is not removed from the old
//     set before the new set has it in the cluster, for at most holdRemoval, as a set
//     that cannot be written must not keep another one open.
//
// Observed returns the sets that waited for what it tells. After a restart of the broker the claims come
// in the order of the exporter's journal, and who owned an IP that the cluster holds is not known:
// such an IP is taken to pass to another pod.
package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/claim"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// holdRemoval bounds how long a set keeps an IP for another set to have it first.
const holdRemoval = 2 * time.Second

// askAgain is how long a set goes without an IP because another is being written with it, until it asks again: that
// the IP is there is observed; that the write has failed is not.
const askAgain = 2 * time.Second

// setRef names a policy set.
type setRef struct{ cluster, namespace, name string }

func (s setRef) compare(o setRef) int {
	return cmp.Or(cmp.Compare(s.namespace, o.namespace), cmp.Compare(s.name, o.name), cmp.Compare(s.cluster, o.cluster))
}

// Options say how sets are written.
type Options struct {
	// ManagedBy is the value of the label managed-by, as a tool before this one set it (config.Sets).
	ManagedBy string
	// LabelDomains are those of the labels by which policies select sets: each set has those of all.
	LabelDomains []string
	// MaxSetSize is the most IPs that are put into one object.
	MaxSetSize int
	// Namespaced asks for NetworkSets, named NAMESPACE/NAME, in the namespaces that the own cluster has.
	Namespaced bool
}

func (p *Plan) plainName(s setRef) string {
	return p.within(s, naming.Set(s.cluster, s.namespace, s.name))
}

func (p *Plan) suffixedName(s setRef) string {
	return p.within(s, naming.SetWithSuffix(s.cluster, s.namespace, s.name))
}

// Plan holds who is in which set.
type Plan struct {
	options Options
	remotes map[string]*remote
	// sets hold the IPs that are theirs; none is empty.
	sets map[setRef]*members
	// namespaces are those of the own cluster, where that matters.
	namespaces map[string]bool
	// plain is who claims which name, suffixed the names of those who lost theirs.
	plain, suffixed *claim.Table[setRef]
	problems        problem.Set
	// others are the plans of the same sets as objects of other kinds.
	others []*Plan
	// moved are the IPs of each remote that came into an object, or left it, when one was last observed.
	moved map[string][]netip.Addr
}

// remote is one remote cluster. IPs of two remotes never meet: their pod subnets are apart.
type remote struct {
	pods map[podRef]*pod
	// claims are the pods that have an IP, in the order in which they came to have it.
	claims map[netip.Addr][]*pod
	// present tells in which objects of the cluster an IP is.
	present map[netip.Addr][]presence
	// observed are the IPs of an object in the cluster.
	observed map[string][]netip.Addr
	// arriving are the IPs that a write under way brings into an object, and arrivals those by object.
	arriving map[netip.Addr][]arrival
	arrivals map[string][]netip.Addr
}

type podRef struct{ namespace, name string }

type pod struct {
	uid string
	set setRef
	ips []netip.Addr
}

// presence of an IP in an object of the cluster.
type presence struct {
	object string
	// set that the object stands for.
	set setRef
	// uid of the pod whose IP it last was there; empty for unknown.
	uid string
	// since when its removal is held back; zero for not.
	held time.Time
}

// arrival of an IP in an object of the cluster: it was decided and has not been observed yet.
type arrival struct {
	object string
	// uid of the pod for whose sake.
	uid string
}

// Touched is an object that may have to change.
type Touched struct {
	Name string
	// Cluster whose change touched it, and when that change was seen there; zero if unknown.
	Cluster    string
	ObservedAt time.Time
}

// New makes an empty plan.
func New(remotes []config.Remote, options Options) *Plan {
	p := &Plan{
		options:    options,
		remotes:    map[string]*remote{},
		sets:       map[setRef]*members{},
		namespaces: map[string]bool{},
		plain:      claim.New(setRef.compare),
		suffixed:   claim.New(setRef.compare),
	}
	for _, r := range remotes {
		p.remotes[r.Name] = &remote{
			pods:     map[podRef]*pod{},
			claims:   map[netip.Addr][]*pod{},
			present:  map[netip.Addr][]presence{},
			observed: map[string][]netip.Addr{},
			arriving: map[netip.Addr][]arrival{},
			arrivals: map[string][]netip.Addr{},
		}
	}
	return p
}

// Join has plans keep one order over the objects of all of them: they are the plans of the same sets as objects of several kinds, take the same
// changes, and an address that joins an object of one kind must not be another pod's in an object of another.
func Join(plans ...*Plan) {
	for _, p := range plans {
		p.others = slices.DeleteFunc(slices.Clone(plans), func(o *Plan) bool { return o == p })
	}
}

// Wants says whether an object of that name is wanted.
func (p *Plan) Wants(name string) bool {
	_, in := p.setOf(name)
	return in != nil
}

// Apply takes changes of one remote's replica, in their order. Changes of other kinds are ignored.
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

// owner is whose an IP is, and in which set it therefore is.
type owner struct {
	uid string
	set setRef
}

func (r *remote) owner(ip netip.Addr) (owner, bool) {
	claims := r.claims[ip]
	if len(claims) == 0 {
		return owner{}, false
	}
	last := claims[len(claims)-1]
	return owner{last.uid, last.set}, true
}

// change takes the newest state of one pod and returns the names of the sets it touches.
func (p *Plan) change(cluster string, r *remote, ref podRef, m *semaphorev1.SetMember) map[string]bool {
	old := r.pods[ref]
	var now *pod
	if m != nil {
		now = &pod{uid: m.GetPodUid(), set: setRef{cluster, ref.namespace, m.GetSetName()}}
		for _, text := range m.GetIps() {
			if ip, err := netip.ParseAddr(text); err == nil { // admission lets no other in
				now.ips = append(now.ips, ip)
			}
		}
	}
	var affected []netip.Addr // each once, in their order: in that they get their parts
	for _, one := range []*pod{old, now} {
		if one != nil {
			affected = append(affected, one.ips...)
		}
	}
	slices.SortFunc(affected, netip.Addr.Compare)
	touched := map[string]bool{}
	for _, ip := range slices.Compact(affected) {
		before, had := r.owner(ip)
		r.reclaim(ip, old, now)
		after, has := r.owner(ip)
		switch {
		case had && has && before.set == after.set:
			if before.uid != after.uid {
				name := p.homeName(after.set, ip)
				r.passed(ip, name, after)
				if !r.isIn(ip, name) {
					touched[name] = true // it waits, and perhaps need not any more
				}
			}
		default:
			if had {
				p.leave(before.set, ip, touched)
			}
			if has {
				p.join(r, after, ip, touched)
			}
		}
		// Those that keep the IP for a while have to think again.
		for _, at := range r.present[ip] {
			if !has || at.object != p.homeName(after.set, ip) {
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

// reclaim replaces a pod's claim on an IP. The same pod keeps its place in the order.
func (r *remote) reclaim(ip netip.Addr, old, now *pod) {
	claims := r.claims[ip]
	at := -1
	if old != nil {
		at = slices.Index(claims, old)
	}
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

// passed notes whose an IP in an object is now. In an object that stands for another set yet, whose name goes to
// this one, it is as before.
func (r *remote) passed(ip netip.Addr, object string, o owner) {
	for i := range r.present[ip] {
		if at := &r.present[ip][i]; at.object == object && at.set == o.set {
			at.uid, at.held = o.uid, time.Time{}
		}
	}
}

func (p *Plan) leave(set setRef, ip netip.Addr, touched map[string]bool) {
	touched[p.homeName(set, ip)] = true
	m := p.sets[set]
	m.remove(ip)
	if len(m.home) == 0 {
		delete(p.sets, set)
		p.rename(set, p.plain.Remove, touched)
	}
}

func (p *Plan) join(r *remote, o owner, ip netip.Addr, touched map[string]bool) {
	if p.sets[o.set] == nil {
		p.sets[o.set] = newMembers()
		p.rename(o.set, p.plain.Add, touched)
	}
	p.settle(r, o.set, ip, touched)
	name := p.homeName(o.set, ip)
	touched[name] = true
	r.passed(ip, name, o)
}

// rename claims or gives up set's plain name. Those who then win or lose the name change theirs.
func (p *Plan) rename(set setRef, claim func(string, setRef), touched map[string]bool) {
	name := p.plainName(set)
	touched[name] = true
	before, reviewed := p.named(name), append(p.contenders(name), set)
	for _, loser := range p.claimants(name, touched) {
		p.suffixed.Remove(p.suffixedName(loser), loser)
	}
	claim(name, set)
	for _, loser := range p.claimants(name, touched) {
		p.suffixed.Add(p.suffixedName(loser), loser)
	}
	for other, was := range before {
		if p.sets[other] != nil && p.nameOf(other) != was {
			p.rehome(other, touched)
		}
	}
	for _, other := range append(reviewed, p.contenders(name)...) {
		p.review(other)
		for _, third := range p.contenders(p.suffixedName(other)) {
			p.review(third)
		}
	}
}

// named are the names of the sets that want a plain name.
func (p *Plan) named(plain string) map[setRef]string {
	all := map[setRef]string{}
	if winner, ok := p.plain.Winner(plain); ok {
		all[winner] = p.nameOf(winner)
	}
	for _, loser := range p.plain.Losers(plain) {
		all[loser] = p.nameOf(loser)
	}
	return all
}

// claimants names all objects of the sets that want a plain name, and returns those sets that do not have it.
func (p *Plan) claimants(name string, touched map[string]bool) (losers []setRef) {
	if winner, ok := p.plain.Winner(name); ok {
		p.touchParts(winner, touched)
	}
	for _, loser := range p.plain.Losers(name) {
		touched[p.suffixedName(loser)] = true
		p.touchParts(loser, touched)
	}
	return p.plain.Losers(name)
}

// nameOf is the name of a set's first object, from which those of the others follow.
func (p *Plan) nameOf(set setRef) string {
	name := p.plainName(set)
	if winner, ok := p.plain.Winner(name); ok && winner != set {
		return p.suffixedName(set)
	}
	return name
}

// setOf is the set that has an object's name, and those of its IPs that belong in the object; nil where no object of that
// name is wanted.
func (p *Plan) setOf(name string) (setRef, map[netip.Addr]bool) {
	name, part := naming.SplitSetPart(name)
	set, ok := p.plain.Winner(name)
	if !ok {
		set, ok = p.suffixed.Winner(name)
	}
	if !ok || !p.local(set) {
		return setRef{}, nil
	}
	return set, p.sets[set].parts[part]
}

// Names are the names of all objects that are wanted.
func (p *Plan) Names() []string {
	var names []string
	for set, m := range p.sets {
		if !p.local(set) {
			continue
		}
		name := p.nameOf(set)
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
		out.Labels[domain+"/name"], out.Labels[domain+"/namespace"], out.Labels[domain+"/cluster"] = set.name, set.namespace, set.cluster
	}
	for _, ip := range nets {
		out.Spec.Nets = append(out.Spec.Nets, netip.PrefixFrom(ip, ip.BitLen()).String())
	}
	return out
}

// NoSet is the reason of all problems: a set that has no object.
const NoSet = "NoSet"

// Problems are the sets that have no object.
func (p *Plan) Problems() *problem.Set { return &p.problems }

// review sees anew what is wrong with a set.
func (p *Plan) review(set setRef) {
	p.problems.Replace(set.cluster+"/"+set.namespace+"/"+set.name, p.problemsOf(set))
}

func (p *Plan) problemsOf(set setRef) []problem.Problem {
	plain, suffixed := p.plainName(set), p.suffixedName(set)
	if p.sets[set] == nil || !p.local(set) {
		return nil
	}
	if winner, ok := p.plain.Winner(plain); !ok || winner == set {
		return nil
	}
	winner, _ := p.suffixed.Winner(suffixed)
	if _, taken := p.plain.Winner(suffixed); winner == set && !taken {
		return nil
	}
	kind := "GlobalNetworkSet"
	if p.options.Namespaced {
		kind = "NetworkSet"
	}
	return []problem.Problem{{
		Cluster: set.cluster, Object: set.namespace + "/" + set.name, Reason: NoSet,
		Text: fmt.Sprintf("set %s/%s of cluster %s has no %s: both names it could have, %s and %s, are those of other sets",
			set.namespace, set.name, set.cluster, kind, plain, suffixed),
	}}
}

// contenders are the sets that want a name, as one they have or would have.
func (p *Plan) contenders(name string) (all []setRef) {
	for _, table := range []*claim.Table[setRef]{p.plain, p.suffixed} {
		if winner, ok := table.Winner(name); ok {
			all = append(append(all, winner), table.Losers(name)...)
		}
	}
	return all
}
