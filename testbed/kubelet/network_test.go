//go:build linux

package kubelet

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAddresses(t *testing.T) {
	a, err := newAddresses(netip.MustParsePrefix("10.1.1.7/29"))
	if err != nil {
		t.Fatal(err)
	}
	take := func(want, get string) {
		t.Helper()
		var ask netip.Addr
		if want != "" {
			ask = netip.MustParseAddr(want)
		}
		got, err := a.take(ask)
		switch get {
		case "in use":
			if !errors.Is(err, errAddressInUse) {
				t.Errorf("take(%s) = %v, %v, want it in use", want, got, err)
			}
		case "refused":
			if err == nil || errors.Is(err, errAddressInUse) {
				t.Errorf("take(%s) = %v, %v, want it refused", want, got, err)
			}
		default:
			if err != nil || got.String() != get {
				t.Errorf("take(%s) = %v, %v, want %s", want, got, err, get)
			}
		}
	}
	giveBack := func(ip string) { a.giveBack(netip.MustParseAddr(ip)) }
	take("", "10.1.1.2")
	take("10.1.1.4", "10.1.1.4")
	take("10.1.1.4", "in use")
	take("", "10.1.1.3")
	giveBack("10.1.1.4")
	giveBack("10.1.1.2")
	giveBack("10.1.1.2") // a second time does nothing
	take("", "10.1.1.5") // never used before freed
	take("", "10.1.1.6") // the last but broadcast
	take("", "10.1.1.4") // longest unused
	take("", "10.1.1.2") //
	take("", "in use")   // all are
	giveBack("10.1.1.3") //
	take("10.1.1.3", "10.1.1.3")
	giveBack("10.1.1.3") //
	take("", "10.1.1.3") //
	for _, no := range []string{"10.1.1.0", "10.1.1.1", "10.1.1.7", "10.1.1.8", "fd00::1"} {
		take(no, "refused")
	}
	for _, prefix := range []netip.Prefix{{}, netip.MustParsePrefix("10.0.0.0/30"), netip.MustParsePrefix("fd00::/64")} {
		if _, err := newAddresses(prefix); err == nil {
			t.Errorf("newAddresses(%s) did not fail", prefix)
		}
	}
}

func TestResolvConf(t *testing.T) {
	value := "2"
	const node = "search lab\nnameserver 192.0.2.1\nnameserver 192.0.2.2\noptions edns0\n"
	const cluster = "search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.101.0.10\noptions ndots:5\n"
	const machine = "search lab\nnameserver 192.0.2.1\nnameserver 192.0.2.2\noptions edns0\n"
	for _, tc := range []struct {
		name string
		spec corev1.PodSpec
		want string
	}{
		{"ClusterFirst", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, cluster},
		{"unset", corev1.PodSpec{}, cluster},
		{"ClusterFirst on host network", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, HostNetwork: true}, machine},
		{"ClusterFirstWithHostNet", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirstWithHostNet, HostNetwork: true}, cluster},
		{"Default", corev1.PodSpec{DNSPolicy: corev1.DNSDefault}, machine},
		{"None", corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{
			Nameservers: []string{"192.0.2.9"}, Options: []corev1.PodDNSConfigOption{{Name: "rotate"}}}},
			"nameserver 192.0.2.9\noptions rotate\n"},
		{"merged", corev1.PodSpec{DNSConfig: &corev1.PodDNSConfig{
			Nameservers: []string{"10.101.0.10", "192.0.2.9"}, Searches: []string{"lab", "cluster.local"},
			Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &value}}}},
			"search shop.svc.cluster.local svc.cluster.local cluster.local lab\nnameserver 10.101.0.10\nnameserver 192.0.2.9\noptions ndots:2\n"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: tc.spec}
		got := resolvConf(pod, netip.MustParseAddr("10.101.0.10"), "cluster.local", node)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s:\n%s", tc.name, diff)
		}
	}
}

func TestHosts(t *testing.T) {
	ip := netip.MustParseAddr("10.1.1.2")
	const local = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	for _, tc := range []struct {
		name string
		spec corev1.PodSpec
		host string
		want string
	}{
		{"plain", corev1.PodSpec{}, "web-0", "10.1.1.2\tweb-0\n"},
		{"headless", corev1.PodSpec{Hostname: "web", Subdomain: "all"}, "web", "10.1.1.2\tweb.all.shop.svc.cluster.local\tweb\n"},
		{"host network", corev1.PodSpec{HostNetwork: true, Subdomain: "all"}, "n1", "10.1.1.2\tn1\n"},
		{"aliases", corev1.PodSpec{HostAliases: []corev1.HostAlias{{IP: "192.0.2.1", Hostnames: []string{"a", "b"}}}}, "web-0",
			"10.1.1.2\tweb-0\n192.0.2.1\ta\tb\n"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0"}, Spec: tc.spec}
		if got := hostname(pod, "n1"); got != tc.host {
			t.Errorf("%s: host name %q, want %q", tc.name, got, tc.host)
		}
		if diff := cmp.Diff(local+tc.want, hosts(pod, ip, "n1", "cluster.local")); diff != "" {
			t.Errorf("%s:\n%s", tc.name, diff)
		}
	}
	long := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("a", 62) + "-b"}}
	if got := hostname(long, "n1"); got != strings.Repeat("a", 62) {
		t.Errorf("long host name %q", got)
	}
}

func TestNames(t *testing.T) {
	// printf default.web-0 | sha1sum
	if got := VethName("default", "web-0"); got != "cali0d7763386da" {
		t.Errorf("veth name %q", got)
	}
	long := strings.Repeat("p", 253)
	a, b := netnsName("sb-1-", "ns", long), netnsName("sb-1-", "ns", long+"2")
	if len(a) > 255 || a == b {
		t.Errorf("names of long pods: %q, %q", a, b)
	}
	if got := netnsName("sb-1-c1-p-", "ns", "pod"); got != "sb-1-c1-p-ns.pod" {
		t.Errorf("netnsName = %q", got)
	}
	for path, want := range map[string]string{
		"/var/lib/x": "/disk/var/lib/x", "/dev/net/tun": "/dev/net/tun", "/../etc": "/disk/etc", "/dev/../etc": "/disk/etc",
	} {
		if got := hostPath("/disk", path); got != want {
			t.Errorf("hostPath(%q) = %q, want %q", path, got, want)
		}
	}
}
