package device

import (
	"bytes"
	"context"
	"maps"
	"time"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
)

// Check reads a device for which the kernel sent no event, and sets it if it is not as it was set.
func (r *Reconciler) Check(ctx context.Context, cluster string) {
	started := time.Now()
	d := r.device(cluster)
	if started.Sub(d.liveAt) > sessionsMaxAge {
		d.live = nil // also of peers that were removed
	}
	matches, is := r.matchesApplied(ctx, d)
	now := time.Now()
	r.metrics.lookSeconds.Observe(now.Sub(started).Seconds())
	if !matches {
		r.set(ctx, cluster, is)
		return
	}
	if len(d.moved) > 0 {
		r.setPeers(ctx, cluster, d.moved)
	}
	r.Schedule.Checked(cluster, now)
}

// matchesApplied reports whether a device is as it was last set, so that its report does not change. It returns the
// device as it was read, so that set need not read it again; nil if set must.
func (r *Reconciler) matchesApplied(ctx context.Context, d *device) (matches bool, is *kernel.Device) {
	if d.peers == nil || d.contested {
		return false, nil
	}
	is, err := r.kernel.Device(d.name)
	if err != nil || is == nil || plan.OwnerOf(d.cluster, is) != plan.Ours ||
		!bytes.Equal(d.Report.GetPublicKey(), is.PublicKey[:]) {
		return false, nil
	}
	r.Peers.Observe(d.cluster, d.applied.Device.GetPersistentKeepalive().AsDuration(), is.Peers)
	if r.lookAtCandidates(ctx, d, is.Peers); d.peers == nil {
		return false, nil
	}
	r.leaveRoamed(d, is, d.peers.Endpoint, d.peers.Bounds())
	if d.applied.Device.GetPermissive() {
		if !maps.Equal(r.nodesHeard(d, d.applied, is.Peers, d.peers.Endpoint), d.applied.Heard) {
			return false, is
		}
	}
	return d.peers.Matches(d.cluster, d.applied.Device, d.lacking, is), is
}

// leaveRoamed makes a plan keep the endpoints of peers that roamed and have a live session.
func (r *Reconciler) leaveRoamed(d *device, is *kernel.Device, wanted plan.Wanted, bounds plan.Bounds) {
	left := d.roaming.Look(time.Now(), is.Peers, wanted, bounds)
	var limit time.Duration
	if d.roaming.Unproven() {
		limit = plan.ProofTime
	}
	r.Schedule.CheckWithin(d.cluster, limit)
	for _, p := range left {
		if p.New {
			r.Events.Emit(events.Peer(d.cluster, p.Node, "roam", "from "+p.Wanted.String()+" to "+p.At.String()).
				Info("a peer's packets come from another address than its endpoint; the agent uses this address while they do",
					"node", p.Node, "device", d.name, "address", p.At, "endpoint", p.Wanted))
		}
	}
	if d.Roamed != len(left) {
		d.Roamed = len(left)
		r.publish(d)
	}
}
