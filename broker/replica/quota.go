package replica

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// limit is the most that may be held of one kind; 0 for no limit.
type limit struct {
	objects, addresses, clusterIPs, bytes, perGroup int
	// ports is the most of one object.
	ports int
	// The keys in the configuration that limit objects, addresses, and those of one group.
	objectsKey, addressesKey, perGroupKey string
	// addressesAre is what addresses are called, such as "pod CIDRs".
	addressesAre string
	// unknown says that the kind is none that exists: nothing of it is held, nor remembered.
	unknown bool
}

func limitOf(kind semaphorev1.Kind, l config.Limits) limit {
	most := l.MebibytesPerKind << 20
	switch kind {
	case semaphorev1.Kind_KIND_NODE:
		return limit{objects: l.Nodes, addresses: l.PodCIDRs, bytes: most, perGroup: l.PodCIDRsPerNode,
			objectsKey: "nodes", addressesKey: "podCIDRs", perGroupKey: "podCIDRsPerNode", addressesAre: "pod CIDRs"}
	case semaphorev1.Kind_KIND_SERVICE:
		return limit{objects: l.Services, clusterIPs: l.ClusterIPs, bytes: most, ports: l.PortsPerService, objectsKey: "services"}
	case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
		return limit{objects: l.EndpointSlices, addresses: l.Endpoints, bytes: most, perGroup: l.EndpointsPerService, ports: l.PortsPerService,
			objectsKey: "endpointSlices", addressesKey: "endpoints", perGroupKey: "endpointsPerService", addressesAre: "addresses"}
	case semaphorev1.Kind_KIND_SET_MEMBER:
		return limit{objects: l.SetMembers, addresses: l.SetIPs, bytes: most, perGroup: l.IPsPerSet,
			objectsKey: "setMembers", addressesKey: "setIPs", perGroupKey: "ipsPerSet", addressesAre: "addresses"}
	}
	return limit{unknown: true}
}

func exceeds(limit, used, more int) bool { return limit > 0 && more > 0 && used+more > limit }

// resource is one of those that are limited.
type resource int

const (
	enough resource = iota
	ofPorts
	ofObjects
	ofAddresses
	ofClusterIPs
	ofBytes
	ofGroup
)

// lacking is the first resource of which there is too little for an object beside what is held.
func (c *contents) lacking(n need) resource {
	switch {
	case exceeds(c.limit.ports, 0, n.ports):
		return ofPorts
	case exceeds(c.limit.objects, c.used.objects, n.objects):
		return ofObjects
	case exceeds(c.limit.addresses, c.used.addresses, n.addresses):
		return ofAddresses
	case exceeds(c.limit.clusterIPs, c.used.clusterIPs, n.clusterIPs):
		return ofClusterIPs
	case exceeds(c.limit.bytes, c.used.bytes, n.bytes):
		return ofBytes
	case n.group != (groupName{}) && exceeds(c.limit.perGroup, c.perGroup[n.group], n.addresses):
		return ofGroup
	}
	return enough
}

// lacks says what of the limits an object would exceed beside what is held; "" when there is room.
func (c *contents) lacks(n need) string {
	switch c.lacking(n) {
	case ofPorts:
		return fmt.Sprintf("%d ports: %d is the most (limits.portsPerService of this remote)", n.ports, c.limit.ports)
	case ofObjects:
		return fmt.Sprintf("%d are held, which is the most (limits.%s of this remote)", c.used.objects, c.limit.objectsKey)
	case ofAddresses:
		return fmt.Sprintf("%d %s beside the %d that are held: %d is the most (limits.%s of this remote)",
			n.addresses, c.limit.addressesAre, c.used.addresses, c.limit.addresses, c.limit.addressesKey)
	case ofClusterIPs:
		return fmt.Sprintf("%d Services with a cluster IP beside the %d that are made for it: %d is the most (limits.clusterIPs of this remote)",
			n.clusterIPs, c.used.clusterIPs, c.limit.clusterIPs)
	case ofBytes:
		return fmt.Sprintf("%d bytes beside the %d that are held: %d is the most (limits.mebibytesPerKind of this remote)", n.bytes, c.used.bytes, c.limit.bytes)
	case ofGroup:
		return fmt.Sprintf("%d %s beside the %d that are held of %s: %d is the most (limits.%s of this remote)",
			n.addresses, c.limit.addressesAre, c.perGroup[n.group], n.group, c.limit.perGroup, c.limit.perGroupKey)
	}
	return ""
}

