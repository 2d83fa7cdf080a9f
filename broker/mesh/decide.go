package mesh

import (
	"fmt"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// decision is what comes of one node: a peer, if any, and what it lost to others.
type decision struct {
	peer     *semaphorev1.Peer
	problems []string
}

func (d *decision) problem(format string, args ...any) {
	d.problems = append(d.problems, fmt.Sprintf(format, args...))
}

func (p *Plan) name(who ref) string { return p.remotes[who.remote].config.Name + "/" + who.node }

// owner is the first of those who have a key that can be a peer with it; ok is false where none can.
type owner struct {
	ref
	ok bool
}

func (p *Plan) owner(key string) owner {
	for _, who := range p.byKey[key] {
		if _, taken := p.addressTaken(who); !taken && len(p.allowed(who, nil)) > 0 {
			return owner{who, true}
		}
	}
	return owner{}
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
	other := ""
	if nodes := p.local.keys[keyOf(n)]; len(nodes) > 0 {
		other = "this cluster's node " + nodes[0]
	} else if owner.ok && compareRefs(owner.ref, who) < 0 {
		other = p.name(owner.ref)
	}
	if other != "" {
		d.problem("node %s has the public key of %s: it is no peer until it has one of its own", p.name(who), other)
		return d
	}
	allowed := p.allowed(who, func(cidr, keeper string) {
		d.problem("pod CIDR %s of node %s overlaps that of %s/%s, which keeps it", cidr, p.name(who), p.remotes[who.remote].config.Name, keeper)
	})
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

// addressTaken says whether a node's end of the tunnel is at the address of a node of the own cluster, and which.
func (p *Plan) addressTaken(who ref) (node string, taken bool) {
	nodes := p.local.addresses[host(p.remotes[who.remote].nodes[who.node].GetWireguard())]
	if len(nodes) == 0 {
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
