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
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/stream/digest"
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

// long says that a part of the key is longer than any name: no object has it.
func (k Key) long() bool { return len(k.Namespace) > maxName || len(k.Name) > maxName }

// short is the key as it is told of: with what is too long for a name cut off.
func (k Key) short() Key {
	cut := func(s string) string {
		if len(s) <= maxName {
			return s
		}
		return strings.ToValidUTF8(s[:maxName], "") + "…"
	}
	return Key{k.Kind, cut(k.Namespace), cut(k.Name)}
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
	limits                  config.Limits
	brake                   config.Brake
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
	// past are where the journals of earlier senders stood, oldest first.
	past []position
	// source names what the sender reads, and how far it had read.
	source source
	// heard is when the sender last spoke for this kind, snapshotAt when it last told all of it.
	heard, snapshotAt time.Time
	// anew says that the sender is to tell all of it once more. patience is how old the snapshot must be before it
	// is asked for because of room; it grows while asking does not help.
	anew     anew
	patience time.Duration
	// most is how many objects were exported at most since mostAt, mostBraked before the brake began to hold.
	most, mostBraked int
	mostAt           time.Time
}

// position is a revision of the journal of one epoch.
type position struct {
	epoch    string
	revision uint64
}

// maxPast is how many earlier epochs are remembered of a kind: more exporters than can have streams that are still on their way.
const maxPast = 16

// taken is how far the journal of an epoch was taken; 0 where that is not known.
func (k *kind) taken(epoch string) uint64 {
	if k.epoch == epoch {
		return k.revision
	}
	for _, p := range k.past {
		if p.epoch == epoch {
			return p.revision
		}
	}
	return 0
}

// enter notes that the journal of an epoch was taken up to a revision.
func (k *kind) enter(epoch string, revision uint64) {
	if k.epoch != epoch {
		k.past = slices.DeleteFunc(k.past, func(p position) bool { return p.epoch == epoch })
		if k.epoch != "" {
			k.past = append(k.past, position{k.epoch, k.revision})
		}
		k.past = k.past[max(0, len(k.past)-maxPast):]
	}
	k.epoch, k.revision = epoch, revision
}

// anew says how much of a kind has to be told once more.
type anew int

const (
	nothing    anew = iota
	withDigest      // a digest will do
	whole
)

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

// New makes the empty replica of cluster, for the broker of self: without limits, and with the brake off.
func New(cluster, self, softwareVersion string, admit Admit) *Replica {
	return &Replica{
		cluster: cluster, self: self, software: softwareVersion, admit: admit,
		brake: config.Brake{Percent: 100}, kinds: map[semaphorev1.Kind]*kind{},
	}
}

// Bound sets limits and brake; it is called before anything else. Limits of 0 are none, and a brake of 0 is off.
func (r *Replica) Bound(limits config.Limits, brake config.Brake) {
	if brake.Percent == 0 {
		brake.Percent = 100
	}
	r.limits, r.brake = limits, brake
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
		return len(k.objects), len(k.refused) + k.forgotten
	}
	return 0, 0
}

// Limit is the most objects of a kind that are held; 0 for no limit.
func (r *Replica) Limit(of semaphorev1.Kind) int { return limitOf(of, r.limits).objects }

// Heard is when the sender last spoke for a kind that it had told whole: what is held is as old as that. It is zero
// before.
func (r *Replica) Heard(of semaphorev1.Kind) time.Time {
	if k, ok := r.kinds[of]; ok {
		return k.heard
	}
	return time.Time{}
}

// Refused are the refusals that stand, in the order of their keys; of very many not all are remembered.
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
		k = &kind{contents: newContents(limitOf(of, r.limits))}
		r.kinds[of] = k
	}
	return k
}

// accept puts an object through admission and into what is held of a kind, and returns what it is held as.
func (r *Replica) accept(k *kind, o *semaphorev1.Object, revision uint64, now time.Time, result *Result) *semaphorev1.Object {
	key := KeyOf(o.GetKey())
	most := k.watermark(now)
	stood, back := k.objects[key], k.back[key]
	k.remove(key)
	taken, refusals := r.admit(o)
	var lacks *need
	if taken != nil {
		n := needOf(taken)
		if k.lacks(n) != "" && len(k.back) > 0 {
			r.letGo(k, key.Kind, now, "their room is needed", all, result)
		}
		if reason := k.lacks(n); reason != "" {
			// Who grows over a limit loses nothing that works: the overflow is refused.
			taken, lacks = k.fitting(taken, stood.object), &n
			refusals = append([]admission.Refusal{{Code: admission.OverQuota, Reason: reason}}, refusals...)
		}
	}
	told := held{taken, revision, digest.Of(o)}
	of := taken
	switch {
	case stood.object != nil && !isHollow(stood.object) && (taken == nil || isHollow(taken)) &&
		(!back.since.IsZero() || r.brake.Brakes(most-k.wanted(), most)):
		// What is emptied or refused is withdrawn as much as what is deleted.
		of = stood.object
		r.withhold(k, key, stood, told, back, most, now, result)
	case taken != nil:
		k.hold(key, told)
	}
	k.refuseAll(key, refusals, told, lacks, now, result)
	return of
}

