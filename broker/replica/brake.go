package replica

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gaissmai/bart"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The brake (R24) retains objects when a remote withdraws most of its exports of a kind: lost rights or a mistyped
// selector are more likely than that they are all unused. An object that becomes empty (a slice without endpoints, a
// node without a key) or is refused counts as withdrawn.
//
// The net difference counts: how far the number of exported objects falls below its peak of the last minute. Objects
// that are replaced by others, such as pods in a rollout, are not withdrawn. Of a snapshot that goes too far, all
// withdrawals are retained; of single changes, those that go too far.
//
// A retained object remains unchanged, whatever happens to the stream, until the remote exports it again, or exports
// so many objects again that the rest is no mass withdrawal, or confirms the withdrawal with another complete snapshot
// at least Brake.Hold later, or an operator releases it. It is also released when its room is needed for objects that
// the remote exports, and a node when its key or a pod CIDR is.
//
// A kind that the remote's exporter no longer exports is retained completely until the operator releases it. Then it is
// complete, as after a snapshot without objects.

// brakeWindow is how long the peak of exported objects is remembered.
const brakeWindow = time.Minute

// Retained reports that the brake begins to retain objects, or retains more.
type Retained struct {
	Kind semaphorev1.Kind
	// Objects of this message, Total of all retained objects, Peak of objects exported before.
	Objects, Total, Peak int
	// Unexported means that the remote's exporter no longer exports the kind.
	Unexported bool
}

type Released struct {
	Kind    semaphorev1.Kind
	Objects int
	// Reason completes a sentence, such as "confirmed by another snapshot".
	Reason string
}

// markUnexported notes which kinds a stream does not export. Those that the exporter has not read yet will follow.
func (r *Replica) markUnexported(h *semaphorev1.Hello, now time.Time, result *Result) {
	for _, of := range semaphorev1.Kinds {
		k, lacks := r.kind(of), !slices.Contains(h.GetKinds(), of) && !slices.Contains(h.GetUnreadKinds(), of)
		if lacks {
			k.forgetRefused()
		}
		if k.unexported == lacks && !k.since.IsZero() {
			continue
		}
		if k.unexported, k.since = lacks, now; !lacks {
			continue
		}
		if n := len(k.objects) - k.empty; n > 0 {
			result.Retained = append(result.Retained, Retained{of, n, n, n, true})
		} else if len(k.objects) == 0 {
			k.abandon(of, result)
		}
	}
}

// forgetRefused forgets the refused objects of a kind that the exporter does not export: they are withdrawn, too. A
// held object keeps the refusal of its other part while it is held.
func (k *kind) forgetRefused() {
	for key := range k.refused {
		if _, held := k.objects[key]; !held {
			k.forget(key)
			k.resync = resyncFully // the exporter may continue the journal that has it
		}
	}
	if k.notRemembered.count() > 0 {
		k.notRemembered, k.changed, k.resync = uncounted{}, true, resyncFully
	}
}

// abandon retains all objects of a kind that the exporter does not export, to be released, and completes the kind,
// unless it was never known: agents have no device for its nodes.
func (k *kind) abandon(of semaphorev1.Kind, result *Result) {
	for key := range k.objects {
		k.forget(key)
		k.retained[key] = retention{since: k.since}
		k.resync = resyncFully // the exporter may have what is removed then
	}
	if !k.complete && k.restored {
		k.complete, result.Completed = true, of
	}
}

// watermark returns the peak of exported objects in the last minute. It must be called before an object is withdrawn.
func (k *kind) watermark(now time.Time) int {
	if n := k.exported(); n >= k.peak || now.Sub(k.peakAt) > brakeWindow {
		k.peak, k.peakAt = n, now
	}
	return k.peak
}

