package device

import (
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
)

// remove removes a device that the broker no longer desires. The key remains, unless the operator configured otherwise.
// The guard remains while the node's own configuration names the remote.
func (r *Reconciler) remove(d *device) {
	existed, err := r.delete(d)
	now := time.Now()
	r.Schedule.Checked(d.cluster, now)
	if err != nil {
		text := events.TruncateProblem(err.Error())
		if d.Failure == nil || d.Failure.Problem != text { // log once for each reason: the agent retries
			slog.Warn("cannot remove the device; the agent retries", "device", d.name, "error", err)
		}
		if d.Report != nil {
			d.Problem = text
			d.Report = proto.CloneOf(d.Report)
			d.Report.Problem = text
		}
		r.fail(d, now, text, false)
		r.publish(d)
		return
	}
	delete(r.devices, d.cluster)
	r.Schedule.Forget(d.cluster)
	r.Keys.Forget(d.cluster)
	r.Session.Forget(d.cluster)
	r.Node.Forget(d.cluster)
	r.Peers.Forget(d.cluster)
	r.Board.DeleteDevice(d.cluster)
	r.metrics.forget(d.cluster, d.name)
	if existed {
		r.Events.Emit(events.Device(d.cluster, "remove", "the broker no longer has this remote").
			Info("device removed", "device", d.name))
	}
}

func (r *Reconciler) delete(d *device) (existed bool, err error) {
	if plan.Cluster(d.cluster) != nil {
		return false, nil // no such cluster has ever had a device
	}
	existing, err := r.kernel.Device(d.name)
	if err != nil {
		return false, err
	}
	if existing != nil {
		if _, err := plan.CheckOwner(d.cluster, existing, false); err != nil {
			return true, err
		}
		if err := r.kernel.Delete(d.name); err != nil {
			return true, err
		}
	}
	r.Node.Removed(d.cluster)
	d.claims = plan.Claims{}
	if r.cfg.RemoveKeys {
		var removed []string
		removed, err = kernel.RemoveKeys(r.cfg.WGKeyPath, func(device string) bool { return device == d.name })
		if len(removed) > 0 {
			slog.Info("removed the private key", "device", d.name)
		}
	}
	return existing != nil, err
}
