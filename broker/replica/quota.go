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
	objects, addresses, bytes, perGroup int
	// The keys in the configuration that limit objects, addresses, and those of one group.
	objectsKey, addressesKey, perGroupKey string
	// unknown says that the kind is none that exists: nothing of it is held, nor remembered.
	unknown bool
}

func limitOf(kind semaphorev1.Kind, l config.Limits) limit {
	bytes := l.MebibytesPerKind << 20
	switch kind {
	case semaphorev1.Kind_KIND_NODE:
		return limit{objects: l.Nodes, bytes: bytes, objectsKey: "nodes"}
	case semaphorev1.Kind_KIND_SERVICE:
		return limit{objects: l.Services, bytes: bytes, objectsKey: "services"}
	case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
		return limit{objects: l.EndpointSlices, addresses: l.Endpoints, bytes: bytes, perGroup: l.EndpointsPerService,
			objectsKey: "endpointSlices", addressesKey: "endpoints", perGroupKey: "endpointsPerService"}
	case semaphorev1.Kind_KIND_SET_MEMBER:
		return limit{objects: l.SetMembers, addresses: l.SetIPs, bytes: bytes, perGroup: l.IPsPerSet,
			objectsKey: "setMembers", addressesKey: "setIPs", perGroupKey: "ipsPerSet"}
	}
	return limit{unknown: true}
}

// lacks says what of the limits an object would exceed beside what is held; "" when there is room.
func (c *contents) lacks(n need) string {
	exceeds := func(limit, used, more int) bool { return limit > 0 && used+more > limit }
	switch {
	case exceeds(c.limit.objects, c.used.objects, n.objects):
		return fmt.Sprintf("%d are held, which is the most (limits.%s of this remote)", c.used.objects, c.limit.objectsKey)
	case exceeds(c.limit.addresses, c.used.addresses, n.addresses):
		return fmt.Sprintf("%d addresses beside the %d that are held: %d is the most (limits.%s of this remote)", n.addresses, c.used.addresses, c.limit.addresses, c.limit.addressesKey)
	case exceeds(c.limit.bytes, c.used.bytes, n.bytes):
		return fmt.Sprintf("%d bytes beside the %d that are held: %d is the most (limits.mebibytesPerKind of this remote)", n.bytes, c.used.bytes, c.limit.bytes)
	case n.group != (groupName{}) && exceeds(c.limit.perGroup, c.perGroup[n.group], n.addresses):
		return fmt.Sprintf("%d addresses beside the %d that are held of %s/%s: %d is the most (limits.%s of this remote)",
			n.addresses, c.perGroup[n.group], n.group.namespace, n.group.name, c.limit.perGroup, c.limit.perGroupKey)
	}
	return ""
}

// fitting is what of an object fits that as a whole does not, where there was one before: of a slice or a pod of a set the
// addresses that were there and are, and of others as many as there is room for; of other objects, what stood. It is nil where
// nothing stood or fits.
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
	if n.group != (groupName{}) {
		if needOf(stood).group != n.group || o.GetSetMember().GetPodUid() != stood.GetSetMember().GetPodUid() {
			return nil
		}
		out = proto.CloneOf(o)
		if is := out.GetEndpointSlice(); is != nil {
			is.Endpoints = first(is.GetEndpoints(), stood.GetEndpointSlice().GetEndpoints(), room, func(e *semaphorev1.Endpoint) (string, int) {
				return strings.Join(e.GetAddresses(), " "), len(e.GetAddresses())
			})
		} else if is := out.GetSetMember(); is != nil {
			is.Ips = first(is.GetIps(), stood.GetSetMember().GetIps(), room, func(ip string) (string, int) { return ip, 1 })
		}
	}
	if c.lacks(needOf(out)) != "" {
		return nil
	}
	return out
}

// first are as many of all as there is room for, in their order: those that were there before others. of says what one is called
// and how much room it takes.
func first[T any](all, there []T, room int, of func(T) (string, int)) []T {
	was := map[string]bool{}
	for _, one := range there {
		name, _ := of(one)
		was[name] = true
	}
	keep := make([]bool, len(all))
	for _, before := range []bool{true, false} {
		for i, one := range all {
			if name, n := of(one); was[name] == before && n <= room {
				keep[i] = true
				room -= n
			}
		}
	}
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
	for _, r := range c.refused {
		if r.lacks != nil && c.lacks(*r.lacks) == "" {
			fits++
			all.add(*r.lacks, 1)
		}
	}
	if fits > 0 && c.forgotten == 0 && c.lacks(all) == "" {
		return true
	}
	free := func(limit, used int) bool { return limit == 0 || limit-used >= (limit+9)/10 }
	return (fits > 0 || c.forgotten > 0) &&
		free(c.limit.objects, c.used.objects) && free(c.limit.addresses, c.used.addresses) && free(c.limit.bytes, c.used.bytes)
}

const (
	// minAnew is how old a kind's last snapshot must be for another to be asked for.
	minAnew = time.Minute
	// maxAnew is how old it must be at most, where asking did not help.
	maxAnew = time.Hour
)