// recordRetained adds newly retained objects to the result; most is the peak before.
func (r *Replica) recordRetained(k *kind, of semaphorev1.Kind, objects, most int, result *Result) {
	k.peakBeforeBrake = max(k.peakBeforeBrake, most)
	for i := range result.Retained {
		if h := &result.Retained[i]; h.Kind == of {
			h.Objects += objects
			h.Total, h.Peak = len(k.retained), k.peakBeforeBrake
			return
		}
	}
	result.Retained = append(result.Retained, Retained{of, objects, len(k.retained), k.peakBeforeBrake, false})
}

// withdraw handles the deletion of an object. It retains the object and returns false, or returns true if it may be
// removed.
func (r *Replica) withdraw(k *kind, key Key, now time.Time, result *Result) (remove bool) {
	h, ok := k.objects[key]
	if !ok || isEmpty(h.object) {
		return true
	}
	if _, back := k.retained[key]; back {
		k.forget(key)
		return false
	}
	most := k.watermark(now)
	if !r.brake.Brakes(most-(k.exported()-1), most) {
		return true
	}
	k.forget(key)
	k.retained[key] = retention{since: now}
	r.recordRetained(k, key.Kind, 1, most, result)
	return false
}

// releaseSince removes the objects that are retained since a time or longer.
func (k *kind) releaseSince(latest time.Time, of semaphorev1.Kind, now time.Time, why string, result *Result) {
	if k.releaseIf(func(key Key) bool { return !k.retained[key].since.After(latest) }, of, why, result) {
		k.resetPeak(now)
	}
}

// releaseIf removes those of the retained objects that are free to go.
func (k *kind) releaseIf(goes func(Key) bool, of semaphorev1.Kind, why string, result *Result) bool {
	free := slices.SortedFunc(maps.Keys(k.retained), Key.Compare)
	if free = slices.DeleteFunc(free, func(key Key) bool { return !goes(key) }); len(free) == 0 {
		return false
	}
	for _, key := range free {
		result.Changes = append(result.Changes, k.release(key))
	}
	result.Released = append(result.Released, Released{of, len(free), why})
	return true
}

// releaseReplaced removes the retained nodes whose key or pod CIDR another node has that the remote exports: the two
// cannot both have it.
func (k *kind) releaseReplaced(of semaphorev1.Kind, result *Result) {
	if of != semaphorev1.Kind_KIND_NODE || len(k.retained) == 0 {
		return
	}
	keys, cidrs := map[string]bool{}, &bart.Lite{}
	for key, h := range k.objects {
		if _, back := k.retained[key]; !back && !isEmpty(h.object) {
			keys[string(h.object.GetNode().GetWireguard().GetPublicKey())] = true
			for _, cidr := range h.object.GetNode().GetPodCidrs() {
				if prefix, err := netip.ParsePrefix(cidr); err == nil {
					cidrs.Insert(prefix)
				}
			}
		}
	}
	delete(keys, "")
	k.releaseIf(func(key Key) bool {
		n := k.objects[key].object.GetNode()
		return keys[string(n.GetWireguard().GetPublicKey())] || slices.ContainsFunc(n.GetPodCidrs(), func(cidr string) bool {
			prefix, err := netip.ParsePrefix(cidr)
			return err == nil && cidrs.OverlapsPrefix(prefix)
		})
	}, of, "another node has their key or pod CIDR", result)
}

// resetPeak makes the current number of exported objects the reference for later withdrawals.
func (k *kind) resetPeak(now time.Time) {
	k.peak, k.peakAt = k.exported(), now
	if len(k.retained) == 0 {
		k.peakBeforeBrake = 0
	}
}

// releaseIfRecovered removes the retained objects that others replace, and all once the sender exports enough again.
func (r *Replica) releaseIfRecovered(k *kind, of semaphorev1.Kind, now time.Time, result *Result) {
	k.releaseReplaced(of, result)
	if n := len(k.retained); n == 0 || r.brake.Brakes(k.peakBeforeBrake-k.exported(), k.peakBeforeBrake) ||
		r.brake.Brakes(n, len(k.objects)) {
		return
	}
	k.releaseSince(now, of, now, "the remote exports enough again", result)
}

