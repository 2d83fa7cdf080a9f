// Package mtu decides the MTU of a WireGuard device whose configuration names none: what the links to the peers can
// carry, lowered to what the paths to them were measured to carry. It also decides which paths to measure next.
//
// It is pure. In: links, measurements and the time. Package agent/probe measures.
//
// It may import no other package of the agent.
package mtu

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"iter"
	"net/netip"
	"slices"
	"time"
)

const (
	// Least is the lowest derived MTU in bytes, whatever was measured: every IPv6 link carries it (RFC 8200).
	Least = 1280
	// Default is WireGuard's own (wg-quick(8)): a link of 1500 bytes, and IPv6 outside.
	Default = 1420
	// most is the largest IP packet, without WireGuard's overhead.
	most = 65535 - 80
)

const (
	// refresh is the age of a measurement after which the path is measured again. Each peer adds a part of jitter, so
	// that thousands of nodes do not measure at the same time.
	refresh = 10 * time.Minute
	jitter  = 2 * time.Minute
	// hold is how long a lowered MTU remains at least: a path that changes often must not change it each time.
	hold = 15 * time.Minute
	// enough is how many measured paths represent the rest: all of up to this many peers are measured before the MTU is
	// raised.
	enough = 16
)

// overhead returns what WireGuard adds to a packet in bytes: IP (20 or 40), UDP (8), its header and tag (32).
func overhead(endpoint netip.Addr) int {
	if endpoint.Unmap().Is4() {
		return 60
	}
	return 80
}

// Link is the link by which the node reaches an endpoint.
type Link struct {
	Endpoint netip.Addr
	// Name is the interface, and MTU what it, or the route, carries.
	Name string
	MTU  int
}

// FromLinks returns the MTU that fits the links to all endpoints, and why.
func FromLinks(links []Link) (int, string) {
	if len(links) == 0 {
		return Default, "WireGuard's own, as no peer can be reached"
	}
	narrowest := slices.MinFunc(links, func(a, b Link) int {
		return cmp.Or(a.MTU-overhead(a.Endpoint)-(b.MTU-overhead(b.Endpoint)), cmp.Compare(a.Name, b.Name))
	})
	fits := narrowest.MTU - overhead(narrowest.Endpoint)
	return max(Least, min(fits, most)), fmt.Sprintf("the way through %s carries %d", narrowest.Name, narrowest.MTU)
}

// Key is a peer's public key.
type Key = [32]byte

// Target is a path to measure.
type Target struct {
	Peer     Key
	Endpoint netip.AddrPort
	// links is the generation of links for which it was requested.
	links int
}

// Result is the result of a measurement.
type Result struct {
	// Answered means that the peer's node answered a probe.
	Answered bool
	// Carries is the largest packet that arrived, as the MTU of a device whose packets just fit: between Least and the
	// requested MTU. 0 means less than Least.
	Carries int
}

// Device decides for one device.
type Device struct {
	base int
	why  string
	// links counts the changes of base.
	links   int
	current int
	// loweredAt is when the MTU was last lowered; zero if it was not since the links changed.
	loweredAt time.Time
	paths     map[Key]*path
	// looked means that the talking peers are known.
	looked bool
	// waiting is how many talking peers were not measured, as of the last Due.
	waiting int
}

type path struct {
	endpoint netip.AddrPort
	at       time.Time
	begun    bool
	done     bool
	Result
}

// New returns the decision for a device. standing is the MTU that it has, 0 for none: it remains until more is known,
// because an earlier agent may have measured it.
func New(standing int) *Device {
	return &Device{current: standing, paths: map[Key]*path{}}
}

// Links sets the result of FromLinks. A change discards all measurements.
func (d *Device) Links(base int, why string) {
	if base != d.base {
		clear(d.paths)
		d.links++
		d.looked, d.loweredAt = false, time.Time{}
		if d.base != 0 && base < d.base || d.current > base || d.current < Least {
			d.current = base
		}
	}
	d.base, d.why = base, why
}

// Due returns which talking peers to measure now, n at most, and marks them as being measured. exists reports whether a
// peer still exists.
func (d *Device) Due(now time.Time, n int, talking iter.Seq2[Key, netip.AddrPort], exists func(Key) bool) []Target {
	for key := range d.paths {
		if !exists(key) {
			delete(d.paths, key)
		}
	}
	type candidate struct {
		Target
		at time.Time
	}
	var due []candidate
	d.looked, d.waiting = true, 0
	for key, endpoint := range talking {
		if !endpoint.IsValid() {
			continue
		}
		p := d.paths[key]
		if p != nil && p.endpoint != endpoint {
			p = nil
		}
		if p == nil || !p.done {
			d.waiting++
		}
		switch {
		case p == nil:
			due = append(due, candidate{Target: Target{key, endpoint, d.links}})
		case p.begun:
		case now.Sub(p.at) >= refresh+spread(key):
			due = append(due, candidate{Target{key, endpoint, d.links}, p.at})
		}
	}
	// Those never measured come first, then the oldest measurement.
	slices.SortFunc(due, func(a, b candidate) int {
		return cmp.Or(a.at.Compare(b.at), slices.Compare(a.Peer[:], b.Peer[:]))
	})
	due = due[:min(n, len(due))]
	out := make([]Target, len(due))
	for i, c := range due {
		out[i] = c.Target
		if p := d.paths[c.Peer]; p == nil || p.endpoint != c.Endpoint {
			d.paths[c.Peer] = &path{endpoint: c.Endpoint, begun: true}
		} else {
			p.begun = true
		}
	}
	return out
}

// spread returns a peer's part of jitter.
func spread(key Key) time.Duration {
	h := fnv.New32a()
	h.Write(key[:])
	return jitter * time.Duration(h.Sum32()%1024) / 1024
}

// Measured records the result of a measurement that Due requested. It ignores one that is no longer requested.
func (d *Device) Measured(now time.Time, t Target, r Result) {
	p := d.paths[t.Peer]
	if p == nil || p.endpoint != t.Endpoint || t.links != d.links {
		return
	}
	p.begun, p.at = false, now
	if !r.Answered && p.done && p.Answered {
		return // it is measured again soon enough; until then what was found holds
	}
	p.done, p.Result = true, r
}

// Verdict is what was decided.
type Verdict struct {
	MTU int
	// Base is what the links carry, and Why names the link.
	Base int
	Why  string
	// Limit is the peer whose path carries least, if that is less than the links carry; Carries is its result.
	Limit   *Key
	Carries int
	// Measured counts paths, and Unanswered peers that do not answer.
	Measured, Unanswered int
}

// Decide returns the MTU as of now. A path that carries less lowers it immediately, because packets are lost there. It
// is raised only after enough measurements, and not soon after it was lowered.
func (d *Device) Decide(now time.Time) Verdict {
	v := Verdict{Base: d.base, Why: d.why}
	fits := d.base
	for key, p := range d.paths {
		switch {
		case !p.done:
		case !p.Answered:
			v.Unanswered++
		default:
			v.Measured++
			if carries := max(p.Carries, Least); carries < fits || v.Limit != nil && carries == fits &&
				slices.Compare(key[:], v.Limit[:]) < 0 {
				fits, v.Limit, v.Carries = carries, &key, p.Carries
			}
		}
	}
	known := d.looked && (d.waiting == 0 || v.Measured+v.Unanswered >= enough)
	switch {
	case fits < d.current:
		d.current, d.loweredAt = fits, now
	case fits > d.current && known && (d.loweredAt.IsZero() || now.Sub(d.loweredAt) >= hold):
		d.current = fits
	}
	v.MTU = d.current
	return v
}
