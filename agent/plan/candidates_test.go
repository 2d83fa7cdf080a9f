package plan

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

// wire is WireGuard and the network as Candidates meets them: a handshake is begun every 5 s while there is something
// to send, and a session lasts 180 s. Time is in tenths of a second.
type wire struct {
	peer      wgtypes.Peer
	begin     time.Time
	initiated int
	heard     int
	lost      int // tenths without an answer while something was sent
	worst     int
}

// span is from and until when, in seconds.
type span struct{ from, until int }

func in(spans []span, tenths int) bool {
	return slices.ContainsFunc(spans, func(s span) bool { return s.from*10 <= tenths && tenths < s.until*10 })
}

func candidate(i int) netip.AddrPort {
	return netip.MustParseAddrPort(fmt.Sprintf("192.0.2.%d:7775", 10+i))
}

func (w *wire) tick(tenths int, sends bool, answers func(netip.AddrPort) bool) {
	now := w.begin.Add(time.Duration(tenths) * 100 * time.Millisecond)
	at := kernel.EndpointOf(&w.peer)
	if !sends {
		w.lost = 0
		return
	}
	answered := false
	if Live(w.peer, now) {
		w.peer.TransmitBytes += 112
		if answers(at) {
			w.peer.ReceiveBytes += 112
			w.heard, answered = tenths, true
		}
	}
	if (!Live(w.peer, now) || tenths-w.heard > 150) && tenths-w.initiated >= 50 {
		w.initiated = tenths
		w.peer.TransmitBytes += initiationBytes
		if answers(at) {
			w.peer.ReceiveBytes += 92
			w.peer.LastHandshakeTime, w.heard, answered = now, tenths, true
		}
	}
	if w.lost++; answered {
		w.lost = 0
	}
	w.worst = max(w.worst, w.lost)
}

// TestCandidates has the sequences of candidates that answer and do not: which is in use from which second on, and the
// longest time without an answer while something was sent, in seconds.
func TestCandidates(t *testing.T) {
	always := []span{{0, 100_000}}
	for _, c := range []struct {
		name    string
		answers [][]span // of each candidate
		probes  [][]span // when it answers a question; as answers if nil
		sends   []span
		until   int
		want    string
		worst   int
	}{
		{"the first answers", [][]span{always, always}, nil, always, 600, "0:0", 1},
		{"the first does not answer: one handshake later the second does", [][]span{nil, always}, nil, always, 600,
			"0:0 1:1", 6},
		{"only the last of four answers", [][]span{nil, nil, nil, always}, nil, always, 600, "0:0 1:1 6:2 11:3", 16},
		{"none answers: each has its turn, and nothing hastens", [][]span{nil, nil}, nil, always, 21,
			"0:0 1:1 6:0 11:1 16:0", 21},
		{"nothing is sent, so nothing is tried", [][]span{nil, always}, nil, nil, 600, "0:0", 0},
		{"a session that works is not left for a better one that does not answer", [][]span{{{0, 60}}, always}, nil, always,
			3000, "0:0 80:1", 22},
		{"it ends, and the next answers within 22 s", [][]span{{{0, 100}}, always}, nil, always, 300, "0:0 120:1", 22},
		{"the better one answers again: it is asked within a minute, and nothing is lost",
			[][]span{{{0, 60}, {300, 9999}}, always}, nil, always, 600, "0:0 80:1 320:0", 22},
		{"the better one answers questions and carries nothing: one try in an hour",
			[][]span{{{0, 60}}, always}, [][]span{always, always}, always, 4000, "0:0 80:1 140:0 141:1 3741:0 3743:1", 22},
		{"no flapping while one answers now and then", [][]span{{{0, 60}, {100, 101}, {110, 111}, {130, 131}}, always},
			[][]span{{{0, 60}}, nil}, always, 600, "0:0 80:1", 22},
		{"nothing is sent for long after the second worked: the first is the next to try",
			[][]span{{{400, 9999}}, always}, nil, []span{{0, 60}, {500, 600}}, 600, "0:0 1:1 186:0", 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &wire{begin: time.Unix(1_000_000, 0), initiated: -100, peer: wgtypes.Peer{PublicKey: wgtypes.Key{1}}}
			var all []netip.AddrPort
			for i := range c.answers {
				all = append(all, candidate(i))
			}
			if c.probes == nil {
				c.probes = c.answers
			}
			var tried Candidates
			var got []string
			last := netip.AddrPort{}
			use := func(tenths int) {
				at := tried.Choose(w.peer.PublicKey, all, netip.AddrPort{})
				if at != last {
					got = append(got, fmt.Sprintf("%d:%d", tenths/10, slices.Index(all, at)))
					last = at
					w.peer.Endpoint = net.UDPAddrFromAddrPort(at)
				}
			}
			use(0)
			for tenths := range c.until * 10 {
				at := func(spans [][]span) func(netip.AddrPort) bool {
					return func(to netip.AddrPort) bool { return in(spans[slices.Index(all, to)], tenths) }
				}
				w.tick(tenths, in(c.sends, tenths), at(c.answers))
				now := w.begin.Add(time.Duration(tenths) * 100 * time.Millisecond)
				if tenths%3 != 0 {
					continue
				}
				tried.Look(now, []wgtypes.Peer{w.peer})
				for _, q := range tried.Ask() {
					if at(c.probes)(q.At) {
						tried.Answered(now, q)
					}
				}
				use(tenths)
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("in use: %s; want %s", got, c.want)
			}
			if w.worst > c.worst*10 {
				t.Errorf("no answer for %d.%d s; want %d s at most", w.worst/10, w.worst%10, c.worst)
			}
		})
	}
}

// TestBetterCandidateOfABusySession: packets that were under way when the device got the better endpoint move it back.
// It gets it again, and only what is received while it has it shows that it works.
func TestBetterCandidateOfABusySession(t *testing.T) {
	better, worse := candidate(0), candidate(1)
	for name, works := range map[string]bool{"it works": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			var tried Candidates
			begin := time.Unix(1_000_000, 0)
			p := wgtypes.Peer{PublicKey: wgtypes.Key{1}, LastHandshakeTime: begin}
			tried.Choose(p.PublicKey, []netip.AddrPort{better, worse}, worse)
			again := 0
			look := func(at netip.AddrPort, tenths int) netip.AddrPort {
				p.Endpoint, p.ReceiveBytes, p.TransmitBytes = net.UDPAddrFromAddrPort(at), p.ReceiveBytes+112, p.TransmitBytes+112
				looked := tried.Look(begin.Add(time.Duration(tenths)*100*time.Millisecond), []wgtypes.Peer{p})
				again += len(looked.Again)
				return tried.Choose(p.PublicKey, []netip.AddrPort{better, worse}, netip.AddrPort{})
			}
			look(worse, 0)
			look(worse, 1199)
			if !tried.Answered(begin.Add(2*time.Minute), Question{p.PublicKey, better}) {
				t.Fatal("the better one is not tried")
			}
			// Two looks at which the last packets from the other endpoint have moved the device back.
			if look(worse, 1203) != better || look(worse, 1206) != better || again != 2 {
				t.Errorf("given up after %d times", again)
			}
			at, want := better, better
			if !works {
				at, want = worse, worse
			}
			var is netip.AddrPort
			for tenths := 1209; tenths < 1240; tenths += 3 {
				is = look(at, tenths)
			}
			if is != want {
				t.Errorf("in use: %s", is)
			}
		})
	}
}
