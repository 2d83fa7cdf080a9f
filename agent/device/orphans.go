package device

import (
	"log/slog"
	"strings"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const onlyGuard = "the broker sent nothing about this cluster and the device is missing, so the guard drops packets " +
	"to it"

// FindOrphans finds devices of an earlier agent that the broker does not desire, or has not named yet. Only those with
// an agent's alias count: a device of another program, such as semaphore-wireguard, does not concern the broker before
// it names the cluster. An orphan is reported. Only the broker or an operator removes it.
func (r *Reconciler) FindOrphans() {
	links, err := r.kernel.Links()
	if err != nil {
		slog.Warn("cannot list the devices that an earlier agent left; the agent retries", "error", err)
		return
	}
	found := map[string]*semaphorev1.DeviceReport{}
	for _, l := range links {
		cluster, ok := strings.CutPrefix(l.Alias, naming.DeviceAlias(""))
		if !ok || plan.Cluster(cluster) != nil || naming.Device(cluster) != l.Name || r.Session.Device(cluster) != nil {
			continue
		}
		if report := r.orphan(cluster, l.Name); report != nil {
			found[cluster] = report
		}
	}
	// Another program deleted the device, and its remote was removed while no agent ran: its guard remains.
	for _, cluster := range r.Node.UnconfiguredGuards() {
		if found[cluster] == nil && plan.Cluster(cluster) == nil && r.Session.Device(cluster) == nil {
			found[cluster] = &semaphorev1.DeviceReport{
				Cluster: cluster, Interface: naming.Device(cluster), Problem: onlyGuard,
			}
		}
	}
	r.Board.Update(func(v *status.View) { v.Orphans = found })
}

// orphan returns the report of an orphan; nil if it no longer exists.
func (r *Reconciler) orphan(cluster, device string) *semaphorev1.DeviceReport {
	report := &semaphorev1.DeviceReport{Cluster: cluster, Interface: device}
	is, err := r.kernel.Device(device)
	if err != nil {
		report.Problem = events.TruncateProblem(err.Error())
		return report
	}
	if is == nil {
		return nil
	}
	describeReport(report, is)
	// The broker publishes the key, so it must survive the next reboot.
	if key, err := r.Keys.Read(device); err != nil {
		report.PublicKey, report.Problem = nil, events.TruncateProblem(err.Error())
	} else if key != is.PrivateKey {
		report.PublicKey, report.Problem = nil, "its private key is not the one in its key file"
	}
	return report
}
