package agent

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
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
		text := metric(
			t,
			`semaphore_agent_clear_passed_packets_total{cluster="c2",device="wireguard.c2",direction="`+direction+`"}`,
		)
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

// conversation is a pod that sends 200 requests a second to the remote one, and counts the answers.
type conversation struct {
	c    *net.UDPConn
	mu   sync.Mutex
	open map[int]time.Time
	sent int
	// last is when the last one was sent. writtenOff is the number of unanswered ones that do not count as in flight.
	last       time.Time
	writtenOff int
	stop       chan struct{}
	done       sync.WaitGroup
}

func converse(c *net.UDPConn) *conversation {
	v := &conversation{c: c, open: map[int]time.Time{}, stop: make(chan struct{})}
	v.done.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-v.stop:
				return
			case now := <-tick.C:
				v.mu.Lock()
				if !v.mayBeMore() {
					v.mu.Unlock()
					continue
				}
				v.sent++
				v.open[v.sent] = now
				n := v.sent
				v.mu.Unlock()
				_, _ = c.Write([]byte(strconv.Itoa(n)))
			}
		}
	})
	v.done.Go(func() {
		for buffer := make([]byte, 100); ; {
			n, err := c.Read(buffer)
			if err != nil {
				if strings.Contains(err.Error(), net.ErrClosed.Error()) {
					return
				}
				time.Sleep(time.Millisecond)
				continue
			}
			if i, err := strconv.Atoi(string(buffer[:n])); err == nil {
				v.mu.Lock()
				delete(v.open, i)
				v.mu.Unlock()
			}
		}
	})
	return v
}

// mayBeMore is that of requests: the number in flight is so small that all queues have room for the next one.
func (v *conversation) mayBeMore() bool {
	const most = 100
	if v.writtenOff = min(v.writtenOff, len(v.open)); len(v.open)-v.writtenOff < most {
		v.last = time.Now()
		return true
	}
	if time.Since(v.last) > nodetest.Patience(time.Second) {
		v.writtenOff = len(v.open)
	}
	return false
}

// asked returns the number of requests so far.
func (v *conversation) asked() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.sent
}

// lost returns the number of requests that are unanswered for more than a second, or for ten on a machine that is ten
// times slower.
func (v *conversation) lost() (lost, sent int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, at := range v.open {
		if time.Since(at) > nodetest.Patience(time.Second) {
			lost++
		}
	}
	return lost, v.sent
}

// unanswered returns the requests that lost counts now and that remain unanswered: on a busy machine some answers are
// late.
func (v *conversation) unanswered() (lost, sent int) {
	lost, sent = v.lost()
	before := time.Now().Add(-nodetest.Patience(time.Second))
	for begin := time.Now(); lost > 0 &&
		time.Since(begin) < nodetest.Patience(15*time.Second); time.Sleep(20 * time.Millisecond) {
		lost = 0
		v.mu.Lock()
		for _, at := range v.open {
			if at.Before(before) {
				lost++
			}
		}
		v.mu.Unlock()
	}
	return lost, sent
}

func (v *conversation) end() (lost, sent int) {
	close(v.stop)
	time.Sleep(nodetest.Patience(1500 * time.Millisecond))
	lost, sent = v.unanswered()
	v.c.Close()
	v.done.Wait()
	return lost, sent
}

// TestTurningEncryptionOn: two clusters with clear traffic turn encryption on, step by step, in any order, and off
// again. Every request of a pod is answered, and no agent restarts.
func TestTurningEncryptionOn(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		b.guard = guarding("c2")
		b.guard.Remotes[0].Permissive = true
		r, c := inClear(t)
		v := converse(c)
		fine := func(step string, wait time.Duration) {
			t.Helper()
			from := v.asked()
			time.Sleep(wait)
			// A busy machine sends fewer requests in that time.
			eventually(t, step+": questions are asked", func() bool { return v.asked()-from >= int(wait/(5*time.Millisecond)) })
			if lost, sent := v.unanswered(); lost > 0 {
				t.Fatalf("%s: %d of %d questions were not answered", step, lost, sent)
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
		lost, sent := v.end()
		t.Logf("%d of %d questions were not answered", lost, sent)
		if lost > 0 {
			t.Errorf("%d of %d questions were not answered", lost, sent)
		}
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
		v := converse(c)
		run(t, cfg, device)
		b.program(t, permissiveDevice(true), r.peer())
		// Both at once: the other end's packets wait for the handshake, and arrive right after it.
		r.pair(t, b.reportOf("c2").GetPublicKey())
		r.route(t, true)
		h := newHost(t)
		eventually(t, "packets go through the tunnel", func() bool { return len(deviceOn(t, h, device).Routes) == 1 })
		if lost, sent := v.end(); lost > 0 {
			t.Errorf("%d of %d questions were not answered", lost, sent)
		}
	})
}

// TestPermissiveWithAStrictFilter: if a strict filter would drop the other end's clear packets, this node sends in the
// clear, and reports the filter, until the filter is loose.
func TestPermissiveWithAStrictFilter(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		r, c := inClear(t)
		setting(t, "ipv4/conf/eth0/rp_filter", "1")
		v := converse(c)
		run(t, cfg, device)
		b.program(t, permissiveDevice(true), r.peer())
		r.pair(t, b.reportOf("c2").GetPublicKey())
		h := newHost(t)
		eventually(t, "there is a session",
			func() bool { return deviceOn(t, h, device).Peers[0].LastHandshakeTime.Unix() > 0 })
		eventually(t, "it is reported",
			func() bool { return strings.Contains(b.reportOf("c2").GetProblem(), "rp_filter is strict on eth0") })
		// The other end now sends through the tunnel. Its packets arrive by another way than this node's leave; they
		// are not dropped because the device's filter is loose.
		r.route(t, true)
		time.Sleep(2 * time.Second)
		if lost, sent := v.unanswered(); lost > 0 {
			t.Errorf("%d of %d questions were not answered by way of the tunnel", lost, sent)
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
		if lost, sent := v.end(); lost > 0 {
			t.Errorf("%d of %d questions were not answered", lost, sent)
		}
	})
}

// TestPermissiveFallsBack: the other end removed its tunnel without notice. Packets go in the clear again, and through
// the tunnel once it is back.
func TestPermissiveFallsBack(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		r, c := inClear(t)
		v := converse(c)
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
		lost, sent := v.lost()
		time.Sleep(nodetest.Patience(3 * time.Second))
		if now, asked := v.lost(); now-lost > (asked-sent)/2 {
			t.Errorf("%d more of %d questions were not answered in the clear", now-lost, asked-sent)
		}
		r.pair(t, key)
		eventually(t, "packets go through the tunnel again", routed(1))
		v.end()
	})
}
