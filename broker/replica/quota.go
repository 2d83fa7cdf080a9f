package replica

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// limit has the limits of one kind; 0 for no limit.
type limit struct {
	objects, addresses, clusterIPs, exports, bytes, perGroup int
	// ports is the limit of one object.
	ports int
	// objectsKey, addressesKey and perGroupKey are the configuration keys of the limits, for messages.
	objectsKey, addressesKey, perGroupKey string
	// addressesName is the name of addresses in messages, such as "pod CIDRs".
	addressesName string
	// unknown means that the kind does not exist: nothing of it is accepted or remembered.
	unknown bool
}

func limitOf(kind semaphorev1.Kind, l config.Limits) limit {
	most := l.MebibytesPerKind << 20
	switch kind {
	case semaphorev1.Kind_KIND_NODE:
		return limit{objects: l.Nodes, addresses: l.PodCIDRs, bytes: most, perGroup: l.PodCIDRsPerNode,
			objectsKey: "nodes", addressesKey: "podCIDRs", perGroupKey: "podCIDRsPerNode", addressesName: "pod CIDRs"}
	case semaphorev1.Kind_KIND_SERVICE:
		return limit{objects: l.Services, clusterIPs: l.ClusterIPs, exports: l.Exports, bytes: most,
			ports:      l.PortsPerService,
			objectsKey: "services"}
	case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
		return limit{objects: l.EndpointSlices, addresses: l.Endpoints, bytes: most, perGroup: l.EndpointsPerService,
			ports:      l.PortsPerService,
			objectsKey: "endpointSlices", addressesKey: "endpoints", perGroupKey: "endpointsPerService",
			addressesName: "addresses"}
	case semaphorev1.Kind_KIND_SET_MEMBER:
		return limit{objects: l.SetMembers, addresses: l.SetIPs, bytes: most, perGroup: l.IPsPerSet,
			objectsKey: "setMembers", addressesKey: "setIPs", perGroupKey: "ipsPerSet", addressesName: "addresses"}
	}
	return limit{unknown: true}
}

func exceeds(limit, used, more int) bool { return limit > 0 && more > 0 && used+more > limit }

// resource is a limited resource.
type resource int

const (
	noResource resource = iota
	ofPorts
	ofObjects
	ofAddresses
	ofClusterIPs
	ofExports
	ofBytes
	ofGroup
)

// exceeded returns the first resource whose limit an object would exceed, given what is used.
func (c *contents) exceeded(n need) resource {
	switch {
	case exceeds(c.limit.ports, 0, n.ports):
		return ofPorts
	case exceeds(c.limit.objects, c.used.objects, n.objects):
		return ofObjects
	case exceeds(c.limit.addresses, c.used.addresses, n.addresses):
		return ofAddresses
	case exceeds(c.limit.clusterIPs, c.used.clusterIPs, n.clusterIPs):
		return ofClusterIPs
	case exceeds(c.limit.exports, c.used.exports, n.exports):
		return ofExports
	case exceeds(c.limit.bytes, c.used.bytes, n.bytes):
		return ofBytes
	case n.group != (groupName{}) && exceeds(c.limit.perGroup, c.perGroup[n.group], n.addresses):
		return ofGroup
	}
	return noResource
}

// overLimitReason returns the reason why an object would exceed a limit; "" if there is room.
func (c *contents) overLimitReason(n need) string {
	switch c.exceeded(n) {
	case ofPorts:
		return fmt.Sprintf("%d ports: the limit is %d (limits.portsPerService of this remote)", n.ports, c.limit.ports)
	case ofObjects:
		return fmt.Sprintf("the limit of %d objects is reached (limits.%s of this remote)", c.used.objects,
			c.limit.objectsKey)
	case ofAddresses:
		return fmt.Sprintf("%d %s beside %d accepted: the limit is %d (limits.%s of this remote)",
			n.addresses, c.limit.addressesName, c.used.addresses, c.limit.addresses, c.limit.addressesKey)
	case ofClusterIPs:
		return fmt.Sprintf(
			"%d Services with a cluster IP beside %d of this remote: the limit is %d (limits.clusterIPs of this remote)",
			n.clusterIPs,
			c.used.clusterIPs,
			c.limit.clusterIPs,
		)
	case ofExports:
		return fmt.Sprintf("the limit of %d Services that ServiceExports export is reached (limits.exports of this remote)",
			c.limit.exports)
	case ofBytes:
		return fmt.Sprintf("%d bytes beside %d accepted: the limit is %d (limits.mebibytesPerKind of this remote)", n.bytes,
			c.used.bytes, c.limit.bytes)
	case ofGroup:
		return fmt.Sprintf("%d %s beside %d accepted of %s: the limit is %d (limits.%s of this remote)",
			n.addresses, c.limit.addressesName, c.perGroup[n.group], n.group, c.limit.perGroup, c.limit.perGroupKey)
	}
	return ""
}

