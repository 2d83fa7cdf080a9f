package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// AppliedPeers is a network as it was last applied. It plans changes of single peers without reading the device, and
// considers other peers only if they conflict with these.
type AppliedPeers struct {
	bounds    Bounds
	subnets   []netip.Prefix
	keepalive time.Duration
	// byNode are the valid peers, refused the reasons of the others.
	byNode  map[string]peer
	refused map[string]string
	// Of several nodes with one key the first is the peer, and the others get nothing. Of several peers that claim one
	// prefix the first gets it.
	keys     claims[wgtypes.Key]
	prefixes claims[netip.Prefix]
	// problems caches the lines of Problems; nil after a change that may change them.
	problems []string
	// routed are the prefixes routed into the device: the subnets, or for a permissive remote the prefixes of the
	// peers that were heard.
	routed []netip.Prefix
}

// newAppliedPeers records a network with these subnets routed. Of this node's addresses it keeps only those that
// endpoints are compared with.
func newAppliedPeers(want *Desired, bounds Bounds, subnets []netip.Prefix) *AppliedPeers {
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
	p.bounds.Own, p.bounds.Existing = nil, nil
	for node, is := range want.Peers {
		p.add(node, is)
	}
	p.routed = subnets
	if want.Device.GetPermissive() {
		p.routed = p.prefixesOf(want.Heard)
	}
	return p
}

func (p *AppliedPeers) prefixesOf(nodes map[string]bool) []netip.Prefix {
	var routed []netip.Prefix
	for node := range nodes {
		if is, ok := p.effectivePeer(node); ok {
			routed = append(routed, is.prefixes...)
		}
	}
	slices.SortFunc(routed, netip.Prefix.Compare)
	return routed
}

// Change plans the replacement of some nodes' peers, nil for a removed one, and records it.
func (p *AppliedPeers) Change(nodes map[string]*semaphorev1.Peer) (cfg wgtypes.Config) {
	// Affected are the nodes themselves, those with the same key, and those that claim a prefix of any of these.
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
	for prefix := range prefixes {
		p.prefixes.each(prefix, func(node string) { concerned[node] = true })
	}
	before, contradicted := p.effectivePeers(concerned), p.hasContradictions()
	for node := range nodes {
		p.remove(node)
	}
	for node, becomes := range nodes {
		if becomes != nil {
			p.add(node, becomes)
		}
	}
	if contradicted || p.hasContradictions() {
		p.problems = nil
	}
	after := p.effectivePeers(concerned)
	for _, key := range slices.SortedFunc(maps.Keys(after), compareKeys) {
		is := after[key]
		was, there := before[key]
		keeps := there && slices.Equal(was.prefixes, is.prefixes)
		if !keeps || was.endpoint != is.endpoint {
			cfg.Peers = append(cfg.Peers, is.config(p.keepalive, was.endpoint, keeps))
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

func (p *AppliedPeers) effectivePeers(nodes map[string]bool) map[wgtypes.Key]peer {
	out := map[wgtypes.Key]peer{}
	for node := range nodes {
		if is, ok := p.effectivePeer(node); ok {
			out[is.key] = is
		}
	}
	return out
}

func (p *AppliedPeers) effectivePeer(node string) (is peer, ok bool) {
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

func (p *AppliedPeers) withKey(key wgtypes.Key) (is peer, ok bool) {
	node, ok := p.keys.first[key]
	if !ok {
		return peer{}, false
	}
	return p.effectivePeer(node)
}

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
		p.releasePrefixes(was)
	}
	p.claimPrefixes(node)
}

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
		p.releasePrefixes(node)
	}
	p.keys.remove(was.key, node)
	delete(p.byNode, node)
	if next, taken := p.keys.first[was.key]; had && taken {
		p.claimPrefixes(next)
	}
}

func (p *AppliedPeers) claimPrefixes(node string) {
	for _, prefix := range p.byNode[node].prefixes {
		p.prefixes.add(prefix, node)
	}
}

func (p *AppliedPeers) releasePrefixes(node string) {
	for _, prefix := range p.byNode[node].prefixes {
		p.prefixes.remove(prefix, node)
	}
}

// Problems returns the refused nodes, and then the contradictions, a line each. They are computed only after a change,
// as a remote may have thousands. The result must not be modified.
func (p *AppliedPeers) Problems() []string {
	if p == nil {
		return nil
	}
	if p.problems == nil {
		p.problems = append([]string{}, p.refusals()...)
		p.problems = append(p.problems, p.contradictions()...)
	}
	return p.problems
}

func (p *AppliedPeers) hasContradictions() bool {
	return len(p.keys.rest) > 0 || len(p.prefixes.rest) > 0
}

func (p *AppliedPeers) refusals() []string {
	var lines []string
	for _, node := range slices.Sorted(maps.Keys(p.refused)) {
		lines = append(lines, fmt.Sprintf("peer %s: %s", node, p.refused[node]))
	}
	return lines
}

func (p *AppliedPeers) contradictions() []string {
	var lines []string
	for key, rest := range p.keys.rest {
		for _, node := range rest {
			lines = append(lines, fmt.Sprintf("peer %s has the public key of %s and is ignored", node, p.keys.first[key]))
		}
	}
	for prefix, rest := range p.prefixes.rest {
		for _, node := range rest {
			lines = append(lines, fmt.Sprintf("peer %s claims %s, which belongs to %s", node, prefix, p.prefixes.first[prefix]))
		}
	}
	slices.Sort(lines)
	return lines
}

func (p *AppliedPeers) Peers() int { return len(p.keys.first) }

// RefusedCount counts the refused nodes; 0 of nil, as Problems.
func (p *AppliedPeers) RefusedCount() int {
	if p == nil {
		return 0
	}
	return len(p.refused)
}

// Matches reports whether a device is as it was programmed, except for routes that failed; if not, Network plans the
// steps. Periodic checks call it, which nearly always find no difference, so it allocates nothing except for peers
// that contradict each other. device is the recorded one.
func (p *AppliedPeers) Matches(cluster string, device *semaphorev1.Device, failed []netip.Prefix,
	existing *kernel.Device) bool {
	s, _ := deviceSteps(cluster, device, p.bounds.port(), p.routed, existing.PrivateKey, existing)
	if !s.Without(failed).Empty() || len(existing.Peers) != len(p.keys.first) {
		return false
	}
	for i := range existing.Peers {
		is, ok := p.withKey(existing.Peers[i].PublicKey)
		if !ok || !is.matches(&existing.Peers[i], p.keepalive) || p.astray(is, &existing.Peers[i]) {
			return false
		}
	}
	return true
}

// astray reports whether a device sends the packets for a node that calls to where no node of the remote can be.
func (p *AppliedPeers) astray(is peer, existing *wgtypes.Peer) bool {
	return !is.endpoint.IsValid() && existing.Endpoint != nil && p.bounds.endpoint(kernel.EndpointOf(existing)) != nil
}

// Begins reports whether WireGuard begins handshakes with a peer by itself, because of a keepalive.
func (p *AppliedPeers) Begins(key wgtypes.Key) bool {
	is, ok := p.withKey(key)
	return ok && is.keepalive(p.keepalive) > 0
}

func (p *AppliedPeers) Bounds() Bounds { return p.bounds }

func (p *AppliedPeers) Endpoint(key wgtypes.Key) (node string, endpoint netip.AddrPort, ok bool) {
	node, ok = p.keys.first[key]
	return node, p.byNode[node].endpoint, ok
}
