package plan

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func TestHeard(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const keepalive = 25 * time.Second
	key := func(node string) wgtypes.Key { return wgtypes.Key([]byte(node + strings.Repeat(".", 32-len(node)))) }
	node := func(k wgtypes.Key) (string, netip.AddrPort, bool) {
		name := strings.TrimRight(string(k[:]), ".")
		name, _, _ = strings.Cut(name, "'") // n1' is n1 with another key
		return name, netip.AddrPort{}, name != "stranger"
	}
	peer := func(node string, handshake time.Time, every time.Duration) wgtypes.Peer {
		return wgtypes.Peer{PublicKey: key(node), LastHandshakeTime: handshake, PersistentKeepaliveInterval: every}
	}
	never := time.Time{}
	type look struct {
		peers  []wgtypes.Peer
		silent string
		hold   bool
		// replaced is true if the device has none of the peers yet.
		replaced bool
		// calls is true if the nodes call.
		calls bool
		want  string
	}
	for name, looks := range map[string][]look{
		"heard once a handshake has come to its end": {
			{peers: []wgtypes.Peer{peer("n1", never, keepalive)}},
			{peers: []wgtypes.Peer{peer("n1", time.Unix(0, 0), keepalive)}},
			{peers: []wgtypes.Peer{peer("n1", ago(time.Second), keepalive)}, want: "n1"},
			{peers: []wgtypes.Peer{peer("n1", ago(time.Hour), keepalive)}, want: "n1"},
		},
		"an agent that starts, on a permissive device": {
			{peers: []wgtypes.Peer{peer("n1", ago(time.Minute), keepalive), peer("n2", ago(time.Hour), keepalive),
				peer("stranger", now, keepalive)}, want: "n1"},
		},
		"a device that was strict": {
			{peers: []wgtypes.Peer{peer("n1", ago(24*time.Hour), 0), peer("n2", never, 0)}, want: "n1"},
		},
		"an agent that starts, and nodes that call": {
			{peers: []wgtypes.Peer{peer("n1", ago(time.Minute), 0), peer("n2", ago(time.Hour), 0)}, calls: true, want: "n1"},
		},
		"given up when silent, until the next handshake": {
			{peers: []wgtypes.Peer{peer("n1", ago(100*time.Second), keepalive)}, want: "n1"},
			{peers: []wgtypes.Peer{peer("n1", ago(100*time.Second), keepalive)}, silent: "n1"},
			{peers: []wgtypes.Peer{peer("n1", ago(100*time.Second), keepalive)}},
			{peers: []wgtypes.Peer{peer("n1", now.Add(time.Second), keepalive)}, want: "n1"},
		},
		"a new key": {
			{peers: []wgtypes.Peer{peer("n1", ago(time.Second), keepalive)}, want: "n1"},
			{peers: []wgtypes.Peer{peer("n1'", never, keepalive)}, replaced: true, want: "n1"},
			{peers: []wgtypes.Peer{peer("n1'", never, keepalive)}, want: "n1"},
		},
		"gone, and back": {
			{peers: []wgtypes.Peer{peer("n1", ago(time.Second), keepalive)}, want: "n1"},
			{},
			{peers: []wgtypes.Peer{peer("n1", never, keepalive)}},
		},
		"delayed": {
			{peers: []wgtypes.Peer{peer("n1", ago(time.Second), keepalive)}, hold: true},
			{peers: []wgtypes.Peer{peer("n1", ago(time.Second), keepalive)}, want: "n1"},
			{peers: []wgtypes.Peer{peer("n1", ago(time.Second), keepalive), peer("n2", now, keepalive)}, hold: true, want: "n1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var h Heard
			for i, l := range looks {
				at := now.Add(time.Duration(i) * time.Millisecond)
				wanted := map[string]*semaphorev1.Peer{}
				for _, p := range l.peers {
					name, _, _ := node(p.PublicKey)
					wanted[name] = &semaphorev1.Peer{Wireguard: &semaphorev1.WireGuardEndpoint{Calls: l.calls}}
				}
				if l.replaced {
					l.peers = nil
				}
				got := h.Update(at, l.peers, wanted, node,
					func(k wgtypes.Key) bool { n, _, _ := node(k); return n == l.silent }, l.hold)
				if s := strings.Join(slices.Sorted(maps.Keys(got)), " "); s != l.want {
					t.Errorf("look %d: %q, want %q", i, s, l.want)
				}
			}
		})
	}
}

// TestHeardAfterTheClockWasSetBack: a node of a permissive remote that answers again is sent to through the tunnel,
// also after the clock was set back.
func TestHeardAfterTheClockWasSetBack(t *testing.T) {
	var h Heard
	now := time.Unix(2e9, 0)
	key := wgtypes.Key{1}
	quiet := false
	wanted := map[string]*semaphorev1.Peer{"n1": {}}
	look := func(shook time.Time) bool {
		return h.Update(now, []wgtypes.Peer{{PublicKey: key, LastHandshakeTime: shook,
			PersistentKeepaliveInterval: 25 * time.Second}}, wanted,
			func(wgtypes.Key) (string, netip.AddrPort, bool) { return "n1", netip.AddrPort{}, true },
			func(wgtypes.Key) bool { return quiet }, false)["n1"]
	}
	if !look(now) {
		t.Fatal("not heard")
	}
	now, quiet = now.Add(time.Minute), true
	if look(now.Add(-time.Minute)) {
		t.Fatal("silent, and heard")
	}
	now, quiet = now.Add(-time.Hour), false // the clock is set back, and the node answers
	for range 50 {
		now = now.Add(time.Minute)
		if look(now.Add(-time.Second)) {
			return
		}
	}
	t.Error("for 50 minutes packets to a node that answers leave in the clear")
}
