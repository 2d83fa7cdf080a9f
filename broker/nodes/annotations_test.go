package nodes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
)

func TestAddress(t *testing.T) {
	for _, test := range []struct {
		addresses string
		family    config.Family
		want      string
		err       string
	}{
		{"192.0.2.1", "", "192.0.2.1", ""},
		{"2001:db8::1", "", "2001:db8::1", ""},
		{"192.0.2.1 2001:db8::1", "", "192.0.2.1", ""},
		{"2001:db8::1 192.0.2.1", "", "2001:db8::1", ""},
		{"192.0.2.1 2001:db8::1 2001:db8::2", config.IPv6, "2001:db8::1", ""},
		{"2001:db8::1 192.0.2.1", config.IPv4, "192.0.2.1", ""},
		{"2001:db8::1 ::ffff:192.0.2.1", config.IPv4, "192.0.2.1", ""},
		{"name 192.0.2.1", "", "192.0.2.1", ""},
		{"192.0.2.1", config.IPv6, "", "no InternalIP of IPv6"},
		{"2001:db8::1", config.IPv4, "", "no InternalIP of IPv4"},
		{"", "", "", "no InternalIP"},
		{"", config.IPv4, "", "no InternalIP of IPv4"},
	} {
		node := &corev1.Node{}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "203.0.113.1"},
			{Type: corev1.NodeExternalIP, Address: "2001:db8:ffff::1"}}
		for _, a := range strings.Fields(test.addresses) {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		got, err := address(node, test.family, netip.Addr{}, nil)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%q, %s: %s, %v; want an error with %q", test.addresses, test.family, got, err, test.err)
			}
		} else if err != nil || got.String() != test.want {
			t.Errorf("%q, %s: %s, %v; want %s", test.addresses, test.family, got, err, test.want)
		}
	}
}

// One remote that cannot be reached takes nothing from another.
func TestAnnotationsByFamily(t *testing.T) {
	node := &corev1.Node{}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	tunnels := map[string]Tunnel{"c2": {ListenPort: 1}, "c3": {ListenPort: 2}, "c4": {ListenPort: 3}}
	families := map[string]config.Family{"c2": config.IPv4, "c3": config.IPv6}
	got, err := endpoints{[]config.EndpointKind{config.InternalIP}, families, nil}.annotations(node, tunnels)
	if err == nil || !strings.Contains(err.Error(), "the tunnel to c3: ") || strings.Contains(err.Error(), "c2") {
		t.Errorf("%v", err)
	}
	if len(got) != 4 || got["c2.wireguard.semaphore.uw.io/endpoint"] != "192.0.2.1:1" ||
		got["c4.wireguard.semaphore.uw.io/endpoint"] != "192.0.2.1:3" {
		t.Error(fmt.Sprint(got))
	}
	node.Status.Addresses = append(node.Status.Addresses,
		corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "2001:db8::1"})
	got, err = endpoints{[]config.EndpointKind{config.InternalIP}, families, nil}.annotations(node, tunnels)
	if err != nil || len(got) != 6 || got["c3.wireguard.semaphore.uw.io/endpoint"] != "[2001:db8::1]:2" {
		t.Error(got, err)
	}
}

// TestAddressInAnyOrder: what is published does not depend on the order of the InternalIPs. It stays while it is one of
// them, unless remotes would refuse it and would take another.
func TestAddressInAnyOrder(t *testing.T) {
	local := []netip.Prefix{netip.MustParsePrefix("172.18.2.0/24"), netip.MustParsePrefix("fd18:2::/64")}
	const node, vip, nic, six, other = "172.18.2.11", "172.18.2.99", "10.99.0.1", "fd18:2::11", "192.168.0.1"
	for _, test := range []struct {
		name, published string
		addresses       []string
		family          config.Family
		want            string
	}{
		{"a VIP inside the subnets arrives", node, []string{node, vip}, "", node},
		{"a second network card arrives", node, []string{node, nic}, "", node},
		{"both, and IPv6", node, []string{node, vip, nic, six}, "", node},
		{"both, and only IPv4 counts", node, []string{node, vip, nic, six}, config.IPv4, node},
		{"an IPv4 address is published, and IPv6 is configured", node, []string{node, vip, six}, config.IPv6, six},
		{"an IPv6 address is published", six, []string{node, vip, six}, "", six},
		{"nothing is published", "", []string{node, nic, other}, "", node},
		{"the published one is gone", vip, []string{node, nic, other}, "", node},
		{"the published one is outside of the subnets", nic, []string{node, nic, other}, "", node},
		{"all are outside of the subnets", nic, []string{other, nic}, "", nic},
		{"what is published cannot be read", "nonsense", []string{node, nic}, "", node},
	} {
		for _, order := range permutations(test.addresses) {
			n := &corev1.Node{}
			n.Annotations = map[string]string{"c2.wireguard.semaphore.uw.io/endpoint": test.published}
			if ip, err := netip.ParseAddr(test.published); err == nil {
				n.Annotations["c2.wireguard.semaphore.uw.io/endpoint"] = netip.AddrPortFrom(ip, 7775).String()
			}
			for _, a := range order {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
			}
			of := endpoints{[]config.EndpointKind{config.InternalIP}, map[string]config.Family{"c2": test.family}, local}
			got, err := of.annotations(n, map[string]Tunnel{"c2": {ListenPort: 7775}})
			want := netip.AddrPortFrom(netip.MustParseAddr(test.want), 7775).String()
			if err != nil || got["c2.wireguard.semaphore.uw.io/endpoint"] != want {
				t.Errorf("%s, %v: %s, %v; want %s", test.name, order, got, err, want)
			}
		}
	}
}

func permutations(all []string) (out [][]string) {
	if len(all) <= 1 {
		return [][]string{all}
	}
	for i, first := range all {
		for _, rest := range permutations(slices.Delete(slices.Clone(all), i, i+1)) {
			out = append(out, append([]string{first}, rest...))
		}
	}
	return out
}