// partThatFits returns the accepted part of an object that exceeds a limit, if an earlier state of it was accepted. For
// a slice, a pod of a set or a node, these are the addresses or pod CIDRs that were accepted before, and as many others
// as there is room for; for other objects it is the earlier state. It returns nil if there is no earlier state or
// nothing fits.
func (c *contents) partThatFits(o, existing *semaphorev1.Object) *semaphorev1.Object {
	if existing == nil {
		return nil
	}
	n := needOf(o)
	room := n.addresses
	for _, free := range []struct{ limit, used int }{{c.limit.addresses, c.used.addresses},
		{c.limit.perGroup, c.perGroup[n.group]}} {
		if free.limit > 0 {
			room = min(room, free.limit-free.used)
		}
	}
	out := existing
	if n.ports <= c.limit.ports || c.limit.ports == 0 { // ports cannot be split
		out = withElements(o, existing, room)
	}
	if out == nil || c.overLimitReason(needOf(out)) != "" {
		return nil
	}
	return out
}

// withElements returns an object with those of its elements that existing has, and as many others as there is room for,
// in order. An object without elements is replaced by existing. It returns nil if the two belong to different groups or
// pods.
func withElements(o, existing *semaphorev1.Object, room int) *semaphorev1.Object {
	if needOf(existing).group != needOf(o).group || o.GetSetMember().GetPodUid() != existing.GetSetMember().GetPodUid() {
		return nil
	}
	if needOf(o).group == (groupName{}) {
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

// existingPart returns the part of an object that was accepted before, which new objects must not displace; nil for
// none.
func existingPart(o, existing *semaphorev1.Object) *semaphorev1.Object {
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
	return withElements(o, existing, room)
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

// roomForRefused reports whether objects that were refused because of a limit could be accepted now: all of them, or
// some if a tenth of every limit is free, so that a remote at its limit is not asked for snapshots repeatedly.
func (c *contents) roomForRefused() bool {
	// Heartbeats call it at any rate, and the computation walks all refused objects.
	if c.changed {
		c.changed, c.hasRoom = false, c.computeRoom()
	}
	return c.hasRoom
}

func (c *contents) computeRoom() bool {
	if c.overLimit == 0 && !c.notRemembered.any() {
		return false
	}
	var all need
	fits := 0
	for key, r := range c.refused {
		if r.need == nil {
			continue
		}
		n := *r.need
		if h, ok := c.objects[key]; ok {
			n.add(needOf(h.object), -1) // a part of it is accepted already
		}
		if c.overLimitReason(n) == "" {
			fits++
			all.add(n, 1)
		}
	}
	if fits > 0 && !c.notRemembered.any() && c.overLimitReason(all) == "" {
		return true
	}
	free := func(limit, used int) bool { return limit == 0 || limit-used >= (limit+9)/10 }
	return (fits > 0 || c.notRemembered.any()) &&
		free(c.limit.objects, c.used.objects) && free(c.limit.addresses, c.used.addresses) &&
		free(c.limit.clusterIPs, c.used.clusterIPs) && free(c.limit.exports, c.used.exports) &&
		free(c.limit.bytes, c.used.bytes)
}

const (
	// minResyncInterval is the minimal age of a kind's last snapshot before the broker requests another.
	minResyncInterval = time.Minute
	// maxResyncInterval is the upper bound of the interval, which grows while snapshots do not help.
	maxResyncInterval = time.Hour
)
