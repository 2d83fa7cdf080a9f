// Package replica holds the objects that one remote cluster exports, as its exporter's streams send them.
//
// It is pure: a state machine that takes the messages of federation.proto, and returns the responses to send and the
// changes of accepted objects. It starts no goroutine, reads no clock and opens no socket; time is an argument. It is
// not safe for concurrent use: its caller owns it.
//
// It fails static: a snapshot is staged and applied completely at its end mark, as a difference. Until then, and
// whenever a stream ends, the accepted objects remain.
//
// Queue holds the changes between the replicas and one engine. Goroutines share it, and its Run waits.
package replica

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Key names an object of the remote cluster.
type Key struct {
	Kind            semaphorev1.Kind
	Namespace, Name string
}

func KeyOf(k *semaphorev1.ObjectKey) Key { return Key{k.GetKind(), k.GetNamespace(), k.GetName()} }

// String returns text such as "service shop/echo" or "node n1".
func (k Key) String() string {
	if k.Namespace == "" {
		return semaphorev1.KindName(k.Kind) + " " + k.Name
	}
	return semaphorev1.KindName(k.Kind) + " " + k.Namespace + "/" + k.Name
}

// tooLong reports whether a part of the key exceeds the limit of names, so that no object can have it.
func (k Key) tooLong() bool { return len(k.Namespace) > maxName || len(k.Name) > maxName }

// truncated returns the key for messages: of a key that no object can have, as much as fits.
func (k Key) truncated() Key {
	if !k.tooLong() {
		return k
	}
	return Key{k.Kind, finding.CleanTo(k.Namespace, maxName), finding.CleanTo(k.Name, maxName)}
}

func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Kind, o.Kind), cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Name, o.Name))
}

// Change is one change of the accepted objects. Objects are immutable once accepted.
type Change struct {
	Key Key
	// Old is nil for a new object, New for a deleted one.
	Old, New *semaphorev1.Object
	// ObservedAt is when the source observed the change, on its own clock. It is zero if the source did not say, for an
	// object that a snapshot lacks, and for the first snapshot of a kind, whose objects may have existed for long.
	ObservedAt time.Time
}

// Refused is an object that was refused, completely or in part.
type Refused struct {
	Key      Key
	Code     finding.Code
	Reason   string
	Revision uint64
	// At is the time of the refusal on the broker's clock.
	At time.Time
	// ObservedAt is when the source observed the refused object, on its own clock; zero if the source did not say, and in
	// a snapshot.
	ObservedAt time.Time
}

// Admit decides whether an object is accepted; see admission.Checker.
type Admit func(*semaphorev1.Object) (taken *semaphorev1.Object, refusals []admission.Refusal)

type Replica struct {
	cluster, self, software string
	admit                   Admit
	limits                  config.Limits
	brake                   config.Brake
	kinds                   map[semaphorev1.Kind]*kind
	current                 *Session
}

type kind struct {
	contents
	// complete means that a snapshot was applied at least once: an object that is absent does not exist. restored means
	// that Restore was called for the kind.
	complete, restored bool
	// epoch and revision are the position in the sender's journal.
	epoch    string
	revision uint64
	// past are the positions in the journals of earlier senders, oldest first.
	past []position
	// source identifies the sender's source, and how far it has read.
	source source
	// lastHeard is when the sender last sent a message while it was complete for this kind; snapshotAt is when its
	// last snapshot ended.
	lastHeard, snapshotAt time.Time
	// unexported means that the last stream does not export the kind, nor will once it is read. It is so since the stream
	// that began then; zero for none.
	unexported bool
	since      time.Time
	// resync means that the sender must send the kind again. resyncInterval is the minimal age of the snapshot before
	// another is requested to fill free room; it grows while that does not help.
	resync         resyncMode
	resyncInterval time.Duration
	// peak is the largest number of exported objects since peakAt; peakBeforeBrake is its value before the brake began
	// to retain.
	peak, peakBeforeBrake int
	peakAt                time.Time
}

type position struct {
	epoch    string
	revision uint64
}

// maxPast is the number of earlier epochs kept of a kind: more than there can be exporters with delayed streams.
const maxPast = 16

