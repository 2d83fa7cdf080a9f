// Package mesh decides which WireGuard devices and peers the nodes of the own cluster need:
// the same for all of them, from the nodes that each remote exports.
//
// It is pure. Conflicts between nodes (two that claim one key, or CIDRs that overlap) are
// decided by the state alone: the node whose name comes first keeps what it claims, and a
// remote that the configuration lists earlier comes before later ones. WireGuard itself
// would give a prefix to whoever was configured last, which is theft made easy.
package mesh

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Mesh is what leads to one remote cluster.
type Mesh struct {
	Device *semaphorev1.Device
	// Peers are in the order of their nodes' names.
	Peers []*semaphorev1.Peer
	// Problems name the nodes that lost something to another, a line each.
	Problems []string
}

// Plan holds the meshes of all remotes.
type Plan struct {
	remotes []*remote
	local   local
	// claims counts, by key and by address, the nodes of remotes that have it for their end of the tunnel.
	claims map[string]int
}

type remote struct {
	config *config.Remote
	nodes  map[string]*semaphorev1.Node
	mesh   Mesh
	// keys are the keys that the mesh's peers have.
	keys map[string]string
}

// New makes the plan of the configured remotes, none of which has nodes yet.
func New(remotes []config.Remote) *Plan {
	p := &Plan{local: newLocal(), claims: map[string]int{}}
	for i := range remotes {
		p.remotes = append(p.remotes, &remote{config: &remotes[i], nodes: map[string]*semaphorev1.Node{}})
	}
	return p
}

// Set takes the newest state of a node of cluster; nil when it has gone. Update then works out the meshes.
func (p *Plan) Set(cluster, node string, state *semaphorev1.Node) {
	r := p.remote(cluster)
	if r == nil {
		return
	}
	p.claim(r.nodes[node].GetWireguard(), -1)
	p.claim(state.GetWireguard(), 1)
	if state == nil {
		delete(r.nodes, node)
	} else {
		r.nodes[node] = state
	}
}

func (p *Plan) claim(wg *semaphorev1.WireGuardEndpoint, n int) {
	for _, what := range []string{string(wg.GetPublicKey()), host(wg)} {
		if what == "" {
			continue
		}
		if p.claims[what] += n; p.claims[what] == 0 {
			delete(p.claims, what)
		}
	}
}

// Update works out the mesh of cluster anew, and those of remotes that lose a key to it or
// gain one from it. It returns the clusters whose meshes may have changed.
func (p *Plan) Update(cluster string) []string {
	return p.update(func(r *remote) bool { return r.config.Name == cluster })
}

func (p *Plan) update(which func(*remote) bool) []string {
	var changed []string
	others := map[string]string{}
	dirty := false
	for _, r := range p.remotes {
		if which(r) || dirty {
			before := r.keys
			r.build(others, p.local)
			changed = append(changed, r.config.Name)
			dirty = dirty || !sameKeys(before, r.keys)
		}
		for key, owner := range r.keys {
			others[key] = owner
		}
	}
	return changed
}

// Mesh is what leads to cluster now.
func (p *Plan) Mesh(cluster string) Mesh {
	if r := p.remote(cluster); r != nil {
		return r.mesh
	}
	return Mesh{}
}

// Problems ranges over what is wrong, in the order of the remotes and their nodes.
func (p *Plan) Problems() iter.Seq2[string, string] {
	return func(yield func(cluster, problem string) bool) {
		for _, r := range p.remotes {
			for _, line := range r.mesh.Problems {
				if !yield(r.config.Name, line) {
					return
				}
			}
		}
	}
}

func (p *Plan) remote(cluster string) *remote {
	for _, r := range p.remotes {
		if r.config.Name == cluster {
			return r
		}
	}
	return nil
}

func sameKeys(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for key := range a {
		if _, ok := b[key]; !ok {
			return false
		}
	}
	return true
}

