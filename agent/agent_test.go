package agent

import (
	"context"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/agent/routing"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// idle is an agent that does nothing by itself, with one device that it never gets to.
func idle(t *testing.T) *agent {
	t.Helper()
	host, err := wireguard.NewHost("auto")
	must(t, err)
	t.Cleanup(func() { host.Close() })
	cfg := &config.Agent{Cluster: "c1", WGKeyPath: t.TempDir()}
	cfg.Routing.Table, cfg.Routing.RulePriority = routing.DefaultTable, routing.DefaultPriority
	return newAgent(cfg, host)
}

func receive(t *testing.T, a *agent, all ...*semaphorev1.AttachResponse) {
	t.Helper()
	for _, m := range all {
		must(t, a.Receive(context.Background(), m))
	}
}

func attached(epoch string, resumed bool) *semaphorev1.AttachResponse {
	return &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Attached{Attached: &semaphorev1.Attached{Epoch: epoch, Resumed: resumed}}}
}

func synced(revision uint64) *semaphorev1.AttachResponse {
	return &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Synced{Synced: &semaphorev1.Synced{Revision: revision}}}
}

// told is the revision that was told as applied on this stream; 0 for none.
func told(a *agent) uint64 {
	if a.applied == nil {
		return 0
	}
	return *a.applied
}

func TestEndedWithoutReason(t *testing.T) {
	a := idle(t)
	a.Begin()
	a.Ended(nil)
	if a.lastError == "" {
		t.Error("no reason is told")
	}
}

// A revision is told only to the broker that gave it, and only once it has said all up to it.
func TestAppliedIsOfThisStream(t *testing.T) {
	a := idle(t)
	round := func() { a.round(t.Context(), false) }
	a.Begin()
	receive(t, a, attached("A", false))
	round()
	if got := told(a); got != 0 || a.ready() == nil {
		t.Errorf("before the mark: told %d, ready: %v", got, a.ready())
	}
	receive(t, a, synced(1000))
	round()
	if got := told(a); got != 1000 || a.ready() != nil {
		t.Errorf("after the mark: told %d, ready: %v", got, a.ready())
	}
	_, late := a.take(false) // a round that begins now, and ends on another stream
	a.Ended(context.Canceled)
	a.Begin()
	receive(t, a, attached("B", false))
	a.tell(late)
	round()
	if got := told(a); got != 0 {
		t.Errorf("epoch B is told %d, of epoch A", got)
	}
	receive(t, a, synced(3))
	a.tell(late)
	if got := told(a); got != 0 {
		t.Errorf("epoch B is told %d by a round of epoch A", got)
	}
	round()
	if got := told(a); got != 3 {
		t.Errorf("told %d; want 3", got)
	}
	a.Ended(context.Canceled)
	if a.ready() != nil {
		t.Errorf("not ready without a broker: %v", a.ready())
	}
	a.Begin()
	receive(t, a, attached("B", true))
	round()
	if got := told(a); got != 3 {
		t.Errorf("a stream that goes on is told %d; want 3", got)
	}
}

func TestFailuresAreTriedAgain(t *testing.T) {
	a := idle(t)
	a.Begin()
	receive(t, a, attached("A", false), synced(7))
	var waits []time.Duration
	for range 8 {
		a.failed("c2", device, "cannot", false)
		waits = append(waits, time.Until(a.failing["c2"].retryAt))
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
		if least, most := want*time.Second/2-100*time.Millisecond, want*time.Second; waits[i] < least || waits[i] > most {
			t.Errorf("failure %d is tried again after %s; want up to %s", i, waits[i], most)
		}
	}
	// Neither what it itself caused nor anything else hastens it, but news from the broker does, a bit later.
	a.looksAt("c2").at = time.Now()
	a.dirty.healing["c2"] = true
	if todo, _ := a.take(false); len(todo.networks) > 0 {
		t.Error("what the kernel tells of a failing device has it tried again at once")
	}
	if next := a.next(); !next.Equal(a.failing["c2"].retryAt) {
		t.Errorf("next in %s", time.Until(next))
	}
	a.dirty.networks["c2"] = true
	if todo, _ := a.take(false); len(todo.networks) > 0 {
		t.Error("a failing device is tried without a pause")
	}
	if next := time.Until(a.next()); next > healGap {
		t.Errorf("news from the broker wait %s", next)
	}
	a.looksAt("c2").at = time.Now().Add(-healGap)
	if todo, _ := a.take(false); !todo.networks["c2"] {
		t.Error("news from the broker are not tried")
	}
	if a.tell(mark{a.streams, 7, true}); told(a) != 0 || a.ready() == nil {
		t.Errorf("told %d, ready: %v, with a device that fails", told(a), a.ready())
	}
	delete(a.failing, "c2")
	if a.tell(mark{a.streams, 7, true}); told(a) != 7 || a.ready() != nil {
		t.Errorf("told %d, ready: %v, when it does no more", told(a), a.ready())
	}
	if next := a.next(); !next.IsZero() {
		t.Errorf("something is to do in %s", time.Until(next))
	}
}

// What someone changes is right again within a second with a thousand peers, after two looks; with more, looks take no more of a processor.
func TestLookEvery(t *testing.T) {
	for _, c := range []struct {
		devices, peers int
		want           time.Duration
	}{
		{1, 0, 300 * time.Millisecond}, {1, 1000, 300 * time.Millisecond}, {1, 5000, 2700 * time.Millisecond},
		{4, 800, 300 * time.Millisecond}, {100, 5000, 3390 * time.Millisecond}, {1, 1_000_000, 30 * time.Second},
	} {
		if got := lookEvery(c.devices, c.peers); got != c.want {
			t.Errorf("%d devices, %d peers: every %s, want %s", c.devices, c.peers, got, c.want)
		}
	}
}
