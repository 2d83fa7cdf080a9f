package replica

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The brake (R24) holds back a withdrawal of most of what a remote exports of a kind: more likely than the end of it
// all are rights that were lost or a selector that was mistyped. An object that is emptied (a slice without endpoints, a node without
// a key) or told so that it is refused counts like one that is withdrawn.
//
// What counts is the net of it: by how much what the sender exports falls short of the most that it exported in the
// last minute. Objects that are replaced by others, as pods are in a rollout, are not withdrawn. A snapshot that
// would go too far withdraws nothing; of single changes those are held back that go too far.
//
// What is held back stays as it was, whatever becomes of the stream, until the sender tells of it again, or
// exports so much again that the rest is no mass withdrawal, or confirms it with another whole snapshot no sooner
// than Brake.Hold after, or the operator releases it. Or until its room is needed for what the sender does export.

// brakeWindow is how long the most that was exported is remembered.
const brakeWindow = time.Minute

// HeldBack tells that the brake has begun to hold, or holds more.
type HeldBack struct {
	Kind semaphorev1.Kind
	// Objects are those of this message, Total all that are held back, Of the most that was exported before.
	Objects, Total, Of int
}

// Released tells that objects that were held back have gone.
type Released struct {
	Kind    semaphorev1.Kind
	Objects int
	// Why is a sentence's end, such as "confirmed by another snapshot".
	Why string
}

// watermark is the most objects that the sender exported in the last minute; to be asked before it withdraws one.
func (k *kind) watermark(now time.Time) int {
	if n := k.wanted(); n >= k.most || now.Sub(k.mostAt) > brakeWindow {
		k.most, k.mostAt = n, now
	}
	return k.most
}

// braked notes that objects were held back when most were exported before.
func (r *Replica) braked(k *kind, of semaphorev1.Kind, objects, most int, result *Result) {
	k.mostBraked = max(k.mostBraked, most)
	for i := range result.HeldBack {
		if h := &result.HeldBack[i]; h.Kind == of {
			h.Objects += objects
			h.Total, h.Of = len(k.back), k.mostBraked
			return
		}
	}
	result.HeldBack = append(result.HeldBack, HeldBack{of, objects, len(k.back), k.mostBraked})
}

// withdraw holds an object back that the sender has deleted, or says that it may go.
func (r *Replica) withdraw(k *kind, key Key, now time.Time, result *Result) (gone bool) {
	h, ok := k.objects[key]
	if !ok || isHollow(h.object) {
		return true
	}
	if _, back := k.back[key]; back {
		k.forget(key)
		return false
	}
	most := k.watermark(now)
	if !r.brake.Brakes(most-(k.wanted()-1), most) {
		return true
	}
	k.forget(key)
	k.back[key] = withheld{since: now}
	r.braked(k, key.Kind, 1, most, result)
	return false
}

// letGo gives up those of the objects held back that which says.
func (r *Replica) letGo(k *kind, of semaphorev1.Kind, now time.Time, why string, which func(since time.Time) bool, result *Result) {
	var free []Key
	for key, w := range k.back {
		if which(w.since) {
			free = append(free, key)
		}
	}
	if len(free) == 0 {
		return
	}
	slices.SortFunc(free, Key.Compare)
	for _, key := range free {
		result.Changes = append(result.Changes, k.release(key))
	}
	result.Released = append(result.Released, Released{of, len(free), why})
	k.released(now)
}

// released makes what is exported now the measure of what comes.
func (k *kind) released(now time.Time) {
	k.most, k.mostAt = k.wanted(), now
	if len(k.back) == 0 {
		k.mostBraked = 0
	}
}

func all(time.Time) bool { return true }

// recover lets go what is held back once the sender exports enough again.
func (r *Replica) recover(k *kind, of semaphorev1.Kind, now time.Time, result *Result) {
	if n := len(k.back); n == 0 || r.brake.Brakes(k.mostBraked-k.wanted(), k.mostBraked) || r.brake.Brakes(n, len(k.objects)) {
		return
	}
	r.letGo(k, of, now, "the remote exports enough again", all, result)
}

// confirm lets go what a whole snapshot lacks that was lacking Brake.Hold ago.
func (r *Replica) confirm(k *kind, of semaphorev1.Kind, now time.Time, result *Result) {
	r.letGo(k, of, now, "another whole snapshot lacks them still", func(since time.Time) bool {
		return now.Sub(since) >= r.brake.Hold.Duration
	}, result)
}

// due says whether another snapshot would let something go.
func (r *Replica) due(k *kind, now time.Time) bool {
	for _, w := range k.back {
		if now.Sub(w.since) >= r.brake.Hold.Duration {
			return true
		}
	}
	return false
}

// Back is what the brake holds of a kind.
type Back struct {
	// Keys are some of the objects, in order, of Total.
	Keys  []Key
	Total int
	// Since is when the first of them was withdrawn.
	Since time.Time
}

// HeldBack is what the brake holds of a kind, with at most limit keys.
func (r *Replica) HeldBack(of semaphorev1.Kind, limit int) Back {
	var b Back
	k, ok := r.kinds[of]
	if !ok {
		return b
	}
	for _, w := range k.back {
		if b.Since.IsZero() || w.since.Before(b.Since) {
			b.Since = w.since
		}
	}
	if b.Total = len(k.back); limit > 0 {
		b.Keys = slices.SortedFunc(maps.Keys(k.back), Key.Compare)
		b.Keys = b.Keys[:min(limit, b.Total)]
	}
	return b
}

// Release lets go what the brake holds of some kinds, of all when none is named, as the operator wants it.
func (r *Replica) Release(now time.Time, kinds ...semaphorev1.Kind) Result {
	var result Result
	for _, of := range Kinds {
		if k, ok := r.kinds[of]; ok && (len(kinds) == 0 || slices.Contains(kinds, of)) {
			r.letGo(k, of, now, "released by the operator", all, &result)
		}
	}
	return result
}

// errAnew ends a stream so that the sender begins another, with snapshots.
func errAnew(why string) error {
	return status.Errorf(codes.Aborted, "%s: all is to be told anew on another stream", why)
}

// Anew makes the next stream begin with snapshots of all kinds, or with digests for them, and returns the error
// that ends this one; nil when the last snapshots are too young for that.
func (r *Replica) Anew(now time.Time, why string) error {
	asked := false
	for _, k := range r.kinds {
		if now.Sub(k.snapshotAt) >= minAnew {
			k.anew = max(k.anew, withDigest)
			asked = true
		}
	}
	if !asked {
		return nil
	}
	return errAnew(why)
}

// anew ends the stream when something that is held back, or was refused for want of room, needs a snapshot.
func (s *Session) anew(now time.Time) error {
	var why []string
	for _, of := range Kinds {
		k, ok := s.replica.kinds[of]
		if !ok || !s.exported[of] {
			continue
		}
		age := now.Sub(k.snapshotAt)
		if age >= minAnew && s.replica.due(k, now) {
			k.anew = max(k.anew, withDigest)
			why = append(why, fmt.Sprintf("%d %ss that were withdrawn are held back", len(k.back), semaphorev1.KindName(of)))
		}
		if age >= max(minAnew, k.patience) && k.room() {
			k.anew = whole
			why = append(why, fmt.Sprintf("there is room again for %ss", semaphorev1.KindName(of)))
		}
	}
	if len(why) == 0 {
		return nil
	}
	return errAnew(strings.Join(why, ", "))
}
