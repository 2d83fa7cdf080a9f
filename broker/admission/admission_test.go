package admission

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

var prefixes = testkit.Prefixes

var (
	remote = &config.Remote{
		Name:         "c2",
		PodPrefixes:  prefixes("10.2.0.0/16", "fd02::/48"),
		NodePrefixes: prefixes("172.18.2.0/24", "fd18:2::/64"),
	}
	local = prefixes("10.1.0.0/16", "10.101.0.0/16", "172.18.1.0/24")
	good  = bytes.Repeat([]byte{9}, 32)
)

func node(name string, wg *semaphorev1.WireGuardEndpoint, cidrs ...string) *semaphorev1.Object {
	return &semaphorev1.Object{
		Key:  &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_NODE, Name: name},
		Spec: &semaphorev1.Object_Node{Node: &semaphorev1.Node{PodCidrs: cidrs, Wireguard: wg}},
	}
}

func wg(key []byte, address string) *semaphorev1.WireGuardEndpoint {
	return &semaphorev1.WireGuardEndpoint{PublicKey: key, Address: address}
}

var service = players.ServiceOf

func svcPort(name, protocol string, n int32) *semaphorev1.Port {
	return &semaphorev1.Port{Name: name, Protocol: protocol, Port: n}
}

func settled(affinity int32, distribution string, prefer []string, minReady int32,
	whenGone semaphorev1.WhenGone) *semaphorev1.Service {
	return &semaphorev1.Service{Global: true, Ports: []*semaphorev1.Port{svcPort("http", "TCP", 80)},
		ClientIpAffinitySeconds: affinity, TrafficDistribution: distribution,
		GlobalSettings: &semaphorev1.GlobalSettings{Prefer: prefer, MinReady: minReady, WhenGone: whenGone}}
}

// labelled has labels by keys and values.
func labelled(pairs ...string) *semaphorev1.Service {
	s := families()
	for i := 0; i < len(pairs); i += 2 {
		s.Labels = append(s.Labels, &semaphorev1.Label{Key: pairs[i], Value: pairs[i+1]})
	}
	return s
}

func families(all ...string) *semaphorev1.Service {
	return &semaphorev1.Service{Mirror: true, Ports: []*semaphorev1.Port{svcPort("http", "TCP", 80)}, IpFamilies: all}
}

func slice(addressType string, ports []*semaphorev1.Port, endpoints ...*semaphorev1.Endpoint) *semaphorev1.Object {
	return players.SliceOf("shop", "echo-x7", &semaphorev1.EndpointSlice{
		Service: "echo", AddressType: addressType, Ports: ports, Endpoints: endpoints,
	})
}

func ep(addresses ...string) *semaphorev1.Endpoint {
	return &semaphorev1.Endpoint{Addresses: addresses}
}

func member(uid, set string, ips ...string) *semaphorev1.Object {
	return players.Member("shop", "web-0", uid, set, ips...)
}

func fromHex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

