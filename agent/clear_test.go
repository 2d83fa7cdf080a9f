package agent

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/capture"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
)

func setting(t *testing.T, name, value string) {
	t.Helper()
	must(t, os.WriteFile("/proc/sys/net/"+name, []byte(value), 0))
}

// newPod creates another network namespace on this node, 10.1.1.9, whose packets the node forwards.
func newPod(t *testing.T) *netns.Namespace {
	t.Helper()
	ns, err := netns.Create("pod")
	must(t, err)
	t.Cleanup(func() { must(t, ns.Delete()) })
	ip(t, "link add cali0 type veth peer name eth0 netns pod")
	ip(t, "addr add 169.254.1.1/32 dev cali0")
	ip(t, "link set cali0 up")
	ip(t, "route add 10.1.1.9/32 dev cali0 scope link")
	ip(t, "-n pod addr add 10.1.1.9/32 dev eth0")
	ip(t, "-n pod link set eth0 up")
	ip(t, "-n pod route add 169.254.1.1 dev eth0 scope link")
	ip(t, "-n pod route add default via 169.254.1.1")
	setting(t, "ipv4/ip_forward", "1")
	return ns
}

// inTheClear returns the captured clear packets to and from c2's pods, and the number of encrypted packets.
func inTheClear(packets []capture.Packet) (found []string, encrypted int) {
	pods := netip.MustParsePrefix("10.2.0.0/16")
	for _, p := range packets {
		const ethernet, ipv4 = 14, 20
		if len(p.Data) < ethernet+ipv4 || binary.BigEndian.Uint16(p.Data[12:]) != unix.ETH_P_IP {
			continue
		}
		from, to := netip.AddrFrom4([4]byte(p.Data[26:30])), netip.AddrFrom4([4]byte(p.Data[30:34]))
		if pods.Contains(from) || pods.Contains(to) {
			found = append(found, fmt.Sprintf("%s %s → %s", p.Time.Format("05.000000"), from, to))
		} else if p.Data[23] == unix.IPPROTO_UDP {
			encrypted++
		}
	}
	return found, encrypted
}

func stopped(t *testing.T, direction string) int {
	t.Helper()
	text := metric(t, `semaphore_agent_clear_packets_total{cluster="c2",device="wireguard.c2",direction="`+direction+`"}`)
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Errorf("stopped packets: %q", text)
	}
	return int(n)
}

