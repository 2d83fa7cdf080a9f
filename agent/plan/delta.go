package plan

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/desired"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Programmed is a network as it was last programmed, by which single peers can be changed
// without a look at the device, or at the other peers.
type Programmed struct {
	bounds    Bounds
	keepalive time.Duration
	byNode    map[string]peer
	// keys and prefixes are those that are taken.
	keys     map[wgtypes.Key]bool
	prefixes map[netip.Prefix]bool
}

// Remember takes note of a network that stands as it is wanted. It is nil for one of which parts were
// refused or settled: single changes would have to weigh all its peers against each other.
func Remember(want *desired.Network, bounds Bounds) *Programmed {
	p := &Programmed{
		bounds:    bounds,
		keepalive: want.Device.GetPersistentKeepalive().AsDuration(),
		byNode:    make(map[string]peer, len(want.Peers)),
		keys:      make(map[wgtypes.Key]bool, len(want.Peers)),
		prefixes:  make(map[netip.Prefix]bool, len(want.Peers)),
	}
	_, ok := p.Change(want.Peers)
	if !ok {
		return nil
	}
	return p
}

// Change plans that some nodes' peers become those given, nil for one that goes, and remembers it. When it is
// not ok nothing can be said without a look at the whole network, and p is of no use any more.
func (p *Programmed) Change(nodes map[string]*semaphorev1.Peer) (cfg wgtypes.Config, ok bool) {
	names := slices.Sorted(maps.Keys(nodes))
	var gone []wgtypes.Key
	for _, node := range names {
		if was, there := p.byNode[node]; there {
			gone = append(gone, was.key)
			delete(p.keys, was.key)
			for _, prefix := range was.prefixes {
				delete(p.prefixes, prefix)
			}
			delete(p.byNode, node)
		}
	}
	var set []wgtypes.PeerConfig
	for _, node := range names {
		if nodes[node] == nil {
			continue
		}
		is, err := parsePeer(nodes[node], p.bounds)
		if err != nil || p.keys[is.key] {
			return wgtypes.Config{}, false
		}
		p.keys[is.key] = true
		for _, prefix := range is.prefixes {
			if p.prefixes[prefix] {
				return wgtypes.Config{}, false
			}
			p.prefixes[prefix] = true
		}
		p.byNode[node] = is
		set = append(set, is.config(p.keepalive))
	}
	cfg.Peers = set
	for _, key := range gone { // last, as in Network
		if !p.keys[key] {
			cfg.Peers = append(cfg.Peers, wgtypes.PeerConfig{PublicKey: key, Remove: true})
		}
	}
	return cfg, true
}
