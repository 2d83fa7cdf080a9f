package replica

import (
	"fmt"
	"time"

	"github.com/kube-semaphore/semaphore/broker/admission"
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
	// size is that of the remote, from which unset limits come; empty for none.
	size config.Size
	// unknown means that the kind does not exist: nothing of it is accepted or remembered.
	unknown bool
}

func limitOf(kind semaphorev1.Kind, l config.Limits) (of limit) {
	switch kind {
	case semaphorev1.Kind_KIND_NODE:
		of = limit{objects: l.Nodes, addresses: l.PodCIDRs, perGroup: l.PodCIDRsPerNode,
			objectsKey: "nodes", addressesKey: "podCIDRs", perGroupKey: "podCIDRsPerNode", addressesName: "pod CIDRs"}
	case semaphorev1.Kind_KIND_SERVICE:
		of = limit{objects: l.Services, clusterIPs: l.ClusterIPs, exports: l.Exports, ports: l.PortsPerService,
			objectsKey: "services"}
	case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
		of = limit{objects: l.EndpointSlices, addresses: l.Endpoints, perGroup: l.EndpointsPerService,
			ports: l.PortsPerService, objectsKey: "endpointSlices", addressesKey: "endpoints",
			perGroupKey: "endpointsPerService", addressesName: "addresses"}
	case semaphorev1.Kind_KIND_SET_MEMBER:
		of = limit{objects: l.SetMembers, addresses: l.SetIPs, perGroup: l.IPsPerSet,
			objectsKey: "setMembers", addressesKey: "setIPs", perGroupKey: "ipsPerSet", addressesName: "addresses"}
	default:
		return limit{unknown: true}
	}
	of.bytes, of.size = l.MebibytesPerKind<<20, l.Size
	return of
}

func exceeds(limit, used, more int) bool { return limit > 0 && more > 0 && used+more > limit }

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

// exceeded returns the first resource whose limit an object would exceed, beside the used ones.
func (c *contents) exceeded(n admission.Need) resource {
	switch {
	case exceeds(c.limit.ports, 0, n.Ports):
		return ofPorts
	case exceeds(c.limit.objects, c.used.Objects, n.Objects):
		return ofObjects
	case exceeds(c.limit.addresses, c.used.Addresses, n.Addresses):
		return ofAddresses
	case exceeds(c.limit.clusterIPs, c.used.ClusterIPs, n.ClusterIPs):
		return ofClusterIPs
	case exceeds(c.limit.exports, c.used.Exports, n.Exports):
		return ofExports
	case exceeds(c.limit.bytes, c.used.Bytes, n.Bytes):
		return ofBytes
	case n.Group != (admission.Group{}) && exceeds(c.limit.perGroup, c.perGroup[n.Group], n.Addresses):
		return ofGroup
	}
	return noResource
}

// overLimitReason returns the reason why an object would exceed a limit; "" if there is room.
func (c *contents) overLimitReason(n admission.Need) string {
	text, key := c.reachedLimit(n)
	if text == "" {
		return ""
	}
	from := ""
	if c.limit.size != "" {
		from = ", whose size is " + string(c.limit.size)
	}
	return fmt.Sprintf("%s (limits.%s of this remote%s)", text, key, from)
}

// reachedLimit returns what an object would exceed, and the configuration key of that limit.
func (c *contents) reachedLimit(n admission.Need) (text, key string) {
	switch l := c.limit; c.exceeded(n) {
	case ofPorts:
		return fmt.Sprintf("%d ports: the limit is %d", n.Ports, l.ports), "portsPerService"
	case ofObjects:
		return fmt.Sprintf("the limit of %d objects is reached", c.used.Objects), l.objectsKey
	case ofAddresses:
		return fmt.Sprintf("%d %s beside %d accepted: the limit is %d", n.Addresses, l.addressesName, c.used.Addresses,
			l.addresses), l.addressesKey
	case ofClusterIPs:
		return fmt.Sprintf("%d Services with a cluster IP beside %d of this remote: the limit is %d", n.ClusterIPs,
			c.used.ClusterIPs, l.clusterIPs), "clusterIPs"
	case ofExports:
		return fmt.Sprintf("the limit of %d Services that ServiceExports export is reached", l.exports), "exports"
	case ofBytes:
		return fmt.Sprintf("%d bytes beside %d accepted: the limit is %d", n.Bytes, c.used.Bytes, l.bytes),
			"mebibytesPerKind"
	case ofGroup:
		return fmt.Sprintf("%d %s beside %d accepted of %s: the limit is %d", n.Addresses, l.addressesName,
			c.perGroup[n.Group], n.Group, l.perGroup), l.perGroupKey
	}
	return "", ""
}

// partThatFits returns the accepted part of an object that exceeds a limit, if an earlier state of it was accepted. For
// a slice, a pod of a set or a node, these are the addresses or pod CIDRs that were accepted before, and as many others
// as there is room for; for other objects it is the earlier state. It returns nil if there is no earlier state or
// nothing fits.
func (c *contents) partThatFits(o, existing *semaphorev1.Object) *semaphorev1.Object {
	if existing == nil {
		return nil
	}
	n := admission.NeedOf(o)
	room := n.Addresses
	for _, free := range []struct{ limit, used int }{{c.limit.addresses, c.used.Addresses},
		{c.limit.perGroup, c.perGroup[n.Group]}} {
		if free.limit > 0 {
			room = min(room, free.limit-free.used)
		}
	}
	out := existing
	if n.Ports <= c.limit.ports || c.limit.ports == 0 { // ports cannot be split
		out = admission.WithElements(o, existing, room)
	}
	if out == nil || c.exceeded(admission.NeedOf(out)) != noResource {
		return nil
	}
	return out
}

// roomForRefused reports whether objects that were refused because of a limit could be accepted now: all of them, or
// some if a tenth of every limit is free, so that a remote at its limit is not asked for snapshots repeatedly.
func (c *contents) roomForRefused() bool {
	// Heartbeats call it, and the computation walks all refused objects.
	if c.changed {
		c.changed, c.hasRoom = false, c.computeRoom()
	}
	return c.hasRoom
}

func (c *contents) computeRoom() bool {
	if c.overLimit == 0 && c.notRemembered.count() == 0 {
		return false
	}
	var all admission.Need
	fits := 0
	for key, r := range c.refused {
		if r.need == nil {
			continue
		}
		n := *r.need
		if h, ok := c.objects[key]; ok {
			n.Add(admission.NeedOf(h.object), -1) // a part of it is accepted already
		}
		if c.exceeded(n) == noResource {
			fits++
			all.Add(n, 1)
		}
	}
	if fits > 0 && c.notRemembered.count() == 0 && c.exceeded(all) == noResource {
		return true
	}
	free := func(limit, used int) bool { return limit == 0 || limit-used >= (limit+9)/10 }
	return (fits > 0 || c.notRemembered.count() > 0) &&
		free(c.limit.objects, c.used.Objects) && free(c.limit.addresses, c.used.Addresses) &&
		free(c.limit.clusterIPs, c.used.ClusterIPs) && free(c.limit.exports, c.used.Exports) &&
		free(c.limit.bytes, c.used.Bytes)
}

const (
	// minResyncInterval is the minimal age of a kind's last snapshot before the broker requests another.
	minResyncInterval = time.Minute
	// maxResyncInterval is the upper bound of the interval, which grows while snapshots do not help.
	maxResyncInterval = time.Hour
)
