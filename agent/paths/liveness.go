package paths

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/agent/plan"
)

const (
	// silentAfter is how long nothing must be received before a peer counts as silent: more than the 10 s after which
	// a peer without data to send sends a keepalive.
	silentAfter = 15 * time.Second
	// minAttemptSpan is the minimal time between the first and the last attempt: a single attempt proves nothing.
	minAttemptSpan = 9 * time.Second
	// forgetAfter is when past attempts no longer count: nothing is sent to the peer now. WireGuard itself gives up
	// after 90 s.
	forgetAfter = 180 * time.Second
	// maxAttemptGap is the longest time between two attempts of one series: 15 s until a handshake begins, and the
	// delay of a sample.
	maxAttemptGap = 25 * time.Second
	// keepalive is the size of an empty packet in bytes, which a peer does not answer.
	keepalive = 32
	// initiation is the size of a handshake initiation in bytes, and rekeyAfter how often it is sent without an
	// answer.
	initiation = 148
	rekeyAfter = 5 * time.Second

	// Of a device that is watched closely: closeGap is the longest time between two looks for which that holds. A peer is
	// prompt once it has answered promptTimes in a row within promptWithin, and suspected once it has not for
	// suspectAfter, in which something was sent to it between suspectTries looks.
	closeGap     = 2 * time.Second
	promptWithin = 1500 * time.Millisecond
	promptTimes  = 5
	suspectAfter = 2500 * time.Millisecond
	suspectTries = 2
)

type PeerSample struct {
	Key plan.PeerKey
	// Endpoint is where the device sends to; invalid if it has none.
	Endpoint netip.AddrPort
	// Handshake is the last handshake; zero for never.
	Handshake time.Time
	// Sent and Received are bytes since the peer was added.
	Sent, Received int64
	// Keepalive is the interval at which the device sends keepalives to the peer, 0 for none, and Inside an address of
	// the pods behind it, invalid if it has none.
	Keepalive time.Duration
	Inside    netip.Addr
}

type PeerState int

const (
	// Idle peers have no session, and nothing is sent to them.
	Idle PeerState = iota
	// Talking peers have a working session, as far as it was used.
	Talking
	Silent
)

func (s PeerState) String() string { return [...]string{"idle", "talking", "silent"}[s] }

// PeerCounts are numbers of peers by their state.
type PeerCounts [3]int

type SilentPeer struct {
	Key      plan.PeerKey
	Endpoint netip.AddrPort
	// Since is when the first unanswered packet was observed.
	Since time.Time
	// Handshake is the last handshake; zero for never.
	Handshake time.Time
}

// Liveness decides which peers of one device answer, from the device's counters: bytes in both directions and the last
// handshake of each peer, sampled every few seconds. It has no goroutine, clock or socket, and knows peers by their
// public keys; its callers know their nodes. The zero value is ready to use.
//
// It relies on the behaviour of WireGuard's timers (whitepaper, section 6), in the kernel and in wireguard-go alike:
//   - A handshake is begun only when there is something to send, and counts among the bytes sent. While no peer answers
//     it is begun again every 5 s, for 90 s.
//   - A peer that gets data and has none to send sends a keepalive within 10 s. So after something other than a
//     keepalive was sent, something is received soon, or the path or the peer is gone; a handshake is begun 15 s after
//     that.
//   - A session is of no use 180 s after its handshake.
//
// So silence is certain after 15 s. Who looks at a device every second can have a suspicion much earlier: a peer that
// has answered promptly all the time, and from one moment on does not. See Closely.
type Liveness struct {
	at        time.Time
	round     int
	peers     map[plan.PeerKey]*trackedPeer
	endpoints map[netip.Addr]int
	counts    PeerCounts
	newest    time.Time
	// sent and received are bytes of all peers since the device was first observed.
	sent, received int64
	closely        bool
	probes         probes
}

// Closely says whether the device is looked at every second from now on, so that peers can be suspected: they count as
// silent after 3 s instead of 15 s, if they answered promptly before.
func (d *Liveness) Closely(yes bool) { d.closely = yes }

