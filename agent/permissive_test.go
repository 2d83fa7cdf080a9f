package agent

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/capture"
)

// permissiveDevice is deviceOf for a permissive remote, or for the same remote when it is strict, without a keepalive.
func permissiveDevice(permissive bool) *semaphorev1.PeeringChange {
	change := withoutKeepalive()
	change.GetDevice().Permissive = permissive
	return change
}

// clearDevice is permissiveDevice for a remote to which nothing is sent through the tunnel.
func clearDevice() *semaphorev1.PeeringChange {
	change := permissiveDevice(true)
	change.GetDevice().Clear = true
	return change
}

// passed returns the number of clear packets that passed, both ways; -1 if the remote is not permissive.
func passed(t *testing.T) int {
	t.Helper()
	sum := 0
	for _, direction := range []string{"out", "in"} {
		text := metric(t,
			`semaphore_agent_clear_passed_packets_total{cluster="c2",device="wireguard.c2",direction="`+direction+`"}`)
		if text == "" {
			return -1
		}
		n, err := strconv.ParseFloat(text, 64)
		must(t, err)
		sum += int(n)
	}
	return sum
}

// inClear creates a remote node that exchanges clear packets with this one; both forward.
func inClear(t *testing.T) (*remote, *net.UDPConn) {
	t.Helper()
	// New interfaces have a strict reverse path filter, as the default of some distributions.
	setting(t, "ipv4/conf/default/rp_filter", "1")
	setting(t, "ipv4/conf/all/rp_filter", "0")
	r := newRemote(t)
	setting(t, "ipv4/conf/eth0/rp_filter", "0")
	must(t, r.Do(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("0"), 0),
			os.WriteFile("/proc/sys/net/ipv4/conf/eth0/rp_filter", []byte("0"), 0))
	}))
	must(t, r.Do(func() error { return r.host.DeleteRoute(remoteDevice, netip.MustParsePrefix("10.1.0.0/16")) }))
	ip(t, "-n remote route add 10.1.0.0/16 via 192.0.2.1")
	ip(t, "route add default via 192.0.2.2")
	pod := newPod(t)
	var c *net.UDPConn
	must(t, pod.Do(func() (err error) {
		c, err = net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(10, 2, 1, 1), Port: 7})
		return err
	}))
	return r, c
}

// route has the remote node send packets for this node's pods through the tunnel, or no longer.
func (r *remote) route(t *testing.T, on bool) {
	t.Helper()
	must(t, r.Do(func() error {
		if subnet := netip.MustParsePrefix("10.1.1.0/24"); on {
			return r.host.AddRoute(remoteDevice, subnet, netip.Addr{})
		} else {
			return r.host.DeleteRoute(remoteDevice, subnet)
		}
	}))
}

