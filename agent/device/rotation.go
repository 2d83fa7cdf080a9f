package device

import (
	"encoding/binary"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/plan"
)

const (
	// early is the part of its maximal age, as 1/early, by which a key may be replaced before that age: keys that were
	// created together, as when a cluster was set up, are replaced at different times.
	early = 5
	// catchUp is the maximal time over which the replacement of keys that are already too old is spread, as when a
	// maximal age is configured for the first time.
	catchUp = time.Hour
	// retry is the delay after a failure.
	retry = time.Minute
)

// Schedule decides when the keys of a node must be replaced, by remote cluster. It is not safe for concurrent use.
type Schedule map[string]*turn

type turn struct {
	// asked is when a new key is wanted before its time; zero for never. forced ignores all obstacles to a rotation.
	asked  time.Time
	forced bool
	// aged is zero for a key of any age.
	aged aged
	// failed is why one that was due was not replaced, and notBefore delays it.
	failed    error
	notBefore time.Time
}

type aged struct {
	public  wgtypes.Key
	created time.Time
	maxAge  time.Duration
	// since is when the maximal age became known.
	since time.Time
}

func (s Schedule) turn(cluster string) *turn {
	if s[cluster] == nil {
		s[cluster] = &turn{}
	}
	return s[cluster]
}

// Ask schedules the replacement of a cluster's key, or moves it to an earlier time.
func (s Schedule) Ask(cluster string, at time.Time, force bool) {
	t := s.turn(cluster)
	t.asked, t.forced = plan.Earlier(t.asked, at), t.forced || force
}

func (s Schedule) Forced(cluster string) bool { return s[cluster] != nil && s[cluster].forced }

// Know records the current key of a cluster by its public key, with its maximal age; 0 for any.
func (s Schedule) Know(cluster string, public wgtypes.Key, created time.Time, maxAge time.Duration, now time.Time) {
	t := s.turn(cluster)
	switch {
	case maxAge <= 0:
		t.aged = aged{}
		return
	case t.aged.maxAge == maxAge:
		now = t.aged.since
	}
	t.aged = aged{public, created, maxAge, now}
}

// Forget discards the state of a cluster. Know records a new key.
func (s Schedule) Forget(cluster string) { delete(s, cluster) }

// Failed delays the next attempt for a cluster.
func (s Schedule) Failed(cluster string, now time.Time, why error) {
	t := s.turn(cluster)
	t.failed, t.notBefore = why, now.Add(retry)
}

// Due returns the clusters whose key must be replaced by now, sorted.
func (s Schedule) Due(now time.Time) []string {
	var due []string
	for cluster, t := range s {
		if at := t.due(); !at.IsZero() && !now.Before(at) {
			due = append(due, cluster)
		}
	}
	slices.Sort(due)
	return due
}

// Next returns when the first key is due of those that can be replaced then; zero for never.
func (s Schedule) Next(can func(cluster string) bool) (next time.Time) {
	for cluster, t := range s {
		if can(cluster) {
			next = plan.Earlier(next, t.due())
		}
	}
	return next
}

func (t *turn) due() (at time.Time) {
	at = t.asked
	if t.aged.maxAge > 0 {
		at = plan.Earlier(at, t.aged.due())
	}
	if !at.IsZero() && at.Before(t.notBefore) {
		return t.notBefore
	}
	return at
}

// due returns when a key must be replaced because of its age. The time is derived from the key, so that it is the same
// after a restart and differs between nodes.
func (a aged) due() time.Time {
	created := a.created
	if created.After(a.since) {
		created = a.since // the clock was set back: a key from the future would never be old
	}
	spread := a.maxAge / early
	share := float64(binary.BigEndian.Uint32(a.public[:4])) / (1 << 32)
	due := created.Add(a.maxAge - time.Duration(share*float64(spread)))
	if due.Before(a.since) {
		return a.since.Add(time.Duration(share * float64(min(spread, catchUp))))
	}
	return due
}