func TestCheck(t *testing.T) {
	at := "172.18.2.11:51820"
	tcp := []*semaphorev1.Port{{Name: "http", Protocol: "TCP", Port: 8080}}
	var manyLabels []string
	for i := range config.MaxServiceLabels + 1 {
		manyLabels = append(manyLabels, fmt.Sprintf("k%02d", i), "v")
	}
	for _, c := range []struct {
		name  string
		in    *semaphorev1.Object
		taken *semaphorev1.Object // nil for nothing
		codes []finding.Code
	}{
		// Nodes: R7, R10, R11.
		{"node", node("n1", wg(good, at), "10.2.1.0/24", "fd02:0:0:1::/64"),
			node("n1", wg(good, at), "10.2.1.0/24", "fd02:0:0:1::/64"), nil},
		{"node with a whole pod subnet", node("n1", nil, "10.2.0.0/16"), node("n1", nil, "10.2.0.0/16"), nil},
		{"node without a key yet", node("n1", nil, "10.2.1.0/24"), node("n1", nil, "10.2.1.0/24"), nil},
		{"node with IPv6 endpoint", node("n1", wg(good, "[fd18:2::11]:51820")),
			node("n1", wg(good, "[fd18:2::11]:51820")), nil},
		{"key too short", node("n1", wg(good[:31], at), "10.2.1.0/24"), node("n1", nil, "10.2.1.0/24"),
			[]finding.Code{finding.InvalidPublicKey}},
		{"endpoint outside its node subnets", node("n1", wg(good, "172.18.3.11:51820")), node("n1", nil),
			[]finding.Code{finding.EndpointNotAllowed}},
		{"node name", node("N_1", nil), nil, []finding.Code{finding.InvalidName}},
		{"node with namespace", func() *semaphorev1.Object { o := node("n1", nil); o.Key.Namespace = "x"; return o }(), nil,
			[]finding.Code{finding.Malformed}},

		// Services.
		{"service", service("shop", "echo", &semaphorev1.Service{Ports: []*semaphorev1.Port{svcPort("", "TCP", 80)}}),
			service("shop", "echo", &semaphorev1.Service{Ports: []*semaphorev1.Port{svcPort("", "TCP", 80)}}), nil},
		{"headless without ports", service("shop", "echo", &semaphorev1.Service{Headless: true}),
			service("shop", "echo", &semaphorev1.Service{Headless: true}), nil},
		{"one number for two protocols",
			service("shop", "dns", &semaphorev1.Service{Ports: []*semaphorev1.Port{svcPort("udp", "UDP", 53),
				svcPort("tcp", "TCP", 53)}}),
			service("shop", "dns", &semaphorev1.Service{Ports: []*semaphorev1.Port{svcPort("udp", "UDP", 53),
				svcPort("tcp", "TCP", 53)}}), nil},
		{"service without ports", service("shop", "echo", &semaphorev1.Service{}), nil, []finding.Code{finding.InvalidPort}},
		{"port 0", service("shop", "echo", &semaphorev1.Service{Ports: []*semaphorev1.Port{svcPort("a", "TCP", 0)}}), nil,
			[]finding.Code{finding.InvalidPort}},
		{"port 65536", service("shop", "echo", &semaphorev1.Service{Ports: []*semaphorev1.Port{svcPort("a", "TCP", 65536)}}),
			nil, []finding.Code{finding.InvalidPort}},
		{"protocol", service("shop", "echo", &semaphorev1.Service{Ports: []*semaphorev1.Port{svcPort("a", "tcp", 1)}}), nil,
			[]finding.Code{finding.InvalidPort}},
		{"names twice", service("shop", "echo",
			&semaphorev1.Service{Ports: []*semaphorev1.Port{svcPort("a", "TCP", 1), svcPort("a", "TCP", 2)}}), nil,
			[]finding.Code{finding.InvalidPort}},
		{"ports twice", service("shop", "echo",
			&semaphorev1.Service{Ports: []*semaphorev1.Port{svcPort("a", "TCP", 1), svcPort("b", "TCP", 1)}}), nil,
			[]finding.Code{finding.InvalidPort}},
		{"no name beside others",
			service("shop", "echo", &semaphorev1.Service{Ports: []*semaphorev1.Port{svcPort("", "TCP", 1),
				svcPort("b", "TCP", 2)}}), nil, []finding.Code{finding.InvalidPort}},
		{"port name", service("shop", "echo", &semaphorev1.Service{Ports: []*semaphorev1.Port{svcPort("A!", "TCP", 1)}}), nil,
			[]finding.Code{finding.InvalidName}},
		{"app protocol", service("shop", "echo",
			&semaphorev1.Service{Ports: []*semaphorev1.Port{{Protocol: "TCP", Port: 1, AppProtocol: "no good"}}}), nil,
			[]finding.Code{finding.InvalidName}},
		{"namespace", service("../x", "echo", &semaphorev1.Service{Headless: true}), nil,
			[]finding.Code{finding.InvalidName}},
		{"name with dots", service("shop", "a.b", &semaphorev1.Service{Headless: true}), nil,
			[]finding.Code{finding.InvalidName}},

		// EndpointSlices: R13, R14, R20.
		{"slice", slice("IPv4", tcp, ep("10.2.1.5")), slice("IPv4", tcp, ep("10.2.1.5")), nil},
		{"slice v6", slice("IPv6", tcp, ep("fd02:0:0:1::5")), slice("IPv6", tcp, ep("fd02:0:0:1::5")), nil},
		{"second address bad", slice("IPv4", tcp, ep("10.2.1.5", "10.3.1.5")), slice("IPv4", tcp),
			[]finding.Code{finding.IPOutsidePodSubnets}},
		{"family", slice("IPv4", tcp, ep("fd02::5")), slice("IPv4", tcp), []finding.Code{finding.InvalidIP}},
		{"no address", slice("IPv4", tcp, ep()), slice("IPv4", tcp), []finding.Code{finding.TooLarge}},
		{"hostname", slice("IPv4", tcp, &semaphorev1.Endpoint{Addresses: []string{"10.2.1.5"}, Hostname: "a.b"}),
			slice("IPv4", tcp), []finding.Code{finding.InvalidName}},
		{"slice port", slice("IPv4", []*semaphorev1.Port{{Protocol: "TCP"}}), nil, []finding.Code{finding.InvalidPort}},

		// Set members: R21, R22.
		{"member", member("u1", "web", "10.2.1.5", "fd02::5"), member("u1", "web", "10.2.1.5", "fd02::5"), nil},
		{"same address twice", member("u1", "web", "10.2.1.5", "10.2.1.5"), member("u1", "web", "10.2.1.5"), nil},
		{"no UID", member("", "web", "10.2.1.5"), nil, []finding.Code{finding.InvalidName}},

		// Settings of a Service: it is taken without those that may not be.
		{"settings", service("shop", "echo", settled(120, "PreferClose", []string{"c1", "c3"}, 2,
			semaphorev1.WhenGone_WHEN_GONE_DEMOTE)),
			service("shop", "echo", settled(120, "PreferClose", []string{"c1", "c3"}, 2, semaphorev1.WhenGone_WHEN_GONE_DEMOTE)),
			nil},
		{"settings out of bounds", service("shop", "echo", settled(86401, "PreferMoon", []string{"c1", "c1"}, -1, 9)),
			service("shop", "echo", settled(0, "", nil, 0, 0)),
			[]finding.Code{finding.InvalidSetting, finding.InvalidSetting, finding.InvalidSetting, finding.InvalidSetting,
				finding.InvalidSetting}},
		{"too much of settings", service("shop", "echo", settled(-1, "", slices.Repeat([]string{"c1"}, 65), 1_000_001, 0)),
			service("shop", "echo", settled(0, "", nil, 0, 0)),
			[]finding.Code{finding.InvalidSetting, finding.InvalidSetting, finding.InvalidSetting}},
		{"IP families", service("shop", "echo", families("IPv6", "IPv4")),
			service("shop", "echo", families("IPv6", "IPv4")), nil},
		{"a family twice", service("shop", "echo", families("IPv4", "IPv4")), service("shop", "echo", families()),
			[]finding.Code{finding.InvalidSetting}},
		{"no family", service("shop", "echo", families("IPv5")), service("shop", "echo", families()),
			[]finding.Code{finding.InvalidSetting}},
		{"labels", service("shop", "echo", labelled("a", "1", "app.kubernetes.io/name", "")),
			service("shop", "echo", labelled("a", "1", "app.kubernetes.io/name", "")), nil},
		{"label with a key that is none", service("shop", "echo", labelled("a b", "1")), service("shop", "echo", labelled()),
			[]finding.Code{finding.InvalidSetting}},
		{"label with a value that is none", service("shop", "echo", labelled("a", "b\n")),
			service("shop", "echo", labelled()), []finding.Code{finding.InvalidSetting}},
		{"label with a value that is too long", service("shop", "echo", labelled("a", strings.Repeat("x", 64))),
			service("shop", "echo", labelled()), []finding.Code{finding.InvalidSetting}},
		{"label with a key that is too long", service("shop", "echo", labelled(strings.Repeat("x", 64), "1")),
			service("shop", "echo", labelled()), []finding.Code{finding.InvalidSetting}},
		{"label twice", service("shop", "echo", labelled("a", "1", "a", "2")), service("shop", "echo", labelled()),
			[]finding.Code{finding.InvalidSetting}},
		{"too many labels", service("shop", "echo", labelled(manyLabels...)), service("shop", "echo", labelled()),
			[]finding.Code{finding.InvalidSetting}},
		{"prefer no cluster", service("shop", "echo", settled(0, "", []string{"C1"}, 3, semaphorev1.WhenGone_WHEN_GONE_KEEP)),
			service("shop", "echo", settled(0, "", nil, 3, semaphorev1.WhenGone_WHEN_GONE_KEEP)),
			[]finding.Code{finding.InvalidSetting}},

		// Messages that contradict themselves or come from a later version.
		{"key of another kind", &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SERVICE,
			Namespace: "a", Name: "b"}, Spec: node("n1", nil).Spec}, nil, []finding.Code{finding.Malformed}},
		{"no spec", &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_NODE, Name: "b"}}, nil,
			[]finding.Code{finding.Malformed}},
		{"unknown kind", &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: 77, Name: "b"}}, nil,
			[]finding.Code{finding.UnknownKind}},
		{"nothing", nil, nil, []finding.Code{finding.UnknownKind}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := proto.Clone(c.in)
			taken, refusals := New(remote, local).Check(c.in)
			if c.in != nil && !proto.Equal(before, c.in) {
				t.Error("Check changed its argument")
			}
			if (taken == nil) != (c.taken == nil) || taken != nil && !proto.Equal(taken, c.taken) {
				t.Errorf("taken %v, want %v", taken, c.taken)
			}
			var codes []finding.Code
			for _, r := range refusals {
				codes = append(codes, r.Code)
				if r.Reason == "" {
					t.Error("a refusal without a reason")
				}
			}
			if !slices.Equal(codes, c.codes) {
				t.Errorf("refusals %v, want %v", refusals, c.codes)
			}
		})
	}
}

