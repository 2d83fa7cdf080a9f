package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestCandidatesOfANode: of the candidates of a node, of which the first is at nobody's address, the agent finds the
// one that answers, and does not leave it. One outside of the bounds is never sent to. Nothing writes an endpoint of a
// node that calls, and a node that calls has a keepalive on that device only, for peers with an endpoint, and after a
// boot without a broker too.
func TestCandidatesOfANode(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg, r, a := connect(t)
		h := newHost(t)
		at := func() string {
			if e := deviceOn(t, h, device).Peers[0].Endpoint; e != nil {
				return e.String()
			}
			return "none"
		}
		is := r.peer()
		works := is.GetPeer().GetWireguard().GetAddress()
		off := deviceOf("c2", 51820, "10.2.0.0/16")
		off.GetDevice().PersistentKeepalive = nil
		with := func(candidates ...string) *semaphorev1.PeeringChange {
			p := peerOf("c2", "n1", r.key.PublicKey(), works, "10.2.1.0/24")
			p.GetPeer().Wireguard.Candidates = candidates
			return p
		}

		// A new peer has no session: the first does not answer, and the next handshake goes to the second.
		b.program(t, noPeer("c2", "n1"))
		b.program(t, off, with("127.0.0.1:51820", "192.0.2.77:51820", works))
		if first := at(); first != "192.0.2.77:51820" {
			t.Errorf("it begins at %s", first)
		}
		took := eventually(t, "the remote pod can be reached", reachable)
		t.Logf("reached after %s", took)
		// A session that works is not left, though another candidate comes before it now.
		b.program(t, with("192.0.2.78:51820", "192.0.2.77:51820", works))
		if at() != works {
			t.Errorf("the peer is at %s", at())
		}

		keepalive := func() time.Duration { return deviceOn(t, h, device).Peers[0].PersistentKeepaliveInterval }
		if keepalive() != 0 {
			t.Errorf("a node that is reached has a keepalive of %s", keepalive())
		}

		// The node calls: no endpoint is written for it, and WireGuard follows it.
		calls := with()
		calls.GetPeer().Wireguard.Address, calls.GetPeer().Wireguard.Calls = "", true
		b.program(t, noPeer("c2", "n1"))
		b.program(t, calls)
		if at() != "none" {
			t.Errorf("the peer is at %s", at())
		}
		must(t, r.Do(func() error {
			_ = echoed("10.2.1.1", podAddress+":9", 4) // it makes the node begin a handshake
			return nil
		}))
		eventually(t, "the remote pod can be reached", reachable)

		// This node calls.
		b.knows(&semaphorev1.NodeNetwork{PodPrefixes: []string{"10.1.1.0/24"}, Calls: []string{"c2"}})
		b.program(t, with())
		eventually(t, "it has a keepalive", func() bool { return keepalive() == 25*time.Second })
		every := deviceOf("c2", 51820, "10.2.0.0/16")
		every.GetDevice().PersistentKeepalive = durationpb.New(7 * time.Second)
		b.program(t, every)
		if keepalive() != 7*time.Second {
			t.Errorf("the keepalive is %s; want that of the remote", keepalive())
		}
		b.program(t, calls)
		if keepalive() != 0 {
			t.Errorf("a node that calls has a keepalive of %s here", keepalive())
		}
		if report := b.reportOf("c2"); strings.Contains(report.GetProblem(), "endpoint") {
			t.Error(report.GetProblem())
		}

		b.program(t, off, with())
		kept(t, a, cfg)
		b.stop()
		must(t, h.Delete(device))
		run(t, cfg)
		eventually(t, "the keepalive is there after a boot without a broker", func() bool {
			d, err := h.Device(device)
			return err == nil && d != nil && len(d.Peers) == 1 && keepalive() == 25*time.Second
		})
	})
}

// TestNodeBehindNAT: the remote node is behind a router that has one address for it, and calls. It is reached as soon
// as it has called, and again within a keepalive after the router forgot it, and after the router got another address.
func TestNodeBehindNAT(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		const every = 2 * time.Second
		b, cfg := newBroker(t, "c2")
		r := newRemoteBehindNAT(t)
		public := r.pairWith(t, cfg)
		keepalive := every
		must(t, r.Do(func() error {
			return r.host.Configure(remoteDevice, wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: public,
				UpdateOnly: true, PersistentKeepaliveInterval: &keepalive}}})
		}))
		run(t, cfg, device)
		calls := peerOf("c2", "n1", r.key.PublicKey(), "", "10.2.1.0/24")
		calls.GetPeer().Wireguard.Calls = true
		b.program(t, deviceOf("c2", 51820, "10.2.0.0/16"), calls)
		within := func(what, at string) {
			t.Helper()
			// A packet under way may be lost, and the next try takes 200 ms.
			took := testkit.Eventually(t, nodetest.Patience(every+time.Second), what, testkit.True(reachable))
			h := newHost(t)
			if got := deviceOn(t, h, device).Peers[0].Endpoint.IP.String(); got != at {
				t.Errorf("%s: the peer is at %s, not at %s", what, got, at)
			}
			t.Logf("%s after %s", what, took)
		}
		eventually(t, "the remote pod can be reached", reachable)
		ip(t, "netns exec router conntrack -F")
		within("the router forgot, and the pod can be reached", "192.0.2.254")
		masquerade(t, "192.0.2.253")
		ip(t, "netns exec router conntrack -F")
		within("the router has another address, and the pod can be reached", "192.0.2.253")
		if heals := metric(t, `semaphore_agent_heals_total{cluster="c2",device="wireguard.c2"}`); heals != "0" {
			t.Errorf("%s heals", heals)
		}
	})
}

// newRemoteBehindNAT is newRemote with a router between the two nodes, which forwards and has one address outside.
func newRemoteBehindNAT(t *testing.T) *remote {
	t.Helper()
	router, err := netns.Create("router")
	must(t, err)
	ns, err := netns.Create("remote")
	must(t, err)
	r := &remote{Namespace: ns}
	for _, args := range []string{
		"link add eth0 type veth peer name wan netns router",
		"addr add 192.0.2.1/24 dev eth0",
		"link set eth0 up",
		"addr add 10.1.1.1/32 dev lo",
		"-n router addr add 192.0.2.254/24 dev wan",
		"-n router addr add 192.0.2.253/24 dev wan",
		"-n router link set wan up",
		"-n router link add lan type veth peer name eth0 netns remote",
		"-n router addr add 198.51.100.1/24 dev lan",
		"-n router link set lan up",
		"-n remote addr add 198.51.100.2/24 dev eth0",
		"-n remote link set eth0 up",
		"-n remote route add default via 198.51.100.1",
	} {
		ip(t, args)
	}
	must(t, router.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
	masquerade(t, "192.0.2.254")
	r.begin(t)
	return r
}

// masquerade makes the router send with an address, and pass nothing inwards that it does not know.
func masquerade(t *testing.T, as string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules")
	must(t, os.WriteFile(file, []byte("flush ruleset\ntable ip nat { chain out { "+
		"type nat hook postrouting priority 100;\n"+
		"oifname wan snat to "+as+"; }\n}\ntable ip filter { chain forward { type filter hook forward priority 0; "+
		"policy drop;\nct state established,related accept\niifname lan accept\n}\n}\n"), 0o600))
	ip(t, "netns exec router nft -f "+file)
}
