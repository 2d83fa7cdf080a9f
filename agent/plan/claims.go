package plan

import (
	"net/netip"
	"time"
)

// A route that another's has taken the place of is taken back so often in so long a time. Whoever takes it again
// means it: then it is reported, and left to whoever sees the report.
const (
	maxRetakes   = 3
	retakesUntil = 10 * time.Minute
)

// Claims are the routes of one device that stood as ours. A route that is merely deleted can always be made again;
// this is about those that "ip route replace" or the like has put another in the place of. The zero value has none.
type Claims struct {
	held    map[netip.Prefix]bool
	retaken map[netip.Prefix][]time.Time
}

// Stand notes the routes that stand now, and are wanted.
func (c *Claims) Stand(routes []netip.Prefix) {
	if c.held == nil {
		c.held, c.retaken = map[netip.Prefix]bool{}, map[netip.Prefix][]time.Time{}
	}
	for _, r := range routes {
		c.held[r] = true
	}
}

// Retake says whether a route that does not stand may be put in the place of another's: only where it stood before,
// and not without end. A route that may not be taken back is not ours any more until it stands again.
func (c *Claims) Retake(prefix netip.Prefix, now time.Time) bool {
	if !c.held[prefix] {
		return false
	}
	var recent []time.Time
	for _, t := range c.retaken[prefix] {
		if now.Sub(t) < retakesUntil {
			recent = append(recent, t)
		}
	}
	if len(recent) >= maxRetakes {
		delete(c.held, prefix)
		return false
	}
	return true
}

// Retaken notes that a route was put in the place of another's.
func (c *Claims) Retaken(prefix netip.Prefix, now time.Time) {
	c.retaken[prefix] = append(c.retaken[prefix], now)
	if n := len(c.retaken[prefix]); n > maxRetakes {
		c.retaken[prefix] = c.retaken[prefix][n-maxRetakes:]
	}
}

// Forget drops the claim to routes that are not wanted any more.
func (c *Claims) Forget(routes []netip.Prefix) {
	for _, r := range routes {
		delete(c.held, r)
		delete(c.retaken, r)
	}
}
