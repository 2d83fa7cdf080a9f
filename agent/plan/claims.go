package plan

import (
	"net/netip"
	"time"
)

// A route that another one replaced is restored up to maxRetakes times within retakeWindow. After that another program
// replaces it on purpose: the agent reports it and leaves it.
const (
	maxRetakes   = 3
	retakeWindow = 10 * time.Minute
)

// Claims are the routes of one device that existed as its own. A route that is merely deleted can always be added
// again; Claims are about routes that "ip route replace" or the like replaced. The zero value has none.
type Claims struct {
	held    map[netip.Prefix]bool
	retaken map[netip.Prefix][]time.Time
}

func (c *Claims) Record(routes []netip.Prefix) {
	if c.held == nil {
		c.held, c.retaken = map[netip.Prefix]bool{}, map[netip.Prefix][]time.Time{}
	}
	for _, r := range routes {
		c.held[r] = true
	}
}

// MayRetake reports whether a missing route may replace another one: only if it existed before, and not too often.
// Otherwise the claim ends until the route exists again.
func (c *Claims) MayRetake(prefix netip.Prefix, now time.Time) bool {
	if !c.held[prefix] {
		return false
	}
	if last := c.retaken[prefix]; len(last) == maxRetakes && now.Sub(last[0]) < retakeWindow {
		delete(c.held, prefix)
		return false
	}
	return true
}

func (c *Claims) RecordRetake(prefix netip.Prefix, now time.Time) {
	c.retaken[prefix] = append(c.retaken[prefix], now)
	if n := len(c.retaken[prefix]); n > maxRetakes {
		c.retaken[prefix] = c.retaken[prefix][n-maxRetakes:]
	}
}

func (c *Claims) Forget(routes []netip.Prefix) {
	for _, r := range routes {
		delete(c.held, r)
		delete(c.retaken, r)
	}
}
