package plan

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// AppliedPeers is a network as it was last applied, by which single peers can be changed without a look at the device,
// or at more of the other peers than contradict them: whatever is refused or contradicts each other.
type AppliedPeers struct {
	bounds    Bounds
	subnets   []netip.Prefix
	keepalive time.Duration
	// byNode are the nodes that can be peers, refused why others cannot.
	byNode  map[string]peer
	refused map[string]string
	// Of several nodes with one key the first is the peer, and the others have nothing. Of several peers that want one
	// prefix the first has it.
	keys     claims[wgtypes.Key]
	prefixes claims[netip.Prefix]
	// problems are the lines of Problems; nil after a change that may change them.
	problems []string
	// routed are led into the device: the subnets, or of a permissive remote the prefixes of the peers that are heard.
	routed []netip.Prefix
}

// remember takes note of a network, of which these subnets are routed. Of this node's addresses only its peers'
// endpoints are kept away.
func remember(want *desired.Network, bounds Bounds, subnets []netip.Prefix) *AppliedPeers {
	p := &AppliedPeers{
		bounds:    bounds,
		subnets:   subnets,
		keepalive: want.Device.GetPersistentKeepalive().AsDuration(),
		byNode:    make(map[string]peer, len(want.Peers)),
		refused:   map[string]string{},
		keys:      newClaims[wgtypes.Key](len(want.Peers)),
		prefixes:  newClaims[netip.Prefix](len(want.Peers)),
	}
	p.bounds.hosts = hostsOf(bounds.Own)
	p.bounds.Own, p.bounds.Standing = nil, nil
	for node, is := range want.Peers {
		p.add(node, is)
	}
	p.routed = subnets
	if want.Device.GetPermissive() {
		p.routed = p.routedTo(want.Heard)
	}
	return p
}

// routedTo are the prefixes of some nodes.
func (p *AppliedPeers) routedTo(nodes map[string]bool) []netip.Prefix {
	var routed []netip.Prefix
	for node := range nodes {
		if is, ok := p.is(node); ok {
			routed = append(routed, is.prefixes...)
		}
	}
	slices.SortFunc(routed, netip.Prefix.Compare)
	return routed
}

