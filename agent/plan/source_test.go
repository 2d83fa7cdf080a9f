package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

func address(iface, prefix string) kernel.Address {
	return kernel.Address{Interface: iface, Prefix: netip.MustParsePrefix(prefix), Usable: true}
}

func TestChooseSources(t *testing.T) {
	own := prefixes("10.1.7.0/24", "fd00:1:7::/64")
	unusable := address("vxlan-v6.calico", "fd00:1:7::1/128")
	unusable.Usable = false
	for name, c := range map[string]struct {
		setting   string
		own       []netip.Prefix
		addresses []kernel.Address
		reserved  string
		want      string // IPv4, IPv6; "unknown"
		problem   bool
	}{
		"none is known": {"auto", nil, []kernel.Address{address("tunl0", "10.1.7.1/32")}, "",
			"unknown", false},
		"the node has no pod CIDR": {"auto", []netip.Prefix{}, []kernel.Address{address("tunl0", "10.1.7.1/32")}, "10.1.7.9",
			"- -", false},
		"none is there": {"auto", own, []kernel.Address{address("eth0", "192.0.2.1/24"),
			address("eth0", "10.1.8.1/24")}, "", "- -", false},
		"Calico's tunnels": {"auto", own, []kernel.Address{address("eth0", "10.1.7.1/24"),
			address("tunl0", "10.1.7.9/32"), address("vxlan-v6.calico", "fd00:1:7::9/128")}, "", "10.1.7.9 fd00:1:7::9", false},
		"the bridge's": {"auto", own,
			[]kernel.Address{address("a", "10.1.7.1/24"), address("cni0", "10.1.7.2/24")}, "", "10.1.7.2 -", false},
		"the lowest of others": {"auto", own,
			[]kernel.Address{address("b", "10.1.7.10/24"), address("a", "10.1.7.11/24"), address("c", "10.1.7.9/24")}, "",
			"10.1.7.9 -", false},
		"one that is not to be had": {"auto", own, []kernel.Address{unusable, address("x", "fd00:1:7::2/128")}, "",
			"- fd00:1:7::2", false},
		"a subnet around ours": {"auto", own, []kernel.Address{address("x", "10.1.7.5/16")}, "", "10.1.7.5 -", false},
		"off":                  {"none", own, []kernel.Address{address("tunl0", "10.1.7.1/32")}, "", "- -", false},
		"reserved": {"auto", own, []kernel.Address{address("eth0", "192.0.2.1/24")},
			"10.1.7.1 fd00:1:7::1", "10.1.7.1 fd00:1:7::1", false},
		"one and a reserved one": {"auto", own, []kernel.Address{address("tunl0", "10.1.7.9/32")},
			"10.1.7.1 fd00:1:7::1", "10.1.7.9 fd00:1:7::1", false},
		"reserved elsewhere": {"auto", own, nil, "10.1.8.1", "- -", false},
		"its own device's": {"auto", own, []kernel.Address{address("wireguard.c2", "10.1.7.9/32")}, "10.1.7.1",
			"10.1.7.1 -", false},
		"Calico's WireGuard": {"auto", own, []kernel.Address{address("wireguard.cali", "10.1.7.9/32")}, "10.1.7.1",
			"10.1.7.9 -", false},
		"none of what is reserved": {"none", own, nil, "10.1.7.1", "- -", false},
		"named, of its own device": {"10.1.7.9", own, []kernel.Address{address("wireguard.c2", "10.1.7.9/32")}, "",
			"- -", true},
		"named": {"192.0.2.1", nil, []kernel.Address{address("eth0", "192.0.2.1/24")}, "",
			"192.0.2.1 -", false},
		"named, IPv6": {"fd00::1", nil, []kernel.Address{address("eth0", "fd00::1/64")}, "",
			"- fd00::1", false},
		"named, and not there": {"192.0.2.9", own, []kernel.Address{address("tunl0", "10.1.7.1/32")}, "",
			"- -", true},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				from := Source{Setting: c.setting, PodPrefixes: c.own, Devices: []string{"wireguard.c2"}}
				for _, text := range strings.Fields(c.reserved) {
					from.Reserved = append(from.Reserved, netip.MustParseAddr(text))
				}
				s, problem := ChooseSources(from, c.addresses)
				text := func(a netip.Addr) string {
					if a.IsValid() {
						return a.String()
					}
					return "-"
				}
				got := text(s.V4) + " " + text(s.V6)
				if !s.Known {
					got = "unknown"
				}
				if got != c.want || (problem != "") != c.problem {
					t.Errorf("%s, problem %q; want %s", got, problem, c.want)
				}
				slices.Reverse(c.addresses) // the order has no meaning
				slices.Reverse(c.own)
			}
		})
	}
}

