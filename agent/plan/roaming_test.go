package plan

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestRoamingStaysInside: a peer keeps an endpoint at which it is heard only if a node of the remote can be there. A
// look is "SECONDS ENDPOINT RECEIVED SENT"; the endpoint ends in the given number, and 2 is the desired one. Its result
// is the endpoint that is left, or none if it is to be healed or is the desired one.
func TestRoamingStaysInside(t *testing.T) {
	bounds := Bounds{Remote: &Remote{Nodes: prefixes("192.0.2.16/28")}}
	wanted := netip.MustParseAddrPort("192.0.2.17:7775")
	for at, stays := range map[string]bool{"192.0.2.18:7775": true, "192.0.2.18:4242": true, "192.0.2.33:7775": false,
		"8.8.8.8:53": false, "127.0.0.1:53": false} {
		var r Roaming
		now := time.Now()
		for look := range 3 {
			p := wgtypes.Peer{
				PublicKey: wgtypes.Key{1}, Endpoint: net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)),
				LastHandshakeTime: now, ReceiveBytes: int64(1000 * look), TransmitBytes: 1000,
			}
			left := r.Look(now.Add(time.Duration(look)*300*time.Millisecond), []wgtypes.Peer{p},
				func(wgtypes.Key) (string, netip.AddrPort, bool) { return "n1", wanted, true }, bounds)
			if (len(left) == 1) != stays {
				t.Errorf("%s, look %d: left there: %v", at, look, left)
			}
		}
	}
}

func TestRoaming(t *testing.T) {
	for _, c := range []struct {
		name      string
		handshake int // seconds before the first look; -1 for none
		looks     []string
		left      string // "+" newly left, "." still left, "-" not left
	}{
		{"where it is wanted", 5, []string{"0 2 100 100", "1 2 100 100"}, "--"},
		{"roamed, and heard there", 5, []string{"0 2 100 100", "1 9 200 150", "2 9 300 200", "3 9 300 250"}, "-+.."},
		{"someone wrote it", 5, []string{"0 2 100 100", "1 9 100 150", "2 9 100 300", "2 9 100 300", "3 2 100 300"}, "-+---"},
		{"healed, and it roamed again", 5, []string{"0 9 100 100", "1 9 100 150", "2 9 200 300"}, "+-."},
		{"someone wrote it, and the next packet moved it back", 5,
			[]string{"0 2 100 100", "1 9 100 150", "2 2 200 300"}, "-+-"},
		{"two looks in a row prove nothing", 5, []string{"0 9 100 100", "0 9 100 100", "1 9 100 100"}, "+.-"},
		{"no session", 200, []string{"0 9 100 100"}, "-"},
		{"no handshake ever", -1, []string{"0 9 0 0"}, "-"},
		{"roamed, and nobody says anything", 5, []string{"0 9 100 100", "1 9 200 100", "11 9 200 132", "100 9 200 132",
			"400 9 200 164"}, "+...."},
		{"roamed, and does not answer any more", 5, []string{"0 9 100 100", "1 9 200 100", "15 9 200 5000",
			"22 9 200 9000"}, "+..-"},
		{"roamed, and answers late", 5, []string{"0 9 100 100", "1 9 200 100", "15 9 200 5000", "20 9 232 9000",
			"30 9 232 9100"}, "+...."},
		{"roamed on", 5, []string{"0 9 100 100", "1 9 200 100", "2 8 200 100", "3 8 300 100", "4 8 300 100"}, "+.+.."},
		{"roamed on, which someone wrote", 5, []string{"0 9 100 100", "1 9 200 100", "2 8 200 100", "3 8 200 100"}, "+.+-"},
		{"removed and set again", 5, []string{"0 9 100 100", "1 9 200 100", "2 9 10 10", "3 9 10 10"}, "+.+-"},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin := time.Unix(1_000_000, 0)
			at := func(n int) netip.AddrPort {
				return netip.MustParseAddrPort(fmt.Sprintf("192.0.2.%d:51820", n))
			}
			var r Roaming
			got := ""
			for _, look := range c.looks {
				var seconds, endpoint int
				p := wgtypes.Peer{PublicKey: wgtypes.Key{1}}
				if _, err := fmt.Sscan(look, &seconds, &endpoint, &p.ReceiveBytes, &p.TransmitBytes); err != nil {
					t.Fatal(err)
				}
				p.Endpoint = net.UDPAddrFromAddrPort(at(endpoint))
				if c.handshake >= 0 {
					p.LastHandshakeTime = begin.Add(-time.Duration(c.handshake) * time.Second)
				}
				peers := []wgtypes.Peer{p, {PublicKey: wgtypes.Key{2}, Endpoint: p.Endpoint}} // the second is not desired
				left := r.Look(begin.Add(time.Duration(seconds)*time.Second), peers,
					func(key wgtypes.Key) (string, netip.AddrPort, bool) {
						return "n1", at(2), key == wgtypes.Key{1}
					}, Bounds{})
				switch {
				case len(left) == 0:
					got += "-"
					if kernel.EndpointOf(&peers[0]) != at(endpoint) {
						t.Errorf("look %q: shown to the plan at %s", look, peers[0].Endpoint)
					}
					continue
				case left[0].New:
					got += "+"
				default:
					got += "."
				}
				if left[0].Node != "n1" || left[0].At != at(endpoint) || left[0].Wanted != at(2) ||
					kernel.EndpointOf(&peers[0]) != at(2) {
					t.Errorf("look %q: %+v, shown to the plan at %s", look, left[0], peers[0].Endpoint)
				}
			}
			if got != c.left {
				t.Errorf("%s; want %s", got, c.left)
			}
		})
	}
}