// withhold keeps an object as it stood, of which the sender told something else, by which it is refused or hollow.
func (r *Replica) withhold(k *kind, key Key, stood, told held, back withheld, most int, now time.Time, result *Result) {
	fresh := back.since.IsZero()
	if fresh {
		back.since = now
	}
	back.next = nil
	if told.object != nil {
		back.next = &told
		k.told.Add(told.told)
		k.count++
	}
	k.withhold(key, stood, back)
	if fresh {
		r.braked(k, key.Kind, 1, most, result)
	}
}

// refuseAll remembers and tells why an object was refused, in whole or in part.
func (c *contents) refuseAll(key Key, refusals []admission.Refusal, told held, lacks *need, now time.Time, result *Result) {
	for i, refusal := range refusals {
		as := Refused{key.short(), refusal.Code, refusal.Reason, told.revision, now}
		if i == 0 {
			c.refuse(refused{as, told.told, lacks}, told.object != nil)
		}
		result.Refused = append(result.Refused, as)
		result.Responses = append(result.Responses, &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Refusal{
			Refusal: &semaphorev1.Refusal{Key: as.Key.Proto(), Revision: told.revision, Code: string(refusal.Code), Reason: refusal.Reason},
		}})
	}
}

// takeOver replaces what is held of a kind by a whole snapshot. The difference becomes changes: what has gone first, then
// what is new or other, in the order of the sender's journal. The brake may hold back what the snapshot lacks, or has empty.
func (r *Replica) takeOver(k *kind, s *staging, now time.Time, result *Result) {
	most := k.watermark(now)
	brakes := r.brake.Brakes(most-s.wanted(), most)
	var gone, back, released []Key
	for key, h := range k.objects {
		is, told := s.objects[key]
		w, was := k.back[key]
		switch {
		case isHollow(h.object) && !told:
			gone = append(gone, key)
		case isHollow(h.object), told && !isHollow(is.object):
		case was && now.Sub(w.since) >= r.brake.Hold.Duration:
			released = append(released, key)
		case was || brakes:
			back = append(back, key)
		case !told:
			gone = append(gone, key)
		}
	}
	old := k.contents
	k.contents = s.contents
	k.complete = true
	// What is exported comes first; what is held back has what room is left.
	slices.SortFunc(back, Key.Compare)
	fresh := 0
	for _, key := range back {
		w, was := old.back[key]
		is, told := k.objects[key]
		room := needOf(old.objects[key].object)
		if w.next = nil; told {
			w.next = &is
			room.add(needOf(is.object), -1)
		}
		if k.lacks(room) != "" {
			released = append(released, key)
			continue
		}
		if !was {
			w.since = now
			fresh++
		}
		if told {
			k.account(is.object, -1)
		}
		k.withhold(key, old.objects[key], w)
	}
	if fresh > 0 {
		r.braked(k, s.kind, fresh, most, result)
	}
	if len(released) > 0 {
		k.released(now)
		result.Released = append(result.Released, Released{s.kind, len(released), "another whole snapshot lacks them still, or their room is needed"})
	}
	for _, key := range released {
		if _, told := k.objects[key]; !told {
			gone = append(gone, key)
		}
	}
	slices.SortFunc(gone, Key.Compare)
	for _, key := range gone {
		result.Changes = append(result.Changes, Change{Key: key, Old: old.objects[key].object})
	}
	result.Changes = append(result.Changes, s.changed(old.objects, k.back)...)
}

// changed are the objects of a snapshot that are new or other, in the order of the sender's journal, but for those that the
// brake holds as they were.
func (s *staging) changed(old map[Key]held, back map[Key]withheld) []Change {
	type step struct {
		revision uint64
		Change
	}
	var steps []step
	for key, h := range s.objects {
		if _, is := back[key]; is {
			continue
		}
		before, had := old[key]
		if !had || !proto.Equal(before.object, h.object) {
			steps = append(steps, step{h.revision, Change{key, before.object, h.object, s.observed[key]}})
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Compare(a.revision, b.revision) })
	changes := make([]Change, 0, len(steps))
	for _, st := range steps {
		changes = append(changes, st.Change)
	}
	return changes
}
