package agent

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// changesOf counts the kernel's notifications about interfaces and routes until the returned function is called.
func changesOf(t *testing.T) (notified func() int64) {
	t.Helper()
	var n atomic.Int64
	listens := make(chan struct{})
	stop := testkit.Run(t, func(ctx context.Context) error {
		listening := sync.OnceFunc(func() { close(listens) })
		changed, missed := func(kernel.Event) { listening(); n.Add(1) }, func() { n.Add(1 << 32) }
		return kernel.Watch(ctx, kernel.DefaultRoutingTable(), changed, missed)
	})
	<-listens
	n.Add(-1)
	return func() int64 {
		time.Sleep(nodetest.Patience(100 * time.Millisecond)) // until notifications in flight have arrived
		stop()
		return n.Load()
	}
}

// statesBy reports whether the metric gives a source as that of the device's state.
func statesBy(t *testing.T, source string) bool {
	t.Helper()
	return metric(t, `semaphore_agent_state_age_seconds{cluster="c2",device="wireguard.c2",source="`+source+`"}`) != ""
}

// kept waits until the state file has the desired state.
func kept(t *testing.T, stop func(), cfg *config.Agent) {
	t.Helper()
	stop()
	if _, err := stream.LoadState(cfg.StateFile, cfg.Cluster); err != nil {
		t.Fatalf("what an agent that ends leaves: %v", err)
	}
}

// TestF07_AgentRestartsWithoutABroker (F7): an agent that starts without a broker touches nothing that exists, is
// ready, reports the age of its state, and restores what is missing. The broker that comes back changes nothing.
func TestF07_AgentRestartsWithoutABroker(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg, _, stop := connect(t)
		h := newHost(t)
		before := deviceOn(t, h, device)
		tr := startTraffic(t)
		b.stop()
		kept(t, stop, cfg)
		notified := changesOf(t)
		run(t, cfg)
		took := eventually(t, "ready without a broker", ready)
		if n := notified(); n != 0 {
			t.Errorf("%d changes of interfaces or routes by a restart", n)
		}
		tr.noneLost(t, "")
		same(t, before, deviceOn(t, h, device))
		t.Logf("ready after %s", took)
		if code, page := fetch("readyz"); code != http.StatusOK || !strings.Contains(page, "wireguard.c2 stale, age ") ||
			!strings.Contains(page, "from the cache") {
			t.Errorf("readyz: %d %s", code, page)
		}
		if !statesBy(t, "cache") || statesBy(t, "broker") {
			t.Error("the metric does not say that the state is the cache's")
		}
		shows(t, `semaphore_agent_heals_total{cluster="c2",device="wireguard.c2"}`, "0")
		// Missing routes are restored without a broker, too.
		ip(t, "route del 10.2.0.0/16 table 7394 metric 0")
		eventually(t, "the route is back", func() bool { return len(deviceOn(t, h, device).Routes) == 1 })
		time.Sleep(plan.HealGap + 100*time.Millisecond) // the checks of the agent's own changes are over by now

		tr = startTraffic(t)
		notified = changesOf(t)
		b.restart(t, "B")
		eventually(t, "all is reported as done", b.done)
		eventually(t, "the state is the broker's", func() bool { return statesBy(t, "broker") && !statesBy(t, "cache") })
		if n := notified(); n != 0 {
			t.Errorf("%d changes of interfaces or routes by the broker's return", n)
		}
		tr.noneLost(t, "")
		same(t, before, deviceOn(t, h, device))
		if _, page := fetch("readyz"); page != "ok\n" {
			t.Errorf("readyz: %s", page)
		}
	})
}

// TestF08_NodeBootsWithoutABroker (F8): a node that boots without a broker restores its tunnel, and the broker that
// comes back removes nothing of it. The emulated machine runs this in the kernel.
func TestF08_NodeBootsWithoutABroker(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg, _, stop := connect(t)
		h := newHost(t)
		before := deviceOn(t, h, device)
		kept(t, stop, cfg)
		b.stop()
		must(t, h.Delete(device))
		if reachable() {
			t.Fatal("the remote pod is reached without a device")
		}
		begin := time.Now()
		stop = run(t, cfg)
		eventually(t, "the remote pod can be reached", reachable)
		t.Logf("reached %s after the agent's start", time.Since(begin))
		eventually(t, "ready", ready)
		after := deviceOn(t, h, device)
		before.Index = after.Index
		same(t, before, after)

		time.Sleep(plan.HealGap + 100*time.Millisecond) // the checks of the agent's own changes are over by now
		tr := startTraffic(t)
		notified := changesOf(t)
		// The broker sends everything again.
		b.restart(t, "B")
		eventually(t, "all is reported as done", b.done)
		if n := notified(); n != 0 {
			t.Errorf("%d changes of interfaces or routes by the broker's return", n)
		}
		tr.noneLost(t, "")
		same(t, after, deviceOn(t, h, device))
		if got := b.hello(1).GetHeld(); len(got) != 1 || got[0].GetCluster() != "c2" || b.hello(1).GetResumeEpoch() != "" {
			t.Errorf("it says that it holds %v of epoch %q", got, b.hello(1).GetResumeEpoch())
		}

		// The reboot loses the key: the agent creates a new one, and reports it to the broker.
		kept(t, stop, cfg)
		_, err := kernel.RemoveKeys(cfg.WGKeyPath, func(string) bool { return true })
		must(t, err)
		must(t, h.Delete(device))
		b.stop()
		run(t, cfg)
		eventually(t, "the device is there", func() bool {
			d, err := h.Device(device)
			return err == nil &&
				d != nil && d.Up
		})
		if deviceOn(t, h, device).PublicKey == before.PublicKey {
			t.Error("the key that was lost is there")
		}
		b.restart(t, "C")
		eventually(t, "the new key is reported", func() bool {
			now := deviceOn(t, h, device).PublicKey
			return b.done() && bytes.Equal(b.reportOf("c2").GetPublicKey(), now[:])
		})
	})
}
