package device

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// key returns a key whose turn comes after that share of the time over which rotations are spread.
func key(share float64) (out wgtypes.Key) {
	binary.BigEndian.PutUint32(out[:], uint32(share*math.MaxUint32))
	return out
}

func about(t *testing.T, what string, got, want time.Time) {
	t.Helper()
	if d := got.Sub(want); d > time.Second || d < -time.Second {
		t.Errorf("%s: %s; want %s", what, got, want)
	}
}

func TestAge(t *testing.T) {
	for _, c := range []struct {
		name    string
		share   float64
		created time.Time
		maxAge  time.Duration
		want    time.Time
	}{
		{"a new one, last of all", 0, start, 10 * day, start.Add(10 * day)},
		{"a new one, first of all", 1, start, 10 * day, start.Add(8 * day)},
		{"a new one, between them", 0.5, start, 10 * day, start.Add(9 * day)},
		{"of middle age", 0.5, start.Add(-5 * day), 10 * day, start.Add(4 * day)},
		{"too old for long, first of all", 0, start.Add(-50 * day), 10 * day, start},
		{"too old for long, last of all", 1, start.Add(-50 * day), 10 * day, start.Add(time.Hour)},
		{"too old for long, of a short time", 1, start.Add(-50 * day), time.Hour, start.Add(12 * time.Minute)},
		{"from the future", 0, start.Add(100 * day), 10 * day, start.Add(10 * day)},
	} {
		s := Schedule{}
		s.Know("c2", key(c.share), c.created, c.maxAge, start)
		about(t, c.name, s.Next(always), c.want)
		if at := s.Next(always); len(s.Due(at.Add(-1))) != 0 || !slices.Equal(s.Due(at), []string{"c2"}) {
			t.Errorf("%s: due before its time, or not then", c.name)
		}
		// Another check, as every half minute, changes nothing.
		s.Know("c2", key(c.share), c.created, c.maxAge, start.Add(10*time.Minute))
		about(t, c.name+", looked at again", s.Next(always), c.want)
		s.Know("c2", key(c.share), c.created, 0, start)
		if !s.Next(always).IsZero() {
			t.Errorf("%s: due at %s, with no greatest age", c.name, s.Next(always))
		}
	}
}

func TestRotationOnOrder(t *testing.T) {
	s := Schedule{}
	if !s.Next(always).IsZero() || s.Due(start) != nil {
		t.Error("something is due in a new schedule")
	}
	s.Ask("c3", start.Add(time.Minute), false)
	s.Ask("c2", start.Add(time.Hour), false)
	s.Ask("c2", start, false)
	s.Ask("c2", start.Add(2*time.Hour), false) // does not postpone it
	if !slices.Equal(s.Due(start), []string{"c2"}) || !s.Next(always).Equal(start) {
		t.Errorf("due %v, next at %s", s.Due(start), s.Next(always))
	}
	s.Know("c2", key(0), start.Add(-20*day), 10*day, start)
	s.Forget("c2")
	if s.Due(start) != nil {
		t.Errorf("replaced, and still due: %v", s.Due(start))
	}
	s.Know("c2", key(0), start, 10*day, start)
	if !slices.Equal(s.Due(start.Add(10*day)), []string{"c2", "c3"}) {
		t.Errorf("ten days later: %v", s.Due(start.Add(10*day)))
	}
	s.Failed("c3", start.Add(time.Minute), errors.New("disk full"))
	if now := start.Add(time.Minute); s.Due(now) != nil || !slices.Equal(s.Due(now.Add(retry)), []string{"c3"}) {
		t.Errorf("failed: due %v, then %v", s.Due(now), s.Due(now.Add(retry)))
	}
	s.Forget("c3")
	s.Forget("c2")
	if !s.Next(always).IsZero() {
		t.Errorf("forgotten, and due at %s", s.Next(always))
	}
}

// TestRotationsAreSpread: keys that were created at the same time, or are all too old when the age is configured, are
// rotated at different times.
func TestRotationsAreSpread(t *testing.T) {
	for _, created := range []time.Time{start, start.Add(-100 * day)} {
		perMinute := map[time.Time]int{}
		const nodes = 1000
		for range nodes {
			private, err := wgtypes.GeneratePrivateKey()
			testkit.Must(t, err)
			s := Schedule{}
			s.Know("c2", private.PublicKey(), created, 30*day, start)
			if at := s.Next(always); at.Before(start) || at.After(start.Add(30*day)) {
				t.Fatalf("due at %s", at)
			}
			perMinute[s.Next(always).Truncate(time.Minute)]++
		}
		for at, n := range perMinute {
			if n > nodes/10 {
				t.Errorf("made %s: %d of %d at %s", created, n, nodes, at)
			}
		}
	}
}

func always(string) bool { return true }

// TestBlockedRotationIsNotScheduled: a rotation that is blocked has no due time. The part that unblocks it asks again.
func TestBlockedRotationIsNotScheduled(t *testing.T) {
	s := Schedule{}
	now := time.Now()
	s.Ask("c2", now, false)
	s.Ask("c3", now.Add(time.Hour), false)
	if at := s.Next(func(cluster string) bool { return cluster != "c2" }); !at.Equal(now.Add(time.Hour)) {
		t.Errorf("next at %s", at)
	}
	if s.Ask("c2", now, true); !s.Forced("c2") || s.Forced("c3") {
		t.Error("what is forced is not, or what is not is")
	}
	if s.Forget("c2"); s.Forced("c2") {
		t.Error("done, and forced again")
	}
}
