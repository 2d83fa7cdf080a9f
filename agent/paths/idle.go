package paths

import (
	"maps"
	"math/rand/v2"
	"time"

	"github.com/kube-semaphore/semaphore/agent/plan"
)

// A device without traffic has no sessions, which says nothing about its peers. While the broker wants to know whether
// the nodes of a silent cluster answer, some peers without a session are probed: the device begins a handshake with
// each. Only handshakes that were begun and not answered say that a peer does not answer.

const (
	// probedTogether is how many peers of a device are probed at a time.
	probedTogether = 4
	// probedFor is the least time that a peer has to answer, in which its handshake is begun twice; see rekeyAfter.
	probedFor = 9 * time.Second
	// probeEnds is when a probe counts as not made: the device has sent nothing, for want of an endpoint or a route.
	probeEnds = 25 * time.Second
)

type probes struct {
	// since is when the order began, until when it ends.
	since, until time.Time
	// under are the probes under way, tried are the peers of this turn, and unanswered those that did not answer.
	under      map[plan.PeerKey]probed
	tried      map[plan.PeerKey]bool
	unanswered map[plan.PeerKey]bool
}

// probed is the time at which a probe began, and the bytes sent to the peer by then.
type probed struct {
	at   time.Time
	sent int64
}

func (d *Liveness) OrderProbes(now, until time.Time) {
	p := &d.probes
	if !now.Before(p.until) {
		*p = probes{since: now, under: map[plan.PeerKey]probed{}, tried: map[plan.PeerKey]bool{},
			unanswered: map[plan.PeerKey]bool{}}
	}
	p.until = until
}

func (d *Liveness) Probing(now time.Time) bool { return now.Before(d.probes.until) }

// Unanswered returns how many peers were probed and did not answer, since the order began or any peer answered. Of few
// peers, those that are silent anyway count, too.
func (d *Liveness) Unanswered() (n int) {
	p := &d.probes
	n = len(p.unanswered)
	if d.at.Before(p.until) && n > 0 && len(d.peers) <= probedTogether {
		for key, peer := range d.peers {
			if peer.state == Silent && !p.unanswered[key] {
				n++
			}
		}
	}
	return n
}

// answered reports whether a peer has answered since the order began. A session that is older says nothing of now.
func (d *Liveness) answered() bool {
	for _, peer := range d.peers {
		if peer.state == Talking && peer.Handshake.After(d.probes.since) {
			return true
		}
	}
	return false
}

// Probe evaluates the probes under way, as of the last round, and returns the peers with which to begin a handshake
// now.
func (d *Liveness) Probe(now time.Time) (begin []plan.PeerKey) {
	p := &d.probes
	if !d.Probing(now) {
		p.under, p.tried, p.unanswered = nil, nil, nil
		return nil
	}
	if d.answered() {
		clear(p.under)
		clear(p.tried)
		clear(p.unanswered)
		return nil
	}
	maps.DeleteFunc(p.unanswered, func(key plan.PeerKey, _ bool) bool { return d.peers[key] == nil })
	for key, began := range p.under {
		peer, took := d.peers[key], now.Sub(began.at)
		switch {
		case peer == nil || peer.Sent < began.sent: // removed, or added again
		case took >= probedFor && peer.Sent-began.sent >= 2*initiation:
			p.unanswered[key] = true
		case took < probeEnds:
			continue
		}
		delete(p.under, key)
	}
	if len(p.under) > 0 {
		return nil
	}
	for _, key := range d.candidates() {
		p.under[key], p.tried[key] = probed{now, d.peers[key].Sent}, true
		begin = append(begin, key)
	}
	return begin
}

// candidates returns some peers to probe. All with an endpoint have a turn before any has another, and those to which
// nothing is sent come before those that are known not to answer.
func (d *Liveness) candidates() (out []plan.PeerKey) {
	p := &d.probes
	var idle, silent []plan.PeerKey
	for key, peer := range d.peers {
		switch {
		case p.tried[key] || peer.state == Talking || !peer.Endpoint.IsValid():
		case peer.state == Idle:
			idle = append(idle, key)
		default:
			silent = append(silent, key)
		}
	}
	if len(idle)+len(silent) == 0 {
		clear(p.tried) // the next round begins another turn
		return nil
	}
	for _, from := range [][]plan.PeerKey{idle, silent} {
		rand.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
		out = append(out, from...)
	}
	return out[:min(len(out), probedTogether)]
}
