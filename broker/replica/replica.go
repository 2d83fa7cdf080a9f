// Package replica keeps what one remote cluster exports, as its exporter's streams tell it.
//
// It is pure: a state machine fed with the messages of federation.proto, which returns the
// answers to send and the changes to what is accepted. It starts no goroutine, asks no
// clock and opens no socket; time is an argument. It is not safe for concurrent use: its
// caller owns it.
//
// What makes it fail static: a snapshot is staged and taken over whole at its end mark, by
// difference; until then, and whenever a stream ends, what was held stays.
package replica

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/internal/digest"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Kinds are the kinds that exist, in the order of their numbers.
var Kinds = []semaphorev1.Kind{
	semaphorev1.Kind_KIND_NODE,
	semaphorev1.Kind_KIND_SERVICE,
	semaphorev1.Kind_KIND_ENDPOINT_SLICE,
	semaphorev1.Kind_KIND_SET_MEMBER,
}

// Key names an object of the remote cluster.
type Key struct {
	Kind            semaphorev1.Kind
	Namespace, Name string
}

// KeyOf is the key in a message.
func KeyOf(k *semaphorev1.ObjectKey) Key {
	return Key{k.GetKind(), k.GetNamespace(), k.GetName()}
}

// Proto is the key for a message.
func (k Key) Proto() *semaphorev1.ObjectKey {
	return &semaphorev1.ObjectKey{Kind: k.Kind, Namespace: k.Namespace, Name: k.Name}
}

// String is such as "service shop/echo" or "node n1".
func (k Key) String() string {
	if k.Namespace == "" {
		return semaphorev1.KindName(k.Kind) + " " + k.Name
	}
	return semaphorev1.KindName(k.Kind) + " " + k.Namespace + "/" + k.Name
}

// Compare orders keys by kind, namespace and name.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Kind, o.Kind), cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Name, o.Name))
}

// Change is one change to what is held. Objects are immutable once held.
type Change struct {
	Key Key
	// Old is nil for a new object, New for one that has gone.
	Old, New *semaphorev1.Object
	// ObservedAt is when the source saw the change, on its own clock; zero where it did not say,
	// as for an object whose end shows only in that a snapshot lacks it, and for what a kind's first snapshot
	// tells: that may have been so for long.
	ObservedAt time.Time
}

// Refused is an object that was not taken, or not whole.
type Refused struct {
	Key      Key
	Code     admission.Code
	Reason   string
	Revision uint64
	// At is when, on the broker's clock.
	At time.Time
}

// Admit decides whether an object may be held; see admission.Checker.
type Admit func(*semaphorev1.Object) (taken *semaphorev1.Object, refusals []admission.Refusal)

// Replica is what one remote cluster exports.
type Replica struct {
	cluster, self, software string
	admit                   Admit
	kinds                   map[semaphorev1.Kind]*kind
	current                 *Session
}

// kind is what is held of one kind.
type kind struct {
	contents
	// complete says that a whole snapshot was taken over, ever: what is not held is not there.
	complete bool
	// epoch and revision are where the sender's journal stood.
	epoch    string
	revision uint64
	// source names what the sender reads, and how far it had read.
	source source
}

type source struct {
	id       string
	revision uint64
}

// seen notes how far a sender has read; within one source that grows only.
func (s *source) seen(id string, revision uint64) {
	if s.id != id {
		*s = source{id: id}
	}
	s.revision = max(s.revision, revision)
}

type contents struct {
	objects map[Key]held
	refused map[Key]refused
	// told is the digest of what the sender told, before admission, of count objects.
	told  digest.Digest
	count int
}

type held struct {
	object   *semaphorev1.Object
	revision uint64
	// told is the digest of the object as it was told, of which object may be a part.
	told digest.Digest
}

type refused struct {
	Refused
	told digest.Digest
}

func newContents() contents {
	return contents{objects: map[Key]held{}, refused: map[Key]refused{}}
}

// has says whether the sender told of an object, whatever became of it.
func (c *contents) has(key Key) (digest.Digest, bool) {
	if h, ok := c.objects[key]; ok {
		return h.told, true
	}
	r, ok := c.refused[key]
	return r.told, ok
}

