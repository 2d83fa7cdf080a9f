package paths

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/agent/plan"
)

var began = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// Sizes of packets on the wire, as the devices count them: WireGuard whitepaper, section 5.4.
const (
	response = 92
	ping     = 128 // an echo request of 84 bytes, padded to 96
)

// counted is a peer with the counters that its device would have.
type counted struct{ PeerSample }

func (c *counted) send(bytes int64)    { c.Sent += bytes }
func (c *counted) receive(bytes int64) { c.Received += bytes }

// shake performs a handshake that this end initiates.
func (c *counted) shake(at time.Time) {
	c.send(initiation)
	c.receive(response)
	c.Handshake = at
}

// seconds reports whether t is such a multiple of n, in a span.
func eachPeer(t, n, from, to int) bool { return t >= from && t < to && (t-from)%n == 0 }

// sequences are the events of each second, and the resulting states: "0 idle, 20 silent" means idle from the first
// check on, and silent from the one at 20 s on.
var sequences = []struct {
	name      string
	keepalive time.Duration
	second    func(c *counted, t int)
	want      string
	// lag is how much later the states may be with a check every 5 s.
	lag int
}{
	{name: "nothing is sent", second: func(*counted, int) {}, want: "0 idle"},
	{name: "a ping each second that is answered", second: func(c *counted, t int) {
		if t%120 == 1 {
			c.shake(began.Add(time.Duration(t) * time.Second))
		}
		if t > 0 {
			c.send(ping)
			c.receive(ping)
		}
	}, want: "0 idle, 1 talking"},
	{name: "two attempts that are far apart", second: func(c *counted, t int) {
		if t == 1 || t == 40 {
			c.send(initiation)
		}
	}, want: "0 idle"},
	{name: "it never answers", second: func(c *counted, t int) {
		if eachPeer(t, 5, 1, 600) {
			c.send(initiation)
		}
	}, want: "0 idle, 16 silent"},
	// A packet that is sent once is given up after 90 s, and some time later the peer no longer counts as in use.
	{name: "it did not answer, and nobody asks any more", second: func(c *counted, t int) {
		if eachPeer(t, 5, 1, 91) {
			c.send(initiation)
		}
	}, want: "0 idle, 16 silent, 267 idle", lag: 5},
	// The initiator of a session that is not used: it initiated the handshake, sent one ping, and then nothing.
	{name: "a session runs out", second: func(c *counted, t int) {
		if t == 1 {
			c.shake(began.Add(time.Second))
			c.send(ping)
			c.receive(ping)
		}
		if t == 11 {
			c.send(keepalive)
		}
	}, want: "0 idle, 1 talking, 181 idle"},
	{name: "packets one way only, the other end sends keepalives", second: func(c *counted, t int) {
		if t%120 == 1 {
			c.shake(began.Add(time.Duration(t) * time.Second))
		}
		if t > 1 {
			c.send(ping)
		}
		if t > 1 && t%10 == 1 {
			c.receive(keepalive)
		}
	}, want: "0 idle, 1 talking"},
	{name: "persistent keepalives of this end only", keepalive: 25 * time.Second, second: func(c *counted, t int) {
		if t%120 == 1 {
			c.shake(began.Add(time.Duration(t) * time.Second))
		}
		if t > 1 && t%25 == 1 {
			c.send(keepalive)
		}
	}, want: "0 idle, 1 talking"},
	{name: "persistent keepalives every second", keepalive: time.Second, second: func(c *counted, t int) {
		if t%120 == 1 {
			c.shake(began.Add(time.Duration(t) * time.Second))
		}
		if t > 1 {
			c.send(keepalive)
		}
	}, want: "0 idle, 1 talking"},
	{name: "it dies while pings go on, and comes back", second: func(c *counted, t int) {
		if t == 1 || t == 100 || t == 220 || t == 340 {
			c.shake(began.Add(time.Duration(t) * time.Second))
		}
		if t > 0 {
			c.send(ping)
		}
		if t > 0 && t < 50 || t >= 100 {
			c.receive(ping)
		}
		if eachPeer(t, 5, 64, 100) {
			c.send(initiation)
		}
	}, want: "0 idle, 1 talking, 65 silent, 100 talking"},
	{name: "a single packet to one that has died", second: func(c *counted, t int) {
		if t == 1 {
			c.shake(began.Add(time.Second))
		}
		if t == 30 {
			c.send(ping)
		}
		if eachPeer(t, 5, 45, 135) {
			c.send(initiation)
		}
	}, want: "0 idle, 1 talking, 45 silent, 311 idle", lag: 5},
	// The peer's attempts arrive, and the answers to them do not.
	{name: "packets pass one way only", second: func(c *counted, t int) {
		if eachPeer(t, 5, 1, 600) {
			c.receive(initiation)
			c.send(response)
		}
	}, want: "0 idle, 16 silent"},
	{name: "packets pass one way only from then on", second: func(c *counted, t int) {
		if t == 1 {
			c.shake(began.Add(time.Second))
		}
		if t > 0 {
			c.send(ping)
		}
		if t > 0 && t < 50 {
			c.receive(ping)
		}
		if eachPeer(t, 5, 65, 400) {
			c.send(initiation)
			c.receive(initiation)
			c.send(response)
		}
	}, want: "0 idle, 1 talking, 65 silent"},
	{name: "two packets that nobody answers, with a keepalive in time", second: func(c *counted, t int) {
		if t%120 == 1 {
			c.shake(began.Add(time.Duration(t) * time.Second))
		}
		if t > 1 && t%20 == 1 {
			c.send(ping)
		}
		if t > 1 && t%20 == 11 {
			c.receive(keepalive)
		}
	}, want: "0 idle, 1 talking"},
}

