package admission

import (
	"strings"

	"google.golang.org/protobuf/proto"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Group is the group whose addresses have a limit together: the Service of a slice, the set of a member, or the
// node with its pod CIDRs.
type Group struct{ namespace, name string }

func (g Group) String() string {
	if g.namespace == "" {
		return g.name
	}
	return g.namespace + "/" + g.name
}

// Resource is what a limit bounds.
type Resource int

const (
	Ports      Resource = iota // of one object
	Objects                    // of the kind, as all that follow
	Addresses                  // of slices or of pods of sets, or pod CIDRs of nodes
	ClusterIPs                 // Services with a ClusterIP that the broker creates
	Exports                    // Services that ServiceExports export
	Bytes
	GroupAddresses // Addresses of one group
	Resources      // the number of resources
)

// Use is an amount of each resource.
type Use [Resources]int

// Need is what an object uses of the limits of its kind.
type Need struct {
	Use
	Group Group
}

func NeedOf(o *semaphorev1.Object) (n Need) {
	n.Use[Objects], n.Use[Bytes] = 1, proto.Size(o)
	switch spec := o.GetSpec().(type) {
	case *semaphorev1.Object_Node:
		n.Group = Group{name: o.GetKey().GetName()}
		n.Use[Addresses] = len(spec.Node.GetPodCidrs())
	case *semaphorev1.Object_Service:
		n.Use[Ports] = len(spec.Service.GetPorts())
		if spec.Service.GetMultiCluster() != nil {
			n.Use[Exports] = 1
		}
		if !spec.Service.GetHeadless() {
			for _, created := range []bool{spec.Service.GetMirror(), spec.Service.GetGlobal(),
				spec.Service.GetMultiCluster() != nil} {
				if created {
					n.Use[ClusterIPs]++
				}
			}
		}
	case *semaphorev1.Object_EndpointSlice:
		n.Group = Group{o.GetKey().GetNamespace(), spec.EndpointSlice.GetService()}
		n.Use[Ports] = len(spec.EndpointSlice.GetPorts())
		for _, e := range spec.EndpointSlice.GetEndpoints() {
			n.Use[Addresses] += len(e.GetAddresses())
		}
	case *semaphorev1.Object_SetMember:
		n.Group = Group{o.GetKey().GetNamespace(), spec.SetMember.GetSetName()}
		n.Use[Addresses] = len(spec.SetMember.GetIps())
	}
	n.Use[GroupAddresses] = n.Use[Addresses]
	return n
}

// Add adds what an object uses, or with sign -1 takes it out. Ports are not added: their limit is that of each object.
func (u *Use) Add(o Use, sign int) {
	for of := Objects; of < Resources; of++ {
		u[of] += sign * o[of]
	}
}

// WithElements returns an object with those of its elements that existing has, and as many others as there is room for,
// in order. An object without elements is replaced by existing. It returns nil if the two belong to different groups or
// pods.
func WithElements(o, existing *semaphorev1.Object, room int) *semaphorev1.Object {
	if NeedOf(existing).Group != NeedOf(o).Group || o.GetSetMember().GetPodUid() != existing.GetSetMember().GetPodUid() {
		return nil
	}
	if NeedOf(o).Group == (Group{}) {
		return existing
	}
	was := map[string]bool{}
	for _, e := range elements(existing) {
		was[e.name] = true
	}
	all := elements(o)
	keep := make([]bool, len(all))
	for _, before := range []bool{true, false} {
		for i, e := range all {
			if was[e.name] == before && e.size <= room {
				keep[i] = true
				room -= e.size
			}
		}
	}
	out := proto.CloneOf(o)
	switch spec := out.GetSpec().(type) {
	case *semaphorev1.Object_Node:
		spec.Node.PodCidrs = filter(spec.Node.GetPodCidrs(), keep)
	case *semaphorev1.Object_EndpointSlice:
		spec.EndpointSlice.Endpoints = filter(spec.EndpointSlice.GetEndpoints(), keep)
	case *semaphorev1.Object_SetMember:
		spec.SetMember.Ips = filter(spec.SetMember.GetIps(), keep)
	}
	return out
}

// ExistingPart returns the part of an object that was accepted before, which new objects must not displace; nil for
// none, and if there is no existing object.
func ExistingPart(o, existing *semaphorev1.Object) *semaphorev1.Object {
	was := map[string]bool{}
	for _, e := range elements(existing) {
		was[e.name] = true
	}
	room := 0
	for _, e := range elements(o) {
		if was[e.name] {
			room += e.size
		}
	}
	return WithElements(o, existing, room)
}

// element is an endpoint of a slice, an IP of a pod or a pod CIDR of a node.
type element struct {
	name string
	size int
}

func elements(o *semaphorev1.Object) (all []element) {
	switch spec := o.GetSpec().(type) {
	case *semaphorev1.Object_Node:
		for _, cidr := range spec.Node.GetPodCidrs() {
			all = append(all, element{cidr, 1})
		}
	case *semaphorev1.Object_EndpointSlice:
		for _, e := range spec.EndpointSlice.GetEndpoints() {
			all = append(all, element{strings.Join(e.GetAddresses(), " "), len(e.GetAddresses())})
		}
	case *semaphorev1.Object_SetMember:
		for _, ip := range spec.SetMember.GetIps() {
			all = append(all, element{ip, 1})
		}
	}
	return all
}

func filter[T any](all []T, keep []bool) []T {
	var out []T
	for i, one := range all {
		if keep[i] {
			out = append(out, one)
		}
	}
	return out
}
