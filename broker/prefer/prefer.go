// Package prefer decides which clusters' endpoints a global service uses: those of the clusters that are
// preferred, and of others as far as these do not suffice.
//
// It is pure: numbers of ready endpoints and the time come in, and it keeps no clock, goroutine or socket. It knows nothing of
// slices, nor why a cluster is gone. Its caller owns it: it is not safe for concurrent use.
package prefer

import (
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// Settings of one global service.
type Settings struct {
	// Prefer are clusters in order, each a place of its own; those that it does not name share the last place.
	Prefer []string
	// MinReady is how many ready endpoints suffice; less than 1 is 1.
	MinReady int
	// WhenGone is what becomes of a cluster that is gone; empty is config.Demote.
	WhenGone config.WhenGone
}

// Offer is what one cluster has of the service.
type Offer struct {
	Cluster string
	// Ready endpoints, those not counted that are out of use for another reason, such as a drain.
	Ready int
	// Gone says that the cluster is.
	Gone bool
}

// Chooser remembers of each service which clusters are in use that are needed no more, and since when. A new one knows
// of none, and uses what is needed.
type Chooser struct {
	settle   time.Duration
	services map[string]map[string]time.Time
}

// New makes a chooser that leaves a cluster only when those ahead of it have sufficed for settle.
func New(settle time.Duration) *Chooser {
	return &Chooser{settle: settle, services: map[string]map[string]time.Time{}}
}

// The ranks of clusters that are gone. Others have that of their place, from 0.
const (
	behindAll = -1
	out       = -2
)

func rank(s Settings, o Offer) int {
	if o.Gone && s.WhenGone == config.Withdraw {
		return out
	}
	if o.Gone && s.WhenGone != config.Keep {
		return behindAll
	}
	if place := slices.Index(s.Prefer, o.Cluster); place >= 0 {
		return place
	}
	return len(s.Prefer)
}

// needed is the last place that is needed; every place before it is in use too. behind says whether those are needed
// that are behind all others.
func needed(s Settings, offers []Offer) (last int, behind bool) {
	ready := make([]int, len(s.Prefer)+1)
	all := 0
	for _, o := range offers {
		if place := rank(s, o); place >= 0 {
			ready[place] += max(0, o.Ready)
			all += max(0, o.Ready)
		}
	}
	sum := 0
	for last = range ready {
		if sum += ready[last]; sum >= max(1, s.MinReady) {
			break
		}
	}
	return last, all == 0
}

// InUse says of each cluster that offers a service whether its endpoints are in use, and after how long that changes by itself; 0 for
// not at all.
//
// The places are in use in order, as many as together have MinReady ready endpoints, and all where that is not enough. A
// cluster that is needed comes in at once. One that is not needed any more stays until it was not for the time that the chooser lets
// pass, so that endpoints which come and go do not have others do the same. What is gone and not kept has no such
// grace: it is in use while no other endpoint is ready (Demote), or never (Withdraw).
func (c *Chooser) InUse(service string, s Settings, offers []Offer, now time.Time) (inUse map[string]bool, again time.Duration) {
	last, behind := needed(s, offers)
	inUse = make(map[string]bool, len(offers))
	before := c.services[service]
	after := make(map[string]time.Time, len(offers))
	for _, o := range offers {
		place := rank(s, o)
		switch {
		case place == out:
			inUse[o.Cluster] = false
			continue
		case place == behindAll:
			inUse[o.Cluster] = behind
			continue
		case place <= last:
			inUse[o.Cluster] = true
			after[o.Cluster] = time.Time{}
			continue
		}
		since, was := before[o.Cluster]
		inUse[o.Cluster] = false
		if !was {
			continue
		}
		if since.IsZero() {
			since = now
		}
		if left := c.settle - now.Sub(since); left > 0 {
			inUse[o.Cluster] = true
			after[o.Cluster] = since
			if again == 0 || left < again {
				again = left
			}
		}
	}
	if len(after) == 0 {
		delete(c.services, service)
	} else {
		c.services[service] = after
	}
	return inUse, again
}

// Forget lets go of what is remembered of a service.
func (c *Chooser) Forget(service string) { delete(c.services, service) }