// remove forgets an object.
func (c *contents) remove(key Key) {
	if told, ok := c.has(key); ok {
		c.told.Remove(told)
		c.count--
	}
	delete(c.objects, key)
	delete(c.refused, key)
}

// New makes the empty replica of cluster, for the broker of self.
func New(cluster, self, softwareVersion string, admit Admit) *Replica {
	return &Replica{cluster: cluster, self: self, software: softwareVersion, admit: admit, kinds: map[semaphorev1.Kind]*kind{}}
}

// Get returns an object that is held.
func (r *Replica) Get(key Key) (*semaphorev1.Object, bool) {
	if k, ok := r.kinds[key.Kind]; ok {
		h, ok := k.objects[key]
		return h.object, ok
	}
	return nil, false
}

// All ranges over what is held of a kind, in no order.
func (r *Replica) All(of semaphorev1.Kind) iter.Seq2[Key, *semaphorev1.Object] {
	return func(yield func(Key, *semaphorev1.Object) bool) {
		k, ok := r.kinds[of]
		if !ok {
			return
		}
		for key, h := range k.objects {
			if !yield(key, h.object) {
				return
			}
		}
	}
}

// Complete says whether what is held of a kind is all there is: something that is not
// held may be taken for gone only then.
func (r *Replica) Complete(of semaphorev1.Kind) bool {
	k, ok := r.kinds[of]
	return ok && k.complete
}

// Count is how many objects of a kind are held, and how many were refused, in whole or in part.
func (r *Replica) Count(of semaphorev1.Kind) (objects, refused int) {
	if k, ok := r.kinds[of]; ok {
		return len(k.objects), len(k.refused)
	}
	return 0, 0
}

// Refused are the refusals that stand, in the order of their keys.
func (r *Replica) Refused() []Refused {
	var all []Refused
	for _, k := range r.kinds {
		for _, refused := range k.refused {
			all = append(all, refused.Refused)
		}
	}
	slices.SortFunc(all, func(a, b Refused) int { return a.Key.Compare(b.Key) })
	return all
}

func (r *Replica) kind(of semaphorev1.Kind) *kind {
	k, ok := r.kinds[of]
	if !ok {
		k = &kind{contents: newContents()}
		r.kinds[of] = k
	}
	return k
}

// accept puts an object through admission and into c, and returns what it is held as.
func (r *Replica) accept(c *contents, o *semaphorev1.Object, revision uint64, now time.Time, result *Result) *semaphorev1.Object {
	key := KeyOf(o.GetKey())
	c.remove(key)
	told := digest.Of(o)
	taken, refusals := r.admit(o)
	if taken != nil || len(refusals) > 0 {
		c.told.Add(told)
		c.count++
	}
	for i, refusal := range refusals {
		if i == 0 {
			c.refused[key] = refused{Refused{key, refusal.Code, refusal.Reason, revision, now}, told}
		}
		result.Refused = append(result.Refused, Refused{key, refusal.Code, refusal.Reason, revision, now})
		result.Responses = append(result.Responses, &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Refusal{
			Refusal: &semaphorev1.Refusal{Key: key.Proto(), Revision: revision, Code: string(refusal.Code), Reason: refusal.Reason},
		}})
	}
	if taken != nil {
		c.objects[key] = held{taken, revision, told}
	}
	return taken
}

// takeOver replaces what is held of a kind by a whole snapshot, and returns the difference:
// what has gone first, then what is new or other, in the order of the sender's journal.
func (k *kind) takeOver(s *staging) []Change {
	var changes []Change
	for key, old := range k.objects {
		if _, ok := s.objects[key]; !ok {
			changes = append(changes, Change{Key: key, Old: old.object})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return a.Key.Compare(b.Key) })
	type step struct {
		revision uint64
		Change
	}
	var steps []step
	for key, h := range s.objects {
		old, had := k.objects[key]
		if had && proto.Equal(old.object, h.object) {
			continue
		}
		steps = append(steps, step{h.revision, Change{key, old.object, h.object, s.observed[key]}})
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Compare(a.revision, b.revision) })
	for _, st := range steps {
		changes = append(changes, st.Change)
	}
	k.contents = s.contents
	k.complete = true
	return changes
}