// build works out the mesh. others are the keys that earlier remotes have.
func (r *remote) build(others map[string]string, own local) {
	r.mesh = Mesh{Device: device(r.config)}
	r.keys = make(map[string]string, len(r.nodes))
	names := make([]string, 0, len(r.nodes))
	for name, n := range r.nodes {
		if n.GetWireguard() != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	lost := r.lostCIDRs(names)
	for _, name := range names {
		n := r.nodes[name]
		key := string(n.GetWireguard().GetPublicKey())
		who := r.config.Name + "/" + name
		if at := host(n.GetWireguard()); len(own.addresses[at]) > 0 {
			r.problem("node %s says that it is at %s, which is the address of this cluster's node %s: it is no peer", who, at, own.addresses[at][0])
			continue
		}
		owner, taken := others[key]
		if !taken {
			owner, taken = r.keys[key]
		}
		if nodes := own.keys[key]; len(nodes) > 0 {
			owner, taken = "this cluster's node "+nodes[0], true
		}
		if taken {
			r.problem("node %s has the public key of %s: it is no peer until it has one of its own", who, owner)
			continue
		}
		var allowed []string
		for _, cidr := range n.GetPodCidrs() {
			if owner, ok := lost[claimed{name, cidr}]; ok {
				r.problem("pod CIDR %s of node %s overlaps that of %s/%s, which keeps it", cidr, who, r.config.Name, owner)
				continue
			}
			allowed = append(allowed, cidr)
		}
		if len(allowed) == 0 {
			if len(n.GetPodCidrs()) == 0 {
				r.problem("node %s has a key and no pod CIDR: nothing could be sent to it", who)
			}
			continue
		}
		r.keys[key] = who
		r.mesh.Peers = append(r.mesh.Peers, &semaphorev1.Peer{
			Key:        &semaphorev1.PeerKey{Cluster: r.config.Name, Node: name},
			Wireguard:  n.GetWireguard(),
			AllowedIps: allowed,
		})
	}
}

func (r *remote) problem(format string, args ...any) {
	r.mesh.Problems = append(r.mesh.Problems, fmt.Sprintf(format, args...))
}

func device(c *config.Remote) *semaphorev1.Device {
	d := &semaphorev1.Device{
		Cluster:    c.Name,
		ListenPort: uint32(c.WireGuard.ListenPort),
		Mtu:        uint32(c.WireGuard.MTU),
	}
	for _, p := range c.PodPrefixes {
		d.PodSubnets = append(d.PodSubnets, p.String())
	}
	if k := c.WireGuard.PersistentKeepalive.Duration; k > 0 {
		d.PersistentKeepalive = durationpb.New(k)
	}
	return d
}

type claimed struct{ node, cidr string }

// lostCIDRs are the CIDRs that overlap one of a node before theirs, with that node's name. Two
// prefixes overlap only when one holds the other, so sorted by address all that overlap
// stand together under the widest of them; groups of one, which is nearly all, cost nothing more.
func (r *remote) lostCIDRs(names []string) map[claimed]string {
	type claim struct {
		prefix netip.Prefix
		claimed
	}
	all := make([]claim, 0, len(names))
	for _, name := range names {
		for _, cidr := range r.nodes[name].GetPodCidrs() {
			if p, err := netip.ParsePrefix(cidr); err == nil { // admission lets no other in
				all = append(all, claim{p, claimed{name, cidr}})
			}
		}
	}
	slices.SortFunc(all, func(a, b claim) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	lost := map[claimed]string{}
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[0].prefix.Contains(all[n].prefix.Addr()) {
			n++
		}
		group := all[:n]
		all = all[n:]
		if n == 1 {
			continue
		}
		slices.SortStableFunc(group, func(a, b claim) int { return cmp.Compare(a.node, b.node) })
		var kept []claim
		for _, c := range group {
			i := slices.IndexFunc(kept, func(k claim) bool { return k.prefix.Overlaps(c.prefix) && k.node != c.node })
			if i >= 0 {
				lost[c.claimed] = kept[i].node
			} else {
				kept = append(kept, c)
			}
		}
	}
	return lost
}
