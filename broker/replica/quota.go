package replica

import (
	"fmt"
	"time"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type limit struct {
	of [admission.Resources]bound
	// addresses is the name of addresses in messages, such as "pod CIDRs".
	addresses string
	// size is that of the remote, from which unset limits come; empty for none.
	size config.Size
	// unknown means that the kind does not exist: nothing of it is accepted or remembered.
	unknown bool
}

// bound is a limit, 0 for none, and its key in the configuration.
type bound struct {
	most int
	key  string
}

func limitOf(kind semaphorev1.Kind, l config.Limits) limit {
	of := [admission.Resources]bound{admission.Bytes: {l.MebibytesPerKind << 20, "mebibytesPerKind"}}
	addresses := "addresses"
	switch kind {
	case semaphorev1.Kind_KIND_NODE:
		of[admission.Objects], of[admission.Addresses] = bound{l.Nodes, "nodes"}, bound{l.PodCIDRs, "podCIDRs"}
		of[admission.GroupAddresses] = bound{l.PodCIDRsPerNode, "podCIDRsPerNode"}
		addresses = "pod CIDRs"
	case semaphorev1.Kind_KIND_SERVICE:
		of[admission.Objects], of[admission.Exports] = bound{l.Services, "services"}, bound{l.Exports, "exports"}
		of[admission.ClusterIPs] = bound{l.ClusterIPs, "clusterIPs"}
		of[admission.Ports] = bound{l.PortsPerService, "portsPerService"}
	case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
		of[admission.Objects] = bound{l.EndpointSlices, "endpointSlices"}
		of[admission.Addresses] = bound{l.Endpoints, "endpoints"}
		of[admission.GroupAddresses] = bound{l.EndpointsPerService, "endpointsPerService"}
		of[admission.Ports] = bound{l.PortsPerService, "portsPerService"}
	case semaphorev1.Kind_KIND_SET_MEMBER:
		of[admission.Objects], of[admission.Addresses] = bound{l.SetMembers, "setMembers"}, bound{l.SetIPs, "setIPs"}
		of[admission.GroupAddresses] = bound{l.IPsPerSet, "ipsPerSet"}
	default:
		return limit{unknown: true}
	}
	return limit{of: of, addresses: addresses, size: l.Size}
}

// noResource stands for none in place of a resource.
const noResource = admission.Resources

// exceeded returns the first resource whose limit an object would exceed, beside the used ones.
func (c *contents) exceeded(n admission.Need) admission.Resource {
	for of := range admission.Resources {
		if most := c.limit.of[of].most; most > 0 && n.Use[of] > 0 && c.usedOf(of, n.Group)+n.Use[of] > most {
			return of
		}
	}
	return noResource
}

// usedOf returns how much is used of a resource of an object of a group.
func (c *contents) usedOf(of admission.Resource, group admission.Group) int {
	if of == admission.GroupAddresses {
		return c.perGroup[group]
	}
	return c.used[of]
}

// overLimitReason returns the reason why an object would exceed a limit; "" if there is room.
func (c *contents) overLimitReason(n admission.Need) string {
	of := c.exceeded(n)
	if of == noResource {
		return ""
	}
	needs, used, most, text := n.Use[of], c.usedOf(of, n.Group), c.limit.of[of].most, ""
	switch of {
	case admission.Ports:
		text = fmt.Sprintf("%d ports: the limit is %d", needs, most)
	case admission.Objects:
		text = fmt.Sprintf("the limit of %d objects is reached", used)
	case admission.Addresses:
		text = fmt.Sprintf("%d %s beside %d accepted: the limit is %d", needs, c.limit.addresses, used, most)
	case admission.ClusterIPs:
		text = fmt.Sprintf("%d Services with a cluster IP beside %d of this remote: the limit is %d", needs, used, most)
	case admission.Exports:
		text = fmt.Sprintf("the limit of %d Services that ServiceExports export is reached", most)
	case admission.Bytes:
		text = fmt.Sprintf("%d bytes beside %d accepted: the limit is %d", needs, used, most)
	case admission.GroupAddresses:
		text = fmt.Sprintf("%d %s beside %d accepted of %s: the limit is %d", needs, c.limit.addresses, used, n.Group, most)
	}
	from := ""
	if c.limit.size != "" {
		from = ", whose size is " + string(c.limit.size)
	}
	return fmt.Sprintf("%s (limits.%s of this remote%s)", text, c.limit.of[of].key, from)
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
	room := n.Use[admission.Addresses]
	for _, of := range []admission.Resource{admission.Addresses, admission.GroupAddresses} {
		if most := c.limit.of[of].most; most > 0 {
			room = min(room, most-c.usedOf(of, n.Group))
		}
	}
	out := existing
	if c.exceeded(n) != admission.Ports { // ports cannot be split
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
	var all admission.Use
	fits := 0
	for key, r := range c.refused {
		if r.need == nil {
			continue
		}
		n := *r.need
		if h, ok := c.objects[key]; ok {
			n.Add(admission.NeedOf(h.object).Use, -1) // a part of it is accepted already
		}
		if c.exceeded(n) == noResource {
			fits++
			all.Add(n.Use, 1)
		}
	}
	all[admission.GroupAddresses] = 0 // they are of several groups
	if fits > 0 && c.notRemembered.count() == 0 && c.exceeded(admission.Need{Use: all}) == noResource {
		return true
	}
	for of := admission.Objects; of < admission.GroupAddresses; of++ {
		if most := c.limit.of[of].most; most > 0 && most-c.used[of] < (most+9)/10 {
			return false
		}
	}
	return fits > 0 || c.notRemembered.count() > 0
}

const (
	// minResyncInterval is the minimal age of a kind's last snapshot before the broker requests another.
	minResyncInterval = time.Minute
	// maxResyncInterval is the upper bound of the interval, which grows while snapshots do not help.
	maxResyncInterval = time.Hour
)
