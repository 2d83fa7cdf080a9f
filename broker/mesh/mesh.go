// Package mesh decides which WireGuard devices and peers the nodes of the own cluster need, from the nodes that each
// remote exports. All own nodes get the same.
//
// It is pure. If two nodes claim one key, the node that is already a peer with it keeps it, whether the other node
// belongs to another remote or to the own cluster: a later claim takes nothing that works. If neither is a peer, the
// node that sorts first gets the key; remotes sort in the order of the configuration. Overlapping CIDRs of one remote
// are decided by the same rule. Peers under the previous broker count as present peers: a replica begins with them.
// WireGuard itself would move allowed IPs to whichever peer was configured last, which would make theft easy.
//
// A changed node costs only the nodes that it touches: itself, and nodes with which it shares a key, an address or a
// CIDR. The tests show that the outcome equals deciding everything from the beginning.
package mesh

import (
	"cmp"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Changes are the changes of one remote's device and peers since the last TakeChanges.
type Changes struct {
	// Device is the desired device, changed or not.
	Device *semaphorev1.Device
	// Peers by name of their node: nil for one that is no longer a peer. The receiver must not modify them.
	Peers map[string]*semaphorev1.Peer
}

// Plan holds the devices and peers for all remotes.
type Plan struct {
	// remotes have the indices that refs use: a removed remote leaves its place empty, for one that is added later.
	remotes  []*remote
	ownNodes ownNodes
	// byKey and byAddress are the remote nodes with a public key or endpoint address.
	byKey, byAddress *problem.Claims[ref]
	// holders maps a key to the node that is the peer with it.
	holders map[string]ref
	// dirty are the nodes, and dirtyKeys the keys, that Update must decide.
	dirty     map[ref]bool
	dirtyKeys map[string]bool
	problems  problem.Set
}

type ref struct {
	remote int
	node   string
}

func compareRefs(a, b ref) int {
	return cmp.Or(cmp.Compare(a.remote, b.remote), cmp.Compare(a.node, b.node))
}

type remote struct {
	// config is nil for an index that no remote has at present.
	config *config.Remote
	nodes  map[string]*semaphorev1.Node
	cidrs  cidrs
	// decided is the outcome for each node; nodes without a peer and problems are absent.
	decided map[string]decision
	// pending are the nodes whose outcome changed since TakeChanges, and deviceChanged means that the device did, or that
	// there was none yet.
	pending       map[string]bool
	deviceChanged bool
}

func New(remotes []config.Remote) *Plan {
	p := &Plan{
		ownNodes: newOwnNodes(),
		byKey:    problem.NewClaims(compareRefs), byAddress: problem.NewClaims(compareRefs), holders: map[string]ref{},
		dirty: map[ref]bool{}, dirtyKeys: map[string]bool{},
	}
	p.Follow(remotes)
	return p
}

func newRemote(c *config.Remote) *remote {
	return &remote{
		config: c, nodes: map[string]*semaphorev1.Node{}, cidrs: newCIDRs(),
		decided: map[string]decision{}, pending: map[string]bool{}, deviceChanged: true,
	}
}

// Follow replaces the configured remotes. A new remote begins without nodes, the state of a missing one is dropped, and
// the others continue. Update recomputes what depends on that, and returns each remote whose device changed. An added
// remote sorts after the existing ones. Follow returns the names of the missing ones.
func (p *Plan) Follow(remotes []config.Remote) (removed []string) {
	for i, r := range p.remotes {
		if r.config == nil || slices.ContainsFunc(remotes, func(c config.Remote) bool { return c.Name == r.config.Name }) {
			continue
		}
		for _, node := range slices.Sorted(maps.Keys(r.nodes)) {
			p.SetNode(r.config.Name, node, nil)
		}
		p.Update() // gives others the claims of the nodes, and drops the problems of these
		removed = append(removed, r.config.Name)
		p.remotes[i] = newRemote(nil)
	}
	for i := range remotes {
		c := &remotes[i]
		if at := p.index(c.Name); at >= 0 {
			r := p.remotes[at]
			r.deviceChanged = r.deviceChanged || !proto.Equal(Device(r.config), Device(c))
			r.config = c
			continue
		}
		if at := slices.IndexFunc(p.remotes, func(r *remote) bool { return r.config == nil }); at >= 0 {
			p.remotes[at] = newRemote(c)
			continue
		}
		p.remotes = append(p.remotes, newRemote(c))
	}
	return removed
}

// SetNode sets the state of a node of cluster; nil if it was deleted. Update recomputes what depends on it.
func (p *Plan) SetNode(cluster, node string, state *semaphorev1.Node) {
	i := p.index(cluster)
	if i < 0 {
		return
	}
	r, who := p.remotes[i], ref{i, node}
	var before, now []string // a node without a key claims nothing
	if was := r.nodes[node]; was.GetWireguard() != nil {
		p.byKey.Remove(keyOf(was), who)
		for at := range addressesOf(was.GetWireguard()) {
			p.byAddress.Remove(at, who)
		}
		p.dirtyKeys[keyOf(was)] = true
		before = was.GetPodCidrs()
	}
	if state == nil {
		delete(r.nodes, node)
	} else {
		r.nodes[node] = state
	}
	if state.GetWireguard() != nil {
		p.byKey.Add(keyOf(state), who)
		for at := range addressesOf(state.GetWireguard()) {
			p.byAddress.Add(at, who)
		}
		p.dirtyKeys[keyOf(state)] = true
		now = state.GetPodCidrs()
	}
	r.cidrs.replace(node, before, now)
	p.dirty[who] = true
}

func keyOf(n *semaphorev1.Node) string { return string(n.GetWireguard().GetPublicKey()) }

// Update decides all nodes that depend on changes since the last Update. It returns the clusters with changes to take,
// in the order of the configuration; a cluster of which nothing was ever taken is always included.
func (p *Plan) Update() []string {
	for i, r := range p.remotes {
		r.cidrs.resolve(func(node string) { p.dirty[ref{i, node}] = true })
	}
	// Whether a node can keep its key decides whether the next node with that key gets it.
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
		for _, who := range p.byKey.All(key) {
			p.record(who, p.decide(who, owner))
			delete(p.dirty, who)
		}
	}
	for who := range p.dirty { // the remaining nodes have no key
		p.record(who, decision{})
	}
	clear(p.dirty)
	clear(p.dirtyKeys)
	var changed []string
	for _, r := range p.remotes {
		if r.config != nil && (len(r.pending) > 0 || r.deviceChanged) {
			changed = append(changed, r.config.Name)
		}
	}
	return changed
}

