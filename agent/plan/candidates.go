package plan

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// A node may have several endpoints, its candidates; a device has one at a time. WireGuard begins a handshake with it
// every 5 s while it has something to send and no session, and moves by itself to where an authentic packet came from.
// Candidates adds the rest: try another endpoint when one does not answer, and a better one again.
const (
	// answerTime is how long a candidate has to answer. Then the next packet, or handshake, goes to the next one. A
	// later answer still counts.
	answerTime = 1500 * time.Millisecond
	// betterEvery is the interval at which the candidates before the one in use are asked whether they answer, and
	// avoidFor how long one is not asked that answered and then did not carry the session.
	betterEvery = time.Minute
	// trialTime is how long a better candidate is set again if packets that were under way move the endpoint back.
	trialTime = 2 * time.Second
	avoidFor  = time.Hour
)

// initiationBytes is the size of WireGuard's first message of a handshake; those of all but handshakes are multiples of
// 16. A keepalive, of keepaliveBytes, is not answered.
const initiationBytes, keepaliveBytes = 148, 32

// Candidates chooses the endpoints of the peers of one device that have several. The zero value is ready to use. One
// goroutine uses it.
type Candidates struct {
	peers map[wgtypes.Key]*trial
}

// trial is the state of a peer: the endpoint in use, and the signs whether it works.
type trial struct {
	all []netip.AddrPort
	// at is the index of the choice, which is older than the packets after sentThen.
	at       int
	sentThen int64
	since    time.Time
	// triedAt is the first look since the choice that saw that something was sent; zero for none.
	triedAt time.Time
	// heard is the last look at which the peer had answered, zero for never; sentHeard are the bytes sent by then.
	heard     time.Time
	sentHeard int64
	// handshake, sent and received are as of the last look.
	handshake      time.Time
	sent, received int64
	looked         bool
	// asked is when better candidates were last asked; asking are those to ask now.
	asked  time.Time
	asking []netip.AddrPort
	// before is the choice that a better one replaced on trial, -1 for none; avoid has the candidates that failed then.
	// settled means that the device had the choice at the last look, and again that it must get it once more.
	before         int
	settled, again bool
	// works is the candidate at which it last answered.
	works netip.AddrPort
	avoid map[netip.AddrPort]time.Time
}

// Choose returns the endpoint for a peer with these candidates, at least one. has is the endpoint that the device has
// for it, with which it may have a session; invalid for none.
func (c *Candidates) Choose(key wgtypes.Key, all []netip.AddrPort, has netip.AddrPort) netip.AddrPort {
	t := c.peers[key]
	switch {
	case t == nil:
		if c.peers == nil {
			c.peers = map[wgtypes.Key]*trial{}
		}
		t = &trial{all: all, at: max(slices.Index(all, has), 0), before: -1, avoid: map[netip.AddrPort]time.Time{}}
		c.peers[key] = t
	case !slices.Equal(t.all, all):
		at := max(slices.Index(all, t.all[t.at]), 0)
		t.all, t.at, t.before, t.triedAt, t.asking = all, at, -1, time.Time{}, nil
	}
	return t.all[t.at]
}

func (c *Candidates) Len() int { return len(c.peers) }

// Keep forgets the peers for which keep is false.
func (c *Candidates) Keep(keep func(wgtypes.Key) bool) {
	maps.DeleteFunc(c.peers, func(key wgtypes.Key, _ *trial) bool { return !keep(key) })
}

// Looked is the result of a look: the peers whose choice is another now, those without a candidate that answers, whose
// names may have other addresses by now, those that answer at another one than before, and those whose choice the
// device must get again.
type Looked struct {
	Moved, Lost, Found []wgtypes.Key
	Again              []wgtypes.PeerConfig
}

// Look evaluates the existing peers of a device.
func (c *Candidates) Look(now time.Time, peers []wgtypes.Peer) (out Looked) {
	if len(c.peers) == 0 {
		return out
	}
	for i := range peers {
		key := peers[i].PublicKey
		t := c.peers[key]
		if t == nil {
			continue
		}
		was := t.at
		if lost := t.look(now, &peers[i]); lost {
			out.Lost = append(out.Lost, key)
		}
		if t.at != was {
			out.Moved = append(out.Moved, key)
		}
		if t.again {
			t.again = false
			out.Again = append(out.Again, wgtypes.PeerConfig{PublicKey: key, UpdateOnly: true,
				Endpoint: net.UDPAddrFromAddrPort(t.all[t.at])})
		}
		if now.Equal(t.heard) && t.works != t.all[t.at] {
			if t.works.IsValid() {
				out.Found = append(out.Found, key)
			}
			t.works = t.all[t.at]
		}
	}
	return out
}

