package agent

import (
	"bytes"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/capture"
)

func guarding(clusters ...string) *semaphorev1.Guard {
	m := &semaphorev1.Guard{}
	for _, c := range clusters {
		m.Remotes = append(m.Remotes,
			&semaphorev1.GuardedRemote{Cluster: c, PodSubnets: []string{"10." + strings.TrimPrefix(c, "c") + ".0.0/16"}})
	}
	return m
}

// leaks sends packets to a remote pod, as a pod and as the node itself, and returns those that appeared on the wire in
// the clear.
func leaks(t *testing.T, r *remote, from ...*net.UDPConn) []string {
	t.Helper()
	wire, err := capture.Start(r.Namespace, "eth0")
	must(t, err)
	for range 10 {
		for _, c := range from {
			_, _ = c.Write([]byte("ping"))
		}
		time.Sleep(5 * time.Millisecond)
	}
	time.Sleep(nodetest.Patience(100 * time.Millisecond))
	packets, err := wire.Stop()
	must(t, err)
	seen, _ := inTheClear(packets)
	return seen
}

// noLeaks checks that no packet appears on the wire in the clear.
func noLeaks(t *testing.T, r *remote, from []*net.UDPConn, when string) {
	t.Helper()
	if seen := leaks(t, r, from...); len(seen) > 0 {
		t.Errorf("%s: %d packets in the clear: %v", when, len(seen), seen)
	}
}

// leaky returns a node with a default route, by which packets to remote pods leave unless something stops them, and two
// sockets that send such packets: a pod's and the node's own.
func leaky(t *testing.T) (r *remote, from []*net.UDPConn) {
	t.Helper()
	r = newRemote(t)
	ip(t, "route add default via 192.0.2.2")
	to := &net.UDPAddr{IP: net.IPv4(10, 2, 1, 1), Port: 7}
	pod := newPod(t)
	var forwarded *net.UDPConn
	must(t, pod.Do(func() (err error) { forwarded, err = net.DialUDP("udp", nil, to); return err }))
	own := toPod(t, "10.2.1.1")
	t.Cleanup(func() { forwarded.Close(); own.Close() })
	from = []*net.UDPConn{forwarded, own}
	// The pod and the node must have resolved their neighbours, which takes another second if the first request was
	// lost.
	eventually(t, "without an agent all packets are seen in the clear, or what follows proves nothing",
		func() bool { return len(leaks(t, r, from...)) >= 20 })
	return r, from
}

// TestConfiguredRemoteIsGuardedAtOnce: a node has just joined, and a remote is configured but not complete. The broker
// names its subnets, and no clear packet passes from before the agent is ready. The guard releases a remote that is no
// longer configured.
func TestConfiguredRemoteIsGuardedAtOnce(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t)
		b.guard = guarding("c2", "c3")
		r, from := leaky(t)
		stop := run(t, cfg)
		eventually(t, "ready", ready)
		noLeaks(t, r, from, "ready")
		eventually(t, "the agent has reported it", b.guarded)
		for _, subnet := range []string{"10.2.0.0/16", "10.3.0.0/16"} {
			if routes := ip(t, "route show "+subnet+" table 7394"); !strings.Contains(routes, "unreachable") {
				t.Errorf("%s: %q", subnet, routes)
			}
		}
		if b.reportOf("c2") != nil {
			t.Errorf("a configured remote is reported as an orphan: %v", b.reportOf("c2"))
		}

		// Without a broker, a restarted agent guards the same, from its state file.
		b.stop()
		stop()
		unguard(t)
		eventually(t, "without a guard all packets are seen in the clear",
			func() bool { return len(leaks(t, r, from...)) >= 20 })
		run(t, cfg)
		eventually(t, "the agent answers", func() bool { code, _ := fetch("healthz"); return code == 200 })
		noLeaks(t, r, from, "after a restart without a broker")
		// c3 is no longer configured.
		b.mu.Lock()
		b.guard = guarding("c2")
		b.mu.Unlock()
		b.restart(t, "B")
		eventually(t, "the other remote is reported as one that no configuration names",
			func() bool { return b.reportOf("c3").GetProblem() == onlyGuard })
		b.say(noDevice("c3"))
		eventually(t, "its guard has gone",
			func() bool { return !strings.Contains(ip(t, "route show table 7394"), "10.3.0.0/16") })
		eventually(t, "the agent has reported it", b.guarded)
		noLeaks(t, r, from, "c3 is no longer configured")
	})
}