// TestObjectsAtTheLimit: an object that has as many parts as the limits say is accepted whole, and one more is refused.
func TestObjectsAtTheLimit(t *testing.T) {
	many := func(n int, one func(i int) string) (all []string) {
		for i := range n {
			all = append(all, one(i))
		}
		return all
	}
	address := func(i int) string { return fmt.Sprintf("10.2.%d.%d", i/250, i%250) }
	for name, c := range map[string]struct {
		limit int
		with  func(n int) *semaphorev1.Object
		code  finding.Code
	}{
		"pod CIDRs of a node": {1024, func(n int) *semaphorev1.Object {
			return node("n1", nil, many(n, func(i int) string { return fmt.Sprintf("10.2.%d.%d/30", i/64, i%64*4) })...)
		}, finding.TooLarge},
		"ports of a Service": {1000, func(n int) *semaphorev1.Object {
			s := &semaphorev1.Service{}
			for i := range n {
				s.Ports = append(s.Ports, svcPort(fmt.Sprintf("p%d", i), "TCP", int32(i+1)))
			}
			return service("shop", "echo", s)
		}, finding.TooLarge},
		"endpoints of a slice": {1000, func(n int) *semaphorev1.Object {
			s := slice("IPv4", nil)
			for i := range n {
				s.GetEndpointSlice().Endpoints = append(s.GetEndpointSlice().Endpoints, ep(address(i)))
			}
			return s
		}, finding.TooLarge},
		"addresses of an endpoint": {100, func(n int) *semaphorev1.Object {
			return slice("IPv4", nil, ep(many(n, address)...))
		}, finding.TooLarge},
		"IPs of a pod": {16, func(n int) *semaphorev1.Object {
			return member("u1", "web", many(n, address)...)
		}, finding.TooLarge},
		"characters of a UID": {128, func(n int) *semaphorev1.Object {
			return member(strings.Repeat("u", n), "web", "10.2.0.1")
		}, finding.InvalidName},
		"preferred clusters": {64, func(n int) *semaphorev1.Object {
			return service("shop", "echo", settled(0, "", many(n, func(i int) string { return fmt.Sprint("c", i) }), 0, 0))
		}, finding.InvalidSetting},
		"least ready endpoints": {1_000_000, func(n int) *semaphorev1.Object {
			return service("shop", "echo", settled(0, "", nil, int32(n), 0))
		}, finding.InvalidSetting},
		"share of ready endpoints": {100, func(n int) *semaphorev1.Object {
			o := service("shop", "echo", settled(0, "", nil, 0, 0))
			o.GetService().GlobalSettings.MinReadyPercent = int32(n)
			return o
		}, finding.InvalidSetting},
		"settings that cannot be read": {16, func(n int) *semaphorev1.Object {
			o := service("shop", "echo", settled(0, "", nil, 0, 0))
			o.GetService().GlobalSettings.Unreadable = slices.Repeat([]string{"min-ready"}, n)
			return o
		}, finding.InvalidSetting},
		"name of such a setting": {128, func(n int) *semaphorev1.Object {
			o := service("shop", "echo", settled(0, "", nil, 0, 0))
			o.GetService().GlobalSettings.Unreadable = []string{strings.Repeat("x", n)}
			return o
		}, finding.InvalidSetting},
		"use of an own name": {128, func(n int) *semaphorev1.Object {
			o := service("shop", "echo", settled(0, "", nil, 0, 0))
			o.GetService().OwnName = &semaphorev1.OwnName{Use: strings.Repeat("x", n), Uid: "u"}
			return o
		}, finding.InvalidSetting},
		"UID of a Service": {128, func(n int) *semaphorev1.Object {
			o := service("shop", "echo", settled(0, "", nil, 0, 0))
			o.GetService().OwnName = &semaphorev1.OwnName{Use: "all", Uid: strings.Repeat("x", n)}
			return o
		}, finding.InvalidSetting},
		"seconds of affinity": {86400, func(n int) *semaphorev1.Object {
			return service("shop", "echo", settled(int32(n), "", nil, 0, 0))
		}, finding.InvalidSetting},
	} {
		in := c.with(c.limit)
		if taken, refusals := New(remote, local).Check(in); len(refusals) > 0 || !proto.Equal(taken, in) {
			t.Errorf("%d %s: refusals %v, want the whole object", c.limit, name, refusals)
		}
		over := c.with(c.limit + 1)
		if taken, refusals := New(remote, local).Check(over); len(refusals) != 1 || refusals[0].Code != c.code ||
			proto.Equal(taken, over) {
			t.Errorf("%d %s: refusals %v, want %s and not the whole object", c.limit+1, name, refusals, c.code)
		}
	}
}

