package mesh

import (
	"net/netip"
	"slices"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// local are the nodes of the own cluster: nobody becomes a peer with the key of one of them, or at the address of one (R10, R11).
// What a kubelet says of its node takes no peer away: it may annotate its Node with any key, and report any address.
// A remote whose nodes share a subnet with ours could otherwise have our nodes send to each other what is meant for
// it, and whoever has two ends with one key has a tunnel with himself.
type local struct {
	nodes map[string]ends
	// keys and addresses lead to the names of the nodes that have them, in order.
	keys, addresses map[string][]string
}

// spareKeys are those that a node may have beside one for each remote, maxAddresses its addresses.
const spareKeys, maxAddresses = 8, 16

type ends struct{ keys, addresses []string }

func newLocal() local {
	return local{map[string]ends{}, map[string][]string{}, map[string][]string{}}
}

// SetLocal takes the public keys of a node of the own cluster and its addresses; none of either when it has
// gone. It returns whether that is another than before: Update then decides what comes of it.
func (p *Plan) SetLocal(node string, keys [][]byte, addresses []netip.Addr) (changed bool) {
	// A node has a key for each remote, and maybe some that are left of others. What a kubelet annotates beyond that is no key of ours.
	keys = keys[:min(len(keys), len(p.remotes)+spareKeys)]
	addresses = addresses[:min(len(addresses), maxAddresses)]
	var now ends
	for _, key := range keys {
		now.keys = append(now.keys, string(key))
	}
	for _, a := range addresses {
		now.addresses = append(now.addresses, a.String())
	}
	before := p.local.nodes[node]
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
		leave(p.local.keys, key)
	}
	for _, a := range before.addresses {
		leave(p.local.addresses, a)
	}
	for _, key := range now.keys {
		join(p.local.keys, key)
	}
	for _, a := range now.addresses {
		join(p.local.addresses, a)
	}
	if len(keys) == 0 && len(addresses) == 0 {
		delete(p.local.nodes, node)
	} else {
		p.local.nodes[node] = now
	}
	for _, e := range []ends{before, now} {
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

// host is the address of a tunnel's end, without its port; "" for none.
func host(wg *semaphorev1.WireGuardEndpoint) string {
	at, err := netip.ParseAddrPort(wg.GetAddress())
	if err != nil {
		return "" // admission lets no other in
	}
	return at.Addr().String()
}

// NodeClaims are how many keys and addresses of peers each node of the own cluster claims and does not get, by its name; those that claim
// none are left out.
func (p *Plan) NodeClaims() map[string]int {
	claims := map[string]int{}
	for node, ends := range p.local.nodes {
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