func TestSequences(t *testing.T) {
	for _, c := range sequences {
		for _, every := range []int{1, 2, 5} {
			t.Run(fmt.Sprintf("%s, looked at every %d s", c.name, every), func(t *testing.T) {
				var d Liveness
				peer := &counted{PeerSample{Endpoint: netip.MustParseAddrPort("192.0.2.1:51820")}}
				var got []string
				last := ""
				for second := range 400 {
					c.second(peer, second)
					if second%every != 0 {
						continue
					}
					d.Observe(began.Add(time.Duration(second)*time.Second), c.keepalive, slices.Values([]PeerSample{peer.PeerSample}))
					state := Idle
					for s, n := range []int{d.Counts()[Idle], d.Counts()[Talking], d.Counts()[Silent]} {
						if n == 1 {
							state = PeerState(s)
						}
					}
					if state.String() != last {
						last = state.String()
						got = append(got, fmt.Sprintf("%d %s", second, state))
					}
				}
				want := strings.Split(c.want, ", ")
				if len(got) != len(want) {
					t.Fatalf("%s; want %s", strings.Join(got, ", "), c.want)
				}
				for i := range want {
					var at, wantAt int
					var state, wantState string
					fmt.Sscan(got[i], &at, &state)
					fmt.Sscan(want[i], &wantAt, &wantState)
					// A check is up to every-1 s late, which may affect both ends of a wait.
					late := 0
					if every > 1 {
						late = 2*every + c.lag
					}
					if state != wantState || at < wantAt-late/2 || at > wantAt+late {
						t.Errorf("%s; want %s", strings.Join(got, ", "), c.want)
						break
					}
				}
			})
		}
	}
}

// TestClosely: a device that is checked every second reports a peer that answered promptly as silent within 4 s of its
// last answer. It reports no peer as silent that is not silent in the end, except for a moment.
func TestClosely(t *testing.T) {
	lasts := func(until int) func(*counted, int) {
		return func(c *counted, t int) {
			if t%120 == 1 {
				c.shake(began.Add(time.Duration(t) * time.Second))
			}
			c.send(ping)
			if t < until {
				c.receive(ping)
			}
		}
	}
	for _, c := range []struct {
		name   string
		second func(*counted, int)
		want   string
	}{
		{"it dies", lasts(50), "0 idle, 1 talking, 52 silent"},
		{"it dies before it is known for prompt", lasts(4), "0 idle, 1 talking, 19 silent"},
		{"the first packets after a pause are not answered", func(c *counted, t int) {
			if t < 20 || t >= 60 && t < 80 {
				lasts(20)(c, t)
			}
		}, "0 idle, 1 talking, 62 silent"},
		{"a pause in both directions", func(c *counted, t int) {
			if t < 20 || t >= 100 {
				lasts(1000)(c, t)
			}
		}, "0 idle, 1 talking"},
		{"one packet is lost, and then another", func(c *counted, t int) {
			lasts(1000)(c, t)
			if t > 30 && t%7 == 1 {
				c.receive(-ping)
			}
		}, "0 idle, 1 talking"},
		{"packets one way only, the other end sends keepalives", func(c *counted, t int) {
			lasts(2)(c, t)
			if t%10 == 1 {
				c.receive(keepalive)
			}
		}, "0 idle, 1 talking"},
		// The program stops, and not the node: the node sends a keepalive 10 s after the first unanswered packet.
		{"a program stops to answer", func(c *counted, t int) {
			lasts(50)(c, t)
			if t >= 60 && t%10 == 0 {
				c.receive(keepalive)
			}
		}, "0 idle, 1 talking, 52 silent, 60 talking"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d Liveness
			d.Closely(true)
			peer := &counted{PeerSample{Endpoint: netip.MustParseAddrPort("192.0.2.1:51820")}}
			var got []string
			last := Silent
			for second := range 110 {
				c.second(peer, second)
				d.Observe(began.Add(time.Duration(second)*time.Second), 0, slices.Values([]PeerSample{peer.PeerSample}))
				if is, _, _ := d.Peer(peer.Key); is != last {
					last = is
					got = append(got, fmt.Sprintf("%d %s", second, is))
				}
			}
			if strings.Join(got, ", ") != c.want {
				t.Errorf("%s; want %s", strings.Join(got, ", "), c.want)
			}
		})
	}
}

