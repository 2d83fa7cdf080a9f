package agent

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/traffic"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/capture"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestRoutesMoveToTheConfiguredTable: the agent replaces routes of semaphore-wireguard, and of an agent with another
// table, by routes in its own table. No packet is lost, also not while it moves those of a remote before this one, and
// no old route remains.
func TestRoutesMoveToTheConfiguredTable(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		const first = "wireguard.a1"
		removeAtEnd(t, first)
		b, cfg, _, stop := connect(t)
		b.program(t, deviceOf("a1", 51821, "10.31.0.0/16"),
			peerOf("a1", "n1", publicKey(9), "192.0.2.9:51821", "10.31.1.0/24"))
		h := newHost(t)
		before := deviceOn(t, h, device)
		stop()
		// The state that an agent with the main table left: everything in it, and no rule.
		for subnet, device := range map[string]string{"10.2.0.0/16": device, "10.31.0.0/16": first} {
			ip(t, "route add "+subnet+" dev "+device+" proto 94 scope link")
			ip(t, "route add unreachable "+subnet+" proto 94 metric 65536")
		}
		ip(t, "rule del pref 94")
		ip(t, "route flush table 7394")
		ours := func() string {
			return ip(t, "route show table all proto 94") + ip(t, "rule show table 7394") + ip(t, "rule show table 9000")
		}

		tr := startTraffic(t)
		stop = run(t, cfg)
		eventually(t, "all is programmed", b.done)
		wants := func(table, priority int) string {
			return fmt.Sprintf("10.2.0.0/16 dev %[1]s table %[3]d scope link \n"+
				"unreachable 10.2.0.0/16 table %[3]d metric 65536 \n"+
				"10.31.0.0/16 dev %[2]s table %[3]d scope link \nunreachable 10.31.0.0/16 table %[3]d metric 65536 \n"+
				"%[4]d:\tfrom all lookup %[3]d proto 94\n", device, first, table, priority)
		}
		eventually(t, "all is in our table", func() bool { return ours() == wants(7394, 94) })
		stop()

		cfg.Routing.Table, cfg.Routing.RulePriority = 9000, 500
		stop = run(t, cfg)
		eventually(t, "all is programmed", b.done)
		eventually(t, "all is in the other table", func() bool { return ours() == wants(9000, 500) })
		tr.noneLost(t, "")
		other := kernel.RoutingTable{ID: 9000, Priority: 500}
		same(t, before, deviceOn(t, newHostWith(t, other), device))
		stop()
		var out bytes.Buffer
		must(t, Cleanup(&out, cfg, CleanupOptions{}))
		if left := ours(); left != "" {
			t.Errorf("left: %s\n%s", left, out.String())
		}
	})
}

