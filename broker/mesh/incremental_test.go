package mesh

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
)

// standing is who was a peer: with which key, and where.
type standing struct {
	holders map[string]ref
	at      map[ref]string
	// cidrs are those that a node kept, peer or not.
	cidrs map[ref]map[string]bool
}

func stands(p *Plan) standing {
	s := standing{map[string]ref{}, map[ref]string{}, map[ref]map[string]bool{}}
	for i, r := range p.remotes {
		for node, d := range r.decided {
			if d.peer != nil {
				s.holders[string(d.peer.Wireguard.PublicKey)] = ref{i, node}
				s.at[ref{i, node}] = slices.Collect(addressesOf(d.peer.Wireguard))[0]
			}
		}
		for prefix, node := range r.cidrs.kept.All() {
			if s.cidrs[ref{i, node}] == nil {
				s.cidrs[ref{i, node}] = map[string]bool{}
			}
			s.cidrs[ref{i, node}][prefix.String()] = true
		}
	}
	return s
}

// decideAgain decides on all nodes of all remotes from what they are now and who was a peer before, in two rounds: the
// first finds who has which key.
func decideAgain(p *Plan, before standing) []whole {
	keys := map[string]ref{}
	first := decideRound(p, before, nil)
	for _, held := range []bool{true, false} {
		for i := range first {
			for _, peer := range first[i].Peers {
				key, who := string(peer.Wireguard.PublicKey), ref{i, peer.Key.Node}
				_, has := keys[key]
				if by, ok := before.holders[key]; !has && (held && ok && by == who || !held && len(p.ownNodes.keys.All(key)) == 0) {
					keys[key] = who
				}
			}
		}
	}
	return decideRound(p, before, keys)
}

func decideRound(p *Plan, before standing, keys map[string]ref) []whole {
	var out []whole
	for i, r := range p.remotes {
		m := whole{Device: Device(r.config)}
		problem := func(format string, args ...any) { m.Problems = append(m.Problems, fmt.Sprintf(format, args...)) }
		type place struct {
			prefix netip.Prefix
			node   string
		}
		var kept []place
		for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
			for _, cidr := range r.nodes[name].PodCidrs {
				if before.cidrs[ref{i, name}][cidr] && r.nodes[name].Wireguard != nil {
					kept = append(kept, place{netip.MustParsePrefix(cidr), name})
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
			n := r.nodes[name]
			if n.Wireguard == nil {
				continue
			}
			for _, cidr := range slices.Sorted(slices.Values(n.PodCidrs)) {
				prefix := netip.MustParsePrefix(cidr)
				if !slices.ContainsFunc(kept, func(k place) bool { return k.node != name && k.prefix.Overlaps(prefix) }) {
					kept = append(kept, place{prefix, name})
				}
			}
		}
		slices.SortFunc(kept, func(a, b place) int {
			return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
		})
		for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
			n, who := r.nodes[name], r.config.Name+"/"+name
			if n.Wireguard == nil {
				continue
			}
			var lost, allowed []string
			for _, cidr := range n.PodCidrs {
				prefix := netip.MustParsePrefix(cidr)
				if i := slices.IndexFunc(kept, func(k place) bool { return k.node != name && k.prefix.Overlaps(prefix) }); i >= 0 {
					lost = append(lost, fmt.Sprintf("pod CIDR %s of node %s overlaps that of %s/%s, which keeps it", cidr, who,
						r.config.Name, kept[i].node))
				} else {
					allowed = append(allowed, cidr)
				}
			}
			at := netip.MustParseAddrPort(n.Wireguard.Address).Addr().String()
			me := ref{i, name}
			owner, owned := keys[string(n.Wireguard.PublicKey)]
			mine := keys == nil || owned && owner == me
			own := p.ownNodes.addresses.All(at)
			switch local := p.ownNodes.keys.All(string(n.Wireguard.PublicKey)); {
			case len(own) > 0 && before.at[me] != at:
				problem(
					"node %s publishes the endpoint address %s, which belongs to this cluster's node %s: it does not become a peer",
					who,
					at,
					own[0],
				)
				continue
			case !mine && owned:
				problem("node %s has the public key of %s: it does not become a peer until it has its own key", who, p.name(owner))
				continue
			case !mine && len(local) > 0:
				problem("node %s has the public key of this cluster's node %s: it does not become a peer until it has its own key",
					who, local[0])
				continue
			case mine && len(local) > 0:
				problem("this cluster's node %s claims the public key of %s, which remains the peer with this key", local[0], who)
			}
			if len(own) > 0 {
				problem("this cluster's node %s claims the address %s of %s, which remains the peer at this address",
					own[0], at, who)
			}
			if more := len(lost) - maxListedCIDRs; more > 0 {
				lost = append(lost[:maxListedCIDRs:maxListedCIDRs],
					fmt.Sprintf("%d more pod CIDRs of node %s overlap those of others, which keep them", more, who))
			}
			m.Problems = append(m.Problems, lost...)
			if len(n.PodCidrs) == 0 {
				problem("node %s has a key and no pod CIDR: it has no allowed IPs and does not become a peer", who)
			}
			if len(allowed) > 0 {
				m.Peers = append(m.Peers, &semaphorev1.Peer{Key: &semaphorev1.PeerKey{Cluster: r.config.Name, Node: name},
					Wireguard: n.Wireguard, AllowedIps: allowed})
			}
		}
		out = append(out, m)
	}
	return out
}