// TestTurningEncryptionOn: two clusters with clear traffic turn encryption on, step by step, in any order, and off
// again. Every request of a pod is answered, and no agent restarts.
func TestTurningEncryptionOn(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		b.guard = guarding("c2")
		b.guard.Remotes[0].Permissive = true
		r, c := inClear(t)
		v := converse(c, 5*time.Millisecond)
		fine := func(step string, wait time.Duration) {
			t.Helper()
			from := v.sent.Load()
			time.Sleep(wait)
			// A busy machine sends fewer requests in that time.
			eventually(t, step+": questions are asked",
				func() bool { return v.sent.Load()-from >= int64(wait/(5*time.Millisecond)) })
			if lost := v.unanswered(); lost > 0 {
				t.Fatalf("%s: %d of %d questions were not answered", step, lost, v.sent.Load())
			}
		}
		fine("before there is an agent", 1200*time.Millisecond)

		run(t, cfg, device)
		eventually(t, "ready", ready)
		fine("the remote is configured, and not known", 1200*time.Millisecond)
		clear := passed(t)
		if clear < 100 {
			t.Errorf("%d packets counted in the clear", clear)
		}
		if routes := ip(t, "route show table all"); strings.Contains(routes, "unreachable 10.2") {
			t.Errorf("a permissive remote is refused: %s", routes)
		}
		// This node has a tunnel to the other one, which does not know its key yet, and would decrypt nothing.
		b.program(t, permissiveDevice(true), r.peer())
		fine("the other node does not know the key", 6500*time.Millisecond)
		if n := passed(t); n < clear+1000 {
			t.Errorf("%d packets counted in the clear, after %d", n, clear)
		}
		// The other node learns the key, and still answers in the clear.
		h := newHost(t)
		r.pair(t, b.reportOf("c2").GetPublicKey())
		eventually(t, "packets go through the tunnel", func() bool { return len(deviceOn(t, h, device).Routes) == 1 })
		if d := deviceOn(t, h, device); d.Routes[0].String() != "10.2.1.0/24" {
			t.Errorf("routes %v; want the peer's prefix alone", d.Routes)
		}
		fine("the other node answers in the clear", 1500*time.Millisecond)
		// Now it sends through the tunnel, too.
		r.route(t, true)
		fine("both send through the tunnel", 1500*time.Millisecond)
		clear = passed(t)
		wire, err := capture.Start(r.Namespace, "eth0")
		must(t, err)
		fine("both send through the tunnel", 1500*time.Millisecond)
		packets, err := wire.Stop()
		must(t, err)
		if seen, encrypted := inTheClear(packets); len(seen) > 0 || encrypted < 100 {
			t.Errorf("%d packets in the clear, %d encrypted: %v", len(seen), encrypted, seen[:min(len(seen), 5)])
		}
		if n := passed(t); n != clear {
			t.Errorf("%d packets counted in the clear, and %d before", n, clear)
		}
		if d := b.reportOf("c2"); !d.GetPermissive() {
			t.Errorf("%v", d)
		}
		attached := len(b.hellos)
		for range 2 {
			// No clear packets pass any more, so the operator switches to strict.
			b.program(t, permissiveDevice(false))
			fine("strict", 1500*time.Millisecond)
			if n := passed(t); n != -1 {
				t.Errorf("strict, and %d packets are counted as passed", n)
			}
			if routes := deviceOn(t, h, device).Routes; len(routes) != 1 || routes[0].String() != "10.2.0.0/16" {
				t.Errorf("strict: routes %v", routes)
			}
			b.program(t, permissiveDevice(true))
			fine("permissive again", 1500*time.Millisecond)
			if routes := deviceOn(t, h, device).Routes; len(routes) != 1 || routes[0].String() != "10.2.1.0/24" {
				t.Errorf("permissive: routes %v", routes)
			}
			if n := passed(t); n != 0 {
				t.Errorf("permissive again, and %d packets in the clear", n)
			}
		}
		// The operator turns encryption off, here first: this node still decrypts what the other one encrypts. Then on
		// again.
		b.program(t, clearDevice())
		if d := deviceOn(t, h, device); len(d.Routes) != 0 || len(d.Peers) != 1 {
			t.Errorf("clear: routes %v, %d peers", d.Routes, len(d.Peers))
		}
		fine("clear, and the other node sends through the tunnel", 1500*time.Millisecond)
		if n := passed(t); n < 100 {
			t.Errorf("clear, and %d packets are counted as passed", n)
		}
		r.route(t, false)
		fine("both are clear", 1500*time.Millisecond)
		r.route(t, true)
		b.say(permissiveDevice(true))
		eventually(t, "packets go through the tunnel again", func() bool { return len(deviceOn(t, h, device).Routes) == 1 })
		fine("permissive after clear", 1500*time.Millisecond)
		// The other node rotates its key: packets of this node wait for the handshake, and are not sent in the clear.
		key, err := wgtypes.GeneratePrivateKey()
		must(t, err)
		must(t, r.Do(func() error { return r.host.Configure(remoteDevice, wgtypes.Config{PrivateKey: &key}) }))
		// This is the time until this end knows the key: handshakes that both ends begin at the same time cross, and
		// cost packets.
		time.Sleep(nodetest.Patience(100 * time.Millisecond))
		b.program(t, peerOf("c2", "n1", key.PublicKey(), "192.0.2.2:51820", "10.2.1.0/24"))
		if routes := deviceOn(t, h, device).Routes; len(routes) != 1 {
			t.Errorf("a new key: routes %v", routes)
		}
		// Packets that wait for the handshake are lost with the peer, so the peer must stay until the handshake is
		// done.
		eventually(t, "a session with the new key", func() bool {
			d := deviceOn(t, h, device)
			return len(d.Peers) == 1 && d.Peers[0].LastHandshakeTime.Unix() > 0
		})
		fine("a new key", time.Second)
		// Now in reverse: the other node first removes this node's key, as when its cluster no longer publishes it.
		r.route(t, false)
		b.program(t, noPeer("c2", "n1"))
		fine("the peer is gone", 1500*time.Millisecond)
		if routes := deviceOn(t, h, device).Routes; len(routes) != 0 {
			t.Errorf("no peer: routes %v", routes)
		}
		if len(b.hellos) != attached {
			t.Error("the agent attached again")
		}
		v.noneLost(t, "in all of this")
		shows(t, `semaphore_agent_heals_total{cluster="c2",device="wireguard.c2"}`, "0")
	})
}