// TestAddressInsideARemotesSubnet: another program, such as docker or libvirt, gives the node an address inside a
// remote's subnet. All packets for the subnet still go through the tunnel, the node stays ready, and the report says
// what to do. A new subnet with such an address in it is refused, and nothing else. The same holds for a restarted
// agent, and for a node that boots.
func TestAddressInsideARemotesSubnet(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg, r, stop := connect(t)
		h := newHost(t)
		ip(t, "route add default via 192.0.2.2")
		wire, err := capture.Start(r.Namespace, "eth0")
		must(t, err)
		tr := startTraffic(t)
		bridge := func() {
			ip(t, "link add docker0 type bridge")
			ip(t, "addr add 10.2.1.250/24 dev docker0") // the remote pod is in its subnet
			ip(t, "link set docker0 up")
		}
		bridge()
		const conflict = "route 10.2.0.0/16 remains, but 10.2.0.0/16 contains 10.2.1.250, an address of this node: give " +
			"interface docker0 another subnet"
		reported := func() bool {
			return b.reportOf("c2").GetProblem() == conflict &&
				metric(t, `semaphore_agent_subnet_conflicts{cluster="c2",device="wireguard.c2"}`) == "1"
		}
		stands := func(when string) {
			t.Helper()
			eventually(t, when+": it is reported", reported)
			if !ready() {
				t.Errorf("%s: not ready", when)
			}
			if d := deviceOn(t, h, device); len(d.Routes) != 1 || len(d.Peers) != 1 {
				t.Errorf("%s: routes %v, %d peers", when, d.Routes, len(d.Peers))
			}
			if routes := ip(t, "route show table 7394 type unreachable"); !strings.Contains(routes, "10.2.0.0/16") {
				t.Errorf("%s: the guard's route has gone: %q", when, routes)
			}
			if _, page := fetch("readyz"); !strings.Contains(page, conflict) {
				t.Errorf("%s: readyz says %q", when, page)
			}
		}
		stands("a bridge was made")
		shows(t, `semaphore_agent_heals_total{cluster="c2",device="wireguard.c2"}`, "0")
		// A change of a peer is still one small update.
		singles := metric(t, `semaphore_agent_apply_duration_seconds_count{what="peers"}`)
		b.say(peerOf("c2", "n9", publicKey(9), "192.0.2.9:51820", "10.2.9.0/24"))
		eventually(t, "a peer is programmed", func() bool { return b.done() && len(deviceOn(t, h, device).Peers) == 2 })
		b.say(noPeer("c2", "n9"))
		eventually(t, "it is gone", func() bool { return b.done() && len(deviceOn(t, h, device).Peers) == 1 })
		if after := metric(t, `semaphore_agent_apply_duration_seconds_count{what="peers"}`); after == singles {
			t.Errorf("%s single changes before, %s after two", singles, after)
		}
		tr.noneLost(t, "")

		// Only a new subnet is refused.
		ip(t, "link add virbr0 type bridge")
		ip(t, "addr add 172.20.0.1/16 dev virbr0")
		ip(t, "link set virbr0 up")
		b.say(deviceOf("c2", 51820, "10.2.0.0/16", "172.20.0.0/16", "10.22.0.0/16"))
		eventually(t, "it is refused, and the rest is done", func() bool {
			d := deviceOn(t, h, device)
			return b.done() && ready() && fmt.Sprint(d.Routes) == "[10.2.0.0/16 10.22.0.0/16]" &&
				strings.Contains(b.reportOf("c2").GetProblem(), "route 172.20.0.0/16: 172.20.0.0/16 contains 172.20.0.1, an "+
					"address of this node: give interface virbr0 another subnet")
		})
		ip(t, "link del virbr0")
		eventually(t, "it is routed once the address has gone",
			func() bool { return len(deviceOn(t, h, device).Routes) == 3 })
		b.say(deviceOf("c2", 51820, "10.2.0.0/16"))
		eventually(t, "the others are taken out", func() bool { return b.done() && len(deviceOn(t, h, device).Routes) == 1 })

		stop()
		stop = run(t, cfg)
		eventually(t, "ready, and all is programmed", func() bool { return ready() && b.done() })
		stands("the agent was restarted")
		stop()
		must(t, h.Delete(device)) // a boot
		unguard(t)
		stop = run(t, cfg)
		eventually(t, "ready, and all is programmed", func() bool { return ready() && b.done() })
		stands("the node was booted")
		eventually(t, "the remote pod can be reached", reachable)

		ip(t, "link del docker0")
		eventually(t, "nothing is reported any longer", func() bool {
			return b.reportOf("c2").GetProblem() == "" &&
				metric(t, `semaphore_agent_subnet_conflicts{cluster="c2",device="wireguard.c2"}`) == "0"
		})
		stop()
		packets, err := wire.Stop()
		must(t, err)
		if seen, encrypted := inTheClear(packets); len(seen) > 0 || encrypted == 0 {
			t.Errorf("%d packets are seen in the clear, %d encrypted", len(seen), encrypted)
		}
		// The broker removes the subnet: the route goes, and does not come back by itself.
		bridge()
		run(t, cfg)
		b.say(deviceOf("c2", 51820, "10.22.0.0/16"))
		eventually(t, "it is taken out",
			func() bool { return b.done() && fmt.Sprint(deviceOn(t, h, device).Routes) == "[10.22.0.0/16]" })
		b.say(deviceOf("c2", 51820, "10.22.0.0/16", "10.2.0.0/16"))
		eventually(t, "it is refused, as it is new", func() bool {
			return b.done() && strings.HasPrefix(b.reportOf("c2").GetProblem(),
				"route 10.2.0.0/16: 10.2.0.0/16 contains 10.2.1.250")
		})
	})
}