// TestRoamingOfSeveral: a peer that is not desired, has the desired endpoint, has no session or is healed does not
// affect the decision about those after it.
func TestRoamingOfSeveral(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	at := netip.MustParseAddrPort
	wanted := at("192.0.2.2:51820")
	var r Roaming
	look := func(seconds int, received int64) (left []string) {
		now := begin.Add(time.Duration(seconds) * time.Second)
		peer := func(n byte, endpoint string, received int64, handshake time.Time) wgtypes.Peer {
			return wgtypes.Peer{PublicKey: wgtypes.Key{n}, Endpoint: net.UDPAddrFromAddrPort(at(endpoint)),
				ReceiveBytes: received, LastHandshakeTime: handshake}
		}
		peers := []wgtypes.Peer{
			peer(0, "192.0.2.9:51820", 100, begin), // not desired
			peer(1, "192.0.2.2:51820", 100, begin),
			peer(2, "192.0.2.9:51820", 100, time.Time{}), // without a session
			peer(3, "192.0.2.9:51820", 100, begin),       // not heard again: healed at the second look
			peer(4, "192.0.2.9:51820", received, begin),
		}
		for _, one := range r.Look(now, peers, func(key wgtypes.Key) (string, netip.AddrPort, bool) {
			return fmt.Sprint("n", key[0]), wanted, key[0] > 0
		}, Bounds{}) {
			left = append(left, one.Node)
		}
		return left
	}
	if got := fmt.Sprint(look(0, 100), look(5, 200)); got != "[n3 n4] [n4]" {
		t.Errorf("left where they are: %s, want [n3 n4] and then [n4]", got)
	}
}

// TestEndpoints: an agent starts after a node has moved.
func TestEndpoints(t *testing.T) {
	wanted := Endpoints(networkOf(nil, map[string]string{"n1": "a 192.0.2.1:1 10.2.1.0/24",
		"n2": "b nonsense 10.2.2.0/24"}))
	if node, at, ok := wanted(wgtypes.Key(keyOf("a"))); node != "n1" || at.String() != "192.0.2.1:1" || !ok {
		t.Error(node, at, ok)
	}
	if _, _, ok := wanted(wgtypes.Key(keyOf("b"))); ok {
		t.Error("a peer that has no endpoint")
	}
}