type trackedPeer struct {
	PeerSample
	lastRound int // the last round that included it
	state     PeerState
	// firstAttempt and lastAttempt are the times of unanswered attempts; zero for none.
	firstAttempt, lastAttempt time.Time
	// prompt is how many times in a row it answered promptly. since is when the look was before the first that saw an
	// attempt without an answer, zero for none; tries is how many looks saw one since then.
	prompt, tries int
	since         time.Time
	// heard is the last round that saw that something was received, and asked when Unheard last returned the peer.
	heard, asked time.Time
}

// Observe evaluates samples of all peers of the device. every is the device's persistent keepalive, 0 for off. It
// reports whether the set of silent peers has changed.
func (d *Liveness) Observe(now time.Time, every time.Duration, samples iter.Seq[PeerSample]) (changed bool) {
	if d.peers == nil {
		d.peers, d.endpoints = map[plan.PeerKey]*trackedPeer{}, map[netip.Addr]int{}
	}
	d.round++
	passed := now.Sub(d.at)
	d.at = now
	d.counts, d.newest = PeerCounts{}, time.Time{}
	// Keepalives alone are no attempt to send data: this many bytes may be keepalives.
	idle := int64(keepalive)
	if every > 0 {
		idle += keepalive * int64(passed/every)
	}
	n := 0
	for s := range samples {
		n++
		p := d.peers[s.Key]
		if p == nil || s.Sent < p.Sent || s.Received < p.Received { // new, or removed and added again
			changed = d.forget(p) || changed
			p = &trackedPeer{PeerSample: PeerSample{Key: s.Key, Handshake: s.Handshake, Sent: s.Sent, Received: s.Received},
				heard: now}
			d.peers[s.Key] = p
			if s.Handshake.IsZero() && s.Sent > 0 {
				p.Sent = 0 // all of it was unanswered
			}
		}
		d.sent += s.Sent - p.Sent
		d.received += s.Received - p.Received
		if p.lastRound = d.round; p.Endpoint != s.Endpoint {
			d.count(p.Endpoint, -1)
			d.count(s.Endpoint, 1)
		}
		was := p.state == Silent
		p.observe(now, passed, idle, &s, d.closely && passed <= closeGap)
		changed = changed || was != (p.state == Silent)
		d.counts[p.state]++
		if s.Handshake.After(d.newest) {
			d.newest = s.Handshake
		}
	}
	if len(d.peers) > n {
		for key, p := range d.peers {
			if p.lastRound != d.round {
				changed = d.forget(p) || changed
				delete(d.peers, key)
			}
		}
	}
	return changed
}

// forget removes a peer, nil for none, and reports whether it was silent.
func (d *Liveness) forget(p *trackedPeer) bool {
	if p == nil {
		return false
	}
	d.count(p.Endpoint, -1)
	return p.state == Silent
}

func (d *Liveness) count(endpoint netip.AddrPort, n int) {
	if at := endpoint.Addr(); at.IsValid() {
		if d.endpoints[at] += n; d.endpoints[at] == 0 {
			delete(d.endpoints, at)
		}
	}
}

func (p *trackedPeer) observe(now time.Time, passed time.Duration, idle int64, s *PeerSample, closely bool) {
	// The handshake's time is on the same clock, which may have been set since.
	fresh := !s.Handshake.IsZero() && now.Sub(s.Handshake) < plan.SessionLifetime
	// If packets pass in one direction only, received packets are the peer's own initiations, which do not complete.
	// Without a session nothing else is received; within one the size shows it, as those of all other packets are
	// multiples of 16.
	received := s.Received - p.Received
	attempts := received%initiation == 0 && received/initiation <= int64(1+passed/rekeyAfter)
	answered := s.Handshake.After(p.Handshake) || fresh && received > 0 && !attempts
	tried := s.Sent-p.Sent > idle
	if received > 0 {
		p.heard = now
	}
	p.PeerSample = *s
	suspected := closely && p.suspect(now, passed, answered, tried)
	if !closely {
		p.prompt, p.tries, p.since = 0, 0, time.Time{}
	}
	switch {
	case suspected && p.state != Silent:
		p.firstAttempt, p.lastAttempt, p.state = p.since, now, Silent
		return
	case answered:
		p.firstAttempt, p.lastAttempt = time.Time{}, time.Time{}
		p.state = Idle
	case tried:
		if p.firstAttempt.IsZero() || p.state != Silent && now.Sub(p.lastAttempt) > maxAttemptGap {
			p.firstAttempt = now
		}
		p.lastAttempt = now
	}
	switch {
	case p.firstAttempt.IsZero():
	case now.Sub(p.lastAttempt) > forgetAfter:
		p.firstAttempt, p.lastAttempt, p.state = time.Time{}, time.Time{}, Idle
	case p.state == Silent || now.Sub(p.firstAttempt) >= silentAfter &&
		p.lastAttempt.Sub(p.firstAttempt) >= minAttemptSpan:
		p.state = Silent
		return
	}
	p.state = Idle
	if fresh {
		p.state = Talking
	}
}

