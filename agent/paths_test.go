package agent

import (
	"io"
	"math"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/agent/paths"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// within is eventually with a time limit.
func within(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	return testkit.Eventually(t, nodetest.Patience(limit), what, testkit.True(ok))
}

// pings sends a packet to a remote pod ten times a second until the test ends.
func pings(t *testing.T, to string) {
	t.Helper()
	t.Cleanup((&requests{most: math.MaxInt}).start(toPod(t, to), 100*time.Millisecond).end)
}

// TestSilentPeersAreReported: two nodes whose tunnel stops working are reported, with the time and the reason, and so
// is a node that never answered. The report ends when they answer again.
func TestSilentPeersAreReported(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		started := time.Now()
		b, _, r, _ := connect(t)
		b.program(t, peerOf("c2", "n2", publicKey(2), "192.0.2.2:9", "10.2.9.0/24"))
		pings(t, "10.2.1.1")
		within(t, 3*time.Minute, "the peer that answers is reported as talking",
			func() bool { return b.reportOf("c2").GetPeersTalking() == 1 })
		if b.reportOf("c2").GetLastHandshake() == nil {
			t.Error("no handshake is reported")
		}

		pings(t, "10.2.9.1")
		ip(t, "netns exec "+r.Name()+" iptables -A INPUT -p udp --dport 51820 -j DROP")
		silent := map[string]*semaphorev1.SilentPeer{}
		took := within(t, 3*time.Minute, "both peers are reported as silent", func() bool {
			clear(silent)
			for _, s := range b.reportOf("c2").GetSilent() {
				silent[s.GetNode()] = s
			}
			return silent["n1"] != nil && silent["n2"] != nil && b.reportOf("c2").GetPeersSilent() == 2
		})
		t.Logf("reported after %s", took)
		for node, reason := range map[string]string{"n1": "no answer since the session of ",
			"n2": "no answer to handshakes; endpoint 192.0.2.2:9"} {
			s := silent[node]
			if !strings.HasPrefix(s.GetReason(), reason) {
				t.Errorf("%s: %q; want %q", node, s.GetReason(), reason)
			}
			if since := s.GetSince().AsTime(); since.Before(started) || since.After(time.Now()) {
				t.Errorf("%s is silent since %s; it began at %s", node, since, started)
			}
		}
		shows(t, `semaphore_agent_peers{cluster="c2",device="wireguard.c2",state="silent"}`, "2")
		if !ready() {
			t.Error("the agent is not ready: what it has to do is done")
		}

		ip(t, "netns exec "+r.Name()+" iptables -F INPUT")
		took = within(t, 3*time.Minute, "the peer that answers again is silent no more", func() bool {
			d := b.reportOf("c2")
			return d.GetPeersSilent() == 1 && len(d.GetSilent()) == 1 && d.GetSilent()[0].GetNode() == "n2" &&
				d.GetPeersTalking() == 1
		})
		t.Logf("over after %s", took)
	})
}

// TestIdlePeersAreProbed: a device that nobody uses has no session, and begins none by itself. While the broker asks,
// the agent begins handshakes: it reports the peers that do not answer and, without any packet of a pod, that one
// does. The peers keep their settings.
func TestIdlePeersAreProbed(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		r := newRemote(t)
		r.pairWith(t, cfg)
		ip(t, "netns exec "+r.Name()+" iptables -A INPUT -p udp --dport 51820 -j DROP")
		idle := deviceOf("c2", 51820, "10.2.0.0/16")
		idle.GetDevice().PersistentKeepalive = nil
		run(t, cfg, device)
		b.program(t, idle, r.peer(),
			peerOf("c2", "n2", publicKey(2), "192.0.2.2:9", "10.2.9.0/24"))
		h := newHost(t)
		sent := func() (bytes int64) {
			for _, p := range deviceOn(t, h, device).Peers {
				if bytes += p.TransmitBytes; p.PersistentKeepaliveInterval != 0 {
					t.Errorf("peer %s has a keepalive of %s", p.PublicKey, p.PersistentKeepaliveInterval)
				}
			}
			return bytes
		}
		eventually(t, "both peers are reported as idle", func() bool { return b.reportOf("c2").GetPeersIdle() == 2 })
		if n := sent(); n != 0 {
			t.Fatalf("%d bytes were sent before anybody asked", n)
		}
		order := &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_ProbePeers{
			ProbePeers: &semaphorev1.ProbePeers{Clusters: []string{"c2", "c9"}, For: durationpb.New(time.Minute)}}}
		until := func(what string, ok func(*semaphorev1.DeviceReport) bool) {
			t.Helper()
			looks := 0
			took := within(t, 3*time.Minute, what, func() bool {
				if looks++; looks%100 == 1 { // as a broker does, again and again
					b.order(order)
				}
				return ok(b.reportOf("c2"))
			})
			t.Logf("%s after %s", what, took)
		}
		until("no peer has answered", func(d *semaphorev1.DeviceReport) bool {
			return d.GetPeersUnanswered() == 2 && d.GetPeersTalking() == 0
		})
		ip(t, "netns exec "+r.Name()+" iptables -F INPUT")
		until("one peer has answered", func(d *semaphorev1.DeviceReport) bool {
			return d.GetPeersTalking() == 1 && d.GetPeersUnanswered() == 0
		})
		sent()
	})
}

