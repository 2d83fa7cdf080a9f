package debug

import (
	"time"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The hops of an object, in the order in which a change travels; see Place.
const (
	HopSource = "source"
	HopExport = "export"
	HopStream = "stream"
	HopAccept = "accept"
	HopPlan   = "plan"
	HopWrite  = "write"
	HopAgents = "agents"
	HopKernel = "kernel"
)

var Hops = []string{HopSource, HopExport, HopStream, HopAccept, HopPlan, HopWrite, HopAgents, HopKernel}

// The states of a Place, by the names that semaphorectl prints.
const (
	PlaceDone    = semaphorev1.PlaceState_PLACE_STATE_DONE
	PlaceWaiting = semaphorev1.PlaceState_PLACE_STATE_WAITING
	PlaceAbsent  = semaphorev1.PlaceState_PLACE_STATE_ABSENT
	PlaceFailed  = semaphorev1.PlaceState_PLACE_STATE_FAILED
)

// maxPlaces bounds the places of one answer; the others are counted.
const maxPlaces = 500

// Place is one line of where an object is. Zero times are unknown.
type Place struct {
	Hop, Object, Cluster string
	State                semaphorev1.PlaceState
	Detail               string
	Observed, Confirmed  time.Time
}

// Places is the answer of Locate, which is bounded.
type Places struct{ semaphorev1.LocateResponse }

// Add adds a place, whose texts may be of any origin.
func (l *Places) Add(p Place) {
	if len(l.Places) == maxPlaces {
		l.More++
		return
	}
	l.Places = append(l.Places, &semaphorev1.Place{
		Hop: p.Hop, Object: finding.Clean(p.Object), Cluster: finding.Clean(p.Cluster), State: p.State,
		Detail: finding.Clean(p.Detail), ObservedAt: semaphorev1.Time(p.Observed), ConfirmedAt: semaphorev1.Time(p.Confirmed),
	})
}