// TestNeverInTheClear: whatever happens to the device, the route, the peer and the agent, the wire carries no clear
// packet to a remote pod, neither from a pod nor from the node itself. The node has a default route, and the other end
// answers.
func TestNeverInTheClear(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		r := newRemote(t)
		ip(t, "route add default via 192.0.2.2")
		pod := newPod(t)
		var ours net.Conn
		must(t, pod.Do(func() (err error) {
			ours, err = net.Dial("udp", "10.2.1.1:7")
			return err
		}))
		own := toPod(t, "10.2.1.1")

		// Without an agent both appear on the wire, so the checks that follow can fail.
		eventually(t, "without an agent both packets pass in the clear", func() bool {
			wire, err := capture.Start(r.Namespace, "eth0")
			must(t, err)
			_, _ = ours.Write([]byte("ping"))
			_, _ = own.Write([]byte("ping"))
			time.Sleep(100 * time.Millisecond) // the first packet needs ARP
			packets, err := wire.Stop()
			must(t, err)
			seen, _ := inTheClear(packets)
			return len(seen) >= 2
		})

		// The device cannot be created yet, because its key file is damaged.
		file := filepath.Join(cfg.WGKeyPath, device+".key")
		must(t, os.MkdirAll(cfg.WGKeyPath, 0o700))
		must(t, os.WriteFile(file, []byte("damaged"), 0o600))
		stop := run(t, cfg, device)
		b.say(deviceOf("c2", 51820, "10.2.0.0/16"))
		eventually(t, "the device cannot be made",
			func() bool { return strings.Contains(b.reportOf("c2").GetProblem(), "contains no key") })
		wire, err := capture.Start(r.Namespace, "eth0")
		must(t, err)
		fromPod, fromNode := insist(ours), insist(own)
		everybody := func(what string) {
			t.Helper()
			fromPod.wait(t, what)
			fromNode.wait(t, what)
		}
		everybody("there is no device")
		must(t, os.Remove(file))
		eventually(t, "the device is made", b.done)
		everybody("there is no peer")
		if fromPod.back.Load()+fromNode.back.Load() > 0 {
			t.Error("answers come, and nobody can have encrypted anything")
		}
		r.pair(t, b.reportOf("c2").GetPublicKey())
		b.say(r.peer())
		answers := func(what string) {
			t.Helper()
			eventually(t, what+": the pod receives answers", fromPod.hears())
			eventually(t, what+": the node receives answers", fromNode.hears())
		}
		answers("there is a peer")

		for range 3 {
			ip(t, "link del wireguard.c2")
			answers("the device was deleted")
			ip(t, "route del 10.2.0.0/16 dev wireguard.c2 table 7394")
			answers("the route was deleted")
			ip(t, "link set wireguard.c2 down")
			answers("the device was set down")
		}
		b.program(t, noPeer("c2", "n1"))
		everybody("there is no peer any more")
		b.say(r.peer())
		answers("the peer is back")
		if n := stopped(t, "out"); n != 0 {
			t.Errorf("%d packets were on their way in the clear, with no route there", n)
		}

		// A route of the main table to the subnet, such as a router announces, has no effect, and is not reported.
		ip(t, "route add 10.2.1.0/24 via 192.0.2.2 proto bird")
		answers("a more specific route of the main table")
		ip(t, "route add 10.2.0.0/16 via 192.0.2.2 proto bird")
		answers("a route of the main table in the place of ours")
		if n := stopped(t, "out"); n != 0 || len(b.newest().GetProblems()) > 0 {
			t.Errorf("%d packets were stopped, problems: %q", n, b.newest().GetProblems())
		}

		// Without the rule, packets do not reach the agent's routes; the guard drops them on their way to the default
		// route.
		ip(t, "rule del pref 94")
		answers("the rule was deleted")
		before := stopped(t, "out")

		// A route of another program in the agent's own table is reported, and no packet follows it.
		ip(t, "route add 10.2.1.0/24 via 192.0.2.2 table 7394")
		everybody("a route leads past the device")
		eventually(t, "it is reported", func() bool {
			return strings.Contains(strings.Join(b.newest().GetProblems(), "\n"),
				"route 10.2.1.0/24 (via 192.0.2.2 dev eth0 proto boot) leads packets for 10.2.0.0/16 past wireguard.c2")
		})
		if n := stopped(t, "out"); n < before+20 {
			t.Errorf("%d packets were stopped, %d before", n, before)
		}
		if routes := ip(t, "route show 10.2.1.0/24 table 7394"); !strings.Contains(routes, "via 192.0.2.2") {
			t.Errorf("another's route was touched: %q", routes)
		}

		// A rule before that of the agent has the same effect.
		ip(t, "route del 10.2.1.0/24 table 7394")
		answers("the route has gone")
		before = stopped(t, "out")
		ip(t, "rule add pref 50 to 10.2.0.0/16 lookup main")
		everybody("a rule leads past the device")
		if n := stopped(t, "out"); n < before+20 {
			t.Errorf("%d packets were stopped, %d before", n, before)
		}

		// The agent stops, and with it the healing.
		stop()
		everybody("the agent was stopped")
		ip(t, "link del wireguard.c2")
		everybody("the device was deleted, and no agent runs")
		ip(t, "rule del pref 50")
		everybody("only the unreachable route is left")
		stop = run(t, cfg)
		eventually(t, "all is programmed again", b.done)
		answers("the agent is back")
		if n := stopped(t, "out"); n < 20 {
			t.Errorf("%d packets were stopped, by the agent that started again", n)
		}
		eventually(t, "the problem is no longer reported", func() bool { return len(b.newest().GetProblems()) == 0 })
		stop()

		fromPod.end()
		fromNode.end()
		packets, err := wire.Stop()
		must(t, err)
		seen, encrypted := inTheClear(packets)
		t.Logf("%d packets sent, %d came back; %d encrypted ones on the wire", fromPod.sent.Load()+fromNode.sent.Load(),
			fromPod.back.Load()+fromNode.back.Load(), encrypted)
		if len(seen) > 0 || encrypted == 0 {
			t.Errorf("%d packets are seen in the clear, %d encrypted: %v", len(seen), encrypted, seen[:min(len(seen), 10)])
		}

		// The removal of the remote removes all of it.
		run(t, cfg)
		b.program(t, noDevice("c2"))
		if left := ip(t, "route show table all proto 94") + ip(t, "rule show table 7394"); left != "" {
			t.Errorf("left: %s", left)
		}
		if removed, err := guard.RemoveTable(); err != nil || len(removed) > 0 {
			t.Errorf("left: %v, %v", removed, err)
		}
	})
}