func TestSetSources(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.1.7.1"), netip.MustParseAddr("fd00:1:7::1")
	sources := Sources{Known: true, V4: v4, V6: v6}
	routes := prefixes("10.2.0.0/16", "10.22.0.0/16", "fd00:2::/48")
	stands := func(of map[netip.Prefix]netip.Addr) *kernel.Device {
		return &kernel.Device{Routes: routes, Sources: of}
	}
	for name, c := range map[string]struct {
		sources Sources
		stands  *kernel.Device
		gone    []netip.Prefix
		want    []netip.Prefix
	}{
		"no device":    {sources, nil, nil, nil},
		"not known":    {Sources{}, stands(map[netip.Prefix]netip.Addr{routes[0]: v4}), nil, nil},
		"none has one": {sources, stands(nil), nil, routes},
		"all have it": {sources, stands(map[netip.Prefix]netip.Addr{routes[0]: v4, routes[1]: v4, routes[2]: v6}),
			nil, nil},
		"one has another": {sources, stands(map[netip.Prefix]netip.Addr{routes[0]: v4, routes[1]: v6, routes[2]: v6}),
			nil, routes[1:2]},
		"one that goes": {sources, stands(map[netip.Prefix]netip.Addr{routes[0]: v4, routes[2]: v6}), routes[1:2], nil},
		"one is to have none": {Sources{Known: true, V4: v4},
			stands(map[netip.Prefix]netip.Addr{routes[0]: v4, routes[1]: v4, routes[2]: v6}), nil, routes[2:]},
	} {
		t.Run(name, func(t *testing.T) {
			s := Steps{DeleteRoutes: c.gone}
			s.SetSources(c.sources, c.stands, false)
			if !slices.Equal(s.ChangeRoutes, c.want) {
				t.Errorf("%v; want %v", s.ChangeRoutes, c.want)
			}
			if want := len(c.want) > 0 && len(c.gone) == 0; s.OnlySources() != want ||
				s.Empty() != (len(c.want)+len(c.gone) == 0) {
				t.Errorf("only sources: %v, empty: %v", s.OnlySources(), s.Empty())
			}
		})
	}
}

// TestSourcesOnTheDevice: the device gets the source address of each routed family, and keeps no other.
func TestSourcesOnTheDevice(t *testing.T) {
	addrs := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	both := Sources{Known: true, V4: netip.MustParseAddr("10.1.7.1"), V6: netip.MustParseAddr("fd00:1:7::1")}
	for name, c := range map[string]struct {
		sources     Sources
		subnets     []string
		has         []netip.Addr
		add, remove []netip.Addr
		early       bool
	}{
		"has none": {both, []string{"10.2.0.0/16", "10.22.0.0/16", "fd00:2::/48"}, nil,
			addrs("10.1.7.1", "fd00:1:7::1"), nil, false},
		"one family":  {both, []string{"10.2.0.0/16"}, nil, addrs("10.1.7.1"), nil, false},
		"has them":    {both, []string{"10.2.0.0/16", "fd00:2::/48"}, addrs("10.1.7.1", "fd00:1:7::1"), nil, nil, false},
		"has another": {both, []string{"10.2.0.0/16"}, addrs("10.1.7.9"), addrs("10.1.7.1"), addrs("10.1.7.9"), false},
		"is to have none": {Sources{Known: true}, []string{"10.2.0.0/16"}, addrs("10.1.7.9"), addrs("192.0.0.8"),
			addrs("10.1.7.9"), false},
		"is to have none of IPv6": {Sources{Known: true}, []string{"fd00:2::/48"}, addrs("fd00:1:7::9"), nil,
			addrs("fd00:1:7::9"), false},
		"not known": {Sources{}, []string{"10.2.0.0/16"}, addrs("10.1.7.9"), nil, nil, false},
		// A device that accepts packets before routes lead into it always has an IPv4 address, and never loses its last
		// one.
		"early, no route":           {both, nil, nil, addrs("192.0.0.8"), nil, true},
		"early, not known":          {Sources{}, nil, nil, addrs("192.0.0.8"), nil, true},
		"early, not known, has one": {Sources{}, nil, addrs("10.1.7.9"), nil, nil, true},
		"early, the first route": {both, []string{"10.2.1.0/24"}, addrs("192.0.0.8"), addrs("10.1.7.1"),
			addrs("192.0.0.8"), true},
		"early, the last route goes": {both, nil, addrs("10.1.7.1"), addrs("192.0.0.8"), addrs("10.1.7.1"), true},
		"early no more":              {Sources{Known: true}, []string{"10.2.0.0/16"}, addrs("192.0.0.8"), nil, nil, false},
		"early no more, with a source": {both, []string{"10.2.0.0/16"}, addrs("192.0.0.8"), addrs("10.1.7.1"),
			addrs("192.0.0.8"), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := Network("c2", networkOf(c.subnets, nil), Bounds{}, wgtypes.Key{1}, nil)
			s.SetSources(c.sources, nil, c.early)
			stands := carryOut(t, nil, s)
			stands.Addresses, stands.Sources = c.has, map[netip.Prefix]netip.Addr{}
			for _, r := range stands.Routes {
				stands.Sources[r] = c.sources.Of(r)
			}
			s = Network("c2", networkOf(c.subnets, nil), Bounds{}, wgtypes.Key{1}, stands)
			s.SetSources(c.sources, stands, c.early)
			if !slices.Equal(s.AddAddresses, c.add) || !slices.Equal(s.DeleteAddresses, c.remove) {
				t.Errorf("adds %v, removes %v; want %v, %v", s.AddAddresses, s.DeleteAddresses, c.add, c.remove)
			}
			if want := len(c.add)+len(c.remove) > 0; s.OnlySources() != want || s.Empty() == want {
				t.Errorf("only sources: %v, empty: %v", s.OnlySources(), s.Empty())
			}
		})
	}
}

