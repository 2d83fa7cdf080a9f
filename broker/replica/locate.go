package replica

import (
	"slices"
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type Located struct {
	Key Key
	// Object has the accepted parts; nil for none.
	Object   *semaphorev1.Object
	Revision uint64
	// RetainedSince is when the sender withdrew it, while the brake keeps it; zero if it did not.
	RetainedSince time.Time
	// Refused is the current refusal, of all of it or of a part; nil for none.
	Refused *Refused
}

// Locate returns an object, and a Service with its slices, sorted by key. An object that was neither accepted nor
// refused has neither.
func (r *Replica) Locate(key Key) []Located {
	all := []Located{r.locate(key)}
	if key.Kind == semaphorev1.Kind_KIND_SERVICE {
		for of, object := range r.All(semaphorev1.Kind_KIND_ENDPOINT_SLICE) {
			if of.Namespace == key.Namespace && object.GetEndpointSlice().GetService() == key.Name {
				all = append(all, r.locate(of))
			}
		}
	}
	slices.SortFunc(all, func(a, b Located) int { return a.Key.Compare(b.Key) })
	return all
}

func (r *Replica) locate(key Key) Located {
	l, k := Located{Key: key}, r.known(key.Kind)
	if h, ok := k.objects[key]; ok {
		l.Object, l.Revision = h.object, h.revision
	}
	if l.RetainedSince = k.retained[key].since; k.unexported && l.RetainedSince.IsZero() && l.Object != nil &&
		!isEmpty(l.Object) {
		l.RetainedSince = k.since
	}
	if refused, ok := k.refused[key]; ok {
		l.Refused = &refused.Refused
	}
	return l
}
