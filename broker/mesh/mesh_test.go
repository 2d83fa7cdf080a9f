package mesh

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func remotes() []config.Remote {
	return []config.Remote{
		{Name: "c2", PodPrefixes: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("fd02::/48")},
			WireGuard: config.WireGuard{ListenPort: 51820, MTU: 1380,
				PersistentKeepalive: config.Duration{Duration: 25 * time.Second}}},
		{Name: "c3", PodPrefixes: []netip.Prefix{netip.MustParsePrefix("10.3.0.0/16")},
			WireGuard: config.WireGuard{ListenPort: 51821}},
	}
}

func node(key byte, cidrs ...string) *semaphorev1.Node {
	n := &semaphorev1.Node{PodCidrs: cidrs}
	if key != 0 {
		n.Wireguard = &semaphorev1.WireGuardEndpoint{PublicKey: bytes.Repeat([]byte{key}, 32),
			Address: fmt.Sprintf("172.18.2.%d:51820", key)}
	}
	return n
}

// whole is all that leads to a cluster, in the order of the nodes' names.
type whole struct {
	Device   *semaphorev1.Device
	Peers    []*semaphorev1.Peer
	Problems []string
}

func meshOf(p *Plan, cluster string) whole {
	r := p.remotes[p.index(cluster)]
	m := whole{Device: Device(r.config)}
	for _, node := range slices.Sorted(maps.Keys(r.decided)) {
		d := r.decided[node]
		if d.peer != nil {
			m.Peers = append(m.Peers, d.peer)
		}
		m.Problems = append(m.Problems, d.problems...)
		if d.apart != "" {
			m.Problems = append(m.Problems, d.apart)
		}
	}
	return m
}

func show(m whole) string {
	var out []string
	for _, p := range m.Peers {
		out = append(out, fmt.Sprintf("%s key %d allowed %s", p.Key.Node, p.Wireguard.PublicKey[0],
			strings.Join(p.AllowedIps, ",")))
	}
	return strings.Join(out, "; ")
}

func TestDevice(t *testing.T) {
	p := New(remotes())
	// Both are reported, though neither has a node.
	if got := p.Update(); !slices.Equal(got, []string{"c2", "c3"}) {
		t.Errorf("changed %v", got)
	}
	d := p.TakeChanges("c2").Device
	if got := fmt.Sprintln(d.Cluster, d.ListenPort, d.Mtu, d.PodSubnets,
		d.PersistentKeepalive.AsDuration()); got != "c2 51820 1380 [10.2.0.0/16 fd02::/48] 25s\n" {
		t.Errorf("device %s", got)
	}
	if p.TakeChanges("c3").Device.PersistentKeepalive != nil {
		t.Error("keepalive that was not configured")
	}
	if got := p.Update(); len(got) != 0 {
		t.Errorf("nothing is new, and yet %v", got)
	}
}

func TestPeers(t *testing.T) {
	for _, c := range []struct {
		name     string
		nodes    map[string]*semaphorev1.Node
		peers    string
		problems []string
	}{
		{"peers", map[string]*semaphorev1.Node{"n2": node(2, "10.2.2.0/24"), "n1": node(1, "10.2.1.0/24", "fd02:0:0:1::/64")},
			"n1 key 1 allowed 10.2.1.0/24,fd02:0:0:1::/64; n2 key 2 allowed 10.2.2.0/24", nil},
		{"no key, no peer", map[string]*semaphorev1.Node{"n1": node(0, "10.2.1.0/24"), "n2": node(2, "10.2.2.0/24")},
			"n2 key 2 allowed 10.2.2.0/24", nil},
		{"no CIDR, no peer", map[string]*semaphorev1.Node{"n1": node(1)}, "",
			[]string{"node c2/n1 has a key and no pod CIDR: it has no allowed IPs and does not become a peer"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := New(remotes())
			for name, n := range c.nodes {
				p.SetNode("c2", name, n)
			}
			p.Update()
			m := meshOf(p, "c2")
			if got := show(m); got != c.peers {
				t.Errorf("peers %s\nwant  %s", got, c.peers)
			}
			if !slices.Equal(m.Problems, c.problems) {
				t.Errorf("problems %q", m.Problems)
			}
		})
	}
}

