package agent

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// TestF29ListenPortIsTaken (F29): a listen port that another program uses is reported, delays no other device, removes
// nothing that exists, and is set once it is free.
func TestF29ListenPortIsTaken(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		removeAtEnd(t, "wireguard.c3", "wireguard.c4")
		b, _, _, _ := connect(t)
		b.mu.Lock()
		b.clusters = []string{"c2", "c3"}
		b.mu.Unlock()
		h := newHost(t)
		taken, err := net.ListenPacket("udp", ":51900")
		must(t, err)
		t.Cleanup(func() { taken.Close() })

		// One existing device gets this port, a new one is created with it, and a third one does not use it.
		b.say(
			deviceOf("c2", 51900, "10.2.0.0/16"),
			deviceOf("c3", 51900, "10.3.0.0/16"), peerOf("c3", "n1", publicKey(1), "192.0.2.9:51820", "10.3.1.0/24"),
			deviceOf("c4", 51904, "10.4.0.0/16"), peerOf("c4", "n1", publicKey(2), "192.0.2.9:51820", "10.4.1.0/24"),
		)
		for _, cluster := range []string{"c2", "c3"} {
			eventually(t, "the port is reported of "+cluster, func() bool {
				return strings.Contains(b.reportOf(cluster).GetProblem(), "listen port")
			})
			t.Log(b.reportOf(cluster).GetProblem())
		}
		eventually(t, "the other device is set", func() bool { return b.reportOf("c4").GetPeers() == 1 })
		if port := b.reportOf("c3").GetListenPort(); port != 0 {
			t.Errorf("a port that it does not have is reported: %d", port)
		}
		time.Sleep(nodetest.Patience(2 * plan.MinRetry)) // both devices are retried and read
		if port := b.reportOf("c3").GetListenPort(); port != 0 {
			t.Errorf("a port that it does not have is reported after another try: %d", port)
		}
		if d := deviceOn(t, h, device); d.ListenPort != 51820 || len(d.Peers) != 1 ||
			b.reportOf("c2").GetListenPort() != 51820 {
			t.Errorf("the existing device has port %d, %d peers; the report port %d", d.ListenPort, len(d.Peers),
				b.reportOf("c2").GetListenPort())
		}
		eventually(t, "the remote pod can be reached still", reachable)
		if b.done() {
			t.Error("it reports all as applied")
		}

		b.say(deviceOf("c2", 51820, "10.2.0.0/16"))
		must(t, taken.Close())
		took := eventually(t, "all is programmed", b.done)
		t.Logf("done %s after the port is free", took)
		if d := deviceOn(t, h, "wireguard.c3"); d.ListenPort != 51900 || !d.Up || len(d.Peers) != 1 || len(d.Routes) != 1 {
			t.Errorf("%+v", d)
		}
		if p := b.reportOf("c2").GetProblem() + b.reportOf("c3").GetProblem(); p != "" {
			t.Errorf("still reported: %s", p)
		}
	})
}

// TestNoIPv6: on a node without IPv6, routes that need it are reported, and the rest is programmed and guarded, also
// of a remote that has pods with IPv6 and no node that is known. Where the kernel has IPv6, settings turn it off; make
// test-kernel also boots a machine without it.
func TestNoIPv6(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		for _, where := range []string{"all", "default"} {
			err := os.WriteFile("/proc/sys/net/ipv6/conf/"+where+"/disable_ipv6", []byte("1"), 0)
			if kernel.LacksIPv6() == (err == nil) {
				t.Fatalf("the kernel lacks IPv6: %v; its setting: %v", kernel.LacksIPv6(), err)
			}
		}
		b, cfg := newBroker(t, "c2")
		both := []string{"10.2.0.0/16", "fd00:2::/48"}
		b.guard = &semaphorev1.Guard{Remotes: []*semaphorev1.GuardedRemote{{Cluster: "c2", PodSubnets: both},
			{Cluster: "c3", PodSubnets: []string{"10.3.0.0/16", "fd00:3::/48"}}}}
		r := newRemote(t)
		run(t, cfg, device)
		// From the start, so that no node has this node's key yet.
		b.program(t, deviceOf("c2", 51820, both...),
			peerOf("c2", "n1", r.key.PublicKey(), "192.0.2.2:51820", "10.2.1.0/24", "fd00:2:0:1::/64"))
		d, got := deviceOn(t, newHost(t), device), b.reportOf("c2")
		if !bytes.Equal(got.GetPublicKey(), d.PublicKey[:]) || got.GetListenPort() != 51820 {
			t.Errorf("the agent reports %v", got)
		}
		if !strings.Contains(got.GetProblem(), "fd00:2::/48") {
			t.Errorf("the problem is %q", got.GetProblem())
		}
		if !d.Up || len(d.Routes) != 1 || len(d.Peers) != 1 {
			t.Errorf("%+v", d)
		}
		r.pair(t, got.GetPublicKey())
		eventually(t, "the remote pod can be reached", reachable)
		if code, page := fetch("readyz"); code != http.StatusOK || !strings.Contains(page, "fd00:2::/48") {
			t.Errorf("readyz: %d %s", code, page)
		}
		// An operation that is known to fail is not retried at each check, or counted as a heal.
		const syncs = `semaphore_wg_sync_peers_total{cluster="c2",device="wireguard.c2",success="1"}`
		before := number(t, syncs)
		time.Sleep(3 * time.Second)
		if after := number(t, syncs); after > before+3 {
			t.Errorf("the device was set %v times in 3 s", after-before)
		}
		shows(t, `semaphore_agent_heals_total{cluster="c2",device="wireguard.c2"}`, "0")
		eventually(t, "the remotes are guarded", b.guarded)
		if _, page := fetch("readyz?verbose"); strings.Contains(page, "Unguarded") {
			t.Errorf("readyz: %s", page)
		}
		// Nor does the end of a remote need what the kernel lacks.
		b.change(func() { b.guard = &semaphorev1.Guard{Remotes: b.guard.GetRemotes()[:1]} })
		b.restart(t, "B")
		b.program(t, noDevice("c3"))
		eventually(t, "the guard of c3 is gone",
			func() bool { return !strings.Contains(ip(t, "route show table all"), "10.3.0.0") })
		if _, page := fetch("readyz?verbose"); strings.Contains(page, "Unguarded") {
			t.Errorf("readyz: %s", page)
		}
	})
}

// TestADeviceThatIsNotUp: whatever step of setting a device the kernel refuses, the broker accepts the node's report.
func TestADeviceThatIsNotUp(t *testing.T) {
	for _, step := range []string{"Configure", "LoosenFilter", "SetLink"} {
		t.Run(step, func(t *testing.T) {
			policy(t, func(t *testing.T, s *scripted) { // which gives each report to a broker
				s.kernel.Fail(step, unix.EADDRINUSE)
				changes := remoteC2("n1")
				changes[0].GetDevice().Permissive = true
				s.attach(t, changes...)
				s.after(5 * time.Second)
				if devices := s.report.GetDevices(); len(devices) != 1 || devices[0].GetProblem() == "" {
					t.Errorf("the report has %v", devices)
				}
			})
		})
	}
}
