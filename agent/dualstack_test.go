package agent

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
)

// families has, for each family, the address of a pod, and of the pod of the other cluster that it sends to.
var families = map[string]struct{ pod, remote, subnet string }{
	"IPv4": {"10.1.1.5", "10.2.1.1", "10.2.0.0/16"},
	"IPv6": {"fd00:1:0:1::5", "fd00:2:0:1::1", "fd00:2::/48"},
}

// TestDualStack: nodes that reach each other only by IPv6 carry both families of their pods, whose packets are
// forwarded between network namespaces. A family that is removed goes alone, and what is removed by hand is restored.
func TestDualStack(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		setting(t, "ipv4/ip_forward", "1")
		setting(t, "ipv6/conf/all/forwarding", "1")
		pod := newDualStackPod(t)
		b, cfg := newBroker(t, "c2")
		key, err := kernel.NewKeys(cfg.WGKeyPath).Of(device, nil)
		must(t, err)
		remoteKey := newDualStackRemote(t, key.Private.PublicKey())
		run(t, cfg, device)
		both := deviceOf("c2", 51820, families["IPv4"].subnet, families["IPv6"].subnet)
		// Blocks as in Calico's IPAM: a node has several.
		b.program(t, both,
			peerOf("c2", "n1", remoteKey, "[2001:db8::2]:51820", "10.2.1.0/26", "10.2.7.64/26", "fd00:2:0:1::/122"))

		talks := func(family string, size int) bool {
			f := families[family]
			ok := false
			must(t, pod.Do(func() error { ok = echoed(f.pod, net.JoinHostPort(f.remote, "7"), size); return nil }))
			return ok
		}

		for _, family := range []string{"IPv4", "IPv6"} {
			for _, size := range []int{4, 1200} {
				took := eventually(t, fmt.Sprintf("a packet of %d bytes comes back by %s", size, family),
					func() bool { return talks(family, size) })
				t.Logf("%s, %d bytes: after %s", family, size, took)
			}
		}
		// Another program changes the endpoint.
		h := newHost(t)
		must(t, h.Configure(device, wgtypes.Config{Peers: []wgtypes.PeerConfig{{
			PublicKey: remoteKey, UpdateOnly: true,
			Endpoint: net.UDPAddrFromAddrPort(netip.MustParseAddrPort("[2001:db8::77]:7")),
		}}}))
		eventually(t, "the IPv6 endpoint is healed",
			func() bool { return deviceOn(t, h, device).Peers[0].Endpoint.String() == "[2001:db8::2]:51820" })
		eventually(t, "packets go there", func() bool { return talks("IPv4", 4) && talks("IPv6", 4) })
		// A packet to an unassigned address of the subnet does not go to the peer that has other addresses of it.
		if ok := func() (ok bool) {
			must(t, pod.Do(func() error { ok = echoed(families["IPv4"].pod, "10.2.1.65:7", 4); return nil }))
			return ok
		}(); ok {
			t.Error("a block's peer answers for the next block")
		}

		ip(t, "-6 route del "+families["IPv6"].subnet+" table 7394 dev "+device)
		eventually(t, "the route of IPv6 is back", func() bool {
			return strings.Contains(ip(t, "-6 route show table 7394 "+families["IPv6"].subnet), "dev "+device)
		})
		eventually(t, "with the route, packets", func() bool { return talks("IPv6", 4) })

		b.say(deviceOf("c2", 51820, families["IPv4"].subnet), peerOf("c2", "n1", remoteKey, "[2001:db8::2]:51820",
			"10.2.1.0/26"))
		eventually(t, "IPv6 is taken out", func() bool {
			return b.done() && !strings.Contains(ip(t, "-6 route show table 7394 "+families["IPv6"].subnet), "dev "+device)
		})
		eventually(t, "IPv4 continues without IPv6", func() bool { return talks("IPv4", 4) })
		if talks("IPv6", 4) {
			t.Error("IPv6 was removed, and still works")
		}
		b.say(both, peerOf("c2", "n1", remoteKey, "[2001:db8::2]:51820", "10.2.1.0/26", "fd00:2:0:1::/122"))
		eventually(t, "IPv6 is there again", func() bool { return talks("IPv6", 4) })
	})
}

// newDualStackPod creates a pod of this node in a network namespace, connected as Calico does: one address of each
// family, and routes via link-local gateways.
func newDualStackPod(t *testing.T) *netns.Namespace {
	t.Helper()
	pod, err := netns.Create("pod")
	must(t, err)
	ip(t, "link add pod0 type veth peer name eth0 netns pod")
	ip(t, "addr add 169.254.1.1/32 dev pod0")
	ip(t, "-6 addr add fe80::1/64 dev pod0 nodad")
	ip(t, "link set pod0 up")
	ip(t, "-n pod link set lo up")
	ip(t, "-n pod link set eth0 up")
	ip(t, "-n pod addr add "+families["IPv4"].pod+"/32 dev eth0")
	ip(t, "-n pod -6 addr add "+families["IPv6"].pod+"/128 dev eth0 nodad")
	ip(t, "-n pod route add 169.254.1.1 dev eth0")
	ip(t, "-n pod route add default via 169.254.1.1 dev eth0")
	ip(t, "-n pod -6 route add default via fe80::1 dev eth0")
	ip(t, "route add "+families["IPv4"].pod+" dev pod0")
	ip(t, "-6 route add "+families["IPv6"].pod+" dev pod0")
	return pod
}

// newDualStackRemote creates a node of c2 at 2001:db8::2, with a pod that echoes on an address of each family.
func newDualStackRemote(t *testing.T, peer wgtypes.Key) wgtypes.Key {
	t.Helper()
	ns, err := netns.Create("remote")
	must(t, err)
	ip(t, "link add eth0 type veth peer name eth0 netns remote")
	ip(t, "-6 addr add 2001:db8::1/64 dev eth0 nodad")
	ip(t, "link set eth0 up")
	ip(t, "-n remote -6 addr add 2001:db8::2/64 dev eth0 nodad")
	ip(t, "-n remote link set eth0 up")
	ip(t, "-n remote link set lo up")
	for _, f := range families {
		ip(t, "-n remote addr add "+f.remote+" dev lo")
	}
	var allowed []net.IPNet
	for _, text := range []string{"10.1.1.0/26", "fd00:1:0:1::/122"} {
		_, subnet, err := net.ParseCIDR(text)
		must(t, err)
		allowed = append(allowed, *subnet)
	}
	_, key := tunnel(t, ns, []wgtypes.PeerConfig{{PublicKey: peer, AllowedIPs: allowed,
		Endpoint: net.UDPAddrFromAddrPort(netip.MustParseAddrPort("[2001:db8::1]:51820")),
	}}, "10.1.0.0/16", "fd00:1::/48")
	for _, f := range families {
		echo(t, ns, net.JoinHostPort(f.remote, "7"))
	}
	return key.PublicKey()
}