// received is the revision up to which the journal of an epoch was received; 0 if unknown.
func (k *kind) received(epoch string) uint64 {
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

// setPosition records that the journal of an epoch was received up to a revision.
func (k *kind) setPosition(epoch string, revision uint64) {
	if k.epoch != epoch {
		k.past = slices.DeleteFunc(k.past, func(p position) bool { return p.epoch == epoch })
		if k.epoch != "" {
			k.past = append(k.past, position{k.epoch, k.revision})
		}
		k.past = k.past[max(0, len(k.past)-maxPast):]
	}
	k.epoch, k.revision = epoch, revision
}

// resyncMode is how much of a kind must be sent again.
type resyncMode int

const (
	noResync       resyncMode = iota
	resyncByDigest            // a digest suffices
	resyncFully
)

type source struct {
	id       string
	revision uint64
}

// advance records how far a sender has read; for one source this only grows.
func (s *source) advance(id string, revision uint64) {
	if s.id != id {
		*s = source{id: id}
	}
	s.revision = max(s.revision, revision)
}

// New makes the empty replica of cluster for the broker of self, without limits and with the brake off.
func New(cluster, self, softwareVersion string, admit Admit) *Replica {
	return &Replica{
		cluster: cluster, self: self, software: softwareVersion, admit: admit,
		brake: config.Brake{Percent: 100}, kinds: map[semaphorev1.Kind]*kind{},
	}
}

// SetLimits sets limits and brake. A limit of 0 is no limit, and a brake of 0 is off. Held objects stay; new ones are
// checked against the new limits.
func (r *Replica) SetLimits(limits config.Limits, brake config.Brake) {
	if brake.Percent == 0 {
		brake.Percent = 100
	}
	r.limits, r.brake = limits, brake
	for of, k := range r.kinds {
		if is := limitOf(of, limits); is != k.limit {
			k.limit, k.changed, k.resyncInterval = is, true, 0
		}
	}
	if s := r.current; s != nil && s.staging != nil {
		s.staging.limit = limitOf(s.staging.kind, limits)
	}
}

// SetAdmit sets the admission of objects from now on. It must accept the same of the held ones: see Judge.
func (r *Replica) SetAdmit(admit Admit) { r.admit = admit }

// Restore holds the objects of a kind that an earlier broker had of the remote, as far as they are admitted completely
// and within the limits, and returns them as changes. The kind is not complete by that. Its first snapshot is then
// compared with them as any later one is with the held objects, so that the brake covers withdrawals while brokers
// change. It must be called before the first session.
func (r *Replica) Restore(of semaphorev1.Kind, objects []*semaphorev1.Object) (changes []Change) {
	k := r.kind(of)
	k.restored = true
	for _, o := range objects {
		key := KeyOf(o.GetKey())
		taken, refusals := r.admit(o)
		if len(refusals) > 0 || k.exceeded(admission.NeedOf(taken)) != noResource {
			continue
		}
		k.add(key, held{object: taken})
		changes = append(changes, Change{Key: key, New: taken})
	}
	return changes
}

// All iterates over the accepted objects of a kind in no order.
func (r *Replica) All(of semaphorev1.Kind) iter.Seq2[Key, *semaphorev1.Object] {
	return func(yield func(Key, *semaphorev1.Object) bool) {
		for key, h := range r.known(of).objects {
			if !yield(key, h.object) {
				return
			}
		}
	}
}

// Complete reports whether a complete snapshot of a kind was applied: only then does the absence of an object mean
// that it was deleted.
func (r *Replica) Complete(of semaphorev1.Kind) bool { return r.known(of).complete }

// Count returns how many objects of a kind were accepted, and how many were refused completely or in part.
func (r *Replica) Count(of semaphorev1.Kind) (objects, refused int) {
	k := r.known(of)
	return len(k.objects), len(k.refused) + k.notRemembered.count()
}

// Limit returns the limit of objects of a kind; 0 for no limit.
func (r *Replica) Limit(of semaphorev1.Kind) int {
	return limitOf(of, r.limits).of[admission.Objects].most
}

// LastHeard returns when the sender last sent a message while it was complete for a kind, which is the age of the
// accepted objects; zero before.
func (r *Replica) LastHeard(of semaphorev1.Kind) time.Time { return r.known(of).lastHeard }

// AwaitedSince returns from when a message about a kind is due: LastHeard, or when the sender first promised the kind,
// if that is later. It is zero while the sender does not export the kind.
func (r *Replica) AwaitedSince(of semaphorev1.Kind) time.Time {
	k := r.kind(of)
	if k.unexported {
		return time.Time{}
	}
	if k.lastHeard.After(k.since) {
		return k.lastHeard
	}
	return k.since
}

// Refused returns the current refusals sorted by key, up to maxRefused for a kind.
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

// known returns a kind to be read only: of one that no stream had yet, an empty one that is not kept.
func (r *Replica) known(of semaphorev1.Kind) *kind {
	if k, ok := r.kinds[of]; ok {
		return k
	}
	return &kind{}
}

func (r *Replica) kind(of semaphorev1.Kind) *kind {
	k, ok := r.kinds[of]
	if !ok {
		k = &kind{contents: newContents(limitOf(of, r.limits))}
		r.kinds[of] = k
	}
	return k
}

// admitWithin passes an object through admission and limits, and returns its accepted part. makeRoom may make room for
// what admission accepts; lacks is what that needs if there is none.
func (r *Replica) admitWithin(c *contents, o, previous *semaphorev1.Object, makeRoom func(taken *semaphorev1.Object)) (
	taken *semaphorev1.Object, refusals []admission.Refusal, lacks *admission.Need,
) {
	if taken, refusals = r.admit(o); taken == nil {
		return nil, refusals, nil
	}
	n := admission.NeedOf(taken)
	if c.exceeded(n) != noResource {
		makeRoom(taken)
	}
	reason := c.overLimitReason(n)
	if reason == "" {
		return taken, refusals, nil
	}
	// A remote that exceeds a limit loses nothing that works: only the excess is refused.
	refusals = append([]admission.Refusal{{Code: finding.OverLimit, Reason: reason}}, refusals...)
	return c.partThatFits(taken, previous), refusals, &n
}

// accept passes an object through admission and limits, and returns the accepted object.
func (r *Replica) accept(k *kind, o *semaphorev1.Object, revision uint64, now time.Time,
	result *Result) *semaphorev1.Object {
	key := KeyOf(o.GetKey())
	most := k.watermark(now)
	previous, back := k.objects[key], k.retained[key]
	k.remove(key)
	taken, refusals, lacks := r.admitWithin(&k.contents, o, previous.object, func(*semaphorev1.Object) {
		k.releaseSince(now, key.Kind, now, "their room is needed", result)
	})
	received := held{taken, revision, streams.DigestOf(o)}
	of := taken
	switch {
	case previous.object != nil && !isEmpty(previous.object) && (taken == nil || isEmpty(taken)) &&
		(!back.since.IsZero() || r.brake.Brakes(most-k.exported(), most)):
		// An object that becomes empty or refused is withdrawn as much as a deleted one.
		of = previous.object
		r.retain(k, key, previous, received, back, most, now, result)
	case taken != nil:
		k.add(key, received)
	}
	k.refuseAll(key, refusals, received, lacks, now, result)
	return of
}

// retain keeps an object unchanged after the sender sent an empty or refused state of it.
func (r *Replica) retain(k *kind, key Key, previous, received held, back retention, most int, now time.Time,
	result *Result) {
	fresh := back.since.IsZero()
	if fresh {
		back.since = now
	}
	back.replacement = nil
	if received.object != nil {
		back.replacement = &received
		k.sentDigest.Add(received.sentDigest)
		k.count++
	}
	k.retain(key, previous, back)
	if fresh {
		r.recordRetained(k, key.Kind, 1, most, result)
	}
}

// refuseAll remembers why an object was refused, completely or in part, and adds the responses.
func (c *contents) refuseAll(key Key, refusals []admission.Refusal, received held, lacks *admission.Need, now time.Time,
	result *Result) {
	for i, refusal := range refusals {
		as := Refused{Key: key.truncated(), Code: refusal.Code, Reason: refusal.Reason, Revision: received.revision, At: now}
		if i == 0 {
			c.refuse(key, refused{as, received.sentDigest, lacks}, received.object != nil)
		}
		result.Refused = append(result.Refused, as)
		result.refuse(as, received.revision)
	}
}

// applySnapshot replaces the accepted objects of a kind by a complete snapshot. The differences become changes:
// deletions first, then new and changed objects in the order of the sender's journal. The brake may retain objects that
// the snapshot lacks or has empty.
func (r *Replica) applySnapshot(k *kind, s *staging, now time.Time, result *Result) {
	most := k.watermark(now)
	brakes := r.brake.Brakes(most-s.exported(), most)
	var deleted, retained, released []Key
	for key, h := range k.objects {
		is, received := s.objects[key]
		w, was := k.retained[key]
		switch {
		case isEmpty(h.object) && !received:
			deleted = append(deleted, key)
		case isEmpty(h.object), received && !isEmpty(is.object):
		case was && now.Sub(w.since) >= r.brake.Hold.Duration:
			released = append(released, key)
		case was || brakes:
			retained = append(retained, key)
		case !received:
			deleted = append(deleted, key)
		}
	}
	old := k.contents
	k.contents = s.contents
	k.complete = true
	// Exported objects take precedence; retained objects get the remaining room.
	slices.SortFunc(retained, Key.Compare)
	fresh := 0
	for _, key := range retained {
		w, was := old.retained[key]
		is, received := k.objects[key]
		room := admission.NeedOf(old.objects[key].object)
		if w.replacement = nil; received {
			w.replacement = &is
			room.Add(admission.NeedOf(is.object).Use, -1)
		}
		if k.overLimitReason(room) != "" {
			released = append(released, key)
			continue
		}
		if !was {
			w.since = now
			fresh++
		}
		if received {
			k.account(is.object, -1)
		}
		k.retain(key, old.objects[key], w)
	}
	if fresh > 0 {
		r.recordRetained(k, s.kind, fresh, most, result)
	}
	if len(released) > 0 {
		k.resetPeak(now)
		result.Released = append(result.Released,
			Released{s.kind, len(released), "another complete snapshot lacks them, or their room is needed"})
	}
	for _, key := range released {
		if _, received := k.objects[key]; !received {
			deleted = append(deleted, key)
		}
	}
	slices.SortFunc(deleted, Key.Compare)
	for _, key := range deleted {
		result.Changes = append(result.Changes, Change{Key: key, Old: old.objects[key].object})
	}
	result.Changes = append(result.Changes, s.changed(old.objects, k.retained)...)
}

// changed returns the new and changed objects of a snapshot in the order of the sender's journal, without those that
// the brake retains.
func (s *staging) changed(old map[Key]held, back map[Key]retention) []Change {
	type step struct {
		revision uint64
		Change
	}
	var steps []step
	for key, h := range s.objects {
		before, had := old[key]
		if _, is := back[key]; !is && (!had || !proto.Equal(before.object, h.object)) {
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
