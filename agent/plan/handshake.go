package plan

import (
	"net"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// SessionLifetime is how long after a handshake packets can be sent: REJECT_AFTER_TIME of the WireGuard paper, section
// 6.1.
const SessionLifetime = 180 * time.Second

// anyKeepalive triggers a handshake: WireGuard sends a packet immediately when a keepalive is enabled.
const anyKeepalive = 25 * time.Second

func Live(p wgtypes.Peer, now time.Time) bool {
	return now.Sub(p.LastHandshakeTime) < SessionLifetime
}

// Replaces reports whether a configuration both sets and removes peers, as when a node has a new key.
func Replaces(cfg wgtypes.Config) bool {
	removes := func(p wgtypes.PeerConfig) bool { return p.Remove }
	return slices.ContainsFunc(cfg.Peers, removes) &&
		slices.ContainsFunc(cfg.Peers, func(p wgtypes.PeerConfig) bool { return !p.Remove })
}

// BeginHandshakes returns the configuration that makes a device begin a handshake with peers, and leaves them as they
// are otherwise. Their keepalive must be off.
func BeginHandshakes(peers []wgtypes.Key) (cfg wgtypes.Config) {
	for _, key := range peers {
		cfg.Peers = append(cfg.Peers, begin(wgtypes.PeerConfig{PublicKey: key, UpdateOnly: true})...)
	}
	return cfg
}

// begin adds to the configuration of a peer that the device begins a handshake with it.
func begin(p wgtypes.PeerConfig) []wgtypes.PeerConfig {
	on, off := anyKeepalive, time.Duration(0)
	p.PersistentKeepaliveInterval = &on
	return []wgtypes.PeerConfig{p, {PublicKey: p.PublicKey, UpdateOnly: true, PersistentKeepaliveInterval: &off}}
}

// TriggerHandshakes makes new peers start a handshake immediately when they take over allowed IPs of a removed peer
// that had a live session: they are the same node with a new key. existing are the peers of the device before; those
// without a session may be left out.
//
// A node with a new key may have begun a handshake that this node had to refuse, as it did not know the key. That node
// does not try again for 5 s (REKEY_TIMEOUT of the WireGuard paper, 6.1), and all that it has for this node waits as
// long, unless this node begins, which by itself may have nothing to send. Pairs of nodes without traffic are left
// alone, or a new key would cost a handshake with every node of the other cluster.
//
// It reports whether there is such a peer: packets may be on their way through the removed one.
func TriggerHandshakes(cfg *wgtypes.Config, existing []wgtypes.Peer, now time.Time) (live bool) {
	goes := map[wgtypes.Key]bool{}
	for _, p := range cfg.Peers {
		if p.Remove {
			goes[p.PublicKey] = true
		}
	}
	present := make(map[wgtypes.Key]bool, len(existing))
	had := map[string]bool{}
	for _, p := range existing {
		present[p.PublicKey] = true
		if goes[p.PublicKey] && Live(p, now) {
			for _, prefix := range p.AllowedIPs {
				had[prefix.String()] = true
			}
		}
	}
	if len(had) == 0 {
		return false
	}
	var peers []wgtypes.PeerConfig
	for _, p := range cfg.Peers {
		takes := slices.ContainsFunc(p.AllowedIPs, func(ip net.IPNet) bool { return had[ip.String()] })
		live = live || takes && !p.Remove
		if p.Remove || present[p.PublicKey] || !takes || p.Endpoint == nil || p.PersistentKeepaliveInterval != nil &&
			*p.PersistentKeepaliveInterval > 0 {
			peers = append(peers, p) // a peer with a keepalive sends immediately anyway, and a node that calls begins
		} else {
			peers = append(peers, begin(p)...)
		}
	}
	cfg.Peers = peers
	return live
}