// kubeProxy creates kube-proxy's rules (mode iptables) for a Service with one endpoint: its ClusterIP, port 80, and its
// NodePort. Packets that do not come from the node's own pods are masqueraded.
func kubeProxy(t *testing.T, iptables, podCIDR, clusterIP, endpoint string) {
	t.Helper()
	for _, rule := range []string{
		"-N KUBE-SERVICES", "-N KUBE-SVC", "-N KUBE-EXT", "-N KUBE-MARK-MASQ", "-N KUBE-POSTROUTING",
		"-A PREROUTING -j KUBE-SERVICES", "-A OUTPUT -j KUBE-SERVICES", "-A POSTROUTING -j KUBE-POSTROUTING",
		"-A KUBE-SERVICES -d " + clusterIP + " -p udp --dport 80 -j KUBE-SVC",
		"-A KUBE-SERVICES -m addrtype --dst-type LOCAL -p udp --dport 30080 -j KUBE-EXT",
		"-A KUBE-EXT -j KUBE-MARK-MASQ", "-A KUBE-EXT -j KUBE-SVC",
		"-A KUBE-SVC ! -s " + podCIDR + " -j KUBE-MARK-MASQ",
		"-A KUBE-SVC -p udp -j DNAT --to-destination " + endpoint,
		"-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000",
		"-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
		"-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000",
		"-A KUBE-POSTROUTING -j MASQUERADE --random-fully",
	} {
		testkit.Command(t, iptables, append([]string{"-t", "nat"}, strings.Fields(rule)...)...)
	}
}

// newClient creates a machine outside of the cluster, connected to the node, with an address of each family.
func newClient(t *testing.T) *netns.Namespace {
	t.Helper()
	ns, err := netns.Create("client")
	must(t, err)
	t.Cleanup(func() { must(t, ns.Delete()) })
	ip(t, "link add outside type veth peer name eth0 netns client")
	ip(t, "addr add 198.51.100.1/24 dev outside")
	ip(t, "-6 addr add 2001:db8:f::1/64 dev outside nodad")
	ip(t, "link set outside up")
	ip(t, "-n client addr add 198.51.100.2/24 dev eth0")
	ip(t, "-n client -6 addr add 2001:db8:f::2/64 dev eth0 nodad")
	ip(t, "-n client link set eth0 up")
	return ns
}

