package plan

import (
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Heard is to which nodes of a permissive remote packets are sent through the tunnel: those that were heard in it. A
// handshake that came to its end says both that the node has us for a peer, and so takes our packets out of the tunnel,
// and that we have it. Until then packets to it go in the clear, as they did before; and again when it does not answer
// any more, so that a tunnel that someone has taken away, at the other end, costs seconds and not the connection. See
// docs/adr/0012-permissive.md.
//
// The zero value is ready for use. It is not safe for concurrent use.
type Heard struct{ nodes map[string]*hearing }

type hearing struct {
	heard bool
	// lost is when the node was last given up; zero for never.
	lost time.Time
}

// Look takes the peers of the device as they stand, and those that are wanted, by node, and returns the nodes that are
// heard. nodeOf names the node of a key, and silent says whether a peer is sent to and does not answer. While hold is
// set no more are heard than were before.
//
// A node that is seen for the first time, as by an agent that starts, is heard where its session lives. A device that
// is without a keepalive was strict until now: every node with which there ever was a session was sent to through the
// tunnel, and still is. A node that gets a new key stays heard: it was, and packets wait in WireGuard for the
// handshake, as in a strict remote.
func (h *Heard) Look(now time.Time, peers []wgtypes.Peer, wanted map[string]*semaphorev1.Peer, nodeOf func(wgtypes.Key) (string, bool), silent func(wgtypes.Key) bool, hold bool) map[string]bool {
	if h.nodes == nil {
		h.nodes = map[string]*hearing{}
	}
	for i := range peers {
		p := &peers[i]
		node, ok := nodeOf(p.PublicKey)
		if !ok {
			continue
		}
		is := h.nodes[node]
		shook := p.LastHandshakeTime.Unix() > 0
		switch {
		case is == nil:
			is = &hearing{heard: shook && !hold && (Live(*p, now) || p.PersistentKeepaliveInterval == 0)}
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
