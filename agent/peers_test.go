package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// shown returns one line for each peer of a device: key, endpoint and allowed IPs, by the node's number.
func shown(d *kernel.Device) []string {
	var out []string
	for _, p := range d.Peers {
		ips := []string{}
		for _, ip := range p.AllowedIPs {
			ips = append(ips, ip.String())
		}
		slices.Sort(ips)
		out = append(out, fmt.Sprintf("%s %s %s %s", p.PublicKey, p.Endpoint, p.PersistentKeepaliveInterval,
			strings.Join(ips, ",")))
	}
	slices.Sort(out)
	return out
}

// TestPeersAreHealed: changes of peers or the port by another program, which WireGuard does not report, are healed
// within a second, with a thousand peers.
func TestPeersAreHealed(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, _, r, _ := connect(t)
		b.program(t, others(1000)...)
		h := newHost(t)
		want := shown(deviceOn(t, h, device))
		_, other, _ := net.ParseCIDR("10.79.200.0/24")
		port := 40000
		right := func() bool {
			time.Sleep(20 * time.Millisecond) // reading a thousand peers takes some of it
			d, err := h.Device(device)
			return err == nil && d != nil && d.ListenPort == 51820 && slices.Equal(shown(d), want)
		}
		for _, c := range []struct {
			name  string
			harm  wgtypes.Config
			roams bool
		}{
			{"a peer that was removed", wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: publicKey(3), Remove: true}}},
				false},
			{"a peer that was added",
				wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: publicKey(1000), AllowedIPs: []net.IPNet{*other}}}},
				false},
			{"a prefix that was given to another", wgtypes.Config{Peers: []wgtypes.PeerConfig{{
				PublicKey: publicKey(1), AllowedIPs: []net.IPNet{{IP: net.IPv4(10, 64, 2, 0), Mask: net.CIDRMask(24, 32)}},
			}}}, false},
			{"an endpoint that was written", wgtypes.Config{Peers: []wgtypes.PeerConfig{{
				PublicKey: publicKey(4), Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, 77), Port: 7},
			}}}, false},
			{"the endpoint of the peer that there is traffic with", wgtypes.Config{Peers: []wgtypes.PeerConfig{{
				PublicKey: r.key.PublicKey(), Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, 77), Port: 7},
			}}}, true},
			{"all peers", wgtypes.Config{ReplacePeers: true}, false},
			{"the port", wgtypes.Config{ListenPort: &port}, false},
		} {
			before, _ := healsAndLooks(t)
			must(t, h.Configure(device, c.harm))
			withinASecond(t, c.name+": it is healed", func() bool {
				heals, _ := healsAndLooks(t)
				// WireGuard itself updates the endpoint when a packet of the peer arrives.
				return heals > before || c.roams && right()
			})
			eventually(t, c.name+": it is as before", right)
			// The kernel reports peers in several messages. A change between two of them takes two heals.
			if heals, _ := healsAndLooks(t); heals-before > 2 {
				t.Errorf("%s: healed in %d heals", c.name, heals-before)
			}
		}
		eventually(t, "the remote pod can be reached", reachable)
		t.Logf("looks: %s, %s s in all", metric(t, "semaphore_agent_device_check_duration_seconds_count"),
			metric(t, "semaphore_agent_device_check_duration_seconds_sum"))
	})
}

