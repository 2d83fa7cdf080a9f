package plan

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Programmed is a network as it was last programmed, by which single peers can be changed
// without a look at the device, or at the other peers.
type Programmed struct {
	bounds    Bounds
	keepalive time.Duration
	byNode    map[string]peer
	// refused are the nodes that can be no peers. They wait for the next look at all.
	refused map[string]bool
	// keys are those of the nodes, prefixes those that are taken.
	keys     map[wgtypes.Key]string
	prefixes map[netip.Prefix]bool
}

// Remember takes note of a network that stands as it is wanted, but for peers that were refused. It is nil for one of
// which something was settled: single changes would have to weigh all its peers against each other.
func Remember(want *desired.Network, bounds Bounds) *Programmed {
	p := &Programmed{
		bounds:    bounds,
		keepalive: want.Device.GetPersistentKeepalive().AsDuration(),
		byNode:    make(map[string]peer, len(want.Peers)),
		keys:      make(map[wgtypes.Key]string, len(want.Peers)),
		prefixes:  make(map[netip.Prefix]bool, len(want.Peers)),
		refused:   map[string]bool{},
	}
	for node, is := range want.Peers {
		if peer, err := parsePeer(is, bounds); err != nil {
			p.refused[node] = true
		} else if !p.take(node, peer) {
			return nil
		}
	}
	return p
}

// Change plans that some nodes' peers become those given, nil for one that goes, and remembers it. When it is
// not ok nothing can be said without a look at the whole network, and p is of no use any more.
func (p *Programmed) Change(nodes map[string]*semaphorev1.Peer) (cfg wgtypes.Config, ok bool) {
	names := slices.Sorted(maps.Keys(nodes))
	var gone []wgtypes.Key
	for _, node := range names {
		if p.refused[node] {
			return wgtypes.Config{}, false
		}
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
		if err != nil || !p.take(node, is) {
			return wgtypes.Config{}, false
		}
		set = append(set, is.config(p.keepalive))
	}
	cfg.Peers = set
	for _, key := range gone { // last, as in Network
		if _, again := p.keys[key]; !again {
			cfg.Peers = append(cfg.Peers, wgtypes.PeerConfig{PublicKey: key, Remove: true})
		}
	}
	return cfg, true
}

// take notes a peer; not ok is one that claims what another has.
func (p *Programmed) take(node string, is peer) (ok bool) {
	if _, taken := p.keys[is.key]; taken {
		return false
	}
	p.keys[is.key] = node
	for _, prefix := range is.prefixes {
		if p.prefixes[prefix] {
			return false
		}
		p.prefixes[prefix] = true
	}
	p.byNode[node] = is
	return true
}

// Stands says whether a device is all as it was programmed; if not, Network plans what to do. It is called for looks
// that nearly always find that nothing is to be done, so it makes no garbage. device is what Remember was told.
func (p *Programmed) Stands(cluster string, device *semaphorev1.Device, stands *wireguard.Device) bool {
	rest := *stands
	rest.Peers = nil
	if !Network(cluster, &desired.Network{Device: device}, p.bounds, stands.PrivateKey, &rest).Empty() || len(stands.Peers) != len(p.keys) {
		return false
	}
	for i := range stands.Peers {
		node, ok := p.keys[stands.Peers[i].PublicKey]
		if !ok || !p.byNode[node].stands(&stands.Peers[i], p.keepalive) {
			return false
		}
	}
	return true
}

// Endpoint is a Wanted.
func (p *Programmed) Endpoint(key wgtypes.Key) (node string, endpoint netip.AddrPort, ok bool) {
	node, ok = p.keys[key]
	return node, p.byNode[node].endpoint, ok
}

// stands says whether a peer is as it is wanted.
func (p peer) stands(is *wgtypes.Peer, keepalive time.Duration) bool {
	if is.Endpoint == nil || unmap(is.Endpoint) != p.endpoint || is.PersistentKeepaliveInterval != keepalive || len(is.AllowedIPs) != len(p.prefixes) {
		return false
	}
	for _, ip := range is.AllowedIPs {
		addr, _ := netip.AddrFromSlice(ip.IP)
		bits, _ := ip.Mask.Size()
		if !slices.Contains(p.prefixes, netip.PrefixFrom(addr.Unmap(), bits)) {
			return false
		}
	}
	return true
}
