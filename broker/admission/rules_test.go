package admission

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// refusedAs checks that one part of an object is refused, under a code and with a reason that names it, and how
// many parts are taken all the same. The end of a tunnel goes if it is what the reason names.
func refusedAs(t *testing.T, o *semaphorev1.Object, code finding.Code, named string, left int) {
	t.Helper()
	before := proto.CloneOf(o)
	taken, refusals := New(remote, local).Check(o)
	if !proto.Equal(before, o) {
		t.Errorf("Check changed %v into %v", before, o)
	}
	gone := strings.HasPrefix(named, "wireguard.")
	if n := taken.GetNode(); n != nil && (n.GetWireguard() == nil) != gone {
		t.Errorf("%v: with %s refused, the end of the tunnel is %v", o, named, n.GetWireguard())
	}
	if len(refusals) != 1 || refusals[0].Code != code || !strings.Contains(refusals[0].Reason, named) {
		t.Errorf("%v: refusals %v, want one of %s that names %q", o, refusals, code, named)
	}
	n := len(taken.GetNode().GetPodCidrs()) + len(taken.GetEndpointSlice().GetEndpoints()) +
		len(taken.GetSetMember().GetIps())
	if n != left {
		t.Errorf("%v: %d parts are taken, want %d", o, n, left)
	}
}

// A mirror that a remote exports again leads to another cluster's pods, which are not the remote's to give. So does
// anything else that it says of another cluster: which cluster an object is of, no message can say.
func TestR02WhatARemoteSaysOfOtherClustersIsRefused(t *testing.T) {
	mirrored := slice("IPv4", nil, ep("10.3.1.5"), ep("10.2.1.5"))
	mirrored.Key.Name = "c3-shop-73736d-echo-x7"
	refusedAs(t, mirrored, finding.IPOutsidePodSubnets, "10.3.1.5", 1)
	refusedAs(t, member("u1", "web", "10.3.1.5", "10.2.1.5"), finding.IPOutsidePodSubnets, "10.3.1.5", 1)
	if fields := (&semaphorev1.ObjectKey{}).ProtoReflect().Descriptor().Fields(); fields.Len() != 3 ||
		fields.ByName("cluster") != nil {
		t.Error("a key can name a cluster")
	}
}

func TestR07ANodeHasOnlyPrefixesOfItsOwnCluster(t *testing.T) {
	for _, cidr := range []string{"10.3.1.0/24", "10.1.1.0/24", "10.0.0.0/8", "10.2.0.0/15", "172.18.2.0/24",
		"fd03::/64"} {
		refusedAs(t, node("n1", wg(good, "172.18.2.11:1"), cidr, "10.2.1.0/24"), finding.CIDROutsidePodSubnets, cidr, 1)
	}
	for _, cidr := range []string{"0.0.0.0/0", "::/0", "10.2.1.1/24", "10.2.1.0", "10.2.1.0/33",
		"::ffff:10.2.1.0/120", "FD02:0:0:1::/64", ""} {
		refusedAs(t, node("n1", wg(good, "172.18.2.11:1"), cidr, "10.2.1.0/24"), finding.InvalidCIDR, cidr, 1)
	}
}

