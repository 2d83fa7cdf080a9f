package plan

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
)

// keyOf returns a public key for a letter.
func keyOf(letter string) []byte { return bytes.Repeat([]byte(letter[:1]), wgtypes.KeyLen) }

// peerOf parses "KEY ENDPOINT PREFIX…".
func peerOf(node, text string) *semaphorev1.Peer {
	f := strings.Fields(text)
	return &semaphorev1.Peer{
		Key:        &semaphorev1.PeerKey{Cluster: "c2", Node: node},
		Wireguard:  &semaphorev1.WireGuardEndpoint{PublicKey: keyOf(f[0]), Address: f[1]},
		AllowedIps: f[2:],
	}
}

func networkOf(subnets []string, peers map[string]string) *Desired {
	n := &Desired{
		Device: &semaphorev1.Device{
			Cluster: "c2", ListenPort: 51820, Mtu: 1380, PodSubnets: subnets,
			PersistentKeepalive: durationpb.New(25 * time.Second),
		},
		Peers: map[string]*semaphorev1.Peer{},
	}
	for node, text := range peers {
		n.Peers[node] = peerOf(node, text)
	}
	return n
}

// carryOut returns the device after the steps, as the kernel would carry them out. It fails on a step that the kernel
// would refuse.
func carryOut(t testing.TB, d *kernel.Device, s Steps) *kernel.Device {
	t.Helper()
	if s.Create {
		if d != nil {
			t.Fatal("makes a device that is there")
		}
		d = &kernel.Device{Name: s.Name}
	}
	out := *d
	if s.Create || s.SetLink {
		out.Alias, out.MTU = s.Alias, s.MTU
	}
	if s.SetLink {
		out.Up = true
	}
	if s.Config != nil {
		configure(&out, *s.Config)
	}
	for _, r := range s.DeleteRoutes {
		i := slices.Index(out.Routes, r)
		if i < 0 {
			t.Fatalf("deletes route %s, which is not there", r)
		}
		out.Routes = slices.Delete(slices.Clone(out.Routes), i, i+1)
	}
	for _, r := range s.AddRoutes {
		if slices.Contains(out.Routes, r) {
			t.Fatalf("adds route %s, which is there", r)
		}
		out.Routes = append(slices.Clone(out.Routes), r)
	}
	return &out
}

func configure(d *kernel.Device, cfg wgtypes.Config) {
	if cfg.PrivateKey != nil {
		d.PrivateKey = *cfg.PrivateKey
	}
	if cfg.ListenPort != nil {
		d.ListenPort = *cfg.ListenPort
	}
	d.Peers = slices.Clone(d.Peers)
	for _, p := range cfg.Peers {
		i := slices.IndexFunc(d.Peers, func(x wgtypes.Peer) bool { return x.PublicKey == p.PublicKey })
		if p.Remove {
			if i >= 0 {
				d.Peers = slices.Delete(d.Peers, i, i+1)
			}
			continue
		}
		if i < 0 {
			d.Peers = append(d.Peers, wgtypes.Peer{PublicKey: p.PublicKey})
			i = len(d.Peers) - 1
		}
		if p.Endpoint != nil {
			d.Peers[i].Endpoint = p.Endpoint
		}
		d.Peers[i].PersistentKeepaliveInterval = *p.PersistentKeepaliveInterval
		// An allowed IP belongs to one peer: setting it on a peer takes it from the other.
		for j := range d.Peers {
			d.Peers[j].AllowedIPs = slices.DeleteFunc(slices.Clone(d.Peers[j].AllowedIPs), func(x net.IPNet) bool {
				return j == i && p.ReplaceAllowedIPs ||
					slices.ContainsFunc(p.AllowedIPs, func(y net.IPNet) bool { return x.String() == y.String() })
			})
		}
		d.Peers[i].AllowedIPs = append(d.Peers[i].AllowedIPs, p.AllowedIPs...)
	}
}