func TestSilentPeers(t *testing.T) {
	var d Liveness
	samples := make([]PeerSample, 9)
	for i := range samples {
		samples[i] = PeerSample{Key: plan.PeerKey{byte(i)},
			Endpoint: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i % 3)}), 51820)}
	}
	changes := 0
	for second := range 40 {
		for i := range samples {
			if second >= i && i > 0 && second%5 == 0 {
				samples[i].Sent += initiation
			}
		}
		if d.Observe(began.Add(time.Duration(second)*time.Second), 0, slices.Values(samples)) {
			changes++
		}
	}
	if c := d.Counts(); c != (PeerCounts{Silent: 8, Idle: 1}) {
		t.Errorf("%+v", c)
	}
	if changes != 2 { // at 5 s, and at 10 s
		t.Errorf("%d changes", changes)
	}
	silent := d.Silent(6)
	if len(silent) != 6 || silent[0].Key != (plan.PeerKey{1}) || silent[0].Since != began.Add(5*time.Second) ||
		silent[5].Since != began.Add(10*time.Second) {
		t.Errorf("%+v", silent)
	}
	if at := netip.MustParseAddr("192.0.2.2"); !d.Known(at) || d.Known(at.Next()) {
		t.Error("wrong addresses are known")
	}
	// Removed peers are no longer silent, or counted.
	if !d.Observe(began.Add(time.Minute), 0, slices.Values(samples[:1])) || d.Counts() != (PeerCounts{Idle: 1}) ||
		d.Silent(9) != nil {
		t.Errorf("%+v %+v", d.Counts(), d.Silent(9))
	}
	if d.Known(netip.MustParseAddr("192.0.2.2")) || !d.Known(netip.MustParseAddr("192.0.2.0")) {
		t.Error("addresses of peers that have gone")
	}
	// A peer that moved is shown at its new endpoint.
	samples[0].Endpoint = netip.MustParseAddrPort("[2001:db8::1]:51820")
	d.Observe(began.Add(2*time.Minute), 0, slices.Values(samples[:1]))
	if !d.Known(netip.MustParseAddr("2001:db8::1")) || len(d.endpoints) != 1 {
		t.Errorf("%v", d.endpoints)
	}
}

// Counters that decrease mean that the peer was removed and added again.
func TestCountersGoBack(t *testing.T) {
	var d Liveness
	s := []PeerSample{{Key: plan.PeerKey{1}, Endpoint: netip.MustParseAddrPort("192.0.2.1:1")}}
	for second := range 20 {
		s[0].Sent += initiation
		d.Observe(began.Add(time.Duration(second)*time.Second), 0, slices.Values(s))
	}
	if d.Counts()[Silent] != 1 {
		t.Fatal("not silent")
	}
	s[0].Sent = 0
	if !d.Observe(began.Add(20*time.Second), 0, slices.Values(s)) || d.Counts()[Silent] != 0 || len(d.endpoints) != 1 ||
		d.endpoints[netip.MustParseAddr("192.0.2.1")] != 1 {
		t.Errorf("%+v %v", d.Counts(), d.endpoints)
	}
}