func TestClaims(t *testing.T) {
	var c Claims
	now := time.Unix(1000, 0)
	p, q := prefixes("10.2.0.0/16")[0], prefixes("10.3.0.0/16")[0]
	retake := func(want bool, why string) {
		t.Helper()
		if got := c.MayRetake(p, now); got != want {
			t.Fatalf("%s: %v", why, got)
		} else if got {
			c.RecordRetake(p, now)
		}
	}
	retake(false, "it never existed")
	c.Record([]netip.Prefix{q})
	retake(false, "another existed")
	c.Record([]netip.Prefix{p})
	for range maxRetakes {
		retake(true, "it existed")
		now = now.Add(time.Minute)
	}
	retake(false, "it was taken too often")
	now = now.Add(time.Hour)
	retake(false, "it was given up, and does not exist")
	c.Record([]netip.Prefix{p})
	retake(true, "it exists again, and the fight is long past")
	c.Forget([]netip.Prefix{p})
	retake(false, "it is not wanted any more")
	c.Record([]netip.Prefix{p})
	for range 10 * maxRetakes {
		retake(true, "once in a while")
		now = now.Add(retakeWindow/maxRetakes + time.Second)
	}
}

func TestShadows(t *testing.T) {
	subnets := prefixes("10.2.0.0/16", "fd00:2::/48")
	for text, want := range map[string]bool{
		"0.0.0.0/0 0":        false,
		"10.0.0.0/8 0":       false,
		"10.3.0.0/16 0":      false,
		"10.2.0.0/16 0":      false, // reported if the agent's cannot be created
		"10.2.0.0/16 100":    false,
		"10.2.0.0/17 100":    true,
		"10.2.1.1/32 0":      true,
		"fd00:2::/48 1024":   false,
		"fd00:2::/48 1023":   true,
		"fd00:2:0:1::/64 99": true,
		"fd00:3::/64 0":      false,
	} {
		prefix, metric, _ := strings.Cut(text, " ")
		r := kernel.Foreign{Prefix: netip.MustParsePrefix(prefix), Text: "via 192.0.2.9 proto bird"}
		for _, digit := range metric {
			r.Metric = 10*r.Metric + int(digit-'0')
		}
		got := Shadows("wireguard.c2", subnets, []kernel.Foreign{r})
		if (len(got) == 1) != want || want &&
			!strings.Contains(got[0], prefix+" (via 192.0.2.9 proto bird) leads packets for ") {
			t.Errorf("%s: %q; reported: %v", text, got, want)
		}
	}
}
