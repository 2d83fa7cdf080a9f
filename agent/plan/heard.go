package plan

import (
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Heard decides to which nodes of a permissive remote packets are sent through the tunnel: those that were heard in
// it. A completed handshake shows that both nodes have each other as peers. Until then packets to the node are sent in
// the clear, as before; and again when it no longer answers, so that a tunnel that was removed at the other end costs
// seconds and not the connection. See docs/turning-on-encryption.md.
//
// The zero value is ready to use. It is not safe for concurrent use.
type Heard struct{ nodes map[string]*heardNode }

type heardNode struct {
	heard bool
	// lost is when the node last stopped answering; zero for never.
	lost time.Time
}

// Update evaluates the peers of the device and the desired ones, by node, and returns the nodes that are heard. nodeOf
// returns the node of a key, and silent whether a peer does not answer. While hold is set no further nodes become
// heard.
//
// A node seen for the first time, as by an agent that starts, is heard if its session is live. A device without a
// keepalive was strict until now: all nodes with which there was ever a session were sent to through the tunnel, and
// remain heard. A node that calls never has one here, and keeps its session live. A node with a new key remains heard:
// packets wait in WireGuard for the handshake, as with a strict remote.
func (h *Heard) Update(now time.Time, peers []wgtypes.Peer, wanted map[string]*semaphorev1.Peer,
	nodeOf Wanted, silent func(wgtypes.Key) bool, hold bool) map[string]bool {
	if h.nodes == nil {
		h.nodes = map[string]*heardNode{}
	}
	now = now.Round(0) // handshakes have a time of the wall clock, too, which may be set back
	for i := range peers {
		p := &peers[i]
		node, _, ok := nodeOf(p.PublicKey)
		if !ok {
			continue
		}
		is := h.nodes[node]
		shook := p.LastHandshakeTime.Unix() > 0
		if is != nil && is.lost.After(now) { // the clock was set back
			is.lost = now
		}
		switch {
		case is == nil:
			strict := p.PersistentKeepaliveInterval == 0 && !wanted[node].GetWireguard().GetCalls()
			is = &heardNode{heard: shook && !hold && (Live(*p, now) || strict)}
			h.nodes[node] = is
		case is.heard && silent(p.PublicKey):
			is.heard, is.lost = false, now
		case !is.heard && !hold && shook && Live(*p, now) && p.LastHandshakeTime.After(is.lost) && !silent(p.PublicKey):
			is.heard = true
		}
	}
	out := map[string]bool{}
	for node, is := range h.nodes {
		switch {
		case wanted[node] == nil:
			delete(h.nodes, node)
		case is.heard:
			out[node] = true
		}
	}
	return out
}