func TestKeyOfAnotherRemote(t *testing.T) {
	p := New(remotes())
	p.SetNode("c3", "n1", node(1, "10.3.1.0/24"))
	p.Update()
	if show(meshOf(p, "c3")) != "n1 key 1 allowed 10.3.1.0/24" {
		t.Fatal(show(meshOf(p, "c3")))
	}
	// c2 comes first in the configuration, and takes nothing that works (H5 of the red team).
	p.TakeChanges("c2")
	p.TakeChanges("c3")
	p.SetNode("c2", "a", node(1, "10.2.9.0/24"))
	if got := p.Update(); !slices.Equal(got, []string{"c2"}) {
		t.Errorf("changed %v", got)
	}
	if show(meshOf(p, "c3")) != "n1 key 1 allowed 10.3.1.0/24" || len(meshOf(p, "c3").Problems) != 0 {
		t.Errorf("%s %q", show(meshOf(p, "c3")), meshOf(p, "c3").Problems)
	}
	if got := meshOf(p, "c2"); show(got) != "" ||
		got.Problems[0] != "node c2/a has the public key of c3/n1: it does not become a peer until it has its own key" {
		t.Errorf("%s %q", show(got), got.Problems)
	}
	// It stays so while c3's node changes what else it says.
	p.SetNode("c3", "n1", node(1, "10.3.1.0/24", "10.3.2.0/24"))
	p.Update()
	if show(meshOf(p, "c3")) != "n1 key 1 allowed 10.3.1.0/24,10.3.2.0/24" {
		t.Error(show(meshOf(p, "c3")))
	}
	// A node that no longer claims it does not have it.
	p.SetNode("c3", "n1", node(2, "10.3.1.0/24"))
	p.Update()
	if show(meshOf(p, "c2")) != "a key 1 allowed 10.2.9.0/24" || show(meshOf(p, "c3")) != "n1 key 2 allowed 10.3.1.0/24" {
		t.Error(show(meshOf(p, "c2")), show(meshOf(p, "c3")))
	}
}

// Whatever the nodes claim and in whatever order they came, no key is given out twice, no two
// peers' allowed IPs overlap, and who was a peer with a key when all had come is one still.
func TestPeersKeepKeysAndPrefixes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		nodes := map[string]*semaphorev1.Node{}
		for i := range 8 {
			var cidrs []string
			for range rng.IntN(3) {
				bits := 16 + rng.IntN(6)
				p, _ := netip.AddrFrom4([4]byte{10, 2, byte(rng.IntN(256)), 0}).Prefix(bits)
				cidrs = append(cidrs, p.String())
			}
			nodes[fmt.Sprint("n", i)] = node(byte(rng.IntN(6)), cidrs...)
		}
		a := New(remotes())
		for name, n := range nodes {
			a.SetNode("c2", name, n)
			a.Update()
		}
		ma := meshOf(a, "c2")
		for name := range nodes { // each is set again, which changes nothing
			a.SetNode("c2", name, proto.CloneOf(nodes[name]))
			a.Update()
		}
		if again := meshOf(a, "c2"); show(again) != show(ma) {
			t.Fatalf("what is set again changes the mesh:\n%s\n%s", show(ma), show(again))
		}
		keys := map[string]bool{}
		type claim struct {
			node   string
			prefix netip.Prefix
		}
		var claims []claim
		for _, p := range ma.Peers {
			if keys[string(p.Wireguard.PublicKey)] {
				t.Fatalf("key twice: %s", show(ma))
			}
			keys[string(p.Wireguard.PublicKey)] = true
			for _, ip := range p.AllowedIps {
				claims = append(claims, claim{p.Key.Node, netip.MustParsePrefix(ip)})
			}
		}
		for i, x := range claims {
			for _, y := range claims[:i] {
				if x.node != y.node && x.prefix.Overlaps(y.prefix) {
					t.Fatalf("%v and %v overlap: %s", x, y, show(ma))
				}
			}
		}
	}
}
