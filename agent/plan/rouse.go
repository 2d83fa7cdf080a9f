package plan

import (
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	// sessionLives is how long after a handshake packets can still be sent: REJECT_AFTER_TIME of the WireGuard paper, 6.1.
	sessionLives = 180 * time.Second
	// rousing is any keepalive: to switch one on has a packet sent at once.
	rousing = 25 * time.Second
)

// Live says whether packets can have been on their way to a peer, or from it, just now.
func Live(p wgtypes.Peer, now time.Time) bool { return now.Sub(p.LastHandshakeTime) < sessionLives }

// Replaces says whether a configuration both sets peers and removes some, as when a node has a new key.
func Replaces(cfg wgtypes.Config) bool {
	removes := func(p wgtypes.PeerConfig) bool { return p.Remove }
	return slices.ContainsFunc(cfg.Peers, removes) && slices.ContainsFunc(cfg.Peers, func(p wgtypes.PeerConfig) bool { return !p.Remove })
}

// Rouse has those new peers of a configuration shake hands at once that take prefixes over from a peer that goes and had a
// live session: they are the same node with a new key. stand are the peers of the device before; those without a session
// may be left out.
//
// A node with a new key has perhaps begun a handshake that we had to refuse, as we did not know the key. It does not try
// again for 5 s (REKEY_TIMEOUT), and all that it has for us waits as long, unless we begin. We have nothing to send,
// perhaps, which is why we are roused; and pairs of nodes with no traffic are not, or a new key would be a
// handshake with every node of the other cluster.
func Rouse(cfg *wgtypes.Config, stand []wgtypes.Peer, now time.Time) {
	goes := map[wgtypes.Key]bool{}
	for _, p := range cfg.Peers {
		if p.Remove {
			goes[p.PublicKey] = true
		}
	}
	present := make(map[wgtypes.Key]bool, len(stand))
	had := map[string]bool{}
	for _, p := range stand {
		present[p.PublicKey] = true
		if goes[p.PublicKey] && Live(p, now) {
			for _, prefix := range p.AllowedIPs {
				had[prefix.String()] = true
			}
		}
	}
	if len(had) == 0 {
		return
	}
	var peers []wgtypes.PeerConfig
	for _, p := range cfg.Peers {
		takes := slices.ContainsFunc(sorted(p.AllowedIPs), func(prefix string) bool { return had[prefix] })
		if p.Remove || present[p.PublicKey] || !takes || p.PersistentKeepaliveInterval != nil && *p.PersistentKeepaliveInterval > 0 {
			peers = append(peers, p) // one with a keepalive sends at once as it is
			continue
		}
		on, off := rousing, time.Duration(0)
		p.PersistentKeepaliveInterval = &on
		peers = append(peers, p, wgtypes.PeerConfig{PublicKey: p.PublicKey, UpdateOnly: true, PersistentKeepaliveInterval: &off})
	}
	cfg.Peers = peers
}
