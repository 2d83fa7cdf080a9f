package mesh

import (
	"net/netip"
	"slices"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// ownNodes are the nodes of the own cluster. No remote node becomes a peer with the key or at the address of one (R10,
// R11): a remote whose nodes share a subnet with this cluster could otherwise make own nodes send its traffic to each
// other. Conversely, own nodes take nothing from an existing peer, as a kubelet may annotate its Node with any key and
// report any address.
type ownNodes struct {
	nodes map[string]keysAndAddresses
	// keys and addresses map to the names of the nodes that have them, sorted.
	keys, addresses map[string][]string
}

// A node may have one key for each remote and spareKeys beside them, and maxAddresses addresses.
const spareKeys, maxAddresses = 8, 16

type keysAndAddresses struct{ keys, addresses []string }

func newOwnNodes() ownNodes {
	return ownNodes{map[string]keysAndAddresses{}, map[string][]string{}, map[string][]string{}}
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
	leave := func(of map[string][]string, what string) {
		of[what] = slices.DeleteFunc(of[what], func(n string) bool { return n == node })
		if len(of[what]) == 0 {
			delete(of, what)
		}
	}
	join := func(of map[string][]string, what string) {
		if i, there := slices.BinarySearch(of[what], node); !there {
			of[what] = slices.Insert(of[what], i, node)
		}
	}
	for _, key := range before.keys {
		leave(p.ownNodes.keys, key)
	}
	for _, a := range before.addresses {
		leave(p.ownNodes.addresses, a)
	}
	for _, key := range now.keys {
		join(p.ownNodes.keys, key)
	}
	for _, a := range now.addresses {
		join(p.ownNodes.addresses, a)
	}
	if len(keys) == 0 && len(addresses) == 0 {
		delete(p.ownNodes.nodes, node)
	} else {
		p.ownNodes.nodes[node] = now
	}
	for _, e := range []keysAndAddresses{before, now} {
		for _, key := range e.keys {
			p.dirtyKeys[key] = true
		}
		for _, address := range e.addresses {
			for _, who := range p.byAddress[address] {
				p.dirty[who] = true
			}
		}
	}
	return true
}

// addressOf returns the IP of a tunnel endpoint; "" for none.
func addressOf(wg *semaphorev1.WireGuardEndpoint) string {
	at, err := netip.ParseAddrPort(wg.GetAddress())
	if err != nil {
		return "" // admission refuses others
	}
	return at.Addr().String()
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
			for _, who := range p.byAddress[address] {
				if p.remotes[who.remote].decided[who.node].peer != nil {
					claims[node]++
				}
			}
		}
	}
	return claims
}