// far creates a node of c2 behind a router, whose link to it has a smaller MTU than those of both nodes.
func far(t *testing.T) *remote {
	t.Helper()
	_, err := netns.Create("router")
	must(t, err)
	ns, err := netns.Create("remote")
	must(t, err)
	for _, line := range []string{
		"link add eth0 type veth peer name near netns router",
		"-n router link add far type veth peer name eth0 netns remote",
		"addr add 192.0.2.1/24 dev eth0", "link set eth0 up", "addr add 10.1.1.1/32 dev lo",
		"-n router addr add 192.0.2.254/24 dev near", "-n router link set near up",
		"-n router addr add 198.51.100.254/24 dev far", "-n router link set far mtu 1400 up",
		"-n remote addr add 198.51.100.2/24 dev eth0", "-n remote link set eth0 up",
		"route add default via 192.0.2.254", "-n remote route add default via 198.51.100.254",
		"netns exec router sysctl -qw net.ipv4.ip_forward=1",
	} {
		ip(t, line)
	}
	r := &remote{Namespace: ns}
	r.begin(t)
	return r
}

// respond answers probes on the remote node.
func (r *remote) respond(t *testing.T) {
	t.Helper()
	var p *paths.Responder
	must(t, r.Do(func() (err error) {
		p, err = paths.NewResponder(t.Context(), ":7774",
			func(from netip.Addr) bool { return from == netip.MustParseAddr("192.0.2.1") })
		return err
	}))
	testkit.Run(t, p.Run)
}

// transfer sends size bytes to the remote pod over TCP, and returns how long that took.
func (r *remote) transfer(t *testing.T, size int64) time.Duration {
	t.Helper()
	l, err := r.Listen(t.Context(), "tcp", "10.2.1.1:80")
	must(t, err)
	defer l.Close()
	received := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			received <- 0
			return
		}
		defer c.Close()
		n, _ := io.Copy(io.Discard, c)
		received <- n
	}()
	began := time.Now()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(podAddress)}, Timeout: 2 * time.Minute}
	c, err := d.DialContext(t.Context(), "tcp", "10.2.1.1:80")
	must(t, err)
	must(t, c.SetDeadline(time.Now().Add(nodetest.Patience(3*time.Minute))))
	if _, err := io.CopyN(c, zeros{}, size); err != nil {
		t.Errorf("sending %d bytes: %v", size, err)
	}
	c.Close()
	if n := <-received; n != size {
		t.Errorf("%d of %d bytes arrived", n, size)
	}
	return time.Since(began)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// testNarrowPath: behind a router whose link carries 1400 bytes, whether it reports that or not, the device gets the
// MTU of the path, reports the reason, and a large transfer succeeds.
func testNarrowPath(t *testing.T, prepare func()) {
	b, cfg := newBroker(t, "c2")
	r := far(t)
	prepare()
	r.respond(t)
	r.pairWith(t, cfg)
	run(t, cfg, device)
	d := deviceOf("c2", 51820, "10.2.0.0/16")
	d.GetDevice().Mtu, d.GetDevice().ProbePort = 0, 7774
	b.program(t, d, peerOf("c2", "n1", r.key.PublicKey(), "198.51.100.2:51820", "10.2.1.0/24"))
	h := newHost(t)
	if got := deviceOn(t, h, device).MTU; got != 1440 {
		t.Errorf("before anything is known of the path the MTU is %d; want 1440, that of the link", got)
	}
	eventually(t, "the remote pod can be reached", reachable)
	took := within(t, 3*time.Minute, "the MTU is that of the path",
		func() bool { return deviceOn(t, h, device).MTU == 1340 })
	t.Logf("1340 after %s", took)
	t.Logf("4 MB in %s", r.transfer(t, 4<<20))
	shows(t, `semaphore_agent_mtu_bytes{cluster="c2",device="wireguard.c2"}`, "1340")
	narrow := `semaphore_agent_path_measurements_total{cluster="c2",device="wireguard.c2",result="narrow"}`
	shows(t, narrow, "1")
	shows(t, `semaphore_agent_heals_total{cluster="c2",device="wireguard.c2"}`, "0")
	client := debugClient(t, cfg)
	eventually(t, "the status says why", func() bool {
		s, err := client.GetStatus(t.Context(), &semaphorev1.GetStatusRequest{})
		must(t, err)
		p := s.GetDevices()[0].GetPaths()
		return p.GetMtuReason() == "the path to n1 carries no more" && p.GetMeasured() == 1 && p.GetTalking() == 1
	})
	// A narrower link takes effect soon; a wider one makes the agent measure the path again.
	ip(t, "link set eth0 mtu 1380")
	within(t, 3*time.Minute, "the MTU is that of the narrower link",
		func() bool { return deviceOn(t, h, device).MTU == 1320 })
}

func TestNarrowPathWithICMP(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) { testNarrowPath(t, func() {}) })
}

func TestNarrowPathWithoutICMP(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		testNarrowPath(t, func() { ip(t, "netns exec router iptables -A OUTPUT -p icmp -j DROP") })
	})
}