// Change plans that some nodes' peers become those given, nil for one that goes, and remembers it.
func (p *AppliedPeers) Change(nodes map[string]*semaphorev1.Peer) (cfg wgtypes.Config) {
	// Who can come to have something else: the nodes themselves, those that want the same key, and those that want a
	// prefix of any of these.
	concerned := map[string]bool{}
	keys, prefixes := map[wgtypes.Key]bool{}, map[netip.Prefix]bool{}
	concern := func(node string) {
		if !concerned[node] {
			concerned[node] = true
			for _, prefix := range p.byNode[node].prefixes {
				prefixes[prefix] = true
			}
		}
	}
	for node, becomes := range nodes {
		concern(node)
		if was, there := p.byNode[node]; there {
			keys[was.key] = true
		}
		if is, err := parsePeer(becomes, p.bounds, p.subnets); becomes != nil && err == nil {
			keys[is.key] = true
			for _, prefix := range is.prefixes {
				prefixes[prefix] = true
			}
		}
	}
	for key := range keys {
		p.keys.each(key, concern)
	}
	for prefix := range maps.Clone(prefixes) {
		p.prefixes.each(prefix, func(node string) { concerned[node] = true })
	}
	before, contradicted := p.standing(concerned), p.contradicts()
	for node := range nodes {
		p.remove(node)
	}
	for node, becomes := range nodes {
		if becomes != nil {
			p.add(node, becomes)
		}
	}
	if contradicted || p.contradicts() {
		p.problems = nil
	}
	after := p.standing(concerned)
	for _, key := range slices.SortedFunc(maps.Keys(after), compareKeys) {
		is := after[key]
		was, there := before[key]
		switch {
		case there && was.endpoint == is.endpoint && slices.Equal(was.prefixes, is.prefixes):
		case there && slices.Equal(was.prefixes, is.prefixes): // while they are replaced, packets have no way
			cfg.Peers = append(cfg.Peers, wgtypes.PeerConfig{PublicKey: key, UpdateOnly: true, Endpoint: net.UDPAddrFromAddrPort(is.endpoint),
				PersistentKeepaliveInterval: &p.keepalive})
		default:
			cfg.Peers = append(cfg.Peers, is.config(p.keepalive))
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(before), compareKeys) { // last, as in Network
		if _, stays := after[key]; !stays {
			cfg.Peers = append(cfg.Peers, wgtypes.PeerConfig{PublicKey: key, Remove: true})
		}
	}
	return cfg
}

func compareKeys(a, b wgtypes.Key) int { return slices.Compare(a[:], b[:]) }

// standing are the peers that some nodes come to, by key.
func (p *AppliedPeers) standing(nodes map[string]bool) map[wgtypes.Key]peer {
	out := map[wgtypes.Key]peer{}
	for node := range nodes {
		if is, ok := p.is(node); ok {
			out[is.key] = is
		}
	}
	return out
}

// is what a node comes to; not ok for one that is no peer.
func (p *AppliedPeers) is(node string) (is peer, ok bool) {
	is, ok = p.byNode[node]
	if !ok || !p.keys.has(is.key, node) {
		return peer{}, false
	}
	anothers := func(prefix netip.Prefix) bool { return !p.prefixes.has(prefix, node) }
	if len(p.prefixes.rest) > 0 && slices.ContainsFunc(is.prefixes, anothers) {
		is.prefixes = slices.DeleteFunc(slices.Clone(is.prefixes), anothers)
	}
	return is, true
}

// add notes a node that is not there.
func (p *AppliedPeers) add(node string, becomes *semaphorev1.Peer) {
	is, err := parsePeer(becomes, p.bounds, p.subnets)
	if err != nil {
		p.refused[node], p.problems = err.Error(), nil
		return
	}
	p.byNode[node] = is
	was, taken := p.keys.first[is.key]
	p.keys.add(is.key, node)
	if !p.keys.has(is.key, node) {
		return
	}
	if taken {
		p.release(was)
	}
	p.take(node)
}

// remove drops a node.
func (p *AppliedPeers) remove(node string) {
	if _, ok := p.refused[node]; ok {
		delete(p.refused, node)
		p.problems = nil
	}
	was, there := p.byNode[node]
	if !there {
		return
	}
	had := p.keys.has(was.key, node)
	if had {
		p.release(node)
	}
	p.keys.remove(was.key, node)
	delete(p.byNode, node)
	if next, taken := p.keys.first[was.key]; had && taken {
		p.take(next)
	}
}

// take has a node want its prefixes, release no longer.
func (p *AppliedPeers) take(node string) {
	for _, prefix := range p.byNode[node].prefixes {
		p.prefixes.add(prefix, node)
	}
}

func (p *AppliedPeers) release(node string) {
	for _, prefix := range p.byNode[node].prefixes {
		p.prefixes.remove(prefix, node)
	}
}

// Problems are the nodes that can be no peers, and then the contradictions, a line each. They are made again only after
// a change of one of them: a remote may have thousands. The caller must not change them.
func (p *AppliedPeers) Problems() []string {
	if p.problems == nil {
		p.problems = append([]string{}, p.Refused()...)
		p.problems = append(p.problems, p.Contradictions()...)
	}
	return p.problems
}

// contradicts says whether any two nodes want the same.
func (p *AppliedPeers) contradicts() bool { return len(p.keys.rest) > 0 || len(p.prefixes.rest) > 0 }

// Refused are the nodes that can be no peers, and why, a line each.
func (p *AppliedPeers) Refused() []string {
	var lines []string
	for _, node := range slices.Sorted(maps.Keys(p.refused)) {
		lines = append(lines, fmt.Sprintf("peer %s: %s", node, p.refused[node]))
	}
	return lines
}

// Contradictions are the contradictions, and how they were resolved, a line each.
func (p *AppliedPeers) Contradictions() []string {
	var lines []string
	for key, rest := range p.keys.rest {
		for _, node := range rest {
			lines = append(lines, fmt.Sprintf("peer %s has the public key of %s and is left out", node, p.keys.first[key]))
		}
	}
	for prefix, rest := range p.prefixes.rest {
		for _, node := range rest {
			lines = append(lines, fmt.Sprintf("peer %s wants %s, which %s has", node, prefix, p.prefixes.first[prefix]))
		}
	}
	slices.Sort(lines)
	return lines
}

// Peers is how many peers the device has.
func (p *AppliedPeers) Peers() int { return len(p.keys.first) }

// RefusedCount is how many nodes can be no peers.
func (p *AppliedPeers) RefusedCount() int { return len(p.refused) }

// configs set all peers, by public key.
func (p *AppliedPeers) configs() map[wgtypes.Key]wgtypes.PeerConfig {
	out := make(map[wgtypes.Key]wgtypes.PeerConfig, len(p.keys.first))
	for key, node := range p.keys.first {
		is, _ := p.is(node)
		out[key] = is.config(p.keepalive)
	}
	return out
}

// Stands says whether a device is all as it was programmed, but for those routes that could not be made; if not,
// Network plans what to do. It is called for looks that nearly always find that nothing is to be done, so it makes no
// garbage but for peers that contradict each other. device is what was remembered.
func (p *AppliedPeers) Stands(cluster string, device *semaphorev1.Device, failed []netip.Prefix, stands *wireguard.Device) bool {
	s, _ := deviceSteps(cluster, device, p.bounds.port(), p.routed, stands.PrivateKey, stands)
	if !s.Without(failed).Empty() || len(stands.Peers) != len(p.keys.first) {
		return false
	}
	for i := range stands.Peers {
		node, ok := p.keys.first[stands.Peers[i].PublicKey]
		if !ok {
			return false
		}
		if is, ok := p.is(node); !ok || !is.stands(&stands.Peers[i], p.keepalive) {
			return false
		}
	}
	return true
}

// Bounds are what it was programmed within.
func (p *AppliedPeers) Bounds() Bounds { return p.bounds }

// Endpoint is a Wanted.
func (p *AppliedPeers) Endpoint(key wgtypes.Key) (node string, endpoint netip.AddrPort, ok bool) {
	node, ok = p.keys.first[key]
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
