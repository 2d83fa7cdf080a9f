package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// mostListed is the maximum number of listed addresses that differ from the desired ones.
const mostListed = 100

// Describe compares the desired sets that match a request with the existing objects, sorted. address is the one in
// the request; zero for none. The caller adds the state of the remotes.
func (p *Plan) Describe(req *semaphorev1.ListSetsRequest, address netip.Addr) []*semaphorev1.PolicySet {
	d := &description{Plan: p, req: req, address: address, found: map[setRef]*described{}}
	for s, m := range p.sets {
		if d.selects(s) {
			d.addDesired(s, m)
		}
	}
	for cluster, r := range p.remotes {
		d.addExisting(cluster, r)
		d.addPods(r)
	}
	var out []*semaphorev1.PolicySet
	for s, one := range d.found {
		for _, problem := range p.problemsOf(s) {
			_, one.set.Problem, _ = strings.Cut(problem.Text, ": ")
		}
		if (req.GetPod() == "" || one.pod) && (!address.IsValid() || one.address) {
			out = append(out, one.finish())
		}
	}
	slices.SortFunc(out, CompareDescribed)
	return out
}

// description is the answer to a request as it is made.
type description struct {
	*Plan
	req     *semaphorev1.ListSetsRequest
	address netip.Addr
	found   map[setRef]*described
}

func (d *description) selects(s setRef) bool {
	return (d.req.GetCluster() == "" || s.cluster == d.req.GetCluster()) &&
		(d.req.GetNamespace() == "" || s.namespace == d.req.GetNamespace()) &&
		(d.req.GetName() == "" || s.name == d.req.GetName())
}

func (d *description) of(s setRef) *described {
	one := d.found[s]
	if one == nil {
		one = &described{set: &semaphorev1.PolicySet{Cluster: s.cluster, Namespace: s.namespace, Name: s.name},
			objects: map[string]*semaphorev1.SetObject{}}
		d.found[s] = one
	}
	return one
}

func (d *description) addDesired(s setRef, m *members) {
	one, r := d.of(s), d.remotes[s.cluster]
	one.address = m.partOf[d.address] > 0
	if !d.hasNamespace(s) {
		return // the namespace does not exist here
	}
	for ip := range m.partOf {
		object := d.objectNameOf(s, ip)
		d.objectOf(one, object).Desired++
		if !r.isIn(ip, object) {
			one.missing = append(one.missing, ip)
		}
	}
}

func (d *description) addExisting(cluster string, r *remote) {
	for ip, all := range r.placements {
		for _, at := range all {
			// Before a remote is complete, the annotations of an object say which set it belongs to.
			if at.set.cluster != cluster || !d.selects(at.set) {
				continue
			}
			one := d.of(at.set)
			d.objectOf(one, at.object).Present++
			one.address = one.address || ip == d.address
			m := d.sets[at.set]
			if m == nil || m.partOf[ip] == 0 || d.objectNameOf(at.set, ip) != at.object {
				one.leftover = append(one.leftover, ip)
			}
		}
	}
}

func (d *description) addPods(r *remote) {
	for ref, pod := range r.pods {
		one := d.found[pod.set]
		if one == nil || !d.selects(pod.set) {
			continue
		}
		added := &semaphorev1.SetPod{Name: ref.name, Uid: pod.uid}
		for _, ip := range pod.ips {
			added.Ips = append(added.Ips, ip.String())
		}
		one.set.Pods = append(one.set.Pods, added)
		one.pod = one.pod || ref.name == d.req.GetPod()
	}
}

func CompareDescribed(a, b *semaphorev1.PolicySet) int {
	return cmp.Or(cmp.Compare(a.GetCluster(), b.GetCluster()), cmp.Compare(a.GetNamespace(), b.GetNamespace()),
		cmp.Compare(a.GetName(), b.GetName()))
}

type described struct {
	set               *semaphorev1.PolicySet
	objects           map[string]*semaphorev1.SetObject
	missing, leftover []netip.Addr
	// address and pod mean that the set contains the requested ones.
	address, pod bool
}

func (p *Plan) objectOf(d *described, joined string) *semaphorev1.SetObject {
	o := d.objects[joined]
	if o == nil {
		o = &semaphorev1.SetObject{}
		o.Namespace, o.Name = p.split(joined)
		d.objects[joined] = o
	}
	return o
}

func (d *described) finish() *semaphorev1.PolicySet {
	// Sorted by the number of the part, not by name.
	for _, name := range slices.SortedFunc(maps.Keys(d.objects), func(a, b string) int {
		baseA, partA := naming.SplitSetPart(a)
		baseB, partB := naming.SplitSetPart(b)
		return cmp.Or(cmp.Compare(baseA, baseB), cmp.Compare(partA, partB))
	}) {
		d.set.Objects = append(d.set.Objects, d.objects[name])
	}
	slices.SortFunc(d.set.Pods, func(a, b *semaphorev1.SetPod) int { return strings.Compare(a.GetName(), b.GetName()) })
	d.set.Missing, d.set.Leftover = truncate(d.missing), truncate(d.leftover)
	return d.set
}

func truncate(ips []netip.Addr) []string {
	slices.SortFunc(ips, netip.Addr.Compare)
	var out []string
	for _, ip := range ips[:min(len(ips), mostListed)] {
		out = append(out, ip.String())
	}
	return out
}
