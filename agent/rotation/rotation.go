// Package rotation decides when a device's private key is to be replaced: because an operator has asked for it, or
// because of its age. It is pure: no clock, no file, no device.
//
// It never waits for anything. Whether a key can be replaced at the moment it is due is for the caller to say, who then
// asks again.
//
// It may import no other package of the agent.
package rotation

import (
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	// early is the part of its greatest age, as 1/early, by which a key may be replaced before it has it: keys that
	// were made together, as when a cluster was set up, are replaced apart.
	early = 5
	// catchUp is the most time over which keys that have been too old for long are spread, as when a greatest age is
	// configured for the first time.
	catchUp = time.Hour
	// retry is how long after a failure there is another attempt.
	retry = time.Minute
)

// Schedule is when the keys of a node are to be replaced, by remote cluster. It is not safe for concurrent use.
type Schedule struct {
	asked map[string]time.Time
	// forced are those of asked that whatever is in the way does not hold up.
	forced map[string]bool
	aged   map[string]aged
	// notBefore holds those back that have just failed.
	notBefore map[string]time.Time
}

type aged struct {
	public  wgtypes.Key
	created time.Time
	maxAge  time.Duration
	// since is when the greatest age became known.
	since time.Time
}

// New is a schedule in which nothing is due.
func New() *Schedule {
	return &Schedule{asked: map[string]time.Time{}, forced: map[string]bool{}, aged: map[string]aged{},
		notBefore: map[string]time.Time{}}
}

// Ask has the key for a cluster replaced at a time, or when it was asked for before, if that is earlier.
func (s *Schedule) Ask(cluster string, at time.Time) {
	if was, ok := s.asked[cluster]; !ok || at.Before(was) {
		s.asked[cluster] = at
	}
}

// Force has what was asked for a cluster done whatever is in its way.
func (s *Schedule) Force(cluster string) { s.forced[cluster] = true }

// Forced reports whether a cluster's key is to be replaced whatever is in the way.
func (s *Schedule) Forced(cluster string) bool { return s.forced[cluster] }

// Know records the key that stands for a cluster, by its public half, and of the age that it may reach; 0 for any.
func (s *Schedule) Know(cluster string, public wgtypes.Key, created time.Time, maxAge time.Duration, now time.Time) {
	if maxAge <= 0 {
		delete(s.aged, cluster)
		return
	}
	since := now
	if was, ok := s.aged[cluster]; ok && was.maxAge == maxAge {
		since = was.since
	}
	s.aged[cluster] = aged{public, created, maxAge, since}
}

// Forget drops all that is known of a cluster.
func (s *Schedule) Forget(cluster string) {
	delete(s.asked, cluster)
	delete(s.forced, cluster)
	delete(s.aged, cluster)
	delete(s.notBefore, cluster)
}

// Replaced records that a key was replaced, on anybody's request. Know reports the new one.
func (s *Schedule) Replaced(cluster string) { s.Forget(cluster) }

// Failed has the next attempt for a cluster made a while later.
func (s *Schedule) Failed(cluster string, now time.Time) { s.notBefore[cluster] = now.Add(retry) }

// Due are the clusters whose key is to be replaced by now, sorted.
func (s *Schedule) Due(now time.Time) []string {
	var due []string
	for cluster, at := range s.all() {
		if !now.Before(at) {
			due = append(due, cluster)
		}
	}
	slices.Sort(due)
	return due
}

// Next is when the first key is due of those that can be replaced when they are; zero for never.
func (s *Schedule) Next(can func(cluster string) bool) time.Time {
	var next time.Time
	for cluster, at := range s.all() {
		if !can(cluster) {
			continue
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

func (s *Schedule) all() map[string]time.Time {
	at := maps.Clone(s.asked)
	for cluster, a := range s.aged {
		if due := a.due(); at[cluster].IsZero() || due.Before(at[cluster]) {
			at[cluster] = due
		}
	}
	for cluster, earliest := range s.notBefore {
		if t, ok := at[cluster]; ok && t.Before(earliest) {
			at[cluster] = earliest
		}
	}
	return at
}

// due is when a key is to be replaced for its age. The moment is the key's own, so that it is the same after a restart,
// and another one on each node.
func (a aged) due() time.Time {
	created := a.created
	if created.After(a.since) {
		created = a.since // the clock was set back: what is from the future would never be old
	}
	spread := a.maxAge / early
	share := float64(binary.BigEndian.Uint32(a.public[:4])) / (1 << 32)
	due := created.Add(a.maxAge - time.Duration(share*float64(spread)))
	if due.Before(a.since) {
		return a.since.Add(time.Duration(share * float64(min(spread, catchUp))))
	}
	return due
}