// look reports whether no candidate has answered in this turn.
func (t *trial) look(now time.Time, p *wgtypes.Peer) (lost bool) {
	live := Live(*p, now)
	at := slices.Index(t.all, kernel.EndpointOf(p))
	received := p.ReceiveBytes - t.received
	shook := p.LastHandshakeTime.After(t.handshake)
	answered := shook || received > 0 && received%initiationBytes != 0
	begins := !t.looked || received < 0 // a new peer, or one of an agent before this one
	t.handshake, t.sent, t.received, t.looked = p.LastHandshakeTime, p.TransmitBytes, p.ReceiveBytes, true
	switch {
	case begins:
		t.sentThen, t.since, t.triedAt, t.before = 0, now, time.Time{}, -1
		if live {
			t.sentThen = t.sent
			t.listen(now, at)
		}
		return false
	case live && t.before >= 0:
		t.onTrial(now, at, answered)
		return false
	case live && answered:
		t.listen(now, at)
	}
	silent := t.sent-t.sentHeard >= endpointBytes
	switch {
	case live && !t.heard.IsZero() && (now.Sub(t.heard) < endpointTimeout || !silent):
		t.ask(now)
		return false
	case !t.heard.IsZero():
		if silent { // it had its time
			t.triedAt = t.heard
		}
		t.heard, t.before = time.Time{}, -1
	}
	return t.try(now)
}

// listen records that the peer has answered, and follows WireGuard to where it did: at, -1 for somewhere else.
func (t *trial) listen(now time.Time, at int) {
	t.heard, t.sentHeard, t.triedAt, t.before = now, t.sent, time.Time{}, -1
	if at >= 0 && at != t.at {
		t.choose(now, at)
	}
}

func (t *trial) choose(now time.Time, at int) {
	t.at, t.sentThen, t.since, t.triedAt = at, t.sent, now, time.Time{}
}

// unanswered reports whether something was sent to the choice, and it had the time to answer.
func (t *trial) unanswered(now time.Time) bool {
	if t.triedAt.IsZero() && t.sent-t.sentThen > keepaliveBytes {
		t.triedAt = now
	}
	return !t.triedAt.IsZero() && now.Sub(t.triedAt) >= answerTime
}

// try moves to the next candidate if the choice does not answer, and to the first if nothing is sent any more.
func (t *trial) try(now time.Time) (lost bool) {
	switch {
	case t.unanswered(now):
		t.choose(now, (t.at+1)%len(t.all))
		return t.at == 0
	case t.triedAt.IsZero() && t.at != 0 && now.Sub(t.since) >= SessionLifetime:
		t.choose(now, 0)
	}
	return false
}

// onTrial decides whether a better candidate carries the session: something is received while the device has it.
// Packets that were under way when the device got it move the endpoint back, so it is set again for a while. If it
// carries nothing, the earlier one is used again.
func (t *trial) onTrial(now time.Time, at int, answered bool) {
	back := at == t.before
	switch {
	case answered && at == t.at && t.settled:
		t.listen(now, at)
		return
	case back && now.Sub(t.since) < trialTime:
		t.again, t.triedAt, t.sentThen = true, time.Time{}, t.sent
	case back || t.unanswered(now):
		t.avoid[t.all[t.at]] = now.Add(avoidFor)
		before := t.before
		t.before = -1
		t.choose(now, before)
	}
	t.settled = at == t.at
}

// ask has the candidates before the choice asked whether they answer.
func (t *trial) ask(now time.Time) {
	if t.at == 0 || now.Sub(t.since) < betterEvery || now.Sub(t.asked) < betterEvery {
		return
	}
	t.asked, t.asking = now, nil
	for _, one := range t.all[:t.at] {
		if !now.Before(t.avoid[one]) {
			t.asking = append(t.asking, one)
		}
	}
}

// Question asks whether a node answers at an address that is better than the one in use.
type Question struct {
	Key wgtypes.Key
	At  netip.AddrPort
}

// Ask returns the questions that are due, each once.
func (c *Candidates) Ask() (all []Question) {
	for key, t := range c.peers {
		for _, at := range t.asking {
			all = append(all, Question{key, at})
		}
		t.asking = nil
	}
	return all
}

// Answered records that the node of a question answered. It reports whether the choice is that address now.
func (c *Candidates) Answered(now time.Time, q Question) bool {
	t := c.peers[q.Key]
	if t == nil || t.heard.IsZero() || t.before >= 0 {
		return false
	}
	at := slices.Index(t.all, q.At)
	if at < 0 || at >= t.at {
		return false
	}
	t.before, t.settled = t.at, false
	t.choose(now, at)
	return true
}

// Candidates returns the addresses of candidates, "IP:port" or "name:port", that are inside the bounds, in order. names
// returns the known addresses of a name.
func (b Bounds) Candidates(texts []string, names func(host string) []netip.Addr) (all []netip.AddrPort) {
	add := func(at netip.AddrPort) {
		if b.endpoint(at) == nil && !slices.Contains(all, at) {
			all = append(all, at)
		}
	}
	for _, text := range texts {
		at, name, ok := naming.Candidate(text)
		switch {
		case name != "":
			for _, ip := range names(name) {
				add(netip.AddrPortFrom(ip, at.Port()))
			}
		case ok:
			add(at)
		}
	}
	return all
}

func NamesOf(texts []string) (names []string) {
	for _, text := range texts {
		if _, name, _ := naming.Candidate(text); name != "" {
			names = append(names, name)
		}
	}
	return names
}