// The peers are those that deciding again would give, from what is claimed now and who was a peer before; and a caller
// that received only what changed knows it.
func TestIncrementalEqualsTheWholeDecision(t *testing.T) {
	runs := 400
	if testing.Short() {
		runs = 100
	}
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 3))
		cidr := func() string {
			if r.IntN(4) == 0 {
				p, _ := netip.AddrFrom16([16]byte{0xfd, 2, 15: 0, 5: byte(r.IntN(4) << 6)}).Prefix(44 + r.IntN(6))
				return p.String()
			}
			p, _ := netip.AddrFrom4([4]byte{10, 2, byte(r.IntN(8) << 5), 0}).Prefix(15 + r.IntN(6))
			return p.String()
		}
		p := New(remotes())
		reported := map[string]map[string]*semaphorev1.Peer{"c2": {}, "c3": {}}
		for step := range 60 {
			for range 1 + r.IntN(3) {
				cluster, name := []string{"c2", "c3"}[r.IntN(2)], fmt.Sprint("n", r.IntN(8))
				switch r.IntN(8) {
				case 0:
					p.SetNode(cluster, name, nil)
				case 1: // of the own cluster
					var keys [][]byte
					var addresses []netip.Addr
					for range r.IntN(3) {
						keys = append(keys, bytes.Repeat([]byte{byte(1 + r.IntN(6))}, 32))
						addresses = append(addresses, netip.AddrFrom4([4]byte{172, 18, 2, byte(1 + r.IntN(6))}))
					}
					p.SetOwnNode(fmt.Sprint("l", r.IntN(3)), keys, addresses)
				default:
					var cidrs []string
					for range r.IntN(4) {
						cidrs = append(cidrs, cidr())
					}
					n := node(byte(r.IntN(7)), cidrs...)
					if n.Wireguard != nil && r.IntN(3) == 0 {
						n.Wireguard.Address = fmt.Sprintf("172.18.2.%d:1", 1+r.IntN(6))
					}
					p.SetNode(cluster, name, n)
				}
			}
			if r.IntN(4) == 0 {
				continue // several changes are decided on at once
			}
			before := stands(p)
			changed := p.Update()
			want := decideAgain(p, before)
			for i, cluster := range []string{"c2", "c3"} {
				got := meshOf(p, cluster)
				if show(got) != show(want[i]) {
					t.Fatalf("seed %d step %d, %s:\n%s\n%q\nagain it is\n%s\n%q", seed, step, cluster, show(got), got.Problems,
						show(want[i]), want[i].Problems)
				}
				if r.IntN(3) == 0 {
					continue // what is not taken now is taken later
				}
				c := p.TakeChanges(cluster)
				if !slices.Contains(changed, cluster) && len(c.Peers) > 0 {
					t.Fatalf("seed %d step %d: %s changed and is not named", seed, step, cluster)
				}
				for node, peer := range c.Peers {
					if reported[cluster][node] = peer; peer == nil {
						delete(reported[cluster], node)
					}
				}
				if len(reported[cluster]) != len(want[i].Peers) {
					t.Fatalf("seed %d step %d: %d peers of %s were reported, there are %d", seed, step, len(reported[cluster]),
						cluster,
						len(want[i].Peers))
				}
				for _, peer := range want[i].Peers {
					if !proto.Equal(reported[cluster][peer.Key.Node], peer) {
						t.Fatalf("seed %d step %d: reported as %v, it is %v", seed, step, reported[cluster][peer.Key.Node], peer)
					}
				}
			}
		}
		for i := range p.remotes {
			for name := range p.remotes[i].nodes {
				p.SetNode(p.remotes[i].config.Name, name, nil)
			}
		}
		p.Update()
		for _, r := range p.remotes {
			left := len(r.cidrs.lost) + r.cidrs.claims.Size() + r.cidrs.kept.Size() + len(r.decided) + len(p.holders)
			if left+claimed(p.byKey)+claimed(p.byAddress) != 0 {
				t.Fatalf("seed %d: something is left of nobody: %v %v", seed, r.cidrs.lost, r.decided)
			}
		}
	}
}

func benchPlan(nodes int) *Plan {
	p := New(remotes())
	for i := range nodes {
		p.SetNode("c2", fmt.Sprintf("node-%05d", i), benchNode(i, 0))
	}
	p.Update()
	p.TakeChanges("c2")
	p.TakeChanges("c3")
	return p
}

func benchNode(i, key int) *semaphorev1.Node {
	return &semaphorev1.Node{
		PodCidrs: []string{fmt.Sprintf("10.%d.%d.0/26", 64+i>>8, i&255)},
		Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: fmt.Appendf(nil, "%016d%016d", i, key),
			Address: fmt.Sprintf("172.18.%d.%d:51820", i>>8, i&255)},
	}
}

// BenchmarkOneNode is a node that gets another key, among as many others.
func BenchmarkOneNode(b *testing.B) {
	for _, nodes := range []int{1000, 5000, 10_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			p := benchPlan(nodes)
			b.ReportAllocs()
			key := 0
			for b.Loop() {
				key++
				p.SetNode("c2", "node-00500", benchNode(500, key))
				if p.Update(); len(p.TakeChanges("c2").Peers) != 1 {
					b.Fatal("not one changed")
				}
			}
			figure.Of(b, "allocs/op").AtMost(60) // however many nodes there are
		})
	}
}