func (p *Plan) record(who ref, now decision) {
	r := p.remotes[who.remote]
	before := r.decided[who.node]
	if proto.Equal(before.peer, now.peer) && slices.Equal(before.problems, now.problems) && before.more == now.more &&
		before.apart == now.apart {
		return
	}
	r.pending[who.node] = true
	if now.peer == nil && len(now.problems) == 0 && now.apart == "" {
		delete(r.decided, who.node)
	} else {
		r.decided[who.node] = now
	}
	var problems []problem.Problem
	for i, text := range now.problems {
		one := problem.Problem{Cluster: r.config.Name, Object: who.node, Code: finding.PeerRefused, Text: text, Count: 1}
		if i == len(now.problems)-1 {
			one.Count += now.more
		}
		problems = append(problems, one)
	}
	if now.apart != "" {
		problems = append(problems, problem.Problem{Cluster: r.config.Name, Object: who.node,
			Code: finding.BothUnreachable, Text: now.apart, Count: 1})
	}
	p.problems.Replace(p.name(who), problems)
}

func (p *Plan) Nodes(cluster string) int {
	if i := p.index(cluster); i >= 0 {
		return len(p.remotes[i].nodes)
	}
	return 0
}

// TakeChanges returns the changes of a remote since the last call; everything on the first call.
func (p *Plan) TakeChanges(cluster string) Changes {
	i := p.index(cluster)
	if i < 0 {
		return Changes{}
	}
	r := p.remotes[i]
	c := Changes{Device: Device(r.config), Peers: make(map[string]*semaphorev1.Peer, len(r.pending))}
	for _, node := range slices.Sorted(maps.Keys(r.pending)) {
		c.Peers[node] = r.decided[node].peer
	}
	clear(r.pending)
	r.deviceChanged = false
	return c
}

// Problems returns the problems of nodes that lost something to another node.
func (p *Plan) Problems() *problem.Set { return &p.problems }

func (p *Plan) Names() (names []string) {
	for _, r := range p.remotes {
		if r.config != nil {
			names = append(names, r.config.Name)
		}
	}
	return names
}

// index returns the index of a remote in the configuration, -1 if it is not configured.
func (p *Plan) index(cluster string) int {
	return slices.IndexFunc(p.remotes, func(r *remote) bool { return r.config != nil && r.config.Name == cluster })
}

// Device returns the configured device to a remote, which is the same on every node.
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