// TestServicesFromTheNode: host-network pods, NodePorts and ingress controllers reach mirror Services: packets that
// kube-proxy masquerades leave with an address of the node's pod range, which the remote accepts. The address is the
// one that Calico assigned to the node, or else one that the broker reserves for it. A strict reverse path filter drops
// none of it.
func TestServicesFromTheNode(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		for _, s := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv4/conf/all/rp_filter"} {
			setting(t, s, "1")
		}
		b, cfg := newBroker(t, "c2")
		cfg.ServiceTraffic = true
		key, err := kernel.NewKeys(cfg.WGKeyPath).Of(device, nil)
		must(t, err)
		remoteKey := newDualStackRemote(t, key.Private.PublicKey())
		client := newClient(t)
		ip(t, "addr add 192.0.2.77/32 dev eth0") // the kernel's default source address
		ip(t, "route add default dev eth0")
		services := map[string]struct{ vip, nodePort, iptables string }{
			"IPv4": {"10.96.0.10", "198.51.100.1", "iptables"}, "IPv6": {"fd00:96::10", "2001:db8:f::1", "ip6tables"},
		}
		ip(t, "-6 route add default dev eth0")
		kubeProxy(t, "iptables", "10.1.1.0/26", "10.96.0.10/32", "10.2.1.1:7")
		kubeProxy(t, "ip6tables", "fd00:1:0:1::/122", "fd00:96::10/128", "[fd00:2:0:1::1]:7")
		run(t, cfg, device)
		b.program(t, deviceOf("c2", 51820, families["IPv4"].subnet, families["IPv6"].subnet),
			peerOf("c2", "n1", remoteKey, "[2001:db8::2]:51820", "10.2.1.0/26", "fd00:2:0:1::/122"))

		ways := map[string]func(family string) bool{
			"the pod's address": func(f string) bool { return echoed("", net.JoinHostPort(families[f].remote, "7"), 4) },
			"a ClusterIP":       func(f string) bool { return echoed("", net.JoinHostPort(services[f].vip, "80"), 4) },
			"a NodePort, from outside of all": func(f string) (ok bool) {
				must(t, client.Do(func() error { ok = echoed("", net.JoinHostPort(services[f].nodePort, "30080"), 4); return nil }))
				return ok
			},
		}
		all := func(when string) {
			t.Helper()
			for _, family := range []string{"IPv4", "IPv6"} {
				for way, reached := range ways {
					eventually(t, fmt.Sprintf("%s, %s: an answer comes by %s", when, family, way),
						func() bool { return reached(family) })
				}
			}
		}
		addresses := func(want ...string) func() bool {
			return func() bool { return fmt.Sprint(deviceOn(t, newHost(t), device).Addresses) == fmt.Sprint(want) }
		}
		network := func(prefixes, reserved []string) {
			b.knows(&semaphorev1.NodeNetwork{PodPrefixes: prefixes, TunnelAddresses: reserved})
		}
		// The agent does not know yet which addresses are those of the node's pods.
		eventually(t, "the remote pod's node is there", func() bool {
			ip(t, "addr add 10.1.1.5/32 dev lo")
			defer ip(t, "addr del 10.1.1.5/32 dev lo")
			return echoed("10.1.1.5", "10.2.1.1:7", 4)
		})
		for _, family := range []string{"IPv4", "IPv6"} {
			for way, reached := range ways {
				if reached(family) {
					t.Fatalf("%s: an answer comes by %s to an address that is no pod's: what follows proves nothing", family, way)
				}
			}
		}
		prefixes := []string{"10.1.1.0/26", "fd00:1:0:1::/122"}
		network(prefixes, []string{"10.1.1.1", "fd00:1:0:1::1"})
		eventually(t, "the device has the addresses that the broker names", addresses("10.1.1.1", "fd00:1:0:1::1"))
		all("with addresses that the broker names")

		// Calico assigns the node an address of its own.
		ip(t, "link add tunl0 type veth peer name p0")
		ip(t, "link set tunl0 up")
		ip(t, "addr add 10.1.1.40/32 dev tunl0")
		ip(t, "-6 addr add fd00:1:0:1::20/128 dev tunl0 nodad")
		eventually(t, "the device has those", addresses("10.1.1.40", "fd00:1:0:1::20"))
		all("with addresses of Calico's")
		// Another program removes them.
		ip(t, "addr del 10.1.1.40/32 dev "+device)
		ip(t, "-6 addr del fd00:1:0:1::20/128 dev "+device)
		eventually(t, "they are back", addresses("10.1.1.40", "fd00:1:0:1::20"))
		all("after they were taken off")
		network(prefixes, nil)
		all("with none that the broker names")
		for family, packet := range map[string]uint64{"IPv4": 20 + 8 + 4, "IPv6": 40 + 8 + 4} {
			serviceIsCounted(t, services[family].vip, families[family].remote, packet)
		}
		ip(t, "link del tunl0")
		eventually(t, "Calico's have gone", addresses("192.0.0.8"))
		if d := deviceOn(t, newHost(t), device); len(d.Routes) != 2 || len(d.Sources) != 0 {
			t.Errorf("without an address: routes %v, sources %v", d.Routes, d.Sources)
		}
		// All blocks of the node go, as with their pool, and with them what was reserved in them.
		network(prefixes, []string{"10.1.1.1", "fd00:1:0:1::1"})
		eventually(t, "the device has reserved addresses again", addresses("10.1.1.1", "fd00:1:0:1::1"))
		network(nil, nil)
		eventually(t, "they have gone with the blocks", addresses("192.0.0.8"))
		if d := deviceOn(t, newHost(t), device); len(d.Routes) != 2 || len(d.Sources) != 0 {
			t.Errorf("without a block: routes %v, sources %v", d.Routes, d.Sources)
		}
		for _, p := range b.newest().GetProblems() {
			t.Errorf("reported: %s", p)
		}
	})
}

