// Package mesh decides which WireGuard devices and peers the nodes of the own cluster need:
// the same for all of them, from the nodes that each remote exports.
//
// It is pure. Of two nodes that claim one key, whichever is a peer with it already keeps it, be the other of another remote or of
// the own cluster: who comes later takes nothing that works. Where none is, the node whose name comes first has it, and a remote
// that the configuration lists earlier comes before later ones. So it is decided too who has CIDRs of one remote that overlap. Who was
// a peer under the broker before is one to begin with; see Restore.
// WireGuard itself would give a prefix to whoever was configured last, which is theft made easy.
//
// One node that changes costs what it touches (itself, and those whose key, address or CIDRs it shares) and not
// what there is. That the outcome is the one of deciding everything anew is what the tests of the package show.
package mesh

import (
	"cmp"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Changes are what differs, since they were last taken, of what leads to one remote cluster.
type Changes struct {
	// Device is the device as it is wanted, changed or not.
	Device *semaphorev1.Device
	// Peers are by the name of their node: nil for one that is no peer any more. Who receives them must not change them.
	Peers map[string]*semaphorev1.Peer
}

// Plan holds what leads to all remotes.
type Plan struct {
	remotes []*remote
	local   local
	// byKey and byAddress are the nodes of remotes that have it for their end of the tunnel, in their order.
	byKey, byAddress map[string][]ref
	// holders are who is the peer with a key.
	holders map[string]ref
	// dirty are the nodes, and dirtyKeys the keys whose nodes, Update has to decide on.
	dirty     map[ref]bool
	dirtyKeys map[string]bool
	problems  problem.Set
}

// ref is a node of a remote.
type ref struct {
	remote int
	node   string
}

func compareRefs(a, b ref) int {
	return cmp.Or(cmp.Compare(a.remote, b.remote), cmp.Compare(a.node, b.node))
}

type remote struct {
	config *config.Remote
	nodes  map[string]*semaphorev1.Node
	cidrs  cidrs
	// decided is what came of each node; one of which nothing came is not in it.
	decided map[string]decision
	// untaken are the nodes of which something else came since Take; taken says that there was one.
	untaken map[string]bool
	taken   bool
	// restored are the nodes that were peers under the broker before.
	restored restored
}

// New makes the plan of the configured remotes, none of which has nodes yet.
func New(remotes []config.Remote) *Plan {
	p := &Plan{
		local: newLocal(),
		byKey: map[string][]ref{}, byAddress: map[string][]ref{}, holders: map[string]ref{},
		dirty: map[ref]bool{}, dirtyKeys: map[string]bool{},
	}
	for i := range remotes {
		p.remotes = append(p.remotes, &remote{
			config: &remotes[i], nodes: map[string]*semaphorev1.Node{}, cidrs: newCIDRs(),
			decided: map[string]decision{}, untaken: map[string]bool{},
		})
	}
	return p
}

// PodCIDRs are those that a remote says its node has, whether it is a peer or not.
func (p *Plan) PodCIDRs(cluster, node string) []string {
	if i := p.index(cluster); i >= 0 {
		return p.remotes[i].nodes[node].GetPodCidrs()
	}
	return nil
}

// Set takes the newest state of a node of cluster; nil when it has gone. Update then decides what comes of it.
func (p *Plan) Set(cluster, node string, state *semaphorev1.Node) {
	i := p.index(cluster)
	if i < 0 {
		return
	}
	if p.remotes[i].restored.keeps(node, state) {
		return
	}
	p.set(i, node, state)
}

func (p *Plan) set(i int, node string, state *semaphorev1.Node) {
	r, who := p.remotes[i], ref{i, node}
	var before, now []string // a node without a key claims nothing
	if was := r.nodes[node]; was.GetWireguard() != nil {
		drop(p.byKey, keyOf(was), who)
		drop(p.byAddress, host(was.GetWireguard()), who)
		p.dirtyKeys[keyOf(was)] = true
		before = was.GetPodCidrs()
	}
	if state == nil {
		delete(r.nodes, node)
	} else {
		r.nodes[node] = state
	}
	if state.GetWireguard() != nil {
		add(p.byKey, keyOf(state), who)
		add(p.byAddress, host(state.GetWireguard()), who)
		p.dirtyKeys[keyOf(state)] = true
		now = state.GetPodCidrs()
	}
	r.cidrs.replace(node, before, now)
	p.dirty[who] = true
}

func keyOf(n *semaphorev1.Node) string { return string(n.GetWireguard().GetPublicKey()) }

func add(to map[string][]ref, what string, who ref) {
	if i, there := slices.BinarySearchFunc(to[what], who, compareRefs); !there {
		to[what] = slices.Insert(to[what], i, who)
	}
}

func drop(from map[string][]ref, what string, who ref) {
	i, there := slices.BinarySearchFunc(from[what], who, compareRefs)
	switch {
	case !there:
	case len(from[what]) == 1:
		delete(from, what)
	default:
		from[what] = slices.Delete(from[what], i, i+1)
	}
}

// Update decides on all nodes that what was set since the last Update can touch. It returns the clusters that there
// is something to Take of, in their order; one of which nothing was ever taken is always among them.
func (p *Plan) Update() []string {
	for i, r := range p.remotes {
		r.cidrs.settle(func(node string) { p.dirty[ref{i, node}] = true })
	}
	// Whether a node can keep its key says whether the next one with that key can have it.
	for who := range p.dirty {
		if n := p.remotes[who.remote].nodes[who.node]; n.GetWireguard() != nil {
			p.dirtyKeys[keyOf(n)] = true
		}
	}
	for key := range p.dirtyKeys {
		owner := p.owner(key)
		if p.holders[key] = owner.ref; !owner.ok {
			delete(p.holders, key)
		}
		for _, who := range p.byKey[key] {
			p.note(who, p.decide(who, owner))
			delete(p.dirty, who)
		}
	}
	for who := range p.dirty { // those that are left have no key
		p.note(who, decision{})
	}
	clear(p.dirty)
	clear(p.dirtyKeys)
	var changed []string
	for _, r := range p.remotes {
		if len(r.untaken) > 0 || !r.taken {
			changed = append(changed, r.config.Name)
		}
	}
	return changed
}

func (p *Plan) note(who ref, now decision) {
	r := p.remotes[who.remote]
	was := r.decided[who.node]
	if proto.Equal(was.peer, now.peer) && slices.Equal(was.problems, now.problems) && was.more == now.more {
		return
	}
	r.untaken[who.node] = true
	if now.peer == nil && len(now.problems) == 0 {
		delete(r.decided, who.node)
	} else {
		r.decided[who.node] = now
	}
	var problems []problem.Problem
	for i, text := range now.problems {
		one := problem.Problem{Cluster: r.config.Name, Object: who.node, Reason: PeerRefused, Text: text, Count: 1}
		if i == len(now.problems)-1 {
			one.Count += now.more
		}
		problems = append(problems, one)
	}
	p.problems.Replace(p.name(who), problems)
}

// Take is what differs of a remote since it was last taken; at first, all there is.
func (p *Plan) Take(cluster string) Changes {
	i := p.index(cluster)
	if i < 0 {
		return Changes{}
	}
	r := p.remotes[i]
	c := Changes{Device: Device(r.config), Peers: make(map[string]*semaphorev1.Peer, len(r.untaken))}
	for _, node := range slices.Sorted(maps.Keys(r.untaken)) {
		c.Peers[node] = r.decided[node].peer
	}
	clear(r.untaken)
	r.taken = true
	return c
}

// PeerRefused is the reason of all problems: a node that lost something to another.
const PeerRefused = "PeerRefused"

// Problems are the nodes that lost something to another.
func (p *Plan) Problems() *problem.Set { return &p.problems }

// index is the place of a remote in the configuration, -1 for one that is not there.
func (p *Plan) index(cluster string) int {
	return slices.IndexFunc(p.remotes, func(r *remote) bool { return r.config.Name == cluster })
}

// Device is the device to a remote as it is configured, the same on every node.
func Device(c *config.Remote) *semaphorev1.Device {
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
	if k := c.WireGuard.KeyMaxAge.Duration; k > 0 {
		d.KeyMaxAge = durationpb.New(k)
	}
	d.Permissive, d.Clear = c.Encryption.Passes(), c.Encryption == config.Clear
	if port := c.WireGuard.ProbePort; port != nil {
		d.ProbePort = uint32(*port)
	}
	return d
}
