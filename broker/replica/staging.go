package replica

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/internal/stream/digest"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// staging is a snapshot that has not ended.
type staging struct {
	contents
	kind     semaphorev1.Kind
	revision uint64
	last     uint64
	sent     uint64
	observed map[Key]time.Time
	// newcomers are the objects that were given more of a resource than stood of them, in the order they came.
	newcomers map[scarce][]Key
}

// scarce is a resource of the whole kind, or the addresses of a group.
type scarce struct {
	resource
	group groupName
}

func newStaging(of semaphorev1.Kind, revision uint64, l limit) *staging {
	return &staging{contents: newContents(l), kind: of, revision: revision, observed: map[Key]time.Time{}, newcomers: map[scarce][]Key{}}
}

// stage puts an object through admission and into a snapshot to come, and returns whether something of it is held. Whatever the
// order of the snapshot, what stood keeps its room: what is new and came earlier gives it back.
func (r *Replica) stage(s *staging, o *semaphorev1.Object, revision uint64, now time.Time, result *Result) bool {
	key := KeyOf(o.GetKey())
	var stood *semaphorev1.Object
	if k, ok := r.kinds[key.Kind]; ok {
		stood = k.objects[key].object // the snapshot is to replace it
	}
	taken, refusals := r.admit(o)
	told := held{taken, revision, digest.Of(o)}
	var lacks *need
	if taken != nil {
		n := needOf(taken)
		if s.lacks(n) != "" && stood != nil {
			r.makeRoom(s, common(taken, stood), now, result)
		}
		if reason := s.lacks(n); reason != "" {
			told.object, lacks = s.fitting(taken, stood), &n
			refusals = append([]admission.Refusal{{Code: admission.OverQuota, Reason: reason}}, refusals...)
		}
	}
	if told.object != nil {
		s.hold(key, told)
		for _, more := range growth(stood, told.object) {
			s.newcomers[more] = append(s.newcomers[more], key)
		}
	}
	s.refuseAll(key, refusals, told, lacks, now, result)
	return told.object != nil
}

// growth is what an object has more of than what stood of it, if anything did.
func growth(stood, is *semaphorev1.Object) (more []scarce) {
	n := needOf(is)
	var was need
	if stood != nil {
		was = needOf(stood)
	}
	for _, r := range []struct {
		resource
		was, is int
	}{{ofObjects, was.objects, n.objects}, {ofAddresses, was.addresses, n.addresses}, {ofClusterIPs, was.clusterIPs, n.clusterIPs}, {ofBytes, was.bytes, n.bytes}} {
		if r.is > r.was {
			more = append(more, scarce{resource: r.resource})
		}
	}
	if n.group != (groupName{}) && n.addresses > 0 && (n.group != was.group || n.addresses > was.addresses) {
		more = append(more, scarce{ofGroup, n.group})
	}
	return more
}

// makeRoom takes back what newcomers were given, from the last, until there is room for what stood of an object.
func (r *Replica) makeRoom(s *staging, stood *semaphorev1.Object, now time.Time, result *Result) {
	if stood == nil {
		return
	}
	n := needOf(stood)
	for {
		of := scarce{resource: s.lacking(n)}
		if of.resource == ofGroup {
			of.group = n.group
		}
		all := s.newcomers[of]
		if len(all) == 0 { // there is enough, or nobody to take it from
			return
		}
		why, key := s.lacks(n), all[len(all)-1]
		s.newcomers[of] = all[:len(all)-1]
		r.displace(s, key, why, now, result)
	}
}

// displace leaves of a newcomer what stood of it, if anything, and refuses the rest.
func (r *Replica) displace(s *staging, key Key, why string, now time.Time, result *Result) {
	h, ok := s.objects[key]
	if !ok {
		return // it was displaced already
	}
	lacks, left := needOf(h.object), h
	left.object = nil
	if k, ok := r.kinds[key.Kind]; ok && k.objects[key].object != nil {
		left.object = common(h.object, k.objects[key].object)
	}
	if left.object != nil && proto.Equal(left.object, h.object) {
		return
	}
	s.remove(key)
	delete(s.observed, key)
	if left.object != nil {
		s.hold(key, left)
	}
	s.refuseAll(key, []admission.Refusal{{Code: admission.OverQuota, Reason: why}}, left, &lacks, now, result)
}
