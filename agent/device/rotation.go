package device

import (
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
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
type Schedule struct {
	asked map[string]time.Time
	// forced are those of asked that ignore what prevents a rotation.
	forced map[string]bool
	aged   map[string]aged
	// notBefore delays those that have just failed.
	notBefore map[string]time.Time
}

type aged struct {
	public  wgtypes.Key
	created time.Time
	maxAge  time.Duration
	// since is when the maximal age became known.
	since time.Time
}

// NewSchedule returns a schedule in which nothing is due.
func NewSchedule() *Schedule {
	return &Schedule{asked: map[string]time.Time{}, forced: map[string]bool{}, aged: map[string]aged{},
		notBefore: map[string]time.Time{}}
}

// Ask schedules the replacement of a cluster's key, or moves it to an earlier time.
func (s *Schedule) Ask(cluster string, at time.Time) {
	if was, ok := s.asked[cluster]; !ok || at.Before(was) {
		s.asked[cluster] = at
	}
}

// Force makes a requested replacement ignore what prevents it.
func (s *Schedule) Force(cluster string) { s.forced[cluster] = true }

// Forced reports whether the replacement of a cluster's key was forced.
func (s *Schedule) Forced(cluster string) bool { return s.forced[cluster] }

// Know records the current key of a cluster by its public key, with its maximal age; 0 for any.
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

// Forget discards the state of a cluster.
func (s *Schedule) Forget(cluster string) {
	delete(s.asked, cluster)
	delete(s.forced, cluster)
	delete(s.aged, cluster)
	delete(s.notBefore, cluster)
}

// Replaced records that a key was replaced, for any reason. Know records the new one.
func (s *Schedule) Replaced(cluster string) { s.Forget(cluster) }

// Failed delays the next attempt for a cluster.
func (s *Schedule) Failed(cluster string, now time.Time) { s.notBefore[cluster] = now.Add(retry) }

// Due returns the clusters whose key must be replaced by now, sorted.
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

// Next returns when the first key is due of those that can be replaced then; zero for never.
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
