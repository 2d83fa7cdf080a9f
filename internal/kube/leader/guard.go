package leader

import (
	"fmt"
	"net/http"
	"time"
)

// Guard returns a RoundTripper that refuses the writes of a replica whose lease another one may have by now. A replica
// that was suspended receives, when it resumes, the changes that it missed; until its work ends it would remove the
// next leader's objects.
func (e *Elector) Guard(next http.RoundTripper) http.RoundTripper {
	if e.lock == nil {
		return next
	}
	return guarded{e, next}
}

type guarded struct {
	*Elector
	next http.RoundTripper
}

func (g guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		if err := g.lock.mayWrite(time.Now(), g.renewDeadline()); err != nil {
			if r.Body != nil {
				_ = r.Body.Close()
			}
			return nil, err
		}
	}
	return g.next.RoundTrip(r)
}

// instant is a time by the two clocks of a machine. steady stops while the machine sleeps, or a virtual machine is
// suspended (CLOCK_MONOTONIC); wall continues, and can be set.
type instant struct {
	steady time.Duration
	wall   time.Time
}

// began is the origin of steady.
var began = time.Now()

func instantOf(t time.Time) instant { return instant{t.Sub(began), t.Round(0)} }

// after returns how long after another instant this one may be: the time by the clock that has run longer. A wall clock
// that was set forward only costs the time until the next renewal.
func (i instant) after(earlier instant) time.Duration {
	return max(i.steady-earlier.steady, i.wall.Sub(earlier.wall))
}

// mayWrite returns an error if a leader must not write now: the lease was seen with another holder, or the last renewal
// is older than deadline. A replica that never led may write.
func (l *lease) mayWrite(now time.Time, deadline time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch age := instantOf(now).after(instantOf(l.renewedAt)); {
	case l.over:
		return fmt.Errorf("not written: lease %s: %w: %s", l.Describe(), ErrDeposed, taken(l.holder))
	case l.held && age >= deadline:
		return fmt.Errorf("not written: lease %s: %w: renewed %s ago", l.Describe(), ErrDeposed, age.Round(time.Millisecond))
	}
	return nil
}