// lines returns the peers and routes of a device as text.
func lines(d *kernel.Device) []string {
	var out []string
	for _, p := range d.Peers {
		var ips []string
		for _, ip := range p.AllowedIPs {
			ips = append(ips, ip.String())
		}
		slices.Sort(ips)
		out = append(out, strings.TrimSpace(fmt.Sprintf("%c %s %s", p.PublicKey[0], p.Endpoint, strings.Join(ips, " "))))
	}
	for _, r := range d.Routes {
		out = append(out, r.String())
	}
	slices.Sort(out)
	return out
}

func TestNetwork(t *testing.T) {
	private := wgtypes.Key{1}
	subnets := []string{"10.2.0.0/16", "fd00:2::/48"}
	peers := map[string]string{"n1": "a 192.0.2.1:51820 10.2.1.0/24 fd00:2:0:1::/64",
		"n2": "b 192.0.2.2:51820 10.2.2.0/24"}
	whole := []string{"10.2.0.0/16", "a 192.0.2.1:51820 10.2.1.0/24 fd00:2:0:1::/64", "b 192.0.2.2:51820 10.2.2.0/24",
		"fd00:2::/48"}
	standing := carryOut(t, nil, Network("c2", networkOf(subnets, peers), Bounds{}, private, nil))
	for name, c := range map[string]struct {
		// change is what differs on the device from the whole; gone means that there is none.
		change func(*kernel.Device)
		gone   bool
		// subnets and wanted are desired; nil for the whole.
		subnets []string
		wanted  map[string]string
		// set counts peers that are set or removed.
		set              int
		routes           int
		link             bool
		lines            []string // nil for whole
		refused, settled []string
	}{
		"nothing exists":   {gone: true, set: 2, routes: 2, link: true},
		"all exists":       {},
		"the port differs": {change: func(d *kernel.Device) { d.ListenPort = 1 }},
		"the key differs":  {change: func(d *kernel.Device) { d.PrivateKey = wgtypes.Key{9} }},
		"down, and its routes gone": {change: func(d *kernel.Device) { d.Up, d.Routes = false, nil }, link: true,
			routes: 2},
		"another MTU":                           {change: func(d *kernel.Device) { d.MTU = 1500 }, link: true},
		"of semaphore-wireguard, without alias": {change: func(d *kernel.Device) { d.Alias = "" }, link: true},
		"a peer more than wanted": {
			wanted: map[string]string{"n1": peers["n1"]}, set: 1,
			lines: []string{"10.2.0.0/16", whole[1], "fd00:2::/48"},
		},
		"an endpoint in the other form of IPv4": {
			change: func(d *kernel.Device) {
				d.Peers = slices.Clone(d.Peers)
				d.Peers[0].Endpoint = &net.UDPAddr{IP: d.Peers[0].Endpoint.IP.To16(), Port: d.Peers[0].Endpoint.Port}
			},
		},
		"another endpoint": {
			wanted: map[string]string{"n1": peers["n1"], "n2": "b 192.0.2.9:51820 10.2.2.0/24"}, set: 1,
			lines: []string{"10.2.0.0/16", whole[1], "b 192.0.2.9:51820 10.2.2.0/24", "fd00:2::/48"},
		},
		"a prefix goes from one peer to another": {
			wanted: map[string]string{"n1": "a 192.0.2.1:51820 fd00:2:0:1::/64",
				"n2": "b 192.0.2.2:51820 10.2.1.0/24 10.2.2.0/24"}, set: 2,
			lines: []string{"10.2.0.0/16", "a 192.0.2.1:51820 fd00:2:0:1::/64", "b 192.0.2.2:51820 10.2.1.0/24 10.2.2.0/24",
				"fd00:2::/48"},
		},
		"a prefix goes to a new peer, the old one goes": {
			wanted: map[string]string{"n1": peers["n1"], "n3": "c 192.0.2.3:51820 10.2.2.0/24"}, set: 2,
			lines: []string{"10.2.0.0/16", whole[1], "c 192.0.2.3:51820 10.2.2.0/24", "fd00:2::/48"},
		},
		"a node is rebuilt with a new key": {
			wanted: map[string]string{"n1": peers["n1"], "n2": "c 192.0.2.2:51820 10.2.2.0/24"}, set: 2,
			lines: []string{"10.2.0.0/16", whole[1], "c 192.0.2.2:51820 10.2.2.0/24", "fd00:2::/48"},
		},
		"another subnet": {
			subnets: []string{"10.2.0.0/16", "10.9.0.0/16"}, routes: 2, set: 1,
			lines: []string{"10.2.0.0/16", "10.9.0.0/16", "a 192.0.2.1:51820 10.2.1.0/24", whole[2]},
		},
		"two nodes want one prefix": {
			wanted:  map[string]string{"n1": peers["n1"], "n2": "b 192.0.2.2:51820 10.2.1.0/24 10.2.2.0/24"},
			settled: []string{"peer n2 claims 10.2.1.0/24, which belongs to n1"},
		},
		"two nodes have one key": {
			wanted: map[string]string{"n1": peers["n1"], "n2": peers["n2"],
				"n3": "a 192.0.2.3:51820 10.2.3.0/24"},
			settled: []string{"peer n3 has the public key of n1 and is ignored"},
		},
		"a peer says its prefix twice": {
			wanted: map[string]string{"n1": peers["n1"], "n2": peers["n2"] + " 10.2.2.0/24"},
		},
		"never a default route": {
			subnets: append([]string{"0.0.0.0/0", "::/0"}, subnets...),
			refused: []string{"route 0.0.0.0/0: 0.0.0.0/0 contains every address", "route ::/0: ::/0 contains every address"},
		},
		"a peer that wants everything": {
			wanted: map[string]string{"n1": peers["n1"], "n2": "b 192.0.2.2:51820 0.0.0.0/0"}, set: 1,
			lines:   []string{"10.2.0.0/16", whole[1], "fd00:2::/48"},
			refused: []string{"peer n2: allowed IPs: 0.0.0.0/0 contains every address"},
		},
		"a peer without an address": {
			wanted: map[string]string{"n1": peers["n1"], "n2": peers["n2"],
				"n3": "c nowhere 10.2.3.0/24"},
			refused: []string{"peer n3: endpoint: not an ip:port"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			changed := *standing
			stands := &changed
			if c.change != nil {
				c.change(stands)
			}
			if c.gone {
				stands = nil
			}
			if c.subnets == nil {
				c.subnets = subnets
			}
			if c.wanted == nil {
				c.wanted = peers
			}
			want := networkOf(c.subnets, c.wanted)
			if c.lines == nil {
				c.lines = whole
			}
			s := Network("c2", want, Bounds{}, private, stands)
			set := 0
			if s.Config != nil {
				set = len(s.Config.Peers)
				removes := func(p wgtypes.PeerConfig) bool { return p.Remove }
				if first := slices.IndexFunc(s.Config.Peers, removes); first >= 0 && slices.ContainsFunc(s.Config.Peers[first:],
					func(p wgtypes.PeerConfig) bool { return !removes(p) }) {
					t.Error("a peer goes before those that take its allowed IPs are set")
				}
			}
			if routes := len(s.AddRoutes) + len(s.DeleteRoutes); set != c.set || routes != c.routes || s.SetLink != c.link {
				t.Errorf("%d peers set, %d routes, link %v; want %d, %d, %v", set, routes, s.SetLink, c.set, c.routes, c.link)
			}
			if diff := cmp.Diff(c.refused, slices.Concat(s.Refused, s.Applied.refusals())); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.settled, s.Applied.contradictions()); diff != "" {
				t.Errorf("settled (-want +got):\n%s", diff)
			}
			after := carryOut(t, stands, s)
			if diff := cmp.Diff(c.lines, lines(after)); diff != "" {
				t.Errorf("the device afterwards (-want +got):\n%s", diff)
			}
			if !after.Up || after.Alias != "wireguard.c2" || after.MTU != 1380 || after.ListenPort != 51820 ||
				after.PrivateKey != private {
				t.Errorf("the device afterwards: %+v", after)
			}
			if again := Network("c2", want, Bounds{}, private, after); !again.Empty() {
				t.Errorf("a second plan changes something: %+v", again)
			}
		})
	}
}