// TestRoamingPeer: a peer whose packets come from another endpoint, as behind source NAT, keeps that endpoint while it
// is heard.
func TestRoamingPeer(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, _, r, _ := connect(t)
		h := newHost(t)
		at := func() string { return deviceOn(t, h, device).Peers[0].Endpoint.String() }
		roamed := func(n string) func() bool {
			return func() bool { return metric(t, `semaphore_agent_peers_roamed{cluster="c2",device="wireguard.c2"}`) == n }
		}
		// From here on the remote node sends from another port, and receives nothing at the one that it announced.
		port := 51999
		must(t, r.Do(func() error { return r.host.Configure(remoteDevice, wgtypes.Config{ListenPort: &port}) }))
		c, err := r.ListenPacket(t.Context(), "udp", "10.2.1.1:0")
		must(t, err)
		defer c.Close()
		silence := testkit.Run(t, func(ctx context.Context) error {
			for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
				_, _ = c.WriteTo([]byte("hello"), &net.UDPAddr{IP: net.ParseIP(podAddress), Port: 9})
			}
			return nil
		})
		eventually(t, "WireGuard has followed the peer", func() bool { return at() == "192.0.2.2:51999" })
		eventually(t, "it is reported that the peer has roamed", roamed("1"))
		looks := number(t, "semaphore_agent_device_check_duration_seconds_count")
		eventually(t, "it is looked at again, and again",
			func() bool { return number(t, "semaphore_agent_device_check_duration_seconds_count") >= looks+3 })
		if heals := metric(t, `semaphore_agent_heals_total{cluster="c2",device="wireguard.c2"}`); heals != "0" ||
			at() != "192.0.2.2:51999" {
			t.Errorf("%s heals, the peer is at %s", heals, at())
		}
		eventually(t, "the remote pod can be reached", reachable)

		// Neither a change of another node affects it, nor one of its own blocks or of the keepalive.
		n1 := func(cidrs ...string) *semaphorev1.PeeringChange {
			return peerOf("c2", "n1", r.key.PublicKey(), "192.0.2.2:51820", cidrs...)
		}
		keepalive := func(every time.Duration) *semaphorev1.PeeringChange {
			d := deviceOf("c2", 51820, "10.2.0.0/16")
			d.GetDevice().PersistentKeepalive = durationpb.New(every)
			return d
		}
		b.program(t, peerOf("c2", "x", publicKey(1), "192.0.2.9:51820", "10.2.7.0/24"))
		silence() // packets would repair it
		for _, changes := range [][]*semaphorev1.PeeringChange{
			{noPeer("c2", "x")}, {n1("10.2.1.0/24", "10.2.8.0/26")}, {n1("10.2.1.0/24")}, {keepalive(20 * time.Second)},
			{n1("10.2.1.0/24", "10.2.8.0/26"), keepalive(25 * time.Second)},
		} {
			b.program(t, changes...)
			if at() != "192.0.2.2:51999" {
				t.Errorf("the peer is at %s after %v", at(), changes)
			}
		}
		// The node announces its new endpoint.
		b.program(t, peerOf("c2", "n1", r.key.PublicKey(), "192.0.2.2:51999", "10.2.1.0/24"))
		eventually(t, "the peer is where it is wanted", roamed("0"))
		// It announces an endpoint at which it is not: the device gets that endpoint, until the next packet of the
		// node.
		eventually(t, "the remote pod can be reached", reachable)
	})
}

// TestMoves: CIDRs and keys that move from node to node, in one message or several, and in any order within it, end
// where they are desired. WireGuard itself would give a prefix to the peer that was set last.
func TestMoves(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		run(t, cfg, device)
		type peer struct {
			key   wgtypes.Key
			cidrs []string
		}
		peers := map[string]peer{}
		cidr := func(i int) string { return fmt.Sprintf("10.2.%d.%d/28", i>>4, i&15<<4) }
		change := func(node string) *semaphorev1.PeeringChange {
			if p, ok := peers[node]; ok {
				return peerOf("c2", node, p.key, "192.0.2.9:51820", p.cidrs...)
			}
			return noPeer("c2", node)
		}
		first := []*semaphorev1.PeeringChange{deviceOf("c2", 51820, "10.2.0.0/16")}
		for i := range 12 {
			node := fmt.Sprintf("n%02d", i)
			peers[node] = peer{publicKey(i), []string{cidr(2 * i), cidr(2*i + 1)}}
			first = append(first, change(node))
		}
		b.say(first...)
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 0))
		keys := 100
		h := newHost(t)
		for step := range 400 {
			x, y := fmt.Sprintf("n%02d", rng.IntN(12)), fmt.Sprintf("n%02d", rng.IntN(12))
			px, there := peers[x]
			py, also := peers[y]
			if x == y {
				continue
			}
			switch {
			case !there || !also:
				// A node comes back with another key (F12), or perhaps with that of the other one.
				keys++
				if !there {
					peers[x] = peer{publicKey(keys), []string{cidr(keys)}}
				} else {
					peers[y] = peer{px.key, px.cidrs}
					delete(peers, x)
				}
			case rng.IntN(8) == 0:
				delete(peers, x)
			case rng.IntN(3) == 0: // F13
				keys++
				px.key = publicKey(keys)
				peers[x] = px
			default:
				px.cidrs, py.cidrs = py.cidrs, px.cidrs
				peers[x], peers[y] = px, py
			}
			both := []*semaphorev1.PeeringChange{change(x), change(y)}
			if rng.IntN(2) == 0 {
				slices.Reverse(both)
			}
			if rng.IntN(2) == 0 {
				b.say(both...)
			} else {
				b.say(both[0])
				b.say(both[1])
			}
			if step%40 != 0 {
				continue
			}
			eventually(t, "all is programmed", b.done)
			var want []string
			for _, p := range peers {
				cidrs := slices.Clone(p.cidrs)
				slices.Sort(cidrs)
				want = append(want, fmt.Sprintf("%s 192.0.2.9:51820 25s %s", p.key, strings.Join(cidrs, ",")))
			}
			slices.Sort(want)
			if got := shown(deviceOn(t, h, device)); !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d:\n%s\nwant\n%s", seed, step, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	})
}