// fitting is what of an object fits that as a whole does not, where there was one before: of a slice, a pod of a set or a node
// the addresses or pod CIDRs that were there and are, and of others as many as there is room for; of other objects, what stood. It
// is nil where nothing stood or fits.
func (c *contents) fitting(o, stood *semaphorev1.Object) *semaphorev1.Object {
	if stood == nil {
		return nil
	}
	n := needOf(o)
	room := n.addresses
	for _, free := range []struct{ limit, used int }{{c.limit.addresses, c.used.addresses}, {c.limit.perGroup, c.perGroup[n.group]}} {
		if free.limit > 0 {
			room = min(room, free.limit-free.used)
		}
	}
	out := stood
	if n.ports <= c.limit.ports || c.limit.ports == 0 { // ports belong to all of an object
		out = with(o, stood, room)
	}
	if out == nil || c.lacks(needOf(out)) != "" {
		return nil
	}
	return out
}

// with is an object with those of its elements that stood, and as many others as there is room for, in their order. An object
// without elements is what stood. It is nil where the two have nothing to do with each other.
func with(o, stood *semaphorev1.Object, room int) *semaphorev1.Object {
	if needOf(stood).group != needOf(o).group || o.GetSetMember().GetPodUid() != stood.GetSetMember().GetPodUid() {
		return nil
	}
	if needOf(o).group == (groupName{}) {
		return stood
	}
	was := map[string]bool{}
	for _, e := range elements(stood) {
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
		spec.Node.PodCidrs = kept(spec.Node.GetPodCidrs(), keep)
	case *semaphorev1.Object_EndpointSlice:
		spec.EndpointSlice.Endpoints = kept(spec.EndpointSlice.GetEndpoints(), keep)
	case *semaphorev1.Object_SetMember:
		spec.SetMember.Ips = kept(spec.SetMember.GetIps(), keep)
	}
	return out
}

// common is what of an object stood already, which it may not lose for what is new; nil for nothing.
func common(o, stood *semaphorev1.Object) *semaphorev1.Object {
	was := map[string]bool{}
	for _, e := range elements(stood) {
		was[e.name] = true
	}
	room := 0
	for _, e := range elements(o) {
		if was[e.name] {
			room += e.size
		}
	}
	return with(o, stood, room)
}

// element is one of what an object has that counts for addresses: an endpoint, an IP of a pod, a pod CIDR of a node.
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

func kept[T any](all []T, keep []bool) []T {
	var out []T
	for i, one := range all {
		if keep[i] {
			out = append(out, one)
		}
	}
	return out
}

// room says whether objects that were refused for want of room could be taken now: all of them, or
// some when a tenth of every limit is free, so that a remote at its limit is not asked over and over.
func (c *contents) room() bool {
	// Heartbeats ask, at any rate, and the answer costs a walk through what was refused.
	if c.changed {
		c.changed, c.roomy = false, c.hasRoom()
	}
	return c.roomy
}

func (c *contents) hasRoom() bool {
	if c.over == 0 && c.forgotten == 0 {
		return false
	}
	var all need
	fits := 0
	for key, r := range c.refused {
		if r.lacks == nil {
			continue
		}
		n := *r.lacks
		if h, ok := c.objects[key]; ok {
			n.add(needOf(h.object), -1) // a part of it has room already
		}
		if c.lacks(n) == "" {
			fits++
			all.add(n, 1)
		}
	}
	if fits > 0 && c.forgotten == 0 && c.lacks(all) == "" {
		return true
	}
	free := func(limit, used int) bool { return limit == 0 || limit-used >= (limit+9)/10 }
	return (fits > 0 || c.forgotten > 0) &&
		free(c.limit.objects, c.used.objects) && free(c.limit.addresses, c.used.addresses) && free(c.limit.clusterIPs, c.used.clusterIPs) &&
		free(c.limit.bytes, c.used.bytes)
}

const (
	// minAnew is how old a kind's last snapshot must be for another to be asked for.
	minAnew = time.Minute
	// maxAnew is how old it must be at most, where asking did not help.
	maxAnew = time.Hour
)
