package agent

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// WireGuard tells nobody of a peer or a port that someone changes: they have to be read, and there is nothing cheaper to read than all of
// it. A device is looked at again after leastLook, so that what someone changed is right again within a second, also an endpoint
// of a peer that there is traffic with, which takes two looks, the second after plan.ProofTime. With more than forty devices it is lookPerDevice for each, and each of the node's peers beyond manyPeers adds
// lookPerPeer: a look costs as much as there are peers, and so many looks would take more than 2 % of a processor (BenchmarkPolling).
const (
	leastLook     = 300 * time.Millisecond
	manyPeers     = 1000
	lookPerPeer   = 600 * time.Microsecond
	lookPerDevice = 10 * time.Millisecond
)

// lookEvery is how long after a look at a device of the node the next one is due.
func lookEvery(devices, peers int) time.Duration {
	few := max(leastLook, time.Duration(max(0, devices-1))*lookPerDevice)
	return min(few+time.Duration(max(0, peers-manyPeers))*lookPerPeer, checkEvery)
}

// looks is what looks at one device have come to.
type looks struct {
	// at is when it was last looked at.
	at time.Time
	// roaming is only for the goroutine of program; roamed is how many peers are where they roamed to.
	roaming plan.Roaming
	roamed  int
	contest plan.Contest
}

// looksAt are those at the device to a cluster. It is called with mu held.
func (a *agent) looksAt(cluster string) *looks {
	l := a.looks[cluster]
	if l == nil {
		l = &looks{}
		a.looks[cluster] = l
	}
	return l
}

// rested is when a device may be looked at because of something that can have been our own doing, or that someone
// does again and again. It is called with mu held.
func (a *agent) rested(cluster string, now time.Time) time.Time {
	l := a.looksAt(cluster)
	return l.at.Add(max(healGap, l.contest.Pause(now)))
}

// nextLookAt is when to look at a device that nothing was heard of; zero for one that is tried again
// anyway, or has not been set yet. It is called with mu held.
func (a *agent) nextLookAt(cluster string, now time.Time) time.Time {
	if n := a.networks[cluster]; n == nil || n.done == nil || a.broken(cluster) {
		return time.Time{}
	}
	l := a.looksAt(cluster)
	peers := 0
	for _, n := range a.networks {
		peers += int(n.report.GetPeers())
	}
	every := lookEvery(len(a.networks), peers)
	if l.roaming.Unproven() {
		every = min(every, plan.ProofTime)
	}
	return l.at.Add(max(every, l.contest.Pause(now)))
}

// inspect looks at a device of which nothing was heard, and has it put right where it is not as it was set.
func (a *agent) inspect(ctx context.Context, cluster string) {
	started := time.Now()
	a.mu.Lock()
	n := a.networks[cluster]
	a.mu.Unlock()
	asSet, stands := false, (*wireguard.Device)(nil)
	if n != nil {
		asSet, stands = a.asSet(cluster, n)
	}
	now := time.Now()
	a.metrics.lookSeconds.Observe(now.Sub(started).Seconds())
	a.mu.Lock()
	l := a.looksAt(cluster)
	if asSet {
		l.at = now
	}
	a.mu.Unlock()
	if !asSet {
		a.wholeFrom(ctx, cluster, stands)
	}
}

// asSet says whether a device is as it was last set, and nothing else is to be told of it. It returns the device, as it was read, for
// wholeFrom; nil where that has to read it itself.
func (a *agent) asSet(cluster string, n *network) (asSet bool, stands *wireguard.Device) {
	if n.single == nil || n.contested {
		return false, nil
	}
	device := naming.Device(cluster)
	stands, err := a.host.Device(device)
	if err != nil || stands == nil || plan.OwnerOf(cluster, stands) != plan.Ours || !bytes.Equal(n.report.GetPublicKey(), stands.PublicKey[:]) {
		return false, nil
	}
	a.paths.observe(cluster, n.done.Device.GetPersistentKeepalive().AsDuration(), stands.Peers)
	a.leaveRoamed(cluster, device, stands, n.single.Endpoint, n.single.Bounds())
	if n.done.Device.GetPermissive() {
		node := func(key wgtypes.Key) (string, bool) { node, _, ok := n.single.Endpoint(key); return node, ok }
		if !maps.Equal(a.hear(cluster, n.done, stands.Peers, node), n.done.Heard) {
			return false, stands
		}
	}
	return n.single.Stands(cluster, n.done.Device, n.lacking, stands), stands
}

// leaveRoamed has a plan leave those peers of a device where they are that roamed there and are heard.
func (a *agent) leaveRoamed(cluster, device string, stands *wireguard.Device, wanted plan.Wanted, bounds plan.Bounds) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.looksAt(cluster)
	left := l.roaming.Look(time.Now(), stands.Peers, wanted, bounds)
	l.roamed = len(left)
	for _, r := range left {
		if !r.New {
			continue
		}
		slog.Info("peer's packets come from another address than it is wanted at; left there while it is heard",
			"device", device, "node", r.Node, "at", r.At, "wanted", r.Wanted)
		a.recorder.Record(debug.Event{Source: cluster, Object: "peer " + cluster + "/" + r.Node, Action: "roam",
			Detail: "from " + r.Wanted.String() + " to " + r.At.String()})
	}
}