func TestUnsetMTUIsDefault(t *testing.T) {
	if s := Network("c2", &Desired{Device: &semaphorev1.Device{Cluster: "c2"}}, Bounds{}, wgtypes.Key{},
		nil); s.MTU != DefaultMTU {
		t.Errorf("MTU %d", s.MTU)
	}
}

// TestCluster: the agent accepts from the wire exactly the cluster names that a configuration accepts.
func TestCluster(t *testing.T) {
	long := strings.Repeat("a", 32)
	for _, name := range []string{
		"c1", "0", "exp-1-aws-eu-west-1", long, long + "a", "", "../x", "c/2", "a b", "-a", "a-", "A", "a.b", "a\n", "ä",
		"..", ".", "a\x00",
	} {
		_, err := config.Parse[config.Agent](fmt.Appendf(nil, "cluster: %q\n", name))
		if got := Cluster(name); (got == nil) != (err == nil) {
			t.Errorf("%q: %v; a configuration: %v", name, got, err)
		}
	}
}

// TestSingleChangesEqualTheWholePlan: single changes have the result of the plan for the whole, in any order, also if
// they move prefixes and keys between peers or contradict each other.
func TestSingleChangesEqualTheWholePlan(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		want := networkOf([]string{"10.2.0.0/16"}, nil)
		stands := carryOut(t, nil, Network("c2", want, Bounds{}, wgtypes.Key{1}, nil))
		p := programmed(want, Bounds{})
		for range 50 {
			nodes := map[string]*semaphorev1.Peer{}
			for range 1 + r.IntN(3) {
				node := fmt.Sprintf("n%d", r.IntN(6))
				if r.IntN(3) == 0 {
					delete(want.Peers, node)
				} else {
					text := fmt.Sprintf("%c 192.0.2.%d:51820", "abcdefghijkl"[r.IntN(12)], r.IntN(3))
					for range r.IntN(3) {
						text += fmt.Sprintf(" 10.2.%d.0/24", r.IntN(15))
					}
					if r.IntN(10) == 0 {
						text += " 0.0.0.0/0"
					}
					want.Peers[node] = peerOf(node, text)
				}
				nodes[node] = want.Peers[node]
			}
			next := *stands
			configure(&next, p.Change(nodes))
			stands = &next
			s := Network("c2", want, Bounds{}, wgtypes.Key{1}, stands)
			if !s.Empty() || !p.Matches("c2", want.Device, nil, stands) {
				t.Fatalf("seed %d: after single changes a comparison of all changes %+v; as desired: %v", seed, s.Config,
					p.Matches("c2", want.Device, nil, stands))
			}
			if !slices.Equal(s.Applied.Problems(), p.Problems()) {
				t.Fatalf("seed %d: said of single changes: %q, %q; of the whole: %q, %q", seed, p.contradictions(), p.refusals(),
					s.Applied.contradictions(), s.Applied.refusals())
			}
		}
	}
}

