package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

var prefixes = testkit.Prefixes

// addresses parses the addresses of an interface.
func addresses(texts ...string) []kernel.Address {
	var out []kernel.Address
	for _, text := range texts {
		out = append(out, address("eth0", text))
	}
	return out
}

// TestR27OnlyTheRemotesPrefixesAreRouted: whatever the broker sends, the agent routes only the remote's prefixes.
func TestR27OnlyTheRemotesPrefixesAreRouted(t *testing.T) {
	open := Bounds{
		Local: prefixes("10.1.0.0/16", "10.101.0.0/16", "fd01::/48"),
		Own:   addresses("172.18.0.5/24", "192.168.7.9/32", "fd18::5/64"),
	}
	closed := open
	closed.Allowed = prefixes("10.2.0.0/16", "172.18.0.128/25", "fd02::/48")
	for _, c := range []struct {
		name, prefix string
		bounds       Bounds
		word         string // in the refusal; empty if there is none
	}{
		{"a remote's", "10.2.0.0/16", open, ""},
		{"a node's", "10.2.3.0/24", open, ""},
		{"a pod's", "10.2.3.4/32", open, ""},
		{"a remote's of IPv6", "fd02::/48", open, ""},
		{"a pod's of IPv6", "fd02::1/128", open, ""},
		{"as wide as may be", "11.0.0.0/8", open, ""},
		{"as wide as may be of IPv6", "2a00::/16", open, ""},
		{"nonsense", "10.2.0.0", open, "no '/'"},
		{"everything", "0.0.0.0/0", open, "every address"},
		{"everything of IPv6", "::/0", open, "every address"},
		{"half of everything", "0.0.0.0/1", open, "wider than /8"},
		{"the other half", "128.0.0.0/1", open, "wider than /8"},
		{"an eighth of IPv6", "2000::/3", open, "wider than /16"},
		{"wider than a cluster", "12.0.0.0/7", open, "wider than /8"},
		{"bits outside the mask", "10.2.0.1/16", open, "outside its mask"},
		{"IPv4 in IPv6", "::ffff:10.2.0.0/112", open, "IPv4 in IPv6"},
		{"loopback", "127.0.0.1/32", open, "127.0.0.0/8"},
		{"loopback of IPv6", "::1/128", open, "::/127"},
		{"link-local", "169.254.169.254/32", open, "169.254.0.0/16"},
		{"link-local of IPv6", "fe80::/64", open, "fe80::/10"},
		{"multicast", "239.0.0.0/8", open, "224.0.0.0/3"},
		{"multicast of IPv6", "ff02::/16", open, "ff00::/8"},
		{"this network", "0.0.0.0/8", open, "0.0.0.0/8"},
		{"local pods", "10.1.0.0/16", open, "10.1.0.0/16 of the own cluster"},
		{"some local pods", "10.1.7.0/24", open, "10.1.0.0/16 of the own cluster"},
		{"more than local pods", "10.0.0.0/8", open, "10.1.0.0/16 of the own cluster"},
		{"a local service", "10.101.0.1/32", open, "10.101.0.0/16 of the own cluster"},
		{"local pods of IPv6", "fd01:0:0:7::/64", open, "fd01::/48 of the own cluster"},
		{"this node", "172.18.0.5/32", open, "an address of this node"},
		{"around this node", "172.18.0.0/16", open, "an address of this node"},
		{"this node's other address", "192.168.7.0/24", open, "an address of this node"},
		{"this node's gateway", "172.18.0.1/32", open, "a subnet of this node"},
		{"beside the address that has no subnet", "192.168.7.8/32", open, ""},
		{"this node's neighbours of IPv6", "fd18::100/120", open, "a subnet of this node"},
		{"allowed", "10.2.9.0/24", closed, ""},
		{"allowed, of IPv6", "fd02:0:0:1::/64", closed, ""},
		{"not allowed", "10.3.0.0/16", closed, "outside allowedSubnets"},
		{"more than allowed", "10.2.0.0/15", closed, "outside allowedSubnets"},
		{"allowed in a link's subnet", "172.18.0.192/26", closed, ""},
		{"allowed never means local", "10.1.0.0/24", Bounds{Allowed: prefixes("10.0.0.0/8"), Local: prefixes("10.1.0.0/16")},
			"of the own cluster"},
		{"allowed never means this node", "10.3.0.0/16",
			Bounds{Allowed: prefixes("10.0.0.0/8"), Own: addresses("10.3.0.7/16")}, "an address of this node"},
		{"allowed never means link-local", "169.254.1.0/24", Bounds{Allowed: prefixes("169.0.0.0/8")}, "contains no pods"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := c.bounds.prefix(c.prefix)
			switch {
			case c.word == "" && err != nil:
				t.Error(err)
			case c.word != "" && (err == nil || !strings.Contains(err.Error(), c.word)):
				t.Errorf("%v; want %q", err, c.word)
			}
		})
	}
}

