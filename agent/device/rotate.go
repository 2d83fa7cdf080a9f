package device

import (
	"context"
	"log/slog"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/agent/plan"
)

// sessionsMaxAge is how long it is remembered who has a session: when all nodes of a cluster get new keys one after the
// other, not each of them has all peers read.
const sessionsMaxAge = 10 * time.Second

// Rotate replaces the key of a cluster, and returns the new public one. The new key is on the disk before the device
// has it, and on the device before the agent reports it. Until peers have it they can still send to us with the old
// one; see docs/encryption.md.
func (r *Reconciler) Rotate(ctx context.Context, cluster string) (wgtypes.Key, error) {
	d := r.device(cluster)
	key, err := r.Keys.Replace(cluster)
	if err != nil {
		r.Set(ctx, cluster) // which reports the problem
		return wgtypes.Key{}, err
	}
	if err := r.kernel.Configure(d.name, wgtypes.Config{PrivateKey: &key.Private}); err != nil {
		slog.Warn("the device does not take its new key; looking at it as a whole", "device", d.name, "error", err)
		r.Set(ctx, cluster)
	}
	public := key.Private.PublicKey()
	var maxAge time.Duration
	known := d.report != nil && !r.Schedule.Broken(cluster)
	if known {
		d.report = proto.CloneOf(d.report)
		d.report.PublicKey, d.report.KeyCreatedAt = public[:], timestamppb.New(key.Created)
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

// triggerHandshakes has single peers that replace others start a handshake immediately, where there was traffic; see
// plan.TriggerHandshakes. Where sessions cannot be read, a peer waits for its first packet.
func (r *Reconciler) triggerHandshakes(d *device, cfg *wgtypes.Config) {
	if !plan.Replaces(*cfg) {
		return
	}
	now := time.Now()
	if now.Sub(d.liveAt) > sessionsMaxAge {
		d.live, d.liveAt = nil, now
		is, err := r.kernel.Device(d.name)
		switch {
		case err != nil:
			slog.Debug("cannot see which peers have traffic", "device", d.name, "error", err)
		case is != nil:
			for _, p := range is.Peers {
				if plan.Live(p, now) {
					d.live = append(d.live, p)
				}
			}
		}
	}
	plan.TriggerHandshakes(cfg, d.live, now)
}