// programmed returns a network in the state after it was set.
func programmed(want *Desired, bounds Bounds) *AppliedPeers {
	return Network("c2", want, bounds, wgtypes.Key{1}, nil).Applied
}

// TestSingleChangeIsSmall: a change among 5,000 peers sets only that peer, and costs as much as among few, also while
// two of the others contradict each other and one is refused.
func TestSingleChangeIsSmall(t *testing.T) {
	of := func(n int) (*AppliedPeers, map[string]*semaphorev1.Peer) {
		want := manyPeers(n)
		want.Peers["bad"] = peerOf("bad", "z 192.0.2.1:51820 0.0.0.0/0")
		want.Peers["twin"] = peerOf("twin", "y 192.0.2.1:51820 10.100.9.0/24") // which n9 has
		p := programmed(want, Bounds{})
		if len(p.refusals()) != 1 || len(p.contradictions()) != 1 {
			t.Fatalf("refused %q, settled %q: this tests nothing", p.refusals(), p.contradictions())
		}
		return p, map[string]*semaphorev1.Peer{"n7": want.Peers["n7"]}
	}
	key := byte(0)
	cost := func(n int) float64 {
		p, nodes := of(n)
		return testing.AllocsPerRun(100, func() {
			key++
			nodes["n7"].Wireguard.PublicKey[0] = key
			if cfg := p.Change(nodes); len(cfg.Peers) > 2 {
				t.Fatalf("%d peers are set", len(cfg.Peers))
			}
		})
	}
	few, many := cost(20), cost(5000)
	t.Logf("%.0f allocations among 20 peers, %.0f among 5,000", few, many)
	if many > few+2 || many > 60 {
		t.Errorf("a change allocates %.0f times among 5,000 peers, %.0f among 20", many, few)
	}
}