// TestR27TheRestOfADeviceIsProgrammed: what is refused of a device is reported, and the rest of it is programmed.
func TestR27TheRestOfADeviceIsProgrammed(t *testing.T) {
	want := networkOf([]string{"10.2.0.0/16", "10.1.0.0/16"}, map[string]string{
		"good": "a 172.18.0.2:51820 10.2.1.0/24", "thief": "b 172.18.0.3:51820 10.2.2.0/24 10.1.5.0/24",
	})
	want.Device.ListenPort, want.Device.Mtu = 70000, 100_000
	bounds := Bounds{Local: prefixes("10.1.0.0/16")}
	s := Network("c2", want, bounds, wgtypes.Key{1}, nil)
	stands := carryOut(t, nil, s)
	if !slices.Equal(stands.Routes, prefixes("10.2.0.0/16")) {
		t.Errorf("routes %v", stands.Routes)
	}
	if len(stands.Peers) != 1 || string(stands.Peers[0].PublicKey[:]) != string(keyOf("a")) {
		t.Errorf("peers %v", stands.Peers)
	}
	refused := slices.Concat(s.Refused, s.Applied.refusals())
	for i, word := range []string{"mtu 100000", "listen port 70000", "route 10.1.0.0/16",
		"peer thief: allowed IPs: 10.1.5.0/24"} {
		if i >= len(refused) || !strings.HasPrefix(refused[i], word) {
			t.Errorf("refused %q; want %q at %d", refused, word, i)
		}
	}
	// Without the others it is refused as well, and it does not affect them.
	p := programmed(&Desired{Device: want.Device, Peers: map[string]*semaphorev1.Peer{"good": want.Peers["good"]}},
		bounds)
	if cfg := p.Change(map[string]*semaphorev1.Peer{"thief": want.Peers["thief"]}); len(cfg.Peers) != 0 ||
		!slices.Equal(p.refusals(), s.Applied.refusals()) {
		t.Errorf("a refused peer by itself: %+v, refused %q", cfg.Peers, p.refusals())
	}
	if cfg := p.Change(map[string]*semaphorev1.Peer{"good": nil}); len(cfg.Peers) != 1 || !cfg.Peers[0].Remove {
		t.Errorf("a single change beside a refused peer: %+v", cfg.Peers)
	}
	if p.Change(map[string]*semaphorev1.Peer{"thief": nil}); len(p.refusals()) != 0 {
		t.Errorf("still refused: %q", p.refusals())
	}
}

// TestAPrefixBeyondTheFileCostsNoPeer: a RemoteCluster gets another pod subnet, and the node's subnets file, which a
// kubelet updates up to two minutes later, does not have it yet. The prefixes of it wait; the tunnels that work stay.
func TestAPrefixBeyondTheFileCostsNoPeer(t *testing.T) {
	for name, bounds := range map[string]Bounds{
		"subnets file":   {Remote: &Remote{Pods: prefixes("10.2.0.0/16")}},
		"allowedSubnets": {Allowed: prefixes("10.2.0.0/16")},
	} {
		t.Run(name, func(t *testing.T) {
			before := networkOf([]string{"10.2.0.0/16"}, map[string]string{
				"n1": "a 192.0.2.1:51820 10.2.1.0/24", "n2": "b 192.0.2.2:51820 10.2.2.0/24"})
			stands := carryOut(t, nil, Network("c2", before, bounds, wgtypes.Key{1}, nil))
			had := lines(stands)
			// The broker has the new subnet at once, and admits the nodes' prefixes in it.
			after := networkOf([]string{"10.2.0.0/16", "10.5.0.0/16"}, map[string]string{
				"n1": "a 192.0.2.1:51820 10.2.1.0/24 10.5.1.0/26", "n2": "b 192.0.2.2:51820 10.2.2.0/24 10.5.2.0/26"})
			s := Network("c2", after, bounds, wgtypes.Key{1}, stands)
			if got := lines(carryOut(t, stands, s)); !slices.Equal(got, had) {
				t.Errorf("the device has %q, and had %q; refused %q", got, had, slices.Concat(s.Refused, s.Applied.refusals()))
			}
		})
	}
}