// serviceIsCounted sends packets to a ClusterIP and to the pod behind it, on separate connections: every byte to the
// ClusterIP, and of its answers, is counted, and nothing to or from the pod.
func serviceIsCounted(t *testing.T, vip, pod string, packet uint64) {
	t.Helper()
	const connections = 20
	of := func() *semaphorev1.ServiceTraffic {
		counter := traffic.NewCounter() // reads what the kernel has
		_, err := counter.Read()
		must(t, err)
		for _, s := range counter.Report() {
			if at, ok := netip.AddrFromSlice(s.GetAddress()); ok && at.String() == vip {
				return s
			}
		}
		return &semaphorev1.ServiceTraffic{}
	}
	// A late answer to an earlier request is counted, too.
	time.Sleep(nodetest.Patience(300 * time.Millisecond))
	before := of()
	if before.GetConnections() == 0 || before.GetSentBytes() == 0 || before.GetReceivedBytes() == 0 {
		t.Errorf("requests to %s were answered, and %v is counted", vip, before)
	}
	// The kernel's choice of a port may be that of an earlier request, of whose connection this one would be a part.
	const port = 20_000
	for i := range connections {
		if !echoedFrom(&net.UDPAddr{Port: port + i}, net.JoinHostPort(vip, "80"), 4, 5*time.Second) ||
			!echoedFrom(&net.UDPAddr{}, net.JoinHostPort(pod, "7"), 4, 5*time.Second) {
			t.Fatalf("%s or %s does not answer", vip, pod)
		}
	}
	// More packets of one connection are no more connections.
	const packets = connections + 5
	c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{Port: port + connections}}).Dial("udp", net.JoinHostPort(vip, "80"))
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(nodetest.Patience(5*time.Second))))
	for range packets - connections {
		_, err := c.Write([]byte("ping"))
		must(t, err)
		_, err = c.Read(make([]byte, 10))
		must(t, err)
	}
	now := of()
	sent, received := now.GetSentBytes()-before.GetSentBytes(), now.GetReceivedBytes()-before.GetReceivedBytes()
	if n := now.GetConnections() - before.GetConnections(); n != connections+1 || sent != packets*packet ||
		received != packets*packet {
		t.Errorf("%s: %d connections, %d bytes sent and %d received; want %d, and %d each", vip, n, sent, received,
			connections+1, packets*packet)
	}
}

// TestManyServices: the ClusterIPs that kube-proxy in mode ipvs assigns to an interface do not increase the agent's
// cost, neither of a check of a device, nor of added and removed Services.
func TestManyServices(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg, _, stop := connect(t)
		h := newHost(t)
		// A dummy interface, as kube-proxy creates it, if the kernel supports it.
		if err := exec.Command("ip", "link", "add", "kube-ipvs0", "type", "dummy").Run(); err != nil {
			ip(t, "link add kube-ipvs0 type bridge")
		}
		// The agent is stopped, because all allocations of the process count.
		stop()
		look := func() float64 { return testing.AllocsPerRun(20, func() { deviceOn(t, h, device) }) }
		one := look()
		addresses(t, "add", 10_000)
		many := look()
		t.Logf("a look at a device allocates %.0f times, and %.0f beside 10,000 Services", one, many)
		if many > one+20 { // the buffers of a pool vary
			t.Errorf("a look at a device allocates %.0f times beside 10,000 Services, and %.0f without", many, one)
		}
		run(t, cfg)
		eventually(t, "all is programmed", b.done)
		time.Sleep(nodetest.Patience(2 * plan.HealGap))
		wholes := func() float64 { return number(t, `semaphore_agent_apply_duration_seconds_count{what="device"}`) }
		before, began := wholes(), time.Now()
		addresses(t, "del", 1000)
		time.Sleep(nodetest.Patience(2 * plan.HealGap))
		// The exception are the checks that are due every FullCheck, some of which a slow machine sees meanwhile.
		due := 0.0
		if took := time.Since(began); took > plan.FullCheck/2 {
			due = float64(took/plan.FullCheck) + 1
		}
		if n := wholes() - before; n > due {
			t.Errorf("1,000 changes of Services have the device looked at as a whole %v times in %s, want %v", n,
				time.Since(began), due)
		}
		if all, err := h.Addresses(); err != nil || len(all) > 20 {
			t.Errorf("%d addresses of this node, %v", len(all), err)
		}
		eventually(t, "the remote pod can be reached", reachable)
	})
}

// addresses adds n addresses of Services, or removes them.
func addresses(t *testing.T, do string, n int) {
	t.Helper()
	var batch strings.Builder
	at := netip.MustParseAddr("10.96.0.1")
	for range n {
		fmt.Fprintf(&batch, "addr %s %s/32 dev kube-ipvs0\n", do, at)
		at = at.Next()
	}
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
