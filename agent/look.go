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

// WireGuard tells nobody of a peer or a port that someone changes: they have to be read. A device is looked at
// again after leastLook, or where reading it takes long after lookShare times as long as that took, which then is half a
// percent of one processor: 1 s up to about a thousand peers in userspace.
const (
	leastLook = time.Second
	lookShare = 200
)

// usualLook is how long a look takes before one is known.
const usualLook = time.Millisecond

// looked is how long looks take, when they took so long before and the last one took so long: one that had to wait for a
// processor says little, so it counts for at most twice what the others took.
func looked(before, last time.Duration) time.Duration {
	return min(last, 2*max(before, usualLook))
}

// nextLook is how long to wait after looks that take so long.
func nextLook(took time.Duration) time.Duration {
	return min(max(leastLook, lookShare*took), checkEvery)
}

// looks is what looks at one device have come to.
type looks struct {
	// at is when it was last looked at, and took how long looks take.
	at   time.Time
	took time.Duration
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
	return l.at.Add(max(nextLook(l.took), l.contest.Pause(now)))
}

// inspect looks at a device of which nothing was heard, and has it put right where it is not as it was set.
func (a *agent) inspect(ctx context.Context, cluster string) {
	started := time.Now()
	a.mu.Lock()
	n := a.networks[cluster]
	a.mu.Unlock()
	asSet := n != nil && a.asSet(cluster, n)
	now := time.Now()
	a.metrics.lookSeconds.Observe(now.Sub(started).Seconds())
	a.mu.Lock()
	l := a.looksAt(cluster)
	l.took = looked(l.took, now.Sub(started))
	if asSet {
		l.at = now
	}
	a.mu.Unlock()
	if !asSet {
		a.whole(ctx, cluster)
	}
}

// asSet says whether a device is as it was last set, and nothing else is to be told of it.
func (a *agent) asSet(cluster string, n *network) bool {
	if n.single == nil || n.contested {
		return false
	}
	device := naming.Device(cluster)
	stands, err := a.host.Device(device)
	if err != nil || stands == nil || plan.OwnerOf(cluster, stands) != plan.Ours || !bytes.Equal(n.report.GetPublicKey(), stands.PublicKey[:]) {
		return false
	}
	a.paths.observe(cluster, n.done.Device.GetPersistentKeepalive().AsDuration(), stands.Peers)
	a.leaveRoamed(cluster, device, stands, n.single.Endpoint)
	if n.done.Device.GetPermissive() {
		node := func(key wgtypes.Key) (string, bool) { node, _, ok := n.single.Endpoint(key); return node, ok }
		if !maps.Equal(a.hear(cluster, n.done, stands.Peers, node), n.done.Heard) {
			return false
		}
	}
	return n.single.Stands(cluster, n.done.Device, n.lacking, stands)
}

// leaveRoamed has a plan leave those peers of a device where they are that roamed there and are heard.
func (a *agent) leaveRoamed(cluster, device string, stands *wireguard.Device, wanted plan.Wanted) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.looksAt(cluster)
	left := l.roaming.Look(time.Now(), stands.Peers, wanted)
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