// TestF32InvalidPeerAmongThousandIsIgnored: one invalid node among 1,000 is left out and reported; the others are
// programmed, and can still be changed one by one.
func TestF32InvalidPeerAmongThousandIsIgnored(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		run(t, cfg, device)
		poison := peerOf("c2", "poison", publicKey(5000), "192.0.2.9:51820", "10.90.0.0/16")
		poison.GetPeer().Wireguard.PublicKey = []byte("short")
		b.program(t, slices.Insert(others(999), 500, poison)...)
		h := newHost(t)
		if d := deviceOn(t, h, device); len(d.Peers) != 999 {
			t.Errorf("%d peers", len(d.Peers))
		}
		if !ready() {
			t.Error("not ready because of one node of another cluster")
		}
		shows(t, `semaphore_agent_refused{cluster="c2",device="wireguard.c2"}`, "1")
		if problem := b.reportOf("c2").GetProblem(); !strings.HasPrefix(problem, "peer poison: public key") {
			t.Errorf("reported: %q", problem)
		}
		singles := func() float64 { return number(t, `semaphore_agent_apply_duration_seconds_count{what="peers"}`) }
		before := singles()
		for i := range 10 {
			b.program(t, other(i, 2000+i))
		}
		if after := singles(); after < before+10 {
			t.Errorf("peers were set %v times by themselves, %v before ten changes", after, before)
		}
		b.say(peerOf("c2", "poison", publicKey(5000), "192.0.2.9:51820", "10.90.0.0/16"))
		eventually(t, "the antidote is programmed",
			func() bool { return b.done() && len(deviceOn(t, h, device).Peers) == 1000 })
		eventually(t, "nothing is reported any longer", func() bool { return b.reportOf("c2").GetProblem() == "" })
	})
}

// TestNothingStaysOfARemovedRemote: a removed remote leaves nothing in the agent: no device, no part of the status, no
// series of a metric.
func TestNothingStaysOfARemovedRemote(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		r := newRemote(t)
		run(t, cfg, device)
		series := func() (all []string) {
			_, page := fetch("metrics")
			for line := range strings.Lines(page) {
				if strings.Contains(line, `cluster="c2"`) || strings.Contains(line, `device="`+device+`"`) {
					all = append(all, line)
				}
			}
			return all
		}
		b.program(t, deviceOf("c2", 51820, "10.2.0.0/16"), r.peer())
		r.pair(t, b.reportOf("c2").GetPublicKey())
		eventually(t, "the remote pod can be reached", reachable)
		eventually(t, "there are series of the remote", func() bool { return len(series()) > 0 })

		b.program(t, noDevice("c2"))
		if left := series(); len(left) > 0 {
			t.Errorf("series of a remote that was removed:\n%s", strings.Join(left, ""))
		}
		s, err := debugClient(t, cfg).GetStatus(t.Context(), &semaphorev1.GetStatusRequest{})
		must(t, err)
		if strings.Contains(s.String(), "c2") {
			t.Errorf("the status: %v", s)
		}
	})
}
