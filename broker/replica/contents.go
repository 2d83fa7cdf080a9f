package replica

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/stream/digest"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// contents is what the sender told of one kind, and what became of it.
type contents struct {
	objects map[Key]held
	refused map[Key]refused
	// told is the digest of what the sender told, before admission, of count objects.
	told  digest.Digest
	count int
	// limit is the most that may be held, used what is. perGroup are the addresses of each
	// Service or set.
	limit    limit
	used     need
	perGroup map[groupName]int
	// over is how many of the refused ones lack room. forgotten is how many objects were refused beyond those that
	// are remembered; of these nothing is known, so that told lacks them.
	over      int
	forgotten int
	// back are the objects that the sender has withdrawn, emptied or had refused, and the brake holds as they were.
	// They are among objects.
	back map[Key]withheld
	// hollow is how many of objects are; see isHollow. None of back is.
	hollow int
	// changed says that something has changed since room was last answered with roomy.
	changed, roomy bool
}

type held struct {
	object   *semaphorev1.Object
	revision uint64
	// told is the digest of the object as it was told, of which object may be a part.
	told digest.Digest
}

// withheld is what became of an object that the brake holds as it was.
type withheld struct {
	since time.Time
	// next is what the sender has emptied it to, and what is in told; nil for an object that is exported no more, or
	// is refused.
	next *held
}

type refused struct {
	Refused
	told digest.Digest
	// lacks is what an object needs that was refused for want of room; nil for other reasons.
	lacks *need
}

// maxRefused bounds the refusals of a kind that are remembered, and maxName the names in them: what is refused takes
// room too.
const (
	maxRefused = 10_000
	maxName    = 253 // the longest that an apiserver takes
)

func newContents(l limit) contents {
	return contents{
		objects: map[Key]held{}, refused: map[Key]refused{}, limit: l,
		perGroup: map[groupName]int{}, back: map[Key]withheld{},
	}
}

// has says whether the sender told of an object, whatever became of it.
func (c *contents) has(key Key) (digest.Digest, bool) {
	w, back := c.back[key]
	if back && w.next != nil {
		return w.next.told, true
	}
	if h, ok := c.objects[key]; ok && !back {
		return h.told, true
	}
	r, ok := c.refused[key]
	return r.told, ok
}

// forget takes an object out of what was told. What is held of it stays.
func (c *contents) forget(key Key) {
	c.changed = true
	if told, ok := c.has(key); ok {
		c.told.Remove(told)
		c.count--
	}
	if r, ok := c.refused[key]; ok {
		if r.lacks != nil {
			c.over--
		}
		delete(c.refused, key)
	}
	if w, ok := c.back[key]; ok {
		c.back[key] = withheld{since: w.since}
	}
}

// remove takes an object out of everything.
func (c *contents) remove(key Key) {
	c.forget(key)
	if h, ok := c.objects[key]; ok {
		c.account(h.object, -1)
		delete(c.objects, key)
		delete(c.back, key)
	}
}

// hold keeps an object that was told.
func (c *contents) hold(key Key, h held) {
	c.objects[key] = h
	c.account(h.object, 1)
	c.told.Add(h.told)
	c.count++
}

// withhold keeps an object as it was though the sender told otherwise. What it told is in w, or refused.
func (c *contents) withhold(key Key, h held, w withheld) {
	c.objects[key] = h
	c.account(h.object, 1)
	c.back[key] = w
}

// release lets an object go that the brake has held, to what the sender told of it.
func (c *contents) release(key Key) Change {
	w, old := c.back[key], c.objects[key].object
	c.account(old, -1)
	delete(c.objects, key)
	delete(c.back, key)
	if w.next == nil {
		return Change{Key: key, Old: old}
	}
	c.objects[key] = *w.next
	c.account(w.next.object, 1)
	return Change{Key: key, Old: old, New: w.next.object}
}