// TestCostByAddresses: the cost of a check and of a change does not depend on the number of this node's addresses.
func TestCostByAddresses(t *testing.T) {
	want := manyPeers(1000)
	cost := func(n int) float64 {
		s := Network("c2", want, ownAddresses(n), wgtypes.Key{1}, nil)
		if len(s.Applied.bounds.Own) != 0 {
			t.Fatal("peers are compared with the node's addresses")
		}
		stands := carryOut(t, nil, s)
		return testing.AllocsPerRun(5, func() { s.Applied.Matches("c2", want.Device, nil, stands) })
	}
	if few, many := cost(1), cost(10_000); many > few || many > 20 {
		t.Errorf("a look allocates %.0f times on a node with 10,000 addresses, %.0f with one", many, few)
	}
}

// ownAddresses returns the bounds of a node with n addresses.
func ownAddresses(n int) (bounds Bounds) {
	for i := range n {
		bounds.Own = append(bounds.Own, address("other", fmt.Sprintf("172.20.%d.%d/32", i>>8, i&255)))
	}
	return bounds
}

// BenchmarkManyAddresses measures what the agent computes for a device with 5,000 peers, a plan of the whole and the
// check of an unchanged device: on a node with 10,000 addresses, as of 10,000 Services in IPVS mode, and by turns on
// one with a single address.
func BenchmarkManyAddresses(b *testing.B) {
	want := manyPeers(5000)
	stands := carryOut(b, nil, Network("c2", want, Bounds{}, wgtypes.Key{1}, nil))
	compute := func(bounds Bounds) time.Duration {
		began := time.Now()
		s := Network("c2", want, bounds, wgtypes.Key{1}, stands)
		if !s.Empty() || !s.Applied.Matches("c2", want.Device, nil, stands) {
			b.Fatal("an unchanged device is not as it was set")
		}
		return time.Since(began)
	}
	one, many := ownAddresses(1), ownAddresses(10_000)
	var alone, among []time.Duration
	for range 100 { // the number of turns does not depend on the benchmark's time
		alone, among = append(alone, compute(one)), append(among, compute(many))
	}
	// The shortest ones: others wait for a CPU on a busy machine.
	least := func(all []time.Duration) float64 { return 1000 * slices.Min(all).Seconds() }
	figure.Report(b, "plan-and-check-ms", least(among)).Floor(least(alone)).AtMostTimesFloor(1.25)
	figure.WithoutTime(b)
}