// TestLocalAddressInsideARoutedSubnet: an existing route remains when this node gets an address inside it, with a
// report; a new one is refused. Neither affects the allowed IPs of other peers.
func TestLocalAddressInsideARoutedSubnet(t *testing.T) {
	want := networkOf([]string{"10.2.0.0/16", "172.17.0.0/16", "fd00:2::/48"}, map[string]string{
		"n1": "a 192.0.2.1:51820 10.2.200.0/24 fd00:2:0:1::/64", "n2": "b 192.0.2.2:51820 10.2.2.0/24 172.17.2.0/24",
		"n3": "c 192.0.2.3:51820 172.17.3.0/24",
	})
	bounds := Bounds{Existing: prefixes("10.2.0.0/16"), Own: []kernel.Address{
		address("docker0", "10.2.200.1/24"), address("virbr0", "172.17.0.1/24"), address("eth0", "192.0.2.9/24"),
	}}
	s := Network("c2", want, bounds, wgtypes.Key{1}, nil)
	stands := carryOut(t, nil, s)
	if got := strings.Join(lines(stands),
		"; "); got != "10.2.0.0/16; a 192.0.2.1:51820 10.2.200.0/24 fd00:2:0:1::/64; b 192.0.2.2:51820 10.2.2.0/24; "+
		"fd00:2::/48" {
		t.Errorf("existing: %s", got)
	}
	if len(s.Conflicts) != 1 || s.Conflicts[0] != "route 10.2.0.0/16 remains, but 10.2.0.0/16 contains 10.2.200.1, an "+
		"address of this node: give interface docker0 another subnet" {
		t.Errorf("conflicts %q", s.Conflicts)
	}
	refused := slices.Concat(s.Refused, s.Applied.refusals())
	for i, word := range []string{"route 172.17.0.0/16: 172.17.0.0/16 contains 172.17.0.1, an address of this node: " +
		"give interface virbr0", "peer n3: allowed IPs: 172.17.3.0/24 is not in a routed pod subnet"} {
		if i >= len(refused) || !strings.HasPrefix(refused[i], word) {
			t.Errorf("refused %q; want %q at %d", refused, word, i)
		}
	}
	// The operator's configuration, of either kind, removes the existing route.
	for name, bounds := range map[string]Bounds{
		"localSubnets":   {Existing: bounds.Existing, Local: prefixes("10.2.0.0/24")},
		"allowedSubnets": {Existing: bounds.Existing, Allowed: prefixes("10.3.0.0/16")},
	} {
		if s := Network("c2", want, bounds, wgtypes.Key{1}, stands); !slices.Contains(s.DeleteRoutes, bounds.Existing[0]) {
			t.Errorf("%s: %v go", name, s.DeleteRoutes)
		}
	}
}

