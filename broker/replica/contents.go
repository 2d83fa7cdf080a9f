package replica

import (
	"hash/maphash"
	"time"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// contents are the objects of one kind that the sender sent, accepted or refused.
type contents struct {
	objects map[Key]held
	refused map[Key]refused
	// sentDigest is the digest of the objects in the form in which they were sent, before admission; count is their
	// number.
	sentDigest streams.Digest
	count      int
	// limit is the configured limit, and used the part of it that the accepted objects use. perGroup are the addresses
	// of each Service or set.
	limit    limit
	used     admission.Use
	perGroup map[admission.Group]int
	// overLimit is how many refused objects exceed a limit. notRemembered are the objects that were refused beyond
	// maxRefused; sentDigest lacks them.
	overLimit     int
	notRemembered uncounted
	// retained are the objects that the sender withdrew, emptied or had refused, and the brake keeps unchanged. They
	// are a subset of objects.
	retained map[Key]retention
	// empty is how many of objects are empty; see isEmpty. Retained objects never are.
	empty int
	// changed means that something changed since hasRoom was computed.
	changed, hasRoom bool
}

type held struct {
	object   *semaphorev1.Object
	revision uint64
	// sentDigest is the digest of the object as it was sent; object may be a part of it.
	sentDigest streams.Digest
}

// retention is the state of an object that the brake keeps unchanged.
type retention struct {
	since time.Time
	// replacement is the empty object that the sender sent instead, which sentDigest includes; nil if the object was
	// deleted or refused.
	replacement *held
}

type refused struct {
	Refused
	sentDigest streams.Digest
	// need is the object's use of the limits, if it was refused because of one; nil for other reasons.
	need *admission.Need
}

// uncounted is a set of keys by their hashes, which take little memory. Beyond maxUncounted it no longer knows how many
// there are, until the next complete snapshot.
type uncounted struct {
	hashes map[uint64]struct{}
	more   bool
}

const maxUncounted = 100_000

var seed = maphash.MakeSeed()

func (u *uncounted) add(key Key) {
	if u.hashes == nil {
		u.hashes = map[uint64]struct{}{}
	}
	hash := maphash.Comparable(seed, key)
	if _, known := u.hashes[hash]; known || len(u.hashes) < maxUncounted {
		u.hashes[hash] = struct{}{}
	} else {
		u.more = true
	}
}

func (u *uncounted) remove(key Key) { delete(u.hashes, maphash.Comparable(seed, key)) }

// count returns the number of keys, at most maxUncounted and one.
func (u *uncounted) count() int {
	if u.more {
		return len(u.hashes) + 1
	}
	return len(u.hashes)
}

// maxRefused bounds the remembered refusals of a kind, and maxName the names in them, as refusals use memory too.
const (
	maxRefused = 10_000
	maxName    = 253 // limit of the Kubernetes API
)

func newContents(l limit) contents {
	return contents{
		objects: map[Key]held{}, refused: map[Key]refused{}, limit: l,
		perGroup: map[admission.Group]int{}, retained: map[Key]retention{},
	}
}

// digestOf returns the digest of an object as it was sent; false if the sender did not send it.
func (c *contents) digestOf(key Key) (streams.Digest, bool) {
	w, back := c.retained[key]
	if back && w.replacement != nil {
		return w.replacement.sentDigest, true
	}
	if h, ok := c.objects[key]; ok && !back {
		return h.sentDigest, true
	}
	r, ok := c.refused[key]
	return r.sentDigest, ok
}

// forget removes an object from the sent ones. An accepted object remains.
func (c *contents) forget(key Key) {
	c.changed = true
	c.notRemembered.remove(key)
	if received, ok := c.digestOf(key); ok {
		c.sentDigest.Remove(received)
		c.count--
	}
	if r, ok := c.refused[key]; ok {
		if r.need != nil {
			c.overLimit--
		}
		delete(c.refused, key)
	}
	if w, ok := c.retained[key]; ok {
		c.retained[key] = retention{since: w.since}
	}
}

func (c *contents) remove(key Key) {
	c.forget(key)
	if h, ok := c.objects[key]; ok {
		c.account(h.object, -1)
		delete(c.objects, key)
		delete(c.retained, key)
	}
}

func (c *contents) add(key Key, h held) {
	c.objects[key] = h
	c.account(h.object, 1)
	c.sentDigest.Add(h.sentDigest)
	c.count++
}

// retain keeps an object unchanged although the sender sent something else, which is in w or refused.
func (c *contents) retain(key Key, h held, w retention) {
	c.objects[key] = h
	c.account(h.object, 1)
	c.retained[key] = w
}

// release replaces a retained object by the one that the sender sent instead, if any.
func (c *contents) release(key Key) Change {
	w, old := c.retained[key], c.objects[key].object
	c.account(old, -1)
	delete(c.objects, key)
	delete(c.retained, key)
	if w.replacement == nil {
		return Change{Key: key, Old: old}
	}
	c.objects[key] = *w.replacement
	c.account(w.replacement.object, 1)
	return Change{Key: key, Old: old, New: w.replacement.object}
}

// refuse remembers a refused object; held means that a part of it was accepted.
func (c *contents) refuse(key Key, r refused, held bool) {
	c.changed = true
	switch {
	case c.limit.unknown:
		return
	case !held && (len(c.refused) >= maxRefused || key.tooLong()):
		c.notRemembered.add(key)
		return
	case !held:
		c.sentDigest.Add(r.sentDigest)
		c.count++
	}
	if r.need != nil {
		c.overLimit++
	}
	c.refused[key] = r
}

func (c *contents) account(o *semaphorev1.Object, sign int) {
	c.changed = true
	if isEmpty(o) {
		c.empty += sign
	}
	n := admission.NeedOf(o)
	c.used.Add(n.Use, sign)
	if c.perGroup[n.Group] += sign * n.Use[admission.GroupAddresses]; c.perGroup[n.Group] == 0 {
		delete(c.perGroup, n.Group)
	}
}

// exported returns how many non-empty accepted objects the sender still exports.
func (c *contents) exported() int { return len(c.objects) - len(c.retained) - c.empty }

// isEmpty reports whether an object has no effect: a node that cannot be a peer, a Service that is exported in no
// way, a slice or pod of a set without addresses. The brake treats it as deleted.
func isEmpty(o *semaphorev1.Object) bool {
	switch spec := o.GetSpec().(type) {
	case *semaphorev1.Object_Node:
		return spec.Node.GetWireguard() == nil || len(spec.Node.GetPodCidrs()) == 0
	case *semaphorev1.Object_Service:
		return !spec.Service.GetMirror() && !spec.Service.GetGlobal() && spec.Service.GetMultiCluster() == nil
	case *semaphorev1.Object_EndpointSlice:
		return admission.NeedOf(o).Use[admission.Addresses] == 0
	case *semaphorev1.Object_SetMember:
		return len(spec.SetMember.GetIps()) == 0
	}
	return false
}
