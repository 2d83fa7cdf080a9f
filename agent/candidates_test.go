package agent

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestCandidatesOfANode: of the candidates of a node, of which the first is at nobody's address, the agent finds the
// one that answers, and does not leave it. One outside of the bounds is never sent to, nor one without a route while
// another has one. Nothing writes an endpoint of a node that calls, and a node that calls has a keepalive on that
// device only, for peers with an endpoint, and after a boot without a broker too.
func TestCandidatesOfANode(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg, r, stop := connect(t)
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
		b.program(t, off, with("[2001:db8::7]:51820", "[2001:db8::8]:51820"))
		if first := at(); first != "[2001:db8::7]:51820" {
			t.Errorf("without any route it begins at %s", first)
		}
		b.program(t, noPeer("c2", "n1"))
		b.program(t, with("127.0.0.1:51820", "[2001:db8::7]:51820", "192.0.2.77:51820", works))
		if first := at(); first != "192.0.2.77:51820" {
			t.Errorf("it begins at %s", first)
		}
		var sent int64 // until it has the candidate that answers: its turn is before the next handshake, 5 s after the first
		eventually(t, "the remote pod can be reached", func() bool {
			ok := reachable()
			if p := deviceOn(t, h, device).Peers[0]; sent == 0 && kernel.EndpointOf(&p).String() == works {
				sent = p.TransmitBytes
			}
			return ok
		})
		if sent > 3000 { // two handshakes of 148 bytes, and what waited for the session for 5 s; 5,600 after 15 s
			t.Errorf("%d bytes were sent until the peer had the candidate that answers", sent)
		}
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
		kept(t, stop, cfg)
		b.stop()
		must(t, h.Delete(device))
		run(t, cfg)
		eventually(t, "the keepalive is there after a boot without a broker", func() bool {
			d, err := h.Device(device)
			return err == nil && d != nil && len(d.Peers) == 1 && keepalive() == 25*time.Second
		})
	})
}
