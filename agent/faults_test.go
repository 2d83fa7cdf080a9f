package agent

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// looksOfASecond is the number of checks of a device within a second, one of which may be running when the second
// begins: the agent checks every 300 ms, also with a thousand peers (TestCheckInterval). The checks serve as a clock
// that a busy machine delays as much as it delays the heals.
const looksOfASecond = 5

// withinASecond waits until a change that was just made is healed, and fails the test if that takes more of the agent's
// checks than it makes within a second.
func withinASecond(t *testing.T, what string, ok func() bool) {
	t.Helper()
	begin := time.Now()
	_, before := healsAndLooks(t)
	eventually(t, what, func() bool {
		time.Sleep(50 * time.Millisecond) // the test shall hardly wait for a CPU itself
		return ok()
	})
	_, looks := healsAndLooks(t)
	looks -= before
	t.Logf("%s after %s and %d looks", what, time.Since(begin), looks)
	if looks > looksOfASecond {
		t.Errorf("%s after %d looks; want %d at most", what, looks, looksOfASecond)
	}
}

// healsAndLooks returns the number of heals, and of checks of devices, so far.
func healsAndLooks(t *testing.T) (heals, looks int) {
	t.Helper()
	_, page := fetch("metrics")
	return int(testkit.Scraped(t, page, "semaphore_agent_heals_total", `device="wireguard.c2"`)),
		int(testkit.Scraped(t, page, "semaphore_agent_device_check_duration_seconds_count"))
}

// TestF12NodeIsRecreatedWithAnotherKey: a node is deleted and created again under its name, with another key. Every
// read of the device shows its prefix with one of the two keys, never with both or none; the old key goes right after.
// Packets of another node continue.
func TestF12NodeIsRecreatedWithAnotherKey(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, _, _, _ := connect(t)
		b.program(t, peerOf("c2", "anew", publicKey(0), "192.0.2.9:51820", "10.2.7.0/24"))
		tr := startTraffic(t)
		h := newHost(t)
		var odd atomic.Int64
		reads := 0
		stop := testkit.Run(t, func(ctx context.Context) error {
			for ctx.Err() == nil {
				d, err := h.Device(device)
				if err != nil || d == nil {
					continue
				}
				reads++
				with := 0
				for _, p := range d.Peers {
					for _, ip := range p.AllowedIPs {
						if ip.String() == "10.2.7.0/24" {
							with++
						}
					}
				}
				if with != 1 || len(d.Peers) > 3 {
					odd.Add(1)
				}
			}
			return nil
		})
		for i := range 50 {
			if i%2 == 0 { // in one message, as the exporter sends both
				b.say(noPeer("c2", "anew"), peerOf("c2", "anew", publicKey(1+i), "192.0.2.10:51820", "10.2.7.0/24"))
			} else {
				b.say(peerOf("c2", "anew", publicKey(1+i), "192.0.2.9:51820", "10.2.7.0/24"))
			}
			eventually(t, "all is programmed", b.done)
		}
		stop()
		if n := odd.Load(); n > 0 {
			t.Errorf("%d of %d looks saw the prefix with both keys of the node, or none", n, reads)
		}
		t.Logf("%d looks at the device", reads)
		if d := deviceOn(t, h, device); len(d.Peers) != 2 {
			t.Errorf("%d peers", len(d.Peers))
		}
		tr.noneLost(t, "")
	})
}

// TestF30FirstNodeKeepsADuplicateKey: two nodes have one public key. The first by name keeps it, and its packets pass.
// Both are reported until only one has it.
func TestF30FirstNodeKeepsADuplicateKey(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, _, r, _ := connect(t)
		tr := startTraffic(t)
		h := newHost(t)
		key := r.key.PublicKey()
		for i := range 10 {
			b.program(t, peerOf("c2", "n2", key, fmt.Sprintf("192.0.2.%d:51820", 100+i), fmt.Sprintf("10.2.%d.0/24", 100+i)))
			eventually(t, "both are named", func() bool {
				return strings.Contains(b.reportOf("c2").GetProblem(), "peer n2 has the public key of n1 and is ignored")
			})
			time.Sleep(20 * time.Millisecond)
		}
		if d := deviceOn(t, h, device); len(d.Peers) != 1 || d.Peers[0].PublicKey != key ||
			d.Peers[0].Endpoint.String() != "192.0.2.2:51820" {
			t.Errorf("peers %v", d.Peers)
		}
		b.say(peerOf("c2", "n2", publicKey(9), "192.0.2.9:51820", "10.2.109.0/24"))
		eventually(t, "the second has a key of its own", func() bool {
			return b.done() && b.reportOf("c2").GetProblem() == "" && len(deviceOn(t, h, device).Peers) == 2
		})
		b.program(t, noPeer("c2", "n2"))
		if lost := tr.lost(t); lost > 0 {
			t.Errorf("%d packets of the first node lost", lost)
		}
	})
}