// TestForeignInterfaceOfTheDevicesName: another program's interface has the device's name. No packet leaves by it, or
// by another way.
func TestForeignInterfaceOfTheDevicesName(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		r, from := leaky(t)
		ip(t, "link add "+device+" type veth peer name p0")
		setting(t, "ipv6/conf/"+device+"/disable_ipv6", "1") // IPv6 would send neighbour and router discovery
		ip(t, "link set "+device+" up")
		ip(t, "link set p0 up")
		run(t, cfg, device)
		b.say(deviceOf("c2", 51820, "10.2.0.0/16"))
		eventually(t, "it is reported", func() bool { return b.reportOf("c2").GetProblem() != "" })
		noLeaks(t, r, from, "another program's interface has the device's name")
		// Not even if a route leads into it.
		ip(t, "route add 10.2.1.0/24 dev "+device)
		ip(t, "neigh add 10.2.1.1 lladdr 02:00:00:00:00:01 dev "+device)
		before := sentBy(t, device)
		for _, c := range from {
			_, _ = c.Write([]byte("ping"))
		}
		time.Sleep(50 * time.Millisecond)
		if after := sentBy(t, device); after != before {
			t.Errorf("%d packets have left by someone else's interface", after-before)
		}
		ip(t, "link del "+device)
		eventually(t, "the device is made once the other has gone", b.done)
		r.pair(t, b.reportOf("c2").GetPublicKey())
		b.say(r.peer())
		eventually(t, "the remote pod can be reached", reachable)
	})
}

func sentBy(t *testing.T, link string) uint64 {
	t.Helper()
	l, err := netlink.LinkByName(link)
	must(t, err)
	return l.Attrs().Statistics.TxPackets
}

// TestGuardAtBoot: the node boots, with nothing of an earlier agent but its state file, and no agent runs yet. The
// unit's command guards everything that was guarded; the agent that starts later continues from there.
func TestGuardAtBoot(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		b.guard = guarding("c2", "c3")
		r, from := leaky(t)
		var out bytes.Buffer
		must(t, GuardAtBoot(&out, cfg))
		if !strings.Contains(out.String(), "no state") {
			t.Errorf("without a file it says %q", out.String())
		}
		stop := run(t, cfg)
		b.program(t, deviceOf("c2", 51820, "10.2.0.0/16"))
		eventually(t, "all is guarded", b.guarded)
		stop()
		h := newHost(t)
		must(t, h.Delete(device))
		unguard(t)
		eventually(t, "after a boot all packets are seen in the clear, or what follows proves nothing",
			func() bool { return len(leaks(t, r, from...)) >= 20 })
		out.Reset()
		must(t, GuardAtBoot(&out, cfg))
		for _, line := range []string{"c2: 10.2.0.0/16", "c3: 10.3.0.0/16"} {
			if !strings.Contains(out.String(), line) {
				t.Errorf("it says %q", out.String())
			}
		}
		noLeaks(t, r, from, "the node has booted, and no agent runs")
		run(t, cfg, device)
		eventually(t, "all is programmed", b.done)
		r.pair(t, b.reportOf("c2").GetPublicKey())
		b.say(r.peer())
		eventually(t, "the remote pod can be reached", reachable)
		noLeaks(t, r, from, "the agent runs")

		// A damaged file is an error: the unit fails with a message.
		must(t, os.WriteFile(cfg.StateFile, []byte("damaged"), 0o600))
		if err := GuardAtBoot(&out, cfg); err == nil || !strings.Contains(err.Error(), cfg.StateFile) {
			t.Errorf("a damaged file: %v", err)
		}
	})
}
