package mesh

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
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
			WireGuard: config.WireGuard{ListenPort: 51820, MTU: 1380, PersistentKeepalive: config.Duration{Duration: 25 * time.Second}}},
		{Name: "c3", PodPrefixes: []netip.Prefix{netip.MustParsePrefix("10.3.0.0/16")}, WireGuard: config.WireGuard{ListenPort: 51821}},
	}
}

func node(key byte, cidrs ...string) *semaphorev1.Node {
	n := &semaphorev1.Node{PodCidrs: cidrs}
	if key != 0 {
		n.Wireguard = &semaphorev1.WireGuardEndpoint{PublicKey: bytes.Repeat([]byte{key}, 32), Address: fmt.Sprintf("172.18.2.%d:51820", key)}
	}
	return n
}

func show(m Mesh) string {
	var out []string
	for _, p := range m.Peers {
		out = append(out, fmt.Sprintf("%s key %d allowed %s", p.Key.Node, p.Wireguard.PublicKey[0], strings.Join(p.AllowedIps, ",")))
	}
	return strings.Join(out, "; ")
}

func TestDevice(t *testing.T) {
	p := New(remotes())
	if got := p.Update("c2"); !slices.Equal(got, []string{"c2"}) {
		t.Errorf("changed %v", got)
	}
	m := p.Mesh("c2")
	if got := fmt.Sprintln(m.Device.Cluster, m.Device.ListenPort, m.Device.Mtu, m.Device.PodSubnets, m.Device.PersistentKeepalive.AsDuration()); got != "c2 51820 1380 [10.2.0.0/16 fd02::/48] 25s\n" {
		t.Errorf("device %s", got)
	}
	p.Update("c3")
	if p.Mesh("c3").Device.PersistentKeepalive != nil {
		t.Error("keepalive that was not configured")
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
		{"no key, no peer", map[string]*semaphorev1.Node{"n1": node(0, "10.2.1.0/24"), "n2": node(2, "10.2.2.0/24")}, "n2 key 2 allowed 10.2.2.0/24", nil},
		{"no CIDR, no peer", map[string]*semaphorev1.Node{"n1": node(1)}, "", []string{"node c2/n1 has a key and no pod CIDR: nothing could be sent to it"}},
		{"one key twice", map[string]*semaphorev1.Node{"n2": node(1, "10.2.2.0/24"), "n1": node(1, "10.2.1.0/24"), "n3": node(3, "10.2.3.0/24")},
			"n1 key 1 allowed 10.2.1.0/24; n3 key 3 allowed 10.2.3.0/24",
			[]string{"node c2/n2 has the public key of c2/n1: it is no peer until it has one of its own"}},
		{"one CIDR twice", map[string]*semaphorev1.Node{"n2": node(2, "10.2.1.0/24", "10.2.2.0/24"), "n1": node(1, "10.2.1.0/24")},
			"n1 key 1 allowed 10.2.1.0/24; n2 key 2 allowed 10.2.2.0/24",
			[]string{"pod CIDR 10.2.1.0/24 of node c2/n2 overlaps that of c2/n1, which keeps it"}},
		{"a wider one", map[string]*semaphorev1.Node{"n2": node(2, "10.2.0.0/16"), "n1": node(1, "10.2.1.0/24"), "n3": node(3, "10.2.3.0/24")},
			"n1 key 1 allowed 10.2.1.0/24; n3 key 3 allowed 10.2.3.0/24",
			[]string{"pod CIDR 10.2.0.0/16 of node c2/n2 overlaps that of c2/n1, which keeps it"}},
		{"a wider one that comes first", map[string]*semaphorev1.Node{"n1": node(1, "10.2.0.0/16"), "n2": node(2, "10.2.1.0/24"), "n3": node(3, "10.2.3.0/24")},
			"n1 key 1 allowed 10.2.0.0/16", []string{
				"pod CIDR 10.2.1.0/24 of node c2/n2 overlaps that of c2/n1, which keeps it",
				"pod CIDR 10.2.3.0/24 of node c2/n3 overlaps that of c2/n1, which keeps it"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := New(remotes())
			for name, n := range c.nodes {
				p.Set("c2", name, n)
			}
			p.Update("c2")
			m := p.Mesh("c2")
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
	p.Set("c3", "n1", node(1, "10.3.1.0/24"))
	p.Update("c3")
	if show(p.Mesh("c3")) != "n1 key 1 allowed 10.3.1.0/24" {
		t.Fatal(show(p.Mesh("c3")))
	}
	// c2 comes first in the configuration, however late its node comes.
	p.Set("c2", "n9", node(1, "10.2.9.0/24"))
	if got := p.Update("c2"); !slices.Equal(got, []string{"c2", "c3"}) {
		t.Errorf("changed %v", got)
	}
	if show(p.Mesh("c3")) != "" || p.Mesh("c3").Problems[0] != "node c3/n1 has the public key of c2/n9: it is no peer until it has one of its own" {
		t.Errorf("%s %q", show(p.Mesh("c3")), p.Mesh("c3").Problems)
	}
	p.Set("c2", "n9", nil)
	p.Update("c2")
	if show(p.Mesh("c3")) != "n1 key 1 allowed 10.3.1.0/24" {
		t.Error(show(p.Mesh("c3")))
	}
}

// Whatever the nodes claim and in whatever order they came, no key is given out twice, no two
// peers' allowed IPs overlap, and the mesh is the same.
func TestNoTheft(t *testing.T) {
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
		a, b := New(remotes()), New(remotes())
		for name, n := range nodes {
			a.Set("c2", name, n)
			a.Update("c2")
		}
		for name, n := range nodes {
			b.Set("c2", name, node(5, "10.2.0.0/16"))
			b.Update("c2")
			b.Set("c2", name, n)
		}
		b.Update("c2")
		ma, mb := a.Mesh("c2"), b.Mesh("c2")
		if !slices.EqualFunc(ma.Peers, mb.Peers, func(x, y *semaphorev1.Peer) bool { return proto.Equal(x, y) }) || !reflect.DeepEqual(ma.Problems, mb.Problems) {
			t.Fatalf("history matters:\n%s\n%s", show(ma), show(mb))
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

func BenchmarkUpdate5000(b *testing.B) {
	p := New(remotes())
	for i := range 5000 {
		n := node(1, fmt.Sprintf("10.2.%d.%d/29", i/32, i%32*8))
		n.Wireguard.PublicKey = []byte(fmt.Sprintf("%032d", i))
		p.Set("c2", fmt.Sprintf("node-%04d", i), n)
	}
	for b.Loop() {
		p.Update("c2")
	}
}
