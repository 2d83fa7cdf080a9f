package device

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/agent/plan"
)

// sessionsMaxAge is how long the agent remembers which peers have a session: when all nodes of a cluster rotate one
// after the other, each change would otherwise read all peers.
const sessionsMaxAge = 10 * time.Second

// Rotate replaces the key for a cluster, and returns the new public key. The new key is on the disk before the device
// has it, and on the device before the agent reports it. Until peers have it they can still send to this node with the
// old one; see docs/encryption.md. It fails if the file cannot be written; the old key then stays in use.
func (r *Reconciler) Rotate(ctx context.Context, cluster string) (wgtypes.Key, error) {
	d := r.device(cluster)
	key, err := r.Keys.Replace(cluster)
	if err != nil {
		r.Set(ctx, cluster) // which reports the problem
		return wgtypes.Key{}, err
	}
	if err := r.kernel.Configure(d.name, wgtypes.Config{PrivateKey: &key.Private}); err != nil {
		slog.Warn("cannot set the new key on the device; the agent sets the device again", "device", d.name, "error", err)
		r.Set(ctx, cluster)
	}
	public := key.Private.PublicKey()
	var maxAge time.Duration
	known := d.Report != nil && !r.Schedule.Broken(cluster)
	if known {
		d.Report = proto.CloneOf(d.Report)
		d.Report.PublicKey, d.Report.KeyCreatedAt = public[:], timestamppb.New(key.Created)
	}
	if known && d.applied != nil {
		maxAge = d.applied.Device.GetKeyMaxAge().AsDuration()
	}
	r.Keys.Replaced(cluster, key, maxAge, known && d.applied != nil)
	if known {
		r.publish(d)
	}
	return public, nil
}

// triggerHandshakes makes single peers that replace others start a handshake immediately if there was traffic; see
// plan.TriggerHandshakes, whose result it returns. If sessions cannot be read, a peer waits for its first packet.
func (r *Reconciler) triggerHandshakes(d *device, cfg *wgtypes.Config) (live bool) {
	if !plan.Replaces(*cfg) {
		return false
	}
	now := time.Now()
	if now.Sub(d.liveAt) > sessionsMaxAge {
		d.live, d.liveAt = nil, now
		is, err := r.kernel.Device(d.name)
		switch {
		case err != nil:
			slog.Debug("cannot read which peers have sessions", "device", d.name, "error", err)
		case is != nil:
			for _, p := range is.Peers {
				if plan.Live(p, now) {
					d.live = append(d.live, p)
				}
			}
		}
	}
	return plan.TriggerHandshakes(cfg, d.live, now)
}

// BeginHandshakes makes a device begin a handshake with each of some peers. Those with a keepalive do so by themselves.
func (r *Reconciler) BeginHandshakes(cluster string, peers []wgtypes.Key) {
	d := r.device(cluster)
	if d.peers == nil {
		return
	}
	if peers = slices.DeleteFunc(peers, d.peers.Begins); len(peers) == 0 {
		return
	}
	if err := r.kernel.Configure(d.name, plan.BeginHandshakes(peers)); err != nil {
		slog.Warn("cannot begin handshakes to see whether peers answer; the agent tries again", "device", d.name, "error",
			err)
	}
}
