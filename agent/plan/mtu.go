package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

const (
	// LeastMTU is the lowest derived MTU in bytes, whatever was measured: every IPv6 link carries it (RFC 8200).
	LeastMTU = 1280
	// DefaultMTU is WireGuard's own (wg-quick(8)): a link of 1500 bytes, and IPv6 outside.
	DefaultMTU = 1420
	// mostMTU is the largest IP packet, without WireGuard's overhead.
	mostMTU = 65535 - 80
)

const (
	// remeasureAfter is the age of a measurement after which the path is measured again. Each peer adds a part of
	// remeasureJitter, so that thousands of nodes do not measure at the same time.
	remeasureAfter  = 10 * time.Minute
	remeasureJitter = 2 * time.Minute
	// keepLowered is how long a lowered MTU remains at least: a path that changes often must not change it each time.
	keepLowered = 15 * time.Minute
	// enoughPaths is how many measured paths represent the rest: all of up to this many peers are measured before the MTU
	// is raised.
	enoughPaths = 16
)

// tunnelOverhead returns WireGuard's addition to a packet in bytes: IP (20 or 40), UDP (8), its header and tag (32).
func tunnelOverhead(endpoint netip.Addr) int {
	if endpoint.Unmap().Is4() {
		return 60
	}
	return 80
}

// MTUFromLinks returns the MTU that fits the links to all endpoints, and why.
func MTUFromLinks(links []kernel.EgressLink) (int, string) {
	if len(links) == 0 {
		return DefaultMTU, "WireGuard's own, as no peer can be reached"
	}
	narrowest := slices.MinFunc(links, func(a, b kernel.EgressLink) int {
		return cmp.Or(a.MTU-tunnelOverhead(a.To)-(b.MTU-tunnelOverhead(b.To)), cmp.Compare(a.Link, b.Link))
	})
	fits := narrowest.MTU - tunnelOverhead(narrowest.To)
	return max(LeastMTU, min(fits, mostMTU)), fmt.Sprintf("the way through %s carries %d", narrowest.Link, narrowest.MTU)
}

type PeerKey = wgtypes.Key

type MTUTarget struct {
	Peer     PeerKey
	Endpoint netip.AddrPort
	// links is the generation of links for which it was requested.
	links int
}

type MTUResult struct {
	// Answered means that the peer's node answered a probe.
	Answered bool
	// Carries is the largest packet that arrived, as the MTU of a device whose packets just fit: between Least and the
	// requested MTU. 0 means less than Least.
	Carries int
}

// MTU decides the MTU of one device: that of the links to the peers, lowered to the measured one of the paths. It also
// decides which paths to measure next. In: links, measurements and the time. Package paths measures.
type MTU struct {
	base int
	why  string
	// links counts the changes of base.
	links   int
	current int
	// loweredAt is when the MTU was last lowered; zero if it was not since the links changed.
	loweredAt time.Time
	paths     map[PeerKey]*measuredPath
	// looked means that the talking peers are known.
	looked bool
	// waiting is how many talking peers were not measured, as of the last Due.
	waiting int
}

type measuredPath struct {
	endpoint netip.AddrPort
	at       time.Time
	begun    bool
	done     bool
	MTUResult
}

// NewMTU returns the decision for a device. standing is the MTU that it has, 0 for none: it remains until more is
// known, because an earlier agent may have measured it.
func NewMTU(standing int) *MTU {
	return &MTU{current: standing, paths: map[PeerKey]*measuredPath{}}
}

// Links sets the result of FromLinks. A change discards all measurements.
func (d *MTU) Links(base int, why string) {
	if base != d.base {
		clear(d.paths)
		d.links++
		d.looked, d.loweredAt = false, time.Time{}
		if d.base != 0 && base < d.base || d.current > base || d.current < LeastMTU {
			d.current = base
		}
	}
	d.base, d.why = base, why
}

// Due returns which talking peers to measure now, n at most, and marks them as being measured. exists reports whether a
// peer still exists.
func (d *MTU) Due(
	now time.Time, n int, talking iter.Seq2[PeerKey, netip.AddrPort], exists func(PeerKey) bool,
) []MTUTarget {
	maps.DeleteFunc(d.paths, func(key PeerKey, _ *measuredPath) bool { return !exists(key) })
	type candidate struct {
		MTUTarget
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
			due = append(due, candidate{MTUTarget: MTUTarget{key, endpoint, d.links}})
		case p.begun:
		case now.Sub(p.at) >= remeasureAfter+spread(key):
			due = append(due, candidate{MTUTarget{key, endpoint, d.links}, p.at})
		}
	}
	// Those never measured come first, then the oldest measurement.
	slices.SortFunc(due, func(a, b candidate) int {
		return cmp.Or(a.at.Compare(b.at), slices.Compare(a.Peer[:], b.Peer[:]))
	})
	due = due[:min(n, len(due))]
	out := make([]MTUTarget, len(due))
	for i, c := range due {
		out[i] = c.MTUTarget
		if p := d.paths[c.Peer]; p == nil || p.endpoint != c.Endpoint {
			d.paths[c.Peer] = &measuredPath{endpoint: c.Endpoint, begun: true}
		} else {
			p.begun = true
		}
	}
	return out
}

// spread returns a peer's part of jitter.
func spread(key PeerKey) time.Duration {
	h := fnv.New32a()
	h.Write(key[:])
	return remeasureJitter * time.Duration(h.Sum32()%1024) / 1024
}

// Measured records the result of a measurement that Due requested. It ignores one that is no longer requested.
func (d *MTU) Measured(now time.Time, t MTUTarget, r MTUResult) {
	p := d.paths[t.Peer]
	if p == nil || p.endpoint != t.Endpoint || t.links != d.links {
		return
	}
	p.begun, p.at = false, now
	if !r.Answered && p.done && p.Answered {
		return // it is measured again soon enough; until then the earlier result holds
	}
	p.done, p.MTUResult = true, r
}

type MTUVerdict struct {
	MTU int
	// Base is the MTU of the links, and Why names the link.
	Base int
	Why  string
	// Limit is the peer whose path carries least, if that is less than the links carry; Carries is its result.
	Limit   *PeerKey
	Carries int
	// Measured counts paths, and Unanswered peers that do not answer.
	Measured, Unanswered int
}

// Decide returns the MTU as of now. A path that carries less lowers it immediately, because packets are lost there. It
// is raised only after enough measurements, and not soon after it was lowered.
func (d *MTU) Decide(now time.Time) MTUVerdict {
	v := MTUVerdict{Base: d.base, Why: d.why}
	fits := d.base
	for key, p := range d.paths {
		switch {
		case !p.done:
		case !p.Answered:
			v.Unanswered++
		default:
			v.Measured++
			if carries := max(p.Carries, LeastMTU); carries < fits || v.Limit != nil && carries == fits &&
				slices.Compare(key[:], v.Limit[:]) < 0 {
				fits, v.Limit, v.Carries = carries, &key, p.Carries
			}
		}
	}
	known := d.looked && (d.waiting == 0 || v.Measured+v.Unanswered >= enoughPaths)
	switch {
	case fits < d.current:
		d.current, d.loweredAt = fits, now
	case fits > d.current && known && (d.loweredAt.IsZero() || now.Sub(d.loweredAt) >= keepLowered):
		d.current = fits
	}
	v.MTU = d.current
	return v
}