func TestManyRefusalsOfOneObjectAreFew(t *testing.T) {
	bad := make([]*semaphorev1.Endpoint, 500)
	for i := range bad {
		bad[i] = ep("192.0.2.1")
	}
	taken, refusals := New(remote, local).Check(slice("IPv4", nil, bad...))
	if taken == nil || len(taken.GetEndpointSlice().GetEndpoints()) != 0 {
		t.Errorf("taken %v", taken)
	}
	if len(refusals) != maxReasons {
		t.Errorf("%d refusals, want %d", len(refusals), maxReasons)
	}
}

// Whatever comes in, nothing outside the remote's own subnets comes out (I4).
func FuzzCheckContainsAddresses(f *testing.F) {
	f.Add("10.2.1.5", "10.2.1.0/24", "172.18.2.11:1")
	f.Add("::ffff:10.2.1.5", "::/0", "[::1]:0")
	f.Fuzz(func(t *testing.T, ip, cidr, address string) {
		c := New(remote, local)
		for _, o := range []*semaphorev1.Object{slice("IPv4", nil, ep(ip)), slice("IPv6", nil, ep(ip)), member("u", "s", ip),
			node("n1", wg(good, address), cidr)} {
			taken, _ := c.Check(o)
			contained(t, taken)
		}
	})
}
