package plan

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

// WireGuard sends to the source of a peer's last authentic packet: a peer behind source NAT moves its endpoint without
// any configuration. Such an endpoint works, perhaps as the only one, so it is left while packets are received from it.
// An endpoint that another program wrote looks the same, but nothing is received from there: a packet from elsewhere
// would move it. It is healed at the next check, and so is one where no node of the remote can be, whether or not
// packets are received: an attacker with a peer's key could otherwise choose any address that this node sends to.
const (
	// ProofTime is how long packets must be received from it.
	ProofTime = 200 * time.Millisecond
	// After endpointTimeout without an answer, in which at least endpointBytes were sent, a peer is no longer there:
	// WireGuard would answer data within 10 s, and this node sends a handshake of 148 bytes every 5 s until then. A
	// keepalive, which is not answered, has 32 bytes.
	endpointTimeout = 20 * time.Second
	endpointBytes   = 2 * 148
)

// Roaming tracks the peers of a device that are not at the desired endpoint. The zero value is ready to use.
type Roaming struct {
	seen map[wgtypes.Key]*sighting
	// dead are the peers whose desired endpoint was set again and from which nothing was received there since, with what
	// had been received by then. If one is elsewhere again, and more was received, that is the only endpoint that works:
	// to set the desired one would cut it off until its next packet.
	dead   map[wgtypes.Key]int64
	looked time.Time
}

// sighting is a peer at another endpoint than the desired one.
type sighting struct {
	at    netip.AddrPort
	since time.Time
	// heard is the last check at which more had been received than before, with the bytes received and sent by then;
	// zero for never.
	heard          time.Time
	received, sent int64
}

// Roamed is a peer whose endpoint is left unchanged.
type Roamed struct {
	Node       string
	At, Wanted netip.AddrPort
	// New means that it was not there at the check before.
	New bool
}

// Wanted returns the node of a peer and its desired endpoint, invalid for a node that calls; ok is false for an
// undesired one.
type Wanted func(wgtypes.Key) (node string, endpoint netip.AddrPort, ok bool)

// Endpoints returns the desired peers of a network with their endpoints.
func Endpoints(want *Desired) Wanted {
	type place struct {
		node     string
		endpoint netip.AddrPort
	}
	places := make(map[wgtypes.Key]place, len(want.Peers))
	for _, node := range slices.Backward(slices.Sorted(maps.Keys(want.Peers))) { // of two with one key, the first
		p := want.Peers[node]
		key, err := wgtypes.NewKey(p.GetWireguard().GetPublicKey())
		if err != nil {
			continue
		}
		at, err := netip.ParseAddrPort(p.GetWireguard().GetAddress())
		if err == nil || p.GetWireguard().GetCalls() {
			places[key] = place{node, at}
		}
	}
	return func(key wgtypes.Key) (string, netip.AddrPort, bool) {
		p, ok := places[key]
		return p.node, p.endpoint, ok
	}
}

// Look evaluates the existing peers of a device. It returns the peers whose endpoints are to be left, and sets these
// to the desired ones in peers, so that a plan finds no difference.
func (r *Roaming) Look(now time.Time, peers []wgtypes.Peer, wanted Wanted, bounds Bounds) []Roamed {
	if bounds.hosts == nil {
		bounds.hosts = hostsOf(bounds.Own)
	}
	var left []Roamed
	seen := map[wgtypes.Key]*sighting{}
	for i := range peers {
		p := &peers[i]
		node, endpoint, ok := wanted(p.PublicKey)
		at := kernel.EndpointOf(p)
		if !ok || !endpoint.IsValid() || p.Endpoint == nil {
			continue
		}
		if at == endpoint {
			if r.dead[p.PublicKey] < p.ReceiveBytes {
				delete(r.dead, p.PublicKey) // it works
			}
			continue
		}
		if bounds.endpoint(at) != nil {
			continue
		}
		s, known := r.seen[p.PublicKey]
		if !known || s.at != at || p.ReceiveBytes < s.received {
			if !Live(*p, now) {
				continue
			}
			known = false
			s = &sighting{at: at, since: now, received: p.ReceiveBytes, sent: p.TransmitBytes}
			was, dead := r.dead[p.PublicKey]
			shook := !r.looked.IsZero() && p.LastHandshakeTime.After(r.looked)
			if dead && p.ReceiveBytes > was || shook {
				s.heard = now // a packet from there moved it: nobody writes at the same moment
			}
		}
		seen[p.PublicKey] = s // remembered until it is healed, so that the next check has the same result
		if known && !s.leave(now, p) {
			if r.dead == nil {
				r.dead = map[wgtypes.Key]int64{}
			}
			r.dead[p.PublicKey] = p.ReceiveBytes
			continue
		}
		left = append(left, Roamed{Node: node, At: s.at, Wanted: endpoint, New: !known})
		p.Endpoint = net.UDPAddrFromAddrPort(endpoint)
	}
	if r.seen, r.looked = seen, now; len(r.dead) > len(peers) {
		clear(r.dead) // of peers that were removed, too
	}
	return left
}

// Unproven reports whether the last check found a peer at another endpoint that must be heard there until the next
// one.
func (r *Roaming) Unproven() bool {
	for _, s := range r.seen {
		if s.heard.IsZero() {
			return true
		}
	}
	return false
}

func (s *sighting) leave(now time.Time, p *wgtypes.Peer) bool {
	switch {
	case p.ReceiveBytes > s.received:
		s.heard, s.received, s.sent = now, p.ReceiveBytes, p.TransmitBytes
		return true
	case s.heard.IsZero():
		return now.Sub(s.since) < ProofTime
	default:
		return now.Sub(s.heard) < endpointTimeout || p.TransmitBytes-s.sent < endpointBytes
	}
}
