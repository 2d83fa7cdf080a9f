package mesh

import (
	"fmt"
	"slices"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxListedCIDRs is the number of a node's lost pod CIDRs that get a problem each. A node may claim thousands.
const maxListedCIDRs = 3

// decision is the outcome for one node: a peer, if it becomes one, and its losses to other nodes.
type decision struct {
	peer     *semaphorev1.Peer
	problems []string
	// more is how many problems the last text summarizes beyond the first.
	more int
	// apart says between which own nodes and this one no tunnel is possible; empty for none.
	apart string
}

func (d *decision) problem(format string, args ...any) {
	d.problems = append(d.problems, fmt.Sprintf(format, args...))
}

func (p *Plan) name(who ref) string { return p.remotes[who.remote].config.Name + "/" + who.node }

// owner is the node that becomes the peer with a key; ok is false if no node can.
type owner struct {
	ref
	ok bool
}

// owner returns the present peer with the key for as long as it is eligible: neither the order of names or remotes nor
// a node of the own cluster takes the key from a working peer. Otherwise it returns the first eligible node.
func (p *Plan) owner(key string) owner {
	if who, held := p.holders[key]; held && slices.Contains(p.byKey.All(key), who) && p.eligible(who) {
		return owner{who, true}
	}
	for _, who := range p.byKey.All(key) {
		if len(p.ownNodes.keys.All(key)) == 0 && p.eligible(who) {
			return owner{who, true}
		}
	}
	return owner{}
}

// eligible reports whether a node could become a peer if no other node had its key.
func (p *Plan) eligible(who ref) bool {
	_, _, taken := p.addressTaken(who)
	return !taken && len(p.allowedIPs(who, nil)) > 0
}

// decide decides the outcome for a node that has a key; owner is the owner of the key.
func (p *Plan) decide(who ref, owner owner) decision {
	var d decision
	n := p.remotes[who.remote].nodes[who.node]
	if at, node, taken := p.addressTaken(who); taken {
		d.problem(
			"node %s publishes the endpoint address %s, which belongs to this cluster's node %s: it does not become a peer",
			p.name(who),
			at,
			node,
		)
		return d
	}
	local := p.ownNodes.keys.All(keyOf(n))
	switch {
	case owner.ok && owner.ref != who:
		d.problem("node %s has the public key of %s: it does not become a peer until it has its own key", p.name(who),
			p.name(owner.ref))
		return d
	case !owner.ok && len(local) > 0:
		d.problem("node %s has the public key of this cluster's node %s: it does not become a peer until it has its own key",
			p.name(who), local[0])
		return d
	case owner.ok && len(local) > 0:
		d.problem("this cluster's node %s claims the public key of %s, which remains the peer with this key", local[0],
			p.name(who))
	}
	for at := range addressesOf(n.GetWireguard()) {
		if nodes := p.ownNodes.addresses.All(at); len(nodes) > 0 {
			d.problem("this cluster's node %s claims the address %s of %s, which remains the peer at this address", nodes[0],
				at, p.name(who))
		}
	}
	lost := 0
	allowed := p.allowedIPs(who, func(cidr, keeper string) {
		if lost++; lost <= maxListedCIDRs {
			d.problem("pod CIDR %s of node %s overlaps that of %s/%s, which keeps it", cidr, p.name(who),
				p.remotes[who.remote].config.Name, keeper)
		}
	})
	if more := lost - maxListedCIDRs; more > 0 {
		d.problem("%d more pod CIDRs of node %s overlap those of others, which keep them", more, p.name(who))
		d.more = more - 1
	}
	if len(n.GetPodCidrs()) == 0 {
		d.problem("node %s has a key and no pod CIDR: it has no allowed IPs and does not become a peer", p.name(who))
	}
	nowhere := false
	if d.apart, nowhere = p.bothUnreachable(who); nowhere {
		return d
	}
	if len(allowed) > 0 {
		d.peer = &semaphorev1.Peer{
			Key:        &semaphorev1.PeerKey{Cluster: p.remotes[who.remote].config.Name, Node: who.node},
			Wireguard:  n.GetWireguard(),
			AllowedIps: allowed,
		}
	}
	return d
}

// addressTaken reports whether a node's tunnel endpoint has the address of an own node, which, and of which node. An
// existing peer keeps its addresses, as a kubelet can report any address for its node.
func (p *Plan) addressTaken(who ref) (at, node string, taken bool) {
	r := p.remotes[who.remote]
	was := r.decided[who.node].peer.GetWireguard()
	for at := range addressesOf(r.nodes[who.node].GetWireguard()) {
		nodes := p.ownNodes.addresses.All(at)
		if len(nodes) > 0 && !slices.Contains(slices.Collect(addressesOf(was)), at) {
			return at, nodes[0], true
		}
	}
	return "", "", false
}

// allowedIPs returns the pod CIDRs of a node that it keeps. It calls lost, if not nil, for each of the others.
func (p *Plan) allowedIPs(who ref, lost func(cidr, keeper string)) []string {
	r := p.remotes[who.remote]
	var allowed []string
	for _, cidr := range r.nodes[who.node].GetPodCidrs() {
		keeper, lostIt := r.cidrs.lost[claim{who.node, cidr}]
		if !lostIt {
			allowed = append(allowed, cidr)
		} else if lost != nil {
			lost(cidr, keeper)
		}
	}
	return allowed
}
