// Package talk decides with which peers a WireGuard device talks, from what the device counts: bytes either way and
// the last handshake of each peer, looked at every few seconds.
//
// It is pure: samples and the time come in, and it keeps no goroutine, clock or socket. It knows peers by their
// public keys; who they are is for its callers.
//
// What it leans on is how WireGuard's timers behave (whitepaper, section 6), in the kernel and in wireguard-go alike:
//   - A handshake is begun only when there is something to send, and counts among the bytes sent. While nobody answers it is
//     begun again every 5 s, for 90 s.
//   - Whoever gets data and has nothing to say sends a keepalive within 10 s. So after something other than a keepalive was sent,
//     something is received soon, or the path or the peer is gone; a handshake is begun 15 s after that.
//   - A session is of no use 180 s after its handshake.
package talk

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

const (
	// rejectAfter is REJECT_AFTER_TIME: how long a session lasts.
	rejectAfter = 180 * time.Second
	// silentAfter is how long nothing must have come back before a peer is called silent: more than the 10 s after
	// which a peer that has nothing to say sends a keepalive.
	silentAfter = 15 * time.Second
	// triedFor is how far apart the first and the last attempt must be: one that was not followed by another
	// tells nothing.
	triedFor = 9 * time.Second
	// forgetAfter is when attempts that were given up count no more: nothing is wanted of the peer now. WireGuard
	// itself gives up after 90 s.
	forgetAfter = 180 * time.Second
	// apart is the longest time between two attempts of one series: 15 s until a handshake is begun, and what a look is
	// late.
	apart = 25 * time.Second
	// keepalive is the size of a packet that carries nothing: nobody answers it.
	keepalive = 32
	// initiation is the size of a packet that begins a handshake, and rekeyAfter how often it is sent while there is no
	// answer.
	initiation = 148
	rekeyAfter = 5 * time.Second
)

// Key is a peer's public key.
type Key = [32]byte

// Sample is what a device counts of one peer.
type Sample struct {
	Key Key
	// Endpoint is where the device sends to; not valid for nowhere.
	Endpoint netip.AddrPort
	// Handshake is the last one; zero for never.
	Handshake time.Time
	// Sent and Received are bytes since the peer was added.
	Sent, Received int64
}

// State of a peer.
type State int

const (
	// Idle peers have no session, and nothing is to be sent to them.
	Idle State = iota
	// Talking peers have a session that works, as far as it was used.
	Talking
	// Silent peers are sent to, and do not answer.
	Silent
)

func (s State) String() string { return [...]string{"idle", "talking", "silent"}[s] }

// Counts of peers by state.
type Counts struct{ Talking, Silent, Idle int }

// Quiet is a peer that does not answer.
type Quiet struct {
	Key      Key
	Endpoint netip.AddrPort
	// Since is when the first packet was seen to be sent that was not answered.
	Since time.Time
	// Handshake is the last one; zero for never.
	Handshake time.Time
}

// Device follows the peers of one device. The zero value is ready for use.
type Device struct {
	at        time.Time
	looks     int
	peers     map[Key]*peer
	endpoints map[netip.Addr]int
	counts    Counts
	newest    time.Time
}

type peer struct {
	Sample
	look  int // the last one that it was in
	state State
	// since is when the first thing was sent that was not answered, and tried when the last one was; zero for
	// nothing.
	since, tried time.Time
}

