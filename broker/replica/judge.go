package replica

import (
	"maps"
	"slices"
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Judge replaces the admission by one with other bounds, and judges the held objects by it. An object that it refuses
// is withdrawn at once, also a retained one: the bounds are the operator's word, which the brake does not delay. It may
// accept more than the held objects: how much more is unknown, as nothing refused is kept. So the present stream has no
// effect any more, and the next one must begin with a snapshot of each kind. Until its end mark, objects within the
// bounds stay.
func (r *Replica) Judge(now time.Time, admit Admit) Result {
	r.admit, r.current = admit, nil
	var result Result
	for _, of := range semaphorev1.Kinds {
		k, ok := r.kinds[of]
		if !ok {
			continue
		}
		k.resync = resyncFully
		for _, key := range slices.SortedFunc(maps.Keys(k.objects), Key.Compare) {
			r.judge(k, key, now, &result)
		}
		// An object that the operator took away is no withdrawal by the remote.
		k.resetPeak(now)
		k.peakBeforeBrake = min(k.peakBeforeBrake, len(k.objects)-k.empty)
	}
	return result
}

// judge reduces one held object to its accepted parts.
func (r *Replica) judge(k *kind, key Key, now time.Time, result *Result) {
	h := k.objects[key]
	taken, refusals := r.admit(h.object)
	if len(refusals) == 0 {
		return
	}
	_, back := k.retained[key]
	switch {
	case back && (taken == nil || isEmpty(taken)):
		result.Changes = append(result.Changes, k.release(key))
		return
	case back:
		k.account(h.object, -1)
		k.account(taken, 1)
		k.objects[key] = held{taken, h.revision, h.sentDigest}
	default:
		k.remove(key)
		if taken != nil {
			k.add(key, held{taken, h.revision, h.sentDigest})
		}
		k.refuseAll(key, refusals, held{taken, h.revision, h.sentDigest}, nil, now, result)
	}
	result.Changes = append(result.Changes, Change{Key: key, Old: h.object, New: taken})
}