// A node's pod CIDRs stay when its end of the tunnel cannot.
func TestR10AKeyIsAPointThatProtects(t *testing.T) {
	for name, key := range map[string][]byte{
		"none": nil, "31 bytes": good[:31], "33 bytes": append(bytes.Clone(good), 1),
		"zero": make([]byte, 32), "one": append([]byte{1}, make([]byte, 31)...),
		"order 8":                 fromHex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
		"order 8, other":          fromHex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
		"p-1":                     fromHex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
		"p, which is 0":           fromHex("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
		"p+1, which is 1":         fromHex("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
		"zero, top bit set":       append(make([]byte, 31), 0x80),
		"a good one, top bit set": append(bytes.Clone(good[:31]), good[31]|0x80),
		"p+2, which is 2":         fromHex("efffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
		"p+9":                     fromHex("f6ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
	} {
		t.Run(name, func(t *testing.T) {
			refusedAs(t, node("n1", wg(key, "172.18.2.11:1"), "10.2.1.0/24"), finding.InvalidPublicKey,
				"wireguard.public_key", 1)
		})
	}
}

func TestR11ATunnelEndsAtANodeOfTheRemote(t *testing.T) {
	for _, at := range []string{"127.0.0.1:1", "[::1]:1", "169.254.169.254:80", "[fe80::1]:1", "224.0.0.1:1",
		"255.255.255.255:1", "0.0.0.0:1",
		"10.2.3.4:51820", "10.1.0.1:1", "10.101.0.1:443", "172.18.1.11:51820", "172.18.3.11:51820"} {
		refusedAs(t, node("n1", wg(good, at), "10.2.1.0/24"), finding.EndpointNotAllowed, "wireguard.address", 1)
	}
	// Also where the operator does not say where the remote's nodes are.
	anywhere := *remote
	anywhere.NodePrefixes = nil
	for _, at := range []string{"10.3.1.5:51820", "[fd00:ec2::254]:80", "100.100.100.200:80", "168.63.129.16:80",
		"192.0.0.192:80", "[64:ff9b::a01:a]:53", "[64:ff9b:1::1]:1",
		"[2002:a01:a::1]:1", "[2001:0:1::1]:1", "240.0.0.1:1", "0.1.2.3:1", "198.18.0.1:1", "[::10.1.0.1]:1"} {
		taken, refusals := New(&anywhere, local, netip.MustParsePrefix("10.3.0.0/16")).Check(node("n1", wg(good, at),
			"10.2.1.0/24"))
		if len(refusals) != 1 || refusals[0].Code != finding.EndpointNotAllowed || taken.GetNode().GetWireguard() != nil {
			t.Errorf("%s: taken %v, refusals %v", at, taken, refusals)
		}
	}
	for _, at := range []string{"n1.example.org:51820", "172.18.2.11", "172.18.2.11:0", "172.18.2.11:65536",
		"[fe80::1%eth0]:1", "[::ffff:172.18.2.11]:1", ""} {
		refusedAs(t, node("n1", wg(good, at), "10.2.1.0/24"), finding.InvalidEndpoint, "wireguard.address", 1)
	}
}

func TestR13AnEndpointIsAPodOfTheRemote(t *testing.T) {
	for what, ip := range map[string]string{
		"metadata": "169.254.169.254", "our apiserver": "10.101.0.1", "our pod": "10.1.1.5",
		"another cluster's pod": "10.3.1.5",
		"our node":              "172.18.1.11", "its node": "172.18.2.11", "loopback": "127.0.0.1", "the world": "192.0.2.1",
	} {
		t.Run(what, func(t *testing.T) {
			refusedAs(t, slice("IPv4", nil, ep("10.2.1.5"), ep(ip), ep("10.2.1.6")), finding.IPOutsidePodSubnets, ip, 2)
		})
	}
}

func TestR14OnlyLiteralAddressesOfOneSpelling(t *testing.T) {
	refusedAs(t, slice("FQDN", nil, ep("example.org")), finding.InvalidAddressType, "FQDN", 0)
	for _, ip := range []string{"::ffff:10.2.1.5", "FD02::5", "fd02:0::5", "fd02::5%eth0", "example.org", ""} {
		refusedAs(t, slice("IPv6", nil, ep("fd02::6"), ep(ip)), finding.InvalidIP, ip, 1)
		refusedAs(t, member("u1", "web", "fd02::6", ip), finding.InvalidIP, ip, 1)
	}
}

// R30: a ServiceImport has no label and no annotation that Kubernetes, semaphore or a deployment tool acts on, and no
// more than 64 of 16 KiB. The Service is imported without any of them.
func TestR30ExportedLabelsAreHarmless(t *testing.T) {
	o := func(m *semaphorev1.MultiClusterExport) *semaphorev1.Object {
		return service("shop", "echo", &semaphorev1.Service{MultiCluster: m,
			Ports: []*semaphorev1.Port{svcPort("http", "TCP", 80)}})
	}
	pairs := func(n, size int) (all []*semaphorev1.Annotation) {
		for i := range n {
			all = append(all, &semaphorev1.Annotation{Key: fmt.Sprintf("k%03d", i), Value: strings.Repeat("v", size)})
		}
		return all
	}
	label := func(key, value string) []*semaphorev1.Label {
		return []*semaphorev1.Label{{Key: key, Value: value}}
	}
	for name, m := range map[string]*semaphorev1.MultiClusterExport{
		"ours":              {Labels: label("app.kubernetes.io/managed-by", "them")},
		"Argo CD":           {Labels: label("app.kubernetes.io/instance", "shop")},
		"Argo CD by prefix": {Annotations: []*semaphorev1.Annotation{{Key: "argocd.argoproj.io/tracking-id", Value: "x"}}},
		"Helm":              {Annotations: []*semaphorev1.Annotation{{Key: "meta.helm.sh/release-name", Value: "x"}}},
		"Flux":              {Labels: label("kustomize.toolkit.fluxcd.io/name", "x")},
		"Kubernetes":        {Labels: label("service.kubernetes.io/headless", "")},
		"precedence": {Annotations: []*semaphorev1.Annotation{{Key: "semaphore.uw.io/exporting-clusters",
			Value: "c2"}}},
		"value":    {Labels: label("team", "no label value")},
		"key":      {Labels: label("-team", "a")},
		"twice":    {Labels: append(label("team", "a"), label("team", "b")...)},
		"too many": {Annotations: pairs(65, 1)},
		"too big":  {Annotations: pairs(2, 8<<10)},
	} {
		taken, refusals := New(remote, local).Check(o(m))
		exported := taken.GetService().GetMultiCluster()
		if len(refusals) != 1 || refusals[0].Code != finding.InvalidExport || exported == nil ||
			len(exported.GetLabels())+len(exported.GetAnnotations()) > 0 {
			t.Errorf("%s: %v, %v", name, taken, refusals)
		}
	}
	fine := &semaphorev1.MultiClusterExport{Labels: label("app.kubernetes.io/name", "echo"), Annotations: pairs(64, 200)}
	if taken, refusals := New(remote, local).Check(o(fine)); len(refusals) > 0 ||
		len(taken.GetService().GetMultiCluster().GetAnnotations()) != 64 {
		t.Errorf("%v", refusals)
	}
	if taken, refusals := New(remote, local).Check(o(&semaphorev1.MultiClusterExport{
		InternalTrafficPolicy: "Nowhere"})); len(refusals) != 1 ||
		taken.GetService().GetMultiCluster().GetInternalTrafficPolicy() != "" {
		t.Errorf("%v", refusals)
	}
}

func TestR21ASetHoldsSinglePodsOfTheRemote(t *testing.T) {
	// a pod on the host's network has the host's address
	for _, ip := range []string{"172.18.2.11", "10.1.1.5", "169.254.169.254"} {
		refusedAs(t, member("u1", "web", "10.2.1.5", ip), finding.IPOutsidePodSubnets, ip, 1)
	}
	for _, ip := range []string{"10.2.1.0/24", "10.2.0.0/16", "0.0.0.0/0"} {
		refusedAs(t, member("u1", "web", "10.2.1.5", ip), finding.InvalidIP, ip, 1)
	}
}

// A remote gives a set's name and nothing else: it becomes the value of one label, so it must be one.
func TestR22ASetsNameIsTheValueOfALabel(t *testing.T) {
	for _, name := range []string{"", "a b", "a=b", "a,b", "-a", strings.Repeat("a", 64), "My_App", "*"} {
		refusedAs(t, member("u1", name, "10.2.1.5"), finding.InvalidName, "set_name", 0)
	}
	if fields := (&semaphorev1.SetMember{}).ProtoReflect().Descriptor().Fields(); fields.Len() != 3 {
		t.Errorf("a member has %d fields: does one of them reach a label?", fields.Len())
	}
}

// contained checks that nothing outside of the remote's own subnets is in what was taken (I4).
func contained(t *testing.T, taken *semaphorev1.Object) {
	t.Helper()
	for _, e := range taken.GetEndpointSlice().GetEndpoints() {
		for _, a := range e.GetAddresses() {
			if !containsAddr(remote.PodPrefixes, netip.MustParseAddr(a)) {
				t.Fatalf("took endpoint %s", a)
			}
		}
	}
	for _, a := range taken.GetSetMember().GetIps() {
		if !containsAddr(remote.PodPrefixes, netip.MustParseAddr(a)) {
			t.Fatalf("took member %s", a)
		}
	}
	for _, p := range taken.GetNode().GetPodCidrs() {
		if !containsPrefix(remote.PodPrefixes, netip.MustParsePrefix(p)) {
			t.Fatalf("took CIDR %s", p)
		}
	}
	if w := taken.GetNode().GetWireguard(); w != nil {
		if at := netip.MustParseAddrPort(w.GetAddress()); !containsAddr(remote.NodePrefixes, at.Addr()) || at.Port() == 0 ||
			len(w.GetPublicKey()) != 32 {
			t.Fatalf("took tunnel %v", w)
		}
	}
}

// FuzzCheck: whatever object there is on the wire, Check does not panic and does not change it; what it takes is
// contained and is taken whole when it is checked again, and what it does not take it gives a reason for.
func FuzzCheck(f *testing.F) {
	for _, o := range []*semaphorev1.Object{
		node("n1", wg(good, "172.18.2.11:51820"), "10.2.1.0/24", "10.9.0.0/24"),
		service("shop", "echo", &semaphorev1.Service{Ports: []*semaphorev1.Port{svcPort("http", "TCP", 80),
			svcPort("dns", "UDP", 53)}, Mirror: true}),
		slice("IPv4", []*semaphorev1.Port{{Name: "http", Protocol: "TCP", Port: 8080}}, ep("10.2.1.5"),
			ep("169.254.169.254", "10.2.1.6")),
		slice("IPv6", nil, &semaphorev1.Endpoint{Addresses: []string{"fd02::5"}, Hostname: "web-0", Zone: "a"}),
		member("u1", "web", "10.2.1.5", "fd02::5", "10.2.1.5"),
		{Key: &semaphorev1.ObjectKey{Kind: 77, Name: "b"}},
		{},
	} {
		data := testkit.Value(proto.Marshal(o))(f)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		o := &semaphorev1.Object{}
		if proto.Unmarshal(data, o) != nil {
			return
		}
		before := proto.Clone(o)
		taken, refusals := New(remote, local).Check(o)
		if !proto.Equal(before, o) {
			t.Fatalf("Check changed %v into %v", before, o)
		}
		whole := taken != nil && proto.Equal(taken, withoutUnknown(o))
		if taken != nil && hasUnknown(taken.ProtoReflect()) {
			t.Fatalf("%v is taken with fields that nobody knows", o)
		}
		if len(refusals) > maxReasons || !whole && taken == nil && len(refusals) == 0 {
			t.Fatalf("%v: taken %v, refusals %v", o, taken, refusals)
		}
		for _, r := range refusals {
			if r.Code == "" || r.Reason == "" {
				t.Fatalf("%v: a refusal without a reason: %v", o, r)
			}
		}
		if taken == nil {
			return
		}
		contained(t, taken)
		if again, more := New(remote, local).Check(taken); len(more) != 0 || !proto.Equal(again, taken) {
			t.Fatalf("%v is taken, and then not: %v", taken, more)
		}
	})
}

// The own exporter's objects make no peer and no set of the cluster it is in, and no mirror.
func TestR02TheOwnExporterSendsServicesOnly(t *testing.T) {
	own := Own(&config.Remote{Name: "c1", PodPrefixes: prefixes("10.1.0.0/16")})
	for _, o := range []*semaphorev1.Object{node("n1", wg(good, "172.18.1.11:1"), "10.1.1.0/24"),
		member("u1", "web", "10.1.1.5")} {
		if taken, refusals := own.Check(o); taken != nil || len(refusals) != 1 ||
			refusals[0].Code != finding.KindNotAccepted || !strings.Contains(refusals[0].Reason, "global services only") {
			t.Errorf("%v: took %v, refused %v", o, taken, refusals)
		}
	}
	both := service("shop", "echo",
		&semaphorev1.Service{Mirror: true, Global: true, Ports: []*semaphorev1.Port{svcPort("", "TCP", 80)}})
	taken, refusals := own.Check(both)
	if len(refusals) > 0 || taken.GetService().GetMirror() || !taken.GetService().GetGlobal() ||
		!both.GetService().GetMirror() {
		t.Errorf("of %v was taken %v, refused %v", both, taken, refusals)
	}
	// The subnets of the own cluster, which are refused of every remote; and nothing else.
	taken, refusals = own.Check(slice("IPv4", nil, ep("10.1.1.5"), ep("10.2.1.5"), ep("10.101.0.1")))
	if len(taken.GetEndpointSlice().GetEndpoints()) != 1 || len(refusals) != 2 ||
		refusals[0].Code != finding.IPOutsidePodSubnets {
		t.Errorf("took %v, refused %v", taken, refusals)
	}
}

// A candidate is an address to which this cluster's nodes send: each is inside the bounds, or not used.
func TestR11CandidatesAreInsideTheBounds(t *testing.T) {
	for _, test := range []struct {
		candidates []string
		address    string
		left       []string
		codes      []finding.Code
	}{
		{[]string{"172.18.2.11:1", "172.18.2.12:2"}, "172.18.2.11:1", []string{"172.18.2.11:1", "172.18.2.12:2"}, nil},
		// Those outside of the node subnets are for other clusters.
		{[]string{"192.168.0.11:1", "172.18.2.12:2"}, "172.18.2.12:2", nil, nil},
		{[]string{"192.168.0.11:1", "10.9.9.9:1"}, "", nil, []finding.Code{finding.EndpointNotAllowed}},
		// A spoofed one costs the node no other.
		{[]string{"127.0.0.1:1", "172.18.1.11:1", "10.2.3.4:1", "172.18.2.12:2"}, "172.18.2.12:2", nil,
			[]finding.Code{finding.EndpointNotAllowed, finding.EndpointNotAllowed, finding.EndpointNotAllowed}},
		{[]string{"172.18.2.12:0", "172.18.2.12:2"}, "172.18.2.12:2", nil, []finding.Code{finding.InvalidEndpoint}},
		{[]string{"n1.example.org:1", "172.18.2.12:2"}, "172.18.2.12:2", []string{"n1.example.org:1", "172.18.2.12:2"}, nil},
		{[]string{"n1.example.org:1"}, "", []string{"n1.example.org:1"}, nil},
		{[]string{"n1_example:1", "172.18.2.12:2"}, "172.18.2.12:2", nil, []finding.Code{finding.InvalidEndpoint}},
		{slices.Repeat([]string{"172.18.2.12:2"}, 5), "", nil, []finding.Code{finding.TooLarge}},
	} {
		o := node("n1", wg(good, "172.18.2.11:1"), "10.2.1.0/24")
		o.GetNode().Wireguard.Candidates = test.candidates
		taken, refusals := New(remote, local).Check(o)
		var codes []finding.Code
		for _, r := range refusals {
			codes = append(codes, r.Code)
		}
		w := taken.GetNode().GetWireguard()
		if w.GetAddress() != test.address || !slices.Equal(w.GetCandidates(), test.left) || !slices.Equal(codes, test.codes) {
			t.Errorf("%v: taken %v, refused %v; want %s of %v, %v", test.candidates, w, refusals, test.address, test.left,
				test.codes)
		}
	}
}

// Nothing reaches a node that calls, whatever else it says.
func TestANodeThatCallsHasNoAddress(t *testing.T) {
	for _, address := range []string{"", "172.18.2.11:1", "127.0.0.1:1"} {
		o := node("n1", wg(good, address), "10.2.1.0/24")
		o.GetNode().Wireguard.Calls = true
		taken, refusals := New(remote, local).Check(o)
		if w := taken.GetNode().GetWireguard(); !w.GetCalls() || w.GetAddress() != "" || len(refusals) > 0 {
			t.Errorf("%q: taken %v, refused %v", address, w, refusals)
		}
	}
}
