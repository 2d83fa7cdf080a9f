package mesh

import (
	"fmt"
	"slices"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// shownCIDRs is how many pod CIDRs that a node lost are told of one by one. It may claim thousands.
const shownCIDRs = 3

// decision is what comes of one node: a peer, if any, and what it lost to others.
type decision struct {
	peer     *semaphorev1.Peer
	problems []string
	// more is how many problems the last line stands for, beside itself.
	more int
}

func (d *decision) problem(format string, args ...any) {
	d.problems = append(d.problems, fmt.Sprintf(format, args...))
}

func (p *Plan) name(who ref) string { return p.remotes[who.remote].config.Name + "/" + who.node }

// owner is who of those who have a key is the peer with it; ok is false where none can be.
type owner struct {
	ref
	ok bool
}

// owner is the one who is the peer with the key already, as long as it can be: neither the order of names or of the
// configuration nor a node of the own cluster takes from a peer what works. Otherwise it is the first in order that can be one.
func (p *Plan) owner(key string) owner {
	if who, held := p.holders[key]; held && slices.Contains(p.byKey[key], who) && p.eligible(who) {
		return owner{who, true}
	}
	for _, who := range p.byKey[key] {
		if len(p.local.keys[key]) == 0 && p.eligible(who) {
			return owner{who, true}
		}
	}
	return owner{}
}

// eligible says whether a node could be a peer if nobody else had its key.
func (p *Plan) eligible(who ref) bool {
	_, taken := p.addressTaken(who)
	return !taken && len(p.allowed(who, nil)) > 0
}

// decide says what comes of a node that has a key, which is owner's.
func (p *Plan) decide(who ref, owner owner) decision {
	var d decision
	n := p.remotes[who.remote].nodes[who.node]
	if node, taken := p.addressTaken(who); taken {
		d.problem("node %s says that it is at %s, which is the address of this cluster's node %s: it is no peer",
			p.name(who), host(n.GetWireguard()), node)
		return d
	}
	local := p.local.keys[keyOf(n)]
	switch {
	case owner.ok && owner.ref != who:
		d.problem("node %s has the public key of %s: it is no peer until it has one of its own", p.name(who), p.name(owner.ref))
		return d
	case !owner.ok && len(local) > 0:
		d.problem("node %s has the public key of this cluster's node %s: it is no peer until it has one of its own", p.name(who), local[0])
		return d
	case owner.ok && len(local) > 0:
		d.problem("this cluster's node %s claims the public key of %s, which is a peer with it already and stays one", local[0], p.name(who))
	}
	if nodes := p.local.addresses[host(n.GetWireguard())]; len(nodes) > 0 {
		d.problem("this cluster's node %s claims the address %s of %s, which is a peer there already and stays one", nodes[0], host(n.GetWireguard()), p.name(who))
	}
	lost := 0
	allowed := p.allowed(who, func(cidr, keeper string) {
		if lost++; lost <= shownCIDRs {
			d.problem("pod CIDR %s of node %s overlaps that of %s/%s, which keeps it", cidr, p.name(who), p.remotes[who.remote].config.Name, keeper)
		}
	})
	if more := lost - shownCIDRs; more > 0 {
		d.problem("%d more pod CIDRs of node %s overlap those of others, which keep them", more, p.name(who))
		d.more = more - 1
	}
	if len(n.GetPodCidrs()) == 0 {
		d.problem("node %s has a key and no pod CIDR: nothing could be sent to it", p.name(who))
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

// addressTaken says whether a node's end of the tunnel is at the address of a node of the own cluster, and which. A peer
// that is there already keeps its place: a kubelet says what addresses its node has.
func (p *Plan) addressTaken(who ref) (node string, taken bool) {
	r := p.remotes[who.remote]
	at := host(r.nodes[who.node].GetWireguard())
	nodes := p.local.addresses[at]
	if len(nodes) == 0 || host(r.decided[who.node].peer.GetWireguard()) == at {
		return "", false
	}
	return nodes[0], true
}

// allowed are the pod CIDRs of a node that are not others'. Those that are, are told to lost, if there is one.
func (p *Plan) allowed(who ref, lost func(cidr, keeper string)) []string {
	r := p.remotes[who.remote]
	var allowed []string
	for _, cidr := range r.nodes[who.node].GetPodCidrs() {
		keeper, gone := r.cidrs.lost[claim{who.node, cidr}]
		if !gone {
			allowed = append(allowed, cidr)
		} else if lost != nil {
			lost(cidr, keeper)
		}
	}
	return allowed
}
