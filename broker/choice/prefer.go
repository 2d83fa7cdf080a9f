package choice

import (
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// This file decides which clusters' endpoints a global service uses: those of preferred clusters, and of others if
// these do not suffice.
//
// It takes counts of ready endpoints and the time, and has no clock, goroutine or socket. It knows nothing of slices,
// nor why a cluster is gone. It is not safe for concurrent use: its caller owns it.

// Settings of one global service.
type Settings struct {
	// Prefer lists clusters in order, each with its own place; all others share the last place.
	Prefer []string
	// MinReady is the number of ready endpoints that is enough; at least 1. MinReadyPercent, unless it is 0, is the share
	// of all endpoints, ready or not, of the clusters that are used.
	MinReady, MinReadyPercent int
	// WhenGone selects how a gone cluster is treated; empty is config.Demote.
	WhenGone config.WhenGone
}

// Offer is what one cluster contributes to the service.
type Offer struct {
	Cluster string
	// Ready is the number of ready endpoints, without those excluded for another reason, such as a drain.
	Ready int
	// All is the number of endpoints that are not about to end, ready or not.
	All  int
	Gone bool
}

// Chooser remembers, for each service, the clusters that are in use and no longer needed, and since when. A new chooser
// remembers none, and uses those that are needed.
type Chooser struct {
	settle   time.Duration
	services map[string]map[string]time.Time
}

// NewChooser makes a chooser that stops using a cluster after preferred clusters have sufficed for settle.
func NewChooser(settle time.Duration) *Chooser {
	return &Chooser{settle: settle, services: map[string]map[string]time.Time{}}
}

// Ranks of clusters that are gone. Other clusters have the rank of their place, from 0.
const (
	rankLast  = -1
	rankNever = -2
)

func rank(s Settings, o Offer) int {
	if o.Gone && s.WhenGone == config.Withdraw {
		return rankNever
	}
	if o.Gone && s.WhenGone != config.Keep {
		return rankLast
	}
	if place := slices.Index(s.Prefer, o.Cluster); place >= 0 {
		return place
	}
	return len(s.Prefer)
}

// needed returns the last place that is needed; every place before it is used, too. behind reports whether demoted
// clusters are needed.
func needed(s Settings, offers []Offer) (last int, behind bool) {
	ready, known := make([]int, len(s.Prefer)+1), make([]int, len(s.Prefer)+1)
	all := 0
	for _, o := range offers {
		if place := rank(s, o); place >= 0 {
			ready[place] += max(0, o.Ready)
			known[place] += max(0, o.All)
			all += max(0, o.Ready)
		}
	}
	sum, of := 0, 0
	for last = range ready {
		sum, of = sum+ready[last], of+known[last]
		if s.Suffices(sum, of) {
			break
		}
	}
	return last, all == 0
}

// Suffices reports whether so many ready endpoints of all are enough.
func (s Settings) Suffices(ready, all int) bool {
	if s.MinReadyPercent > 0 {
		return ready >= max(1, (all*s.MinReadyPercent+99)/100)
	}
	return ready >= max(1, s.MinReady)
}

// OwnFirst returns the settings with a cluster ahead of all others. moved reports whether the order named another one
// before it.
func (s Settings) OwnFirst(own string) (_ Settings, moved bool) {
	at := slices.Index(s.Prefer, own)
	if at != 0 {
		others := slices.DeleteFunc(slices.Clone(s.Prefer), func(c string) bool { return c == own })
		s.Prefer = append([]string{own}, others...)
	}
	return s, at > 0
}

// InUse reports for each cluster of a service whether its endpoints are used, and after how long that changes by time;
// 0 for never.
//
// Places are used in order, as many as have MinReady ready endpoints together, or all if that is not enough. A cluster
// that becomes needed is used immediately. One that is no longer needed remains in use for the chooser's settle time,
// so that flapping endpoints do not make others flap. A cluster that is gone and not kept has no such time: it is used
// while no other endpoint is ready (Demote), or never (Withdraw).
func (c *Chooser) InUse(service string, s Settings, offers []Offer, now time.Time) (inUse map[string]bool,
	again time.Duration) {
	last, behind := needed(s, offers)
	inUse = make(map[string]bool, len(offers))
	before := c.services[service]
	after := make(map[string]time.Time, len(offers))
	for _, o := range offers {
		place := rank(s, o)
		switch {
		case place == rankNever:
			inUse[o.Cluster] = false
			continue
		case place == rankLast:
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

func (c *Chooser) Forget(service string) { delete(c.services, service) }
