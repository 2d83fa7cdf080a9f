package paths

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/agent/plan"
)

// probing is a device whose peers are probed, and what WireGuard would do: begin a handshake, and again every 5 s while
// nobody answers, for 90 s.
type probing struct {
	Liveness
	now   time.Time
	peers map[plan.PeerKey]*PeerSample
	// answers are the peers that answer, and mute those to which nothing can be sent.
	answers, mute map[plan.PeerKey]bool
	began         map[plan.PeerKey]time.Time
	// probes counts the handshakes that were ordered of each peer.
	ordered map[plan.PeerKey]int
}

func newProbing(peers int) *probing {
	p := &probing{now: time.Unix(1_000_000, 0), peers: map[plan.PeerKey]*PeerSample{},
		answers: map[plan.PeerKey]bool{}, mute: map[plan.PeerKey]bool{},
		began: map[plan.PeerKey]time.Time{}, ordered: map[plan.PeerKey]int{}}
	for i := range peers {
		key := plan.PeerKey{byte(i + 1)}
		p.peers[key] = &PeerSample{Key: key, Endpoint: netip.MustParseAddrPort("192.0.2.1:7")}
	}
	return p
}

// run samples every 5 s.
func (p *probing) run(d time.Duration) {
	for end := p.now.Add(d); p.now.Before(end); {
		for range 5 {
			p.now = p.now.Add(time.Second)
			for key, began := range p.began {
				s, since := p.peers[key], p.now.Sub(began)
				switch {
				case since > 90*time.Second:
					delete(p.began, key)
				case p.mute[key] || since%(5*time.Second) != time.Second:
				default:
					if s.Sent += initiation; p.answers[key] {
						s.Received, s.Handshake = s.Received+92, p.now
						s.Sent += keepalive
						delete(p.began, key)
					}
				}
			}
		}
		var samples []PeerSample
		for _, s := range p.peers {
			samples = append(samples, *s)
		}
		p.Observe(p.now, 0, slices.Values(samples))
		for _, key := range p.Probe(p.now) {
			p.ordered[key]++
			if _, is := p.began[key]; !is {
				p.began[key] = p.now
			}
		}
	}
}

// TestProbe: what probes say of a device, by what its peers do.
func TestProbe(t *testing.T) {
	all := func(peers int) (keys []plan.PeerKey) {
		for i := range peers {
			keys = append(keys, plan.PeerKey{byte(i + 1)})
		}
		return keys
	}
	for _, c := range []struct {
		name  string
		peers int
		// answer, mute and calls are peers, the last without an endpoint; the order lasts for all of the time unless ended.
		answer, mute, calls []plan.PeerKey
		d                   time.Duration
		noOrder             bool
		// least and most unanswered, and whether any talks.
		least, most int
		talks       bool
	}{
		{name: "nobody asked", peers: 3, d: time.Hour, noOrder: true},
		{name: "nobody answers", peers: 3, d: 20 * time.Second, least: 3, most: 3},
		{name: "nobody answers, before it is certain", peers: 3, d: 10 * time.Second},
		{name: "all answer", peers: 3, answer: all(3), d: 20 * time.Second, talks: true},
		{name: "all answer, for hours", peers: 3, answer: all(3), d: 2 * time.Hour, talks: true},
		{name: "one of many answers", peers: 40, answer: all(40)[17:18], d: 3 * time.Minute, talks: true},
		{name: "many peers, and nobody answers", peers: 40, d: 20 * time.Second, least: 4, most: 4},
		{name: "many peers, for longer", peers: 40, d: time.Hour, least: 40, most: 40},
		{name: "nothing can be sent", peers: 3, mute: all(3), d: time.Hour},
		{name: "nothing can be sent to two of three", peers: 3, mute: all(2), d: 5 * time.Minute, least: 1, most: 1},
		{name: "two of three call", peers: 3, calls: all(2), d: 20 * time.Second, least: 1, most: 1},
		{name: "no peers", peers: 0, d: time.Minute},
	} {
		p := newProbing(c.peers)
		for _, key := range c.answer {
			p.answers[key] = true
		}
		for _, key := range c.mute {
			p.mute[key] = true
		}
		for _, key := range c.calls {
			p.peers[key].Endpoint = netip.AddrPort{}
		}
		if !c.noOrder {
			p.OrderProbes(p.now, p.now.Add(100*time.Hour))
		}
		p.run(c.d)
		if got := p.Unanswered(); got < c.least || got > c.most {
			t.Errorf("%s: %d peers have not answered; want %d to %d", c.name, got, c.least, c.most)
		}
		if talks := p.Counts()[Talking] > 0; talks != c.talks {
			t.Errorf("%s: any talks: %v; want %v", c.name, talks, c.talks)
		}
		for _, key := range c.calls {
			if p.ordered[key] > 0 {
				t.Errorf("%s: a handshake with a peer without an endpoint is ordered", c.name)
			}
		}
		if c.noOrder && len(p.ordered) > 0 {
			t.Errorf("%s: probed %v", c.name, p.ordered)
		}
	}
}

// Each handshake costs both nodes: a few peers are probed at a time, each has its turn, and none while one talks or
// after the order.
func TestProbesAreFew(t *testing.T) {
	p := newProbing(9)
	p.OrderProbes(p.now, p.now.Add(time.Minute))
	p.run(55 * time.Second)
	total := 0
	for key, n := range p.ordered {
		if total += n; n > 2 {
			t.Errorf("peer %d was probed %d times", key[0], n)
		}
	}
	if len(p.ordered) != 9 || total > probedTogether*6 {
		t.Errorf("probed %v", p.ordered)
	}
	p.run(time.Minute)
	before := fmt.Sprint(p.ordered)
	p.run(time.Hour)
	if got := fmt.Sprint(p.ordered); got != before || p.Unanswered() != 0 {
		t.Errorf("after the order: probed %s, were %s; %d unanswered", got, before, p.Unanswered())
	}
	p = newProbing(9)
	for key := range p.peers {
		p.answers[key] = true
	}
	p.OrderProbes(p.now, p.now.Add(time.Hour))
	p.run(2 * time.Minute)
	if len(p.ordered) != probedTogether {
		t.Errorf("some talk, and %v were probed", p.ordered)
	}
}

// TestProbesBesideASession: a session from before the order says nothing of now. The other peers are probed meanwhile,
// so that it is known that nobody answers as soon as the session's peer is silent, too.
func TestProbesBesideASession(t *testing.T) {
	p := newProbing(2)
	used := p.peers[plan.PeerKey{1}]
	used.Handshake = p.now
	p.run(5 * time.Second)
	if p.Counts()[Talking] != 1 {
		t.Fatalf("%+v", p.Counts())
	}
	p.OrderProbes(p.now, p.now.Add(time.Hour))
	for range 5 { // packets are sent, and nothing comes back
		used.Sent += 1500
		p.run(5 * time.Second)
	}
	if p.Counts()[Talking] != 0 || p.Unanswered() != 2 || p.ordered[plan.PeerKey{2}] == 0 {
		t.Errorf("%+v, %d have not answered, probed %v", p.Counts(), p.Unanswered(), p.ordered)
	}
	p.answers[plan.PeerKey{2}] = true
	p.run(time.Minute)
	if p.Counts()[Talking] != 1 || p.Unanswered() != 0 {
		t.Errorf("after an answer: %+v, %d have not answered", p.Counts(), p.Unanswered())
	}
}