func manyPeers(n int) *Desired {
	peers := map[string]string{}
	for i := range n {
		peers[fmt.Sprintf("n%d", i)] = fmt.Sprintf("a 192.0.2.1:51820 10.%d.%d.0/24", 100+i/256, i%256)
	}
	want := networkOf([]string{"10.0.0.0/8"}, peers)
	i := 0
	for _, p := range want.Peers {
		p.Wireguard.PublicKey = append(bytes.Clone(p.Wireguard.PublicKey[:28]), byte(i>>24), byte(i>>16), byte(i>>8), byte(i))
		i++
	}
	return want
}

// TestCheckOfAnUnchangedDeviceDoesNothing: a check of an unchanged device finds nothing to do, and a check of one that
// differs does. The result agrees with the plan of the whole.
func TestCheckOfAnUnchangedDeviceDoesNothing(t *testing.T) {
	want := networkOf([]string{"10.2.0.0/16", "fd02::/48"}, map[string]string{
		"n1": "a 192.0.2.1:51820 10.2.1.0/24 fd02::/64", "n2": "b 192.0.2.2:51820 10.2.2.0/24",
		"n3": "c [2001:db8::1]:51820 10.2.3.0/24",
	})
	want.Device.ListenPort, want.Device.Mtu, want.Device.PersistentKeepalive = 51820, 1380, durationpb.New(25*time.Second)
	key := wgtypes.Key{1}
	p := programmed(want, Bounds{})
	for _, c := range []struct {
		name string
		do   func(*kernel.Device)
	}{
		{"", func(*kernel.Device) {}},
		{"is down", func(d *kernel.Device) { d.Up = false }},
		{"has another MTU", func(d *kernel.Device) { d.MTU++ }},
		{"has another alias", func(d *kernel.Device) { d.Alias = "x" }},
		{"has another port", func(d *kernel.Device) { d.ListenPort++ }},
		{"lacks its route", func(d *kernel.Device) { d.Routes = nil }},
		{"has its route where no packet finds it", func(d *kernel.Device) { d.UnruledV4 = true }},
		{"has its route of IPv6 where no packet finds it", func(d *kernel.Device) { d.UnruledV6 = true }},
		{"has another route", func(d *kernel.Device) { d.Routes = append(d.Routes, prefixes("10.9.0.0/16")...) }},
		{"lacks a peer", func(d *kernel.Device) { d.Peers = d.Peers[1:] }},
		{"has another peer", func(d *kernel.Device) {
			d.Peers = append(d.Peers, wgtypes.Peer{PublicKey: wgtypes.Key{9}})
		}},
		{"has another peer instead", func(d *kernel.Device) { d.Peers[0].PublicKey = wgtypes.Key{9} }},
		{"has a peer elsewhere", func(d *kernel.Device) { d.Peers[1].Endpoint.Port++ }},
		{"has a peer nowhere", func(d *kernel.Device) { d.Peers[1].Endpoint = nil }},
		{"has a peer with another keepalive", func(d *kernel.Device) { d.Peers[2].PersistentKeepaliveInterval = 0 }},
		{"has a peer without its prefixes", func(d *kernel.Device) { d.Peers[0].AllowedIPs = nil }},
		{"has a peer with more prefixes", func(d *kernel.Device) {
			d.Peers[1].AllowedIPs = append(d.Peers[1].AllowedIPs, *parseNet("10.9.0.0/16"))
		}},
		{"has a peer with another prefix", func(d *kernel.Device) { d.Peers[2].AllowedIPs[0] = *parseNet("10.2.3.0/25") }},
	} {
		t.Run("which "+c.name, func(t *testing.T) {
			stands := carryOut(t, nil, Network("c2", want, Bounds{}, key, nil))
			c.do(stands)
			got, plan := p.Matches("c2", want.Device, nil, stands), Network("c2", want, Bounds{}, key, stands).Empty()
			if got != (c.name == "") || got != plan {
				t.Errorf("as desired: %v; nothing to do: %v", got, plan)
			}
		})
	}
}

func parseNet(text string) *net.IPNet {
	_, n, err := net.ParseCIDR(text)
	if err != nil {
		panic(err)
	}
	return n
}