// TestPermissiveWithALooseFilter: the other end sends through the tunnel as soon as it exists, before this node does.
// With a loose filter on all interfaces, as Calico's documentation requires, packets out of the tunnel are not dropped
// meanwhile.
func TestPermissiveWithALooseFilter(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		b.guard = guarding("c2")
		b.guard.Remotes[0].Permissive = true
		r, c := inClear(t)
		setting(t, "ipv4/conf/all/rp_filter", "2")
		v := converse(c, 5*time.Millisecond)
		run(t, cfg, device)
		b.program(t, permissiveDevice(true), r.peer())
		// Both at once: the other end's packets wait for the handshake, and arrive right after it.
		r.pair(t, b.reportOf("c2").GetPublicKey())
		r.route(t, true)
		h := newHost(t)
		eventually(t, "packets go through the tunnel", func() bool { return len(deviceOn(t, h, device).Routes) == 1 })
		v.noneLost(t, "on the way into the tunnel")
	})
}

// TestPermissiveWithAStrictFilter: if a strict filter would drop the other end's clear packets, this node sends in the
// clear, and reports the filter, until the filter is loose.
func TestPermissiveWithAStrictFilter(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		r, c := inClear(t)
		setting(t, "ipv4/conf/eth0/rp_filter", "1")
		v := converse(c, 5*time.Millisecond)
		run(t, cfg, device)
		b.program(t, permissiveDevice(true), r.peer())
		r.pair(t, b.reportOf("c2").GetPublicKey())
		h := newHost(t)
		eventually(t, "there is a session",
			func() bool { return deviceOn(t, h, device).Peers[0].LastHandshakeTime.Unix() > 0 })
		eventually(t, "it is reported",
			func() bool { return strings.Contains(b.reportOf("c2").GetProblem(), "rp_filter is strict on eth0") })
		// Another program, such as systemd-sysctl at udev's event of the new device, makes the device's filter strict.
		filter := "ipv4/conf/" + device + "/rp_filter"
		setting(t, filter, "1")
		withinASecond(t, "the device's filter is loose", func() bool { return read(t, "/proc/sys/net/"+filter) != "1\n" })
		// The other end now sends through the tunnel. Its packets arrive by another way than this node's leave; they
		// are not dropped because the device's filter is loose.
		r.route(t, true)
		time.Sleep(2 * time.Second)
		if lost := v.unanswered(); lost > 0 {
			t.Errorf("%d of %d questions were not answered by way of the tunnel", lost, v.sent.Load())
		}
		if routes := deviceOn(t, h, device).Routes; len(routes) != 0 {
			t.Errorf("routes %v", routes)
		}
		if !ready() {
			t.Error("not ready")
		}
		setting(t, "ipv4/conf/eth0/rp_filter", "2")
		eventually(t, "packets go through the tunnel", func() bool { return len(deviceOn(t, h, device).Routes) == 1 })
		time.Sleep(1200 * time.Millisecond)
		v.noneLost(t, "on the way into the tunnel")
	})
}

// TestPermissiveFallsBack: the other end removed its tunnel without notice. Packets go in the clear again, and through
// the tunnel once it is back.
func TestPermissiveFallsBack(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		r, c := inClear(t)
		v := converse(c, 5*time.Millisecond)
		run(t, cfg, device)
		b.program(t, permissiveDevice(true), r.peer())
		key := bytes.Clone(b.reportOf("c2").GetPublicKey())
		r.pair(t, key)
		h := newHost(t)
		routed := func(n int) func() bool { return func() bool { return len(deviceOn(t, h, device).Routes) == n } }
		eventually(t, "packets go through the tunnel", routed(1))
		must(t, r.Do(func() error { return r.host.Configure(remoteDevice, wgtypes.Config{ReplacePeers: true}) }))
		begin := time.Now()
		for !routed(0)() {
			if time.Since(begin) > nodetest.Patience(90*time.Second) {
				t.Fatal("after 90 s packets still go into a tunnel that the other end has not got")
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("in the clear again after %s", time.Since(begin))
		overdue := func() (lost, sent int) {
			return v.overdue(time.Now().Add(-nodetest.Patience(time.Second))), int(v.sent.Load())
		}
		lost, sent := overdue()
		time.Sleep(nodetest.Patience(3 * time.Second))
		if now, asked := overdue(); now-lost > (asked-sent)/2 {
			t.Errorf("%d more of %d questions were not answered in the clear", now-lost, asked-sent)
		}
		r.pair(t, key)
		eventually(t, "packets go through the tunnel again", routed(1))
		v.patience = 0 // for those that were lost
		v.end()
	})
}
