package mesh

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// ownNodes are the nodes of the own cluster. No remote node becomes a peer with the key or at the address of one (R10,
// R11): a remote whose nodes share a subnet with this cluster could otherwise make own nodes send its traffic to each
// other. Conversely, own nodes take nothing from an existing peer, as a kubelet may annotate its Node with any key and
// report any address.
type ownNodes struct {
	nodes map[string]keysAndAddresses
	// keys and addresses are claimed by the names of the nodes that have them.
	keys, addresses *problem.Claims[string]
	// calls are the remotes that a node calls.
	calls map[string][]string
	// known is set once all nodes have been set: a broker that begins does not withdraw a peer because it has seen few.
	known bool
}

// A node may have one key for each remote and spareKeys beside them, and maxAddresses addresses.
const spareKeys, maxAddresses = 8, 16

type keysAndAddresses struct{ keys, addresses []string }

func newOwnNodes() ownNodes {
	names := strings.Compare
	return ownNodes{map[string]keysAndAddresses{}, problem.NewClaims(names), problem.NewClaims(names),
		map[string][]string{}, false}
}

// SetOwnNode sets the public keys and addresses of an own node; none of either if it was deleted. It reports whether
// they changed. Update recomputes what depends on them.
func (p *Plan) SetOwnNode(node string, keys [][]byte, addresses []netip.Addr) (changed bool) {
	// A node has a key for each remote, and possibly keys of removed remotes. Further annotations are ignored.
	keys = keys[:min(len(keys), len(p.remotes)+spareKeys)]
	addresses = addresses[:min(len(addresses), maxAddresses)]
	var now keysAndAddresses
	for _, key := range keys {
		now.keys = append(now.keys, string(key))
	}
	for _, a := range addresses {
		now.addresses = append(now.addresses, a.String())
	}
	before := p.ownNodes.nodes[node]
	if slices.Equal(before.keys, now.keys) && slices.Equal(before.addresses, now.addresses) {
		return false
	}
	for _, key := range before.keys {
		p.ownNodes.keys.Remove(key, node)
	}
	for _, a := range before.addresses {
		p.ownNodes.addresses.Remove(a, node)
	}
	for _, key := range now.keys {
		p.ownNodes.keys.Add(key, node)
	}
	for _, a := range now.addresses {
		p.ownNodes.addresses.Add(a, node)
	}
	if len(keys) == 0 && len(addresses) == 0 {
		delete(p.ownNodes.nodes, node)
	} else {
		p.ownNodes.nodes[node] = now
	}
	if len(before.keys) > 0 != (len(now.keys) > 0) {
		p.touchCallers()
	}
	for _, e := range []keysAndAddresses{before, now} {
		for _, key := range e.keys {
			p.dirtyKeys[key] = true
		}
		for _, address := range e.addresses {
			for _, who := range p.byAddress.All(address) {
				p.dirty[who] = true
			}
		}
	}
	return true
}

// addressesOf iterates over the IPs of a tunnel endpoint: those of its candidates, or the only one. A node that calls
// has none.
func addressesOf(wg *semaphorev1.WireGuardEndpoint) iter.Seq[string] {
	return func(yield func(string) bool) {
		ip := func(text string) bool {
			at, err := netip.ParseAddrPort(text)
			return err != nil || yield(at.Addr().String()) // admission has refused all but addresses and names
		}
		if len(wg.GetCandidates()) == 0 {
			ip(wg.GetAddress())
			return
		}
		for _, text := range wg.GetCandidates() {
			if !ip(text) {
				return
			}
		}
	}
}

// SetOwnCalls sets the remotes that an own node calls, because nothing reaches it from there; none if it was deleted.
func (p *Plan) SetOwnCalls(node string, calls []string) (changed bool) {
	if slices.Equal(p.ownNodes.calls[node], calls) {
		return false
	}
	if p.ownNodes.calls[node] = calls; len(calls) == 0 {
		delete(p.ownNodes.calls, node)
	}
	p.touchCallers()
	return true
}

// KnowOwnNodes says that all own nodes have been set. Update recomputes what depends on that.
func (p *Plan) KnowOwnNodes() {
	p.ownNodes.known = true
	p.touchCallers()
}

// touchCallers has the nodes that call decided again.
func (p *Plan) touchCallers() {
	for i, r := range p.remotes {
		for name, n := range r.nodes {
			if n.GetWireguard().GetCalls() {
				p.dirty[ref{i, name}] = true
			}
		}
	}
}

// maxCallers is how many own nodes a text names.
const maxCallers = 3

// bothUnreachable says from which own nodes no tunnel leads to a node that calls, because they call, too; empty for
// none. all means that none leads there.
func (p *Plan) bothUnreachable(who ref) (text string, all bool) {
	r := p.remotes[who.remote]
	if !r.nodes[who.node].GetWireguard().GetCalls() {
		return "", false
	}
	var callers []string
	nodes := 0
	for node, has := range p.ownNodes.nodes {
		if len(has.keys) == 0 {
			continue
		}
		nodes++
		if slices.Contains(p.ownNodes.calls[node], r.config.Name) {
			callers = append(callers, node)
		}
	}
	if len(callers) == 0 {
		return "", false
	}
	slices.Sort(callers)
	named := strings.Join(callers[:min(len(callers), maxCallers)], ", ")
	if more := len(callers) - maxCallers; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	text = fmt.Sprintf("node %s and this cluster's node %s both have no address at which the other could reach it: one "+
		"of them needs a candidate (annotation %s on its Node), or no packet passes between them (%d of %d nodes here)",
		p.name(who), named, naming.ReachableAt, len(callers), nodes)
	return text, len(callers) == nodes && p.ownNodes.known
}

// NodeClaims returns how many keys and addresses of peers each own node claims without getting them, by node name,
// without nodes that claim none.
func (p *Plan) NodeClaims() map[string]int {
	claims := map[string]int{}
	for node, ends := range p.ownNodes.nodes {
		for _, key := range ends.keys {
			if who, held := p.holders[key]; held && p.remotes[who.remote].decided[who.node].peer != nil {
				claims[node]++
			}
		}
		for _, address := range ends.addresses {
			for _, who := range p.byAddress.All(address) {
				if p.remotes[who.remote].decided[who.node].peer != nil {
					claims[node]++
				}
			}
		}
	}
	return claims
}