// TestR27Endpoints: whatever the broker sends, no peer has an endpoint at which no node of the remote can be: this node
// would send its pods' packets for the remote there.
func TestR27Endpoints(t *testing.T) {
	open := Bounds{Local: prefixes("10.1.0.0/16", "10.101.0.0/16", "192.0.2.8/29"),
		Own: addresses("192.0.2.9/24", "fd18::5/64", "172.18.0.5/31")}
	configured := open
	configured.Remote = &Remote{Pods: prefixes("10.2.0.0/16"), Nodes: prefixes("192.0.2.16/28", "fd02:1::/64")}
	for _, c := range []struct {
		endpoint string
		bounds   Bounds
		word     string // in the refusal; empty if there is none
	}{
		{"192.0.2.17:7775", open, ""},
		{"8.8.8.8:53", open, ""},
		{"[fd02:1::1]:7775", open, ""},
		{"192.0.2.17:7775", configured, ""},
		{"[fd02:1::1]:7775", configured, ""},
		{"8.8.8.8:53", configured, "outside the remote's nodeSubnets"},
		{"100.100.100.200:80", configured, "outside the remote's nodeSubnets"},
		{"[fd00:ec2::254]:80", configured, "outside the remote's nodeSubnets"},
		{"[64:ff9b::a01:1]:7775", configured, "outside the remote's nodeSubnets"},
		{"10.2.3.4:7775", configured, "podSubnets"},
		{"127.0.0.1:53", open, "cannot be the address of another node"},
		{"[::1]:53", open, "cannot be the address of another node"},
		{"169.254.169.254:80", open, "cannot be the address of another node"},
		{"[fe80::1]:7775", open, "cannot be the address of another node"},
		{"[fe80::1%eth0]:7775", open, "has a zone"},
		{"224.0.0.1:7775", open, "cannot be the address of another node"},
		{"[ff02::1]:7775", open, "cannot be the address of another node"},
		{"240.0.0.1:7775", open, "cannot be the address of another node"},
		{"255.255.255.255:7775", open, "cannot be the address of another node"},
		{"0.0.0.0:7775", open, "cannot be the address of another node"},
		{"[::]:7775", open, "cannot be the address of another node"},
		{"[::ffff:192.0.2.17]:7775", open, "IPv4 in IPv6"},
		{"192.0.2.17:0", open, "has no port"},
		{"192.0.2.9:7775", open, "an address of this node"},
		{"[fd18::5]:7775", open, "an address of this node"},
		{"192.0.2.255:7775", open, "the broadcast address of interface eth0"},
		{"172.18.0.4:7775", open, ""}, // the other end of a point-to-point link
		{"192.0.2.10:7775", open, "of the own cluster"},
		{"10.101.0.1:443", open, "of the own cluster"},
	} {
		err := c.bounds.endpoint(netip.MustParseAddrPort(c.endpoint))
		switch {
		case c.word == "" && err != nil:
			t.Error(err)
		case c.word != "" && (err == nil || !strings.Contains(err.Error(), c.word)):
			t.Errorf("%s: %v; want %q", c.endpoint, err, c.word)
		}
		// Only the peer is refused for it.
		want := networkOf([]string{"10.2.0.0/16"}, map[string]string{"n1": "a " + c.endpoint + " 10.2.1.0/24",
			"n2": "b 192.0.2.18:7775 10.2.2.0/24"})
		peers, wanted := carryOut(t, nil, Network("c2", want, c.bounds, wgtypes.Key{1}, nil)).Peers, 2
		if c.word != "" {
			wanted = 1
		}
		if len(peers) != wanted {
			t.Errorf("%s: %d peers", c.endpoint, len(peers))
		}
	}
}

// TestR27ConfigurationBoundsRoutesAndPort: the operator's configuration bounds all routes, and the device's port.
func TestR27ConfigurationBoundsRoutesAndPort(t *testing.T) {
	bounds := Bounds{Remote: &Remote{Pods: prefixes("10.2.0.0/16"), Port: 7775}}
	var eights []string
	for i := 1; i < 224; i++ {
		eights = append(eights, fmt.Sprintf("%d.0.0.0/8", i))
	}
	s := Network("c2", networkOf(append(eights, "10.2.0.0/16", "8.8.8.0/24", "10.2.0.0/15"), nil), bounds,
		wgtypes.Key{1}, nil)
	if !slices.Equal(s.Routed, prefixes("10.2.0.0/16")) {
		t.Errorf("routed: %v", s.Routed)
	}
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprintf("10.2.%d.%d/32", i/250, i%250))
	}
	wantMany := networkOf(many, nil)
	wantMany.Device.ListenPort = 7775
	s = Network("c2", wantMany, bounds, wgtypes.Key{1}, nil)
	if len(s.Routed) != maxSubnets || !strings.Contains(s.Refused[0], "1000 subnets exceed the limit of 256") {
		t.Errorf("%d routes, refused %q", len(s.Routed), s.Refused)
	}
	want := networkOf([]string{"10.2.0.0/16"}, nil)
	for port, word := range map[uint32]string{7775: "", 4789: "listen port 4789 is not the remote's listenPort 7775"} {
		want.Device.ListenPort = port
		if got := strings.Join(Network("c2", want, bounds, wgtypes.Key{1}, nil).Refused, "; "); got != word &&
			!strings.HasPrefix(got, word+" ") {
			t.Errorf("port %d: refused %q", port, got)
		}
	}
}

func FuzzPrefix(f *testing.F) {
	for _, text := range []string{"10.2.0.0/16", "fd02::/48", "::ffff:10.2.0.0/112", "fe80::1%eth0/64", "10.2.0.0/016",
		"/8", ""} {
		f.Add(text)
	}
	b := Bounds{Local: prefixes("10.1.0.0/16"), Own: addresses("172.18.0.5/24")}
	f.Fuzz(func(t *testing.T, text string) {
		prefix, _, err := b.prefix(text)
		if err != nil {
			return
		}
		if prefix.Contains(netip.MustParseAddr("172.18.0.5")) || prefix.Overlaps(b.Local[0]) || prefix.Bits() < 8 ||
			prefix.Addr().Zone() != "" || prefix != prefix.Masked() || prefix.Addr().IsLoopback() ||
			prefix.Addr().IsMulticast() {
			t.Errorf("%q is taken as %s", text, prefix)
		}
	})
}
