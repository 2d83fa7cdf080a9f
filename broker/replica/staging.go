package replica

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// staging is a snapshot in progress.
type staging struct {
	contents
	kind     semaphorev1.Kind
	revision uint64
	last     uint64
	sent     uint64
	observed map[Key]time.Time
	// newcomers are the objects that use more of a resource than their earlier state, in the order of arrival.
	newcomers map[limitedResource][]Key
}

// limitedResource is a resource of the whole kind, or the addresses of a group.
type limitedResource struct {
	resource admission.Resource
	group    admission.Group
}

func resourceOf(of admission.Resource, group admission.Group) limitedResource {
	if of != admission.GroupAddresses {
		group = admission.Group{}
	}
	return limitedResource{of, group}
}

func newStaging(of semaphorev1.Kind, revision uint64, l limit) *staging {
	return &staging{contents: newContents(l), kind: of, revision: revision, observed: map[Key]time.Time{},
		newcomers: map[limitedResource][]Key{}}
}

// stage passes an object through admission and limits into the snapshot in progress, and reports whether any of it was
// accepted. Existing objects keep their room whatever the order of the snapshot: newcomers that arrived earlier give
// it back.
func (r *Replica) stage(s *staging, o *semaphorev1.Object, revision uint64, now time.Time, result *Result) bool {
	key := KeyOf(o.GetKey())
	previous := r.known(key.Kind).objects[key].object // the snapshot will replace it
	taken, refusals, lacks := r.admitWithin(&s.contents, o, previous, func(taken *semaphorev1.Object) {
		r.makeRoom(s, admission.ExistingPart(taken, previous), now, result)
	})
	received := held{taken, revision, streams.DigestOf(o)}
	if taken != nil {
		s.add(key, received)
		for _, more := range growth(previous, taken) {
			s.newcomers[more] = append(s.newcomers[more], key)
		}
	}
	s.refuseAll(key, refusals, received, lacks, now, result)
	return taken != nil
}

// growth returns the resources of which an object uses more than its earlier state, if there was one.
func growth(previous, is *semaphorev1.Object) (more []limitedResource) {
	n := admission.NeedOf(is)
	var was admission.Need
	if previous != nil {
		was = admission.NeedOf(previous)
	}
	if n.Group != was.Group {
		was.Use[admission.GroupAddresses] = 0
	}
	for of := admission.Objects; of < admission.Resources; of++ {
		if n.Use[of] > was.Use[of] {
			more = append(more, resourceOf(of, n.Group))
		}
	}
	return more
}

// makeRoom displaces newcomers, the last first, until the existing part of an object fits.
func (r *Replica) makeRoom(s *staging, previous *semaphorev1.Object, now time.Time, result *Result) {
	if previous == nil {
		return
	}
	n := admission.NeedOf(previous)
	for {
		of := resourceOf(s.exceeded(n), n.Group)
		all := s.newcomers[of]
		if len(all) == 0 { // it fits, or no newcomer can be displaced
			return
		}
		why, key := s.overLimitReason(n), all[len(all)-1]
		s.newcomers[of] = all[:len(all)-1]
		r.displace(s, key, why, now, result)
	}
}

// displace reduces a newcomer to its existing part, if any, and refuses the rest.
func (r *Replica) displace(s *staging, key Key, why string, now time.Time, result *Result) {
	h, ok := s.objects[key]
	if !ok {
		return // it was displaced already
	}
	lacks, left := admission.NeedOf(h.object), h
	left.object = admission.ExistingPart(h.object, r.known(key.Kind).objects[key].object)
	if left.object != nil && proto.Equal(left.object, h.object) {
		return
	}
	s.remove(key)
	delete(s.observed, key)
	if left.object != nil {
		s.add(key, left)
	}
	s.refuseAll(key, []admission.Refusal{{Code: finding.OverLimit, Reason: why}}, left, &lacks, now, result)
}