// Observe takes a look at all peers of the device. every is the device's persistent keepalive, 0 for off. It returns
// whether the set of silent peers has changed.
func (d *Device) Observe(now time.Time, every time.Duration, samples []Sample) (changed bool) {
	if d.peers == nil {
		d.peers, d.endpoints = map[Key]*peer{}, map[netip.Addr]int{}
	}
	d.looks++
	passed := now.Sub(d.at)
	d.at = now
	d.counts, d.newest = Counts{}, time.Time{}
	// Keepalives alone are no attempt to say something: this many bytes may be theirs.
	idle := int64(keepalive)
	if every > 0 {
		idle += keepalive * int64(passed/every)
	}
	for i := range samples {
		s := &samples[i]
		p := d.peers[s.Key]
		if p == nil || s.Sent < p.Sent || s.Received < p.Received { // new, or taken out and added again
			changed = d.forget(p) || changed
			p = &peer{Sample: Sample{Key: s.Key, Handshake: s.Handshake, Sent: s.Sent, Received: s.Received}}
			d.peers[s.Key] = p
			if s.Handshake.IsZero() && s.Sent > 0 {
				p.Sent = 0 // all of it was sent in vain
			}
		}
		if p.look = d.looks; p.Endpoint != s.Endpoint {
			d.count(p.Endpoint, -1)
			d.count(s.Endpoint, 1)
		}
		was := p.state == Silent
		p.observe(now, passed, idle, s)
		changed = changed || was != (p.state == Silent)
		switch p.state {
		case Talking:
			d.counts.Talking++
		case Silent:
			d.counts.Silent++
		default:
			d.counts.Idle++
		}
		if s.Handshake.After(d.newest) {
			d.newest = s.Handshake
		}
	}
	if len(d.peers) > len(samples) {
		for key, p := range d.peers {
			if p.look != d.looks {
				changed = d.forget(p) || changed
				delete(d.peers, key)
			}
		}
	}
	return changed
}

// forget lets go of a peer, nil for none, and returns whether it was silent.
func (d *Device) forget(p *peer) bool {
	if p == nil {
		return false
	}
	d.count(p.Endpoint, -1)
	return p.state == Silent
}

func (d *Device) count(endpoint netip.AddrPort, n int) {
	if at := endpoint.Addr(); at.IsValid() {
		if d.endpoints[at] += n; d.endpoints[at] == 0 {
			delete(d.endpoints, at)
		}
	}
}

func (p *peer) observe(now time.Time, passed time.Duration, idle int64, s *Sample) {
	// The handshake's time is on the same clock, which can be set meanwhile.
	fresh := !s.Handshake.IsZero() && now.Sub(s.Handshake) < rejectAfter
	// Where packets pass one way only, what is received is the peer's own attempts, which do not come to anything:
	// without a session nothing else, and within one the sizes tell, as those of all other packets are multiples of 16.
	received := s.Received - p.Received
	attempts := received%initiation == 0 && received/initiation <= int64(1+passed/rekeyAfter)
	answered := s.Handshake.After(p.Handshake) || fresh && received > 0 && !attempts
	tried := s.Sent-p.Sent > idle
	p.Sample = *s
	switch {
	case answered:
		p.since, p.tried = time.Time{}, time.Time{}
		p.state = Idle
	case tried:
		if p.since.IsZero() || p.state != Silent && now.Sub(p.tried) > apart {
			p.since = now
		}
		p.tried = now
	}
	switch {
	case p.since.IsZero():
	case now.Sub(p.tried) > forgetAfter:
		p.since, p.tried, p.state = time.Time{}, time.Time{}, Idle
	case p.state == Silent || now.Sub(p.since) >= silentAfter && p.tried.Sub(p.since) >= triedFor:
		p.state = Silent
		return
	}
	p.state = Idle
	if fresh {
		p.state = Talking
	}
}

// Counts of the peers, at the last look.
func (d *Device) Counts() Counts { return d.counts }

// Newest is the newest handshake of any peer; zero for none.
func (d *Device) Newest() time.Time { return d.newest }

// At is when the device was last looked at; zero for never.
func (d *Device) At() time.Time { return d.at }

// Silent are at most so many of the silent peers, the longest silent first.
func (d *Device) Silent(most int) []Quiet {
	if d.counts.Silent == 0 {
		return nil
	}
	var out []Quiet
	for _, p := range d.peers {
		if p.state == Silent {
			out = append(out, Quiet{p.Key, p.Endpoint, p.since, p.Handshake})
		}
	}
	slices.SortFunc(out, func(a, b Quiet) int {
		return cmp.Or(a.Since.Compare(b.Since), slices.Compare(a.Key[:], b.Key[:]))
	})
	return out[:min(len(out), most)]
}

// Talking ranges over the peers that talk, and where they are.
func (d *Device) Talking(yield func(Key, netip.AddrPort) bool) {
	for key, p := range d.peers {
		if p.state == Talking && !yield(key, p.Endpoint) {
			return
		}
	}
}

// Known says whether an address is where any peer is.
func (d *Device) Known(at netip.Addr) bool { return d.endpoints[at] > 0 }

// Has says whether the device had a peer at the last look.
func (d *Device) Has(key Key) bool { return d.peers[key] != nil }