// suspect reports whether a peer that is watched closely answered promptly until a moment ago, and no longer does. A
// peer that only gets data sends a keepalive every 10 s: it is never prompt.
func (p *trackedPeer) suspect(now time.Time, passed time.Duration, answered, tried bool) bool {
	if answered {
		if p.since.IsZero() || now.Sub(p.since) <= passed+promptWithin {
			if tried || !p.since.IsZero() { // else it only sends
				p.prompt = min(p.prompt+1, promptTimes)
			}
		} else {
			p.prompt = 0
		}
		p.tries, p.since = 0, time.Time{}
		return false
	}
	if tried {
		if p.since.IsZero() {
			p.since = now.Add(-passed)
		}
		p.tries++
	}
	return p.prompt >= promptTimes && p.tries >= suspectTries && !p.since.IsZero() && now.Sub(p.since) >= suspectAfter
}

// Unheard returns an address behind each peer to which the device sends keepalives, and from which nothing was received
// for as long as their interval: each once in an interval. WireGuard answers data but no keepalive, so it would not
// notice for two minutes that such a peer has lost the session.
func (d *Liveness) Unheard(now time.Time) (inside []netip.Addr) {
	for _, p := range d.peers {
		if p.state == Talking && p.Keepalive > 0 && p.Inside.IsValid() && now.Sub(p.heard) >= p.Keepalive &&
			now.Sub(p.asked) >= p.Keepalive {
			p.asked = now
			inside = append(inside, p.Inside)
		}
	}
	return inside
}

func (d *Liveness) Counts() PeerCounts { return d.counts }

// Traffic returns the bytes that were sent to and received from peers since the device was first observed, those of
// peers that were removed too.
func (d *Liveness) Traffic() (sent, received int64) { return d.sent, d.received }

func (d *Liveness) Newest() time.Time { return d.newest }

func (d *Liveness) At() time.Time { return d.at }

// Silent returns at most so many silent peers, the longest silent first.
func (d *Liveness) Silent(most int) []SilentPeer {
	if d.counts[Silent] == 0 {
		return nil
	}
	var out []SilentPeer
	for _, p := range d.peers {
		if p.state == Silent {
			out = append(out, SilentPeer{p.Key, p.Endpoint, p.firstAttempt, p.Handshake})
		}
	}
	slices.SortFunc(out, func(a, b SilentPeer) int {
		return cmp.Or(a.Since.Compare(b.Since), slices.Compare(a.Key[:], b.Key[:]))
	})
	return out[:min(len(out), most)]
}

// Peer returns the state of one peer, and when the first packet that it has not answered was observed if it is silent;
// false for a peer that the device did not have in the last round.
func (d *Liveness) Peer(key plan.PeerKey) (PeerState, SilentPeer, bool) {
	p := d.peers[key]
	if p == nil {
		return Idle, SilentPeer{}, false
	}
	return p.state, SilentPeer{p.Key, p.Endpoint, p.firstAttempt, p.Handshake}, true
}

// Talking iterates over the talking peers with their endpoints.
func (d *Liveness) Talking(yield func(plan.PeerKey, netip.AddrPort) bool) {
	for key, p := range d.peers {
		if p.state == Talking && !yield(key, p.Endpoint) {
			return
		}
	}
}

func (d *Liveness) Known(at netip.Addr) bool { return d.endpoints[at] > 0 }

func (d *Liveness) Has(key plan.PeerKey) bool { return d.peers[key] != nil }