// TestRoamingWhereOnlyTheOtherWorks: the desired endpoint of a peer behind a NAT does not work. Setting it again would
// cut the peer off until its next packet, a keepalive in 25 s. So it is left where the handshake came from; where only
// a packet moved it, the desired one is tried once.
func TestRoamingWhereOnlyTheOtherWorks(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	wanted := netip.MustParseAddrPort("192.0.2.2:51820")
	var r Roaming
	for _, look := range []struct {
		seconds, endpoint, handshake int // handshake is -1 for none
		received                     int64
		left                         bool
	}{
		{0, 2, -1, 0, false},
		{25, 9, 24, 148, true},
		{26, 9, 24, 148, true}, // nothing was received since, and nothing else works
		{44, 9, 24, 148, true},
		{50, 8, 24, 180, true}, // the NAT has another address, and a keepalive moved the endpoint
		{51, 8, 24, 180, false},
		{52, 2, 24, 180, false},
		{75, 8, 24, 212, true}, // the desired one did not work meanwhile
		{76, 8, 24, 212, true},
		{94, 8, 24, 212, true},
		{96, 2, 24, 300, false}, // now it does
		{97, 7, 24, 300, true},  // and somebody writes another
		{98, 7, 24, 300, false},
	} {
		now := begin.Add(time.Duration(look.seconds) * time.Second)
		p := wgtypes.Peer{PublicKey: wgtypes.Key{1}, ReceiveBytes: look.received, TransmitBytes: 100,
			Endpoint: net.UDPAddrFromAddrPort(netip.MustParseAddrPort(fmt.Sprintf("192.0.2.%d:51820", look.endpoint)))}
		if look.handshake >= 0 {
			p.LastHandshakeTime = begin.Add(time.Duration(look.handshake) * time.Second)
		}
		left := r.Look(now, []wgtypes.Peer{p}, func(wgtypes.Key) (string, netip.AddrPort, bool) {
			return "n1", wanted, true
		}, Bounds{})
		if (len(left) == 1) != look.left {
			t.Errorf("%d s, at %d: left %v", look.seconds, look.endpoint, left)
		}
	}
}

// TestPeerThatCalls: the endpoint of a node that calls is never written, and stays where its packets come from, inside
// the bounds only. It has no keepalive, which the other node sends: WireGuard would not know where to send it to.
func TestPeerThatCalls(t *testing.T) {
	calls := networkOf([]string{"10.2.0.0/16"}, map[string]string{"n1": "a 192.0.2.17:1 10.2.1.0/24"})
	calls.Peers["n1"].Wireguard.Address, calls.Peers["n1"].Wireguard.Calls = "", true
	bounds := Bounds{Remote: &Remote{Pods: prefixes("10.2.0.0/16"), Nodes: prefixes("192.0.2.16/28")}}
	steps := Network("c2", calls, bounds, wgtypes.Key{1}, nil)
	if len(steps.Config.Peers) != 1 || steps.Config.Peers[0].Endpoint != nil || len(steps.Applied.Problems()) > 0 {
		t.Fatalf("%+v, %v", steps.Config.Peers, steps.Applied.Problems())
	}
	if node, _, ok := Endpoints(calls)(wgtypes.Key(keyOf("a"))); !ok || node != "n1" {
		t.Errorf("its key is that of %q", node)
	}
	key, every := steps.Config.Peers[0].PublicKey, *steps.Config.Peers[0].PersistentKeepaliveInterval
	if every != 0 || steps.Applied.Begins(key) {
		t.Errorf("it has a keepalive of %s", every)
	}
	reached := peerOf("n1", "a 192.0.2.17:1 10.2.1.0/24")
	for _, c := range []struct {
		to    *semaphorev1.Peer
		every time.Duration
	}{{reached, calls.Device.GetPersistentKeepalive().AsDuration()}, {calls.Peers["n1"], 0}} {
		if cfg := steps.Applied.Change(map[string]*semaphorev1.Peer{"n1": c.to}); len(cfg.Peers) != 1 ||
			*cfg.Peers[0].PersistentKeepaliveInterval != c.every {
			t.Errorf("%v: %+v; want a keepalive of %s", c.to, cfg.Peers, c.every)
		}
	}
	for at, want := range map[string]string{"192.0.2.18:4242": "", "192.0.2.33:4242": "removed"} {
		device := carryOut(t, nil, steps)
		device.Peers[0].Endpoint = net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at))
		got := ""
		if again := Network("c2", calls, bounds, device.PrivateKey, device); again.Config != nil {
			if len(again.Config.Peers) == 1 && again.Config.Peers[0].Remove {
				got = "removed"
			}
		}
		if got != want || steps.Applied.Matches("c2", calls.Device, nil, device) != (want == "") {
			t.Errorf("at %s: %q, want %q", at, got, want)
		}
	}
}
