package plan

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

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

// TestCandidatesAfterTheClockWasSetForward: a session that works keeps its endpoint, also after the clock was set
// forward.
func TestCandidatesAfterTheClockWasSetForward(t *testing.T) {
	var c Candidates
	key := wgtypes.Key{1}
	all := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:1")}
	now := time.Unix(2e9, 0)
	p := wgtypes.Peer{PublicKey: key, LastHandshakeTime: now, Endpoint: net.UDPAddrFromAddrPort(all[0])}
	c.Choose(key, all, all[0])
	moved := 0
	look := func() {
		now = now.Add(300 * time.Millisecond)
		p.ReceiveBytes, p.TransmitBytes = p.ReceiveBytes+1600, p.TransmitBytes+1600
		if out := c.Look(now, []wgtypes.Peer{p}); len(out.Moved) > 0 {
			moved++
		}
	}
	for range 10 {
		look()
	}
	now = now.Add(time.Hour) // NTP
	for range 100 {
		look()
	}
	if moved > 0 {
		t.Errorf("in 30 s after the step, in which packets were received all the time, the endpoint was changed %d times",
			moved)
	}
}
