package policy

import (
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
	found := map[setRef]*described{}
	of := func(s setRef) *described {
		d := found[s]
		if d == nil {
			d = &described{set: &semaphorev1.PolicySet{Cluster: s.cluster, Namespace: s.namespace, Name: s.name}, objects: map[string]*semaphorev1.SetObject{}}
			found[s] = d
		}
		return d
	}
	asked := func(s setRef) bool {
		return (req.GetCluster() == "" || s.cluster == req.GetCluster()) &&
			(req.GetNamespace() == "" || s.namespace == req.GetNamespace()) &&
			(req.GetName() == "" || s.name == req.GetName())
	}
	for s, m := range p.sets {
		if !asked(s) {
			continue
		}
		d, r := of(s), p.remotes[s.cluster]
		d.address = m.partOf[address] > 0
		for ip := range m.partOf {
			if !p.hasNamespace(s) {
				continue // the namespace does not exist here
			}
			object := p.objectNameOf(s, ip)
			p.objectOf(d, object).Wanted++
			if !r.isIn(ip, object) {
				d.missing = append(d.missing, ip)
			}
		}
	}
	for cluster, r := range p.remotes {
		for ip, all := range r.placements {
			for _, at := range all {
				// Before a remote is complete, the annotations of an object say which set it belongs to.
				if at.set.cluster != cluster || !asked(at.set) {
					continue
				}
				d := of(at.set)
				p.objectOf(d, at.object).Present++
				d.address = d.address || ip == address
				m := p.sets[at.set]
				if m == nil || m.partOf[ip] == 0 || p.objectNameOf(at.set, ip) != at.object {
					d.leftover = append(d.leftover, ip)
				}
			}
		}
		for ref, pod := range r.pods {
			if !asked(pod.set) || found[pod.set] == nil {
				continue
			}
			d := found[pod.set]
			one := &semaphorev1.SetPod{Name: ref.name, Uid: pod.uid}
			for _, ip := range pod.ips {
				one.Ips = append(one.Ips, ip.String())
			}
			d.set.Pods = append(d.set.Pods, one)
			d.pod = d.pod || ref.name == req.GetPod()
		}
	}
	for set, d := range found {
		for _, problem := range p.problemsOf(set) {
			_, d.set.Problem, _ = strings.Cut(problem.Text, ": ")
		}
	}
	var out []*semaphorev1.PolicySet
	for _, d := range found {
		if req.GetPod() == "" || d.pod {
			if !address.IsValid() || d.address {
				out = append(out, d.finish())
			}
		}
	}
	slices.SortFunc(out, CompareDescribed)
	return out
}

// CompareDescribed orders the results of Describe.
func CompareDescribed(a, b *semaphorev1.PolicySet) int {
	for _, c := range []int{
		strings.Compare(a.GetCluster(), b.GetCluster()), strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()),
	} {
		if c != 0 {
			return c
		}
	}
	return 0
}

// described collects the description of a set.
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
		if c := strings.Compare(baseA, baseB); c != 0 {
			return c
		}
		return partA - partB
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