// TestForwardingProblemsAreReported: settings that keep a node from forwarding are reported when they begin and end,
// and do not make the agent unready.
func TestForwardingProblemsAreReported(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		setting(t, "ipv4/ip_forward", "0")
		run(t, cfg, device)
		b.say(deviceOf("c2", 51820, "10.2.0.0/16", "fd00:2::/48"))
		tells := func(words ...string) func() bool {
			return func() bool {
				all := b.newest().GetProblems()
				for i, w := range words {
					if i >= len(all) || !strings.Contains(all[i], w) {
						return false
					}
				}
				return len(all) == len(words)
			}
		}
		eventually(t, "it is reported", tells("net.ipv4.ip_forward is 0", "net.ipv6.conf.all.forwarding is 0"))
		eventually(t, "ready all the same", ready)
		setting(t, "ipv4/ip_forward", "1")
		setting(t, "ipv6/conf/all/forwarding", "1")
		eventually(t, "nothing is reported any longer", tells())
		setting(t, "ipv4/conf/wireguard.c2/forwarding", "0")
		eventually(t, "it is reported", tells("ipv4/conf/wireguard.c2/forwarding"))
		setting(t, "ipv4/conf/wireguard.c2/forwarding", "1")
		ip(t, "link add other type veth peer name p1")
		ip(t, "link set other up")
		ip(t, "link set p1 up")
		setting(t, "ipv4/conf/wireguard.c2/rp_filter", "1")
		ip(t, "-6 route add fd00:2::/48 dev other metric 100 table 7394")
		ip(t, "route add 10.2.7.0/24 dev other table 7394")
		eventually(t, "they are reported",
			tells("rp_filter is strict on wireguard.c2", "route 10.2.7.0/24 (dev other proto boot)",
				"route fd00:2::/48 (dev other proto boot)"))
		ip(t, "link del other")
		eventually(t, "nothing is reported any longer", tells())
	})
}

// TestRouteTakenByAnother: the agent restores a route that another program replaced, but not endlessly. Routes of
// others in the main table have no effect on the agent's.
func TestRouteTakenByAnother(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, _, _, _ := connect(t)
		h := newHost(t)
		key := deviceOn(t, h, device).PublicKey
		reports := func(when string) {
			t.Helper()
			if r := b.reportOf("c2"); !bytes.Equal(r.GetPublicKey(), key[:]) || r.GetListenPort() != 51820 {
				t.Errorf("%s, the agent reports %v", when, r)
			}
			if !ready() {
				t.Errorf("%s, it is not ready", when)
			}
		}
		ip(t, "route add 10.2.0.0/16 via 192.0.2.2 proto bird")
		ip(t, "route add 10.2.1.0/26 via 192.0.2.2 proto bird")
		startTraffic(t).noneLost(t, "beside routes of another's in the main table")
		shows(t, `semaphore_agent_heals_total{cluster="c2",device="wireguard.c2"}`, "0")
		if routes := ip(t, "route show root 10.2.0.0/16"); strings.Count(routes, "proto bird") != 2 ||
			strings.Count(routes, "\n") != 2 {
			t.Errorf("the main table has %q", routes)
		}

		ours := func() bool {
			d, err := h.Device(device)
			return err == nil && d != nil && len(d.Routes) == 1
		}
		show := func() string { return ip(t, "route show 10.2.0.0/16 type unicast table 7394") }
		for i := range 3 {
			ip(t, "route replace 10.2.0.0/16 via 192.0.2.2 table 7394")
			withinASecond(t, fmt.Sprintf("%d: our route is back", i+1), ours)
			eventually(t, fmt.Sprintf("%d: packets pass again", i+1), reachable)
			if routes := show(); strings.Contains(routes, "via") {
				t.Errorf("another's route is beside it: %s", routes)
			}
		}
		ip(t, "route replace 10.2.0.0/16 via 192.0.2.2 table 7394")
		eventually(t, "it is reported, and not fought", func() bool {
			return strings.Contains(b.reportOf("c2").GetProblem(),
				"route 10.2.0.0/16 of table 7394: another program has a route there (via 192.0.2.2 dev eth0 proto boot)")
		})
		reports("with a route of another's in the place of ours")
		for range 20 {
			if routes := show(); !strings.Contains(routes, "via 192.0.2.2") {
				t.Fatalf("another's route is fought: %q", routes)
			}
			time.Sleep(100 * time.Millisecond)
		}
		ip(t, "route del 10.2.0.0/16 via 192.0.2.2 table 7394")
		eventually(t, "our route is back once the other's has gone", ours)
	})
}

// TestConfiguredSource: an address that the operator configures is used if the node has it, and reported if not.
func TestConfiguredSource(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		cfg.RouteSource = "10.1.1.7"
		setting(t, "ipv4/ip_forward", "1")
		run(t, cfg, device)
		b.say(deviceOf("c2", 51820, "10.2.0.0/16"))
		eventually(t, "it is reported", func() bool {
			return strings.Contains(strings.Join(b.newest().GetProblems(), ""),
				"routeSource 10.1.1.7 is no address of this node")
		})
		ip(t, "addr add 10.1.1.7/32 dev lo")
		// Not by its number: ip fails if the table does not exist yet.
		eventually(t, "the route has it",
			func() bool { return strings.Contains(ip(t, "route show 10.2.0.0/16 table all"), "src 10.1.1.7") })
		eventually(t, "nothing is reported any longer", func() bool { return len(b.newest().GetProblems()) == 0 })
	})
}
