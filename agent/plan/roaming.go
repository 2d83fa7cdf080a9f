package plan

import (
	"net"
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/desired"
)

// WireGuard sends to where a peer's last authentic packet came from: a peer behind source NAT moves its endpoint, and
// nobody has written anything. Such an endpoint works, perhaps as the only one, so it is left while the peer is heard
// at it. One that someone wrote looks the same, but nothing comes from there: a packet from elsewhere would move it on.
// It is put right at the next look, and so is one where no node of the remote can be, heard or not: whoever has a
// peer's key could otherwise have this node send to any address.
const (
	// ProofTime is how long something has to be received at it.
	ProofTime = 200 * time.Millisecond
	// After silence of endpointTimeout, in which at least endpointBytes were sent, a peer is not there any more:
	// WireGuard would have it answer data within 10 s, and sends a handshake of 148 bytes each 5 s while
	// it does not. A keepalive, which nobody answers, has 32 bytes.
	endpointTimeout = 20 * time.Second
	endpointBytes   = 2 * 148
)

// Roaming follows the peers of a device that are not at the endpoint that is wanted. The zero value is
// ready to use.
type Roaming struct {
	seen map[wgtypes.Key]*sighting
}

// sighting is a peer at an endpoint that is not the wanted one.
type sighting struct {
	at    netip.AddrPort
	since time.Time
	// heard is the last look at which more had been received than at the one before, and what had
	// been received and sent by then; zero for never.
	heard          time.Time
	received, sent int64
}

// Roamed is a peer whose endpoint is left where it is.
type Roamed struct {
	Node       string
	At, Wanted netip.AddrPort
	// New says that it was not there at the look before.
	New bool
}

// Wanted says which node a peer is and where it is wanted; ok is false for one that is not.
type Wanted func(wgtypes.Key) (node string, endpoint netip.AddrPort, ok bool)

// Endpoints is what a network wants, for Roaming.
func Endpoints(want *desired.Network) Wanted {
	type place struct {
		node     string
		endpoint netip.AddrPort
	}
	places := make(map[wgtypes.Key]place, len(want.Peers))
	for node, p := range want.Peers {
		key, err := wgtypes.NewKey(p.GetWireguard().GetPublicKey())
		if err != nil {
			continue
		}
		if at, err := netip.ParseAddrPort(p.GetWireguard().GetAddress()); err == nil {
			places[key] = place{node, at}
		}
	}
	return func(key wgtypes.Key) (string, netip.AddrPort, bool) {
		p, ok := places[key]
		return p.node, p.endpoint, ok
	}
}

// Look takes the peers of a device as they stand. Of those that are to be left where they are, which it returns,
// it makes the endpoint the wanted one, so that a plan finds nothing to do about it.
func (r *Roaming) Look(now time.Time, peers []wgtypes.Peer, wanted Wanted, bounds Bounds) []Roamed {
	if bounds.hosts == nil {
		bounds.hosts = hostsOf(bounds.Own)
	}
	var left []Roamed
	var seen map[wgtypes.Key]*sighting
	for i := range peers {
		p := &peers[i]
		node, endpoint, ok := wanted(p.PublicKey)
		if !ok || p.Endpoint == nil || unmap(p.Endpoint) == endpoint || bounds.Endpoint(unmap(p.Endpoint)) != nil {
			continue
		}
		s, known := r.seen[p.PublicKey]
		if !known || s.at != unmap(p.Endpoint) || p.ReceiveBytes < s.received {
			if !Live(*p, now) {
				continue
			}
			known = false
			s = &sighting{at: unmap(p.Endpoint), since: now, received: p.ReceiveBytes, sent: p.TransmitBytes}
		}
		if seen == nil {
			seen = map[wgtypes.Key]*sighting{}
		}
		seen[p.PublicKey] = s // remembered until it is put right, so that the next look says the same
		if known && !s.leave(now, p) {
			continue
		}
		left = append(left, Roamed{Node: node, At: s.at, Wanted: endpoint, New: !known})
		p.Endpoint = net.UDPAddrFromAddrPort(endpoint)
	}
	r.seen = seen
	return left
}

// Unproven says that the last look found a peer somewhere else that has to be heard there until the next one.
func (r *Roaming) Unproven() bool {
	for _, s := range r.seen {
		if s.heard.IsZero() {
			return true
		}
	}
	return false
}

// leave says whether a peer is to be left where it was seen before.
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