// refuse remembers that an object was told and refused; held says that a part of it is held all the same.
func (c *contents) refuse(r refused, held bool) {
	c.changed = true
	switch {
	case c.limit.unknown:
		return
	case !held && (len(c.refused) >= maxRefused || r.Key.long()):
		c.forgotten++
		return
	case !held:
		c.told.Add(r.told)
		c.count++
	}
	if r.lacks != nil {
		c.over++
	}
	c.refused[r.Key] = r
}

// account adds an object to what is used, or takes it away.
func (c *contents) account(o *semaphorev1.Object, sign int) {
	c.changed = true
	if isHollow(o) {
		c.hollow += sign
	}
	n := needOf(o)
	c.used.add(n, sign)
	if n.group == (groupName{}) || n.addresses == 0 {
		return
	}
	if c.perGroup[n.group] += sign * n.addresses; c.perGroup[n.group] == 0 {
		delete(c.perGroup, n.group)
	}
}

// wanted is how many of the objects held the sender still exports with something in them.
func (c *contents) wanted() int { return len(c.objects) - len(c.back) - c.hollow }

// isHollow says whether nothing follows from an object: a node that can be no peer, a Service that is offered to nobody, a slice or
// a pod of a set without an address. To the brake it is one that is not there.
func isHollow(o *semaphorev1.Object) bool {
	switch spec := o.GetSpec().(type) {
	case *semaphorev1.Object_Node:
		return spec.Node.GetWireguard() == nil || len(spec.Node.GetPodCidrs()) == 0
	case *semaphorev1.Object_Service:
		return !spec.Service.GetMirror() && !spec.Service.GetGlobal()
	case *semaphorev1.Object_EndpointSlice:
		return needOf(o).addresses == 0
	case *semaphorev1.Object_SetMember:
		return len(spec.SetMember.GetIps()) == 0
	}
	return false
}

// groupName is that of what an object's addresses are part of: the Service of a slice, the set of a member, or the node itself
// that has pod CIDRs.
type groupName struct{ namespace, name string }

func (g groupName) String() string {
	if g.namespace == "" {
		return g.name
	}
	return g.namespace + "/" + g.name
}

// need is what an object takes of the limits of its kind.
type need struct {
	// addresses are those of a slice or a pod of a set, or the pod CIDRs of a node.
	objects, addresses, bytes int
	// clusterIPs are the Services with a ClusterIP that are made for it. ports are its own.
	clusterIPs, ports int
	group             groupName
}

func needOf(o *semaphorev1.Object) need {
	n := need{objects: 1, bytes: proto.Size(o)}
	switch spec := o.GetSpec().(type) {
	case *semaphorev1.Object_Node:
		n.group = groupName{name: o.GetKey().GetName()}
		n.addresses = len(spec.Node.GetPodCidrs())
	case *semaphorev1.Object_Service:
		n.ports = len(spec.Service.GetPorts())
		if !spec.Service.GetHeadless() {
			for _, made := range []bool{spec.Service.GetMirror(), spec.Service.GetGlobal()} {
				if made {
					n.clusterIPs++
				}
			}
		}
	case *semaphorev1.Object_EndpointSlice:
		n.group = groupName{o.GetKey().GetNamespace(), spec.EndpointSlice.GetService()}
		n.ports = len(spec.EndpointSlice.GetPorts())
		for _, e := range spec.EndpointSlice.GetEndpoints() {
			n.addresses += len(e.GetAddresses())
		}
	case *semaphorev1.Object_SetMember:
		n.group = groupName{o.GetKey().GetNamespace(), spec.SetMember.GetSetName()}
		n.addresses = len(spec.SetMember.GetIps())
	}
	return n
}

func (n *need) add(o need, sign int) {
	n.objects += sign * o.objects
	n.addresses += sign * o.addresses
	n.bytes += sign * o.bytes
	n.clusterIPs += sign * o.clusterIPs
}
