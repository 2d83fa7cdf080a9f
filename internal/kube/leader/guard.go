package leader

import (
	"fmt"
	"net/http"
	"time"
)

// Guard wraps the work's way to the apiserver: a replica whose lease another one may have by now writes nothing. One
// that was suspended and resumes gets what happened meanwhile, and would remove what the next leader has written until
// its work is ended.
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

// RoundTrip implements http.RoundTripper.
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

// mayWrite returns why a leader may not write at a time: the lease was seen with another holder, or the last renewal is
// as old as its deadline. A replica that never led may.
func (l *lease) mayWrite(now time.Time, deadline time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch age := now.Sub(l.renewedAt); {
	case l.over:
		return fmt.Errorf("not written: lease %s: %w: %s", l.Describe(), ErrDeposed, taken(l.holder))
	case l.held && age >= deadline:
		return fmt.Errorf("not written: lease %s: %w: renewed %s ago", l.Describe(), ErrDeposed, age.Round(time.Millisecond))
	}
	return nil
}
