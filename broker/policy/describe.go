package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// mostListed is how many addresses are named of those that are not as wanted.
const mostListed = 100

// Describe tells the sets as they are wanted and as they are, sorted: those that a request asks for. address is that of
// the request; the zero address for none. What is known of their remotes is for the caller to add.
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
		d.address = m.home[address] > 0
		for ip := range m.home {
			if !p.local(s) {
				continue // there is no place for it here
			}
			object := p.homeName(s, ip)
			p.objectOf(d, object).Wanted++
			if !r.isIn(ip, object) {
				d.missing = append(d.missing, ip)
			}
		}
	}
	for cluster, r := range p.remotes {
		for ip, all := range r.present {
			for _, at := range all {
				// What is there before the remote has told anything is of a set whose labels say so.
				if at.set.cluster != cluster || !asked(at.set) {
					continue
				}
				d := of(at.set)
				p.objectOf(d, at.object).Present++
				d.address = d.address || ip == address
				m := p.sets[at.set]
				if m == nil || m.home[ip] == 0 || p.homeName(at.set, ip) != at.object {
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

// CompareDescribed is the order of Describe.
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

// described is a set that is being described.
type described struct {
	set               *semaphorev1.PolicySet
	objects           map[string]*semaphorev1.SetObject
	missing, leftover []netip.Addr
	// address and pod say that the set has those that are asked for.
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
	// By the number of the part, not by name.
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
	d.set.Missing, d.set.Leftover = listed(d.missing), listed(d.leftover)
	return d.set
}

func listed(ips []netip.Addr) []string {
	slices.SortFunc(ips, netip.Addr.Compare)
	var out []string
	for _, ip := range ips[:min(len(ips), mostListed)] {
		out = append(out, ip.String())
	}
	return out
}