// releaseConfirmed removes the retained objects that a complete snapshot lacks and that were withdrawn at least
// Brake.Hold ago.
func (r *Replica) releaseConfirmed(k *kind, of semaphorev1.Kind, now time.Time, result *Result) {
	k.releaseSince(now.Add(-r.brake.Hold.Duration), of, now, "another complete snapshot lacks them", result)
}

// confirmable reports whether another snapshot would release an object.
func (r *Replica) confirmable(k *kind, now time.Time) bool {
	for _, w := range k.retained {
		if now.Sub(w.since) >= r.brake.Hold.Duration {
			return true
		}
	}
	return false
}

type RetainedObjects struct {
	// Keys are the first of Total objects, sorted.
	Keys  []Key
	Total int
	// Since is when the first of them was withdrawn.
	Since time.Time
	// Unexported is as in Retained.
	Unexported bool
}

// Retained returns the objects of a kind that the brake retains, with at most limit keys.
func (r *Replica) Retained(of semaphorev1.Kind, limit int) (b RetainedObjects) {
	k := r.kind(of)
	for _, w := range k.retained {
		if b.Since.IsZero() || w.since.Before(b.Since) {
			b.Since = w.since
		}
	}
	keys := maps.Keys(k.retained)
	b.Total, b.Unexported = len(k.retained), k.unexported
	if b.Unexported {
		keys = maps.Keys(k.objects)
		if b.Total = len(k.objects) - k.empty; b.Since.IsZero() {
			b.Since = k.since
		}
	}
	if limit == 0 {
		return b
	}
	for key := range keys { // without a sort: each view of a link asks
		if n := len(b.Keys); n == limit && key.Compare(b.Keys[n-1]) > 0 || isEmpty(k.objects[key].object) {
			continue
		}
		i, _ := slices.BinarySearchFunc(b.Keys, key, Key.Compare)
		b.Keys = slices.Insert(b.Keys, i, key)
		b.Keys = b.Keys[:min(limit, len(b.Keys))]
	}
	return b
}

// Release removes the retained objects of a kind by order of an operator.
func (r *Replica) Release(now time.Time, of semaphorev1.Kind) (result Result) {
	k := r.kind(of)
	if k.unexported {
		k.abandon(of, &result)
	}
	k.releaseSince(now, of, now, "released by the operator", &result)
	return result
}

// errResync ends a stream so that the sender begins another with snapshots.
func errResync(why string) error {
	return status.Errorf(codes.Aborted, "%s: send snapshots on another stream", why)
}

// Resync makes the next stream begin with snapshots of all kinds, or their digests, and returns the error that ends
// this one; nil if the last snapshots are too recent.
func (r *Replica) Resync(now time.Time, why string) error {
	asked := false
	for of, k := range r.kinds {
		if r.current != nil && !r.current.exported[of] {
			continue
		}
		if now.Sub(k.snapshotAt) >= minResyncInterval {
			k.resync = max(k.resync, resyncByDigest)
			asked = true
		}
	}
	if !asked {
		return nil
	}
	return errResync(why)
}

// requestResync ends the stream if retained or refused objects need a snapshot to be decided.
func (s *Session) requestResync(now time.Time) error {
	var why []string
	for _, of := range semaphorev1.Kinds {
		k, ok := s.replica.kinds[of]
		if !ok || !s.exported[of] {
			continue
		}
		age := now.Sub(k.snapshotAt)
		if age >= minResyncInterval && s.replica.confirmable(k, now) {
			k.resync = max(k.resync, resyncByDigest)
			why = append(why, fmt.Sprintf("the brake retains %d withdrawn %ss", len(k.retained), semaphorev1.KindName(of)))
		}
		if age >= max(minResyncInterval, k.resyncInterval) && k.roomForRefused() {
			k.resync = resyncFully
			why = append(why, fmt.Sprintf("the limits have room again for %ss", semaphorev1.KindName(of)))
		}
	}
	if len(why) == 0 {
		return nil
	}
	return errResync(strings.Join(why, ", "))
}
