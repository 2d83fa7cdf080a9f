package nodes

import (
	"fmt"
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
		got, err := address(node, test.family)
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
	got, err := annotations(node, tunnels, families)
	if err == nil || !strings.Contains(err.Error(), "the tunnel to c3: ") || strings.Contains(err.Error(), "c2") {
		t.Errorf("%v", err)
	}
	if len(got) != 4 || got["c2.wireguard.semaphore.uw.io/endpoint"] != "192.0.2.1:1" ||
		got["c4.wireguard.semaphore.uw.io/endpoint"] != "192.0.2.1:3" {
		t.Error(fmt.Sprint(got))
	}
	node.Status.Addresses = append(node.Status.Addresses,
		corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "2001:db8::1"})
	got, err = annotations(node, tunnels, families)
	if err != nil || len(got) != 6 || got["c3.wireguard.semaphore.uw.io/endpoint"] != "[2001:db8::1]:2" {
		t.Error(got, err)
	}
}
