package device

import (
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// describe records the findings and the problem of a device: its own, those of its peers and its key, and a contest
// with another program.
func (r *Reconciler) describe(d *device, now time.Time, peers *plan.AppliedPeers) {
	contest := r.Schedule.Contest(d.cluster, now)
	d.Findings = r.findings(d, contest, peers.Problems())
	d.contested = contest != nil
	was := d.Problem
	d.Problem = events.AddProblem(events.JoinProblems(d.wrong, peers.Problems()), contest)
	d.Problem = events.AddProblem(d.Problem, r.Keys.Problem(d.cluster))
	if d.Problem != was && d.Problem != "" {
		slog.Warn("the device is not completely as desired; the agent retries", "problem", d.Problem, "device", d.name)
	}
	if d.Report.GetProblem() != d.Problem {
		d.Report = proto.CloneOf(d.Report)
		d.Report.Problem = d.Problem
	}
}

func (r *Reconciler) findings(d *device, contest error, peers []string) (found []finding.Finding) {
	if len(d.wrong) > 0 {
		found = append(found, finding.New(finding.DeviceFailed, d.cluster, len(d.wrong), d.wrong...))
	}
	if len(peers) > 0 {
		found = append(found, finding.New(finding.PeersContradict, d.cluster, len(peers), peers...))
	}
	if contest != nil {
		found = append(found, finding.New(finding.DeviceContested, d.cluster, 1, events.ProblemLine(contest)))
	}
	if err := r.Keys.Problem(d.cluster); err != nil {
		found = append(found, finding.New(finding.KeyFileProblem, d.cluster, 1, events.ProblemLine(err)))
	}
	return found
}

func (r *Reconciler) record(d *device, want *plan.Desired, done outcome, err error) {
	now := time.Now()
	r.Schedule.Checked(d.cluster, now)
	if d.Report == nil {
		d.Report = &semaphorev1.DeviceReport{Cluster: d.cluster, Interface: d.name}
	}
	steps := done.Without(done.lacking)
	healed := err == nil && !steps.Empty() && !steps.OnlySources() && d.applied != nil && d.applied.Equal(want)
	if healed {
		r.Schedule.Healed(d.cluster, now)
		r.metrics.heals.WithLabelValues(d.cluster, d.name).Inc()
	}
	d.peers, d.lacking, d.wrong = nil, done.lacking, wrongOf(done, err)
	switch {
	case err != nil:
	case want.Restored:
		d.applied = nil // only missing parts were added
	default:
		d.applied, d.peers = want, done.Applied
	}
	was := d.Problem
	r.describe(d, now, done.Applied)
	r.setFailure(d, now, done, err)
	r.metrics.conflicts.WithLabelValues(d.cluster, d.name).Set(float64(len(done.Conflicts)))
	r.metrics.unrouted.WithLabelValues(d.cluster, d.name).Set(float64(len(done.lacking)))
	d.refused = len(done.Refused)
	r.metrics.refused.WithLabelValues(d.cluster, d.name).Set(float64(d.refused + done.Applied.RefusedCount()))
	if done.device != nil {
		d.Report = proto.CloneOf(d.Report)
		describeReport(d.Report, done.device)
		r.describeKey(d.Report)
		r.Peers.Observe(d.cluster, want.Device.GetPersistentKeepalive().AsDuration(), done.device.Peers)
	}
	r.recordConflicts(d, done.Conflicts)
	r.publish(d)
	action, detail := "apply", describeSteps(steps)
	switch {
	case (err != nil || len(done.failed) > 0) && d.Problem != was:
		action, detail = "fail", d.Problem
	case err != nil || steps.Empty():
		return
	case healed:
		action = "heal"
	}
	event := events.Device(d.cluster, action, detail)
	if err == nil && !steps.Empty() {
		event = event.Info("set the device", "device", d.name, "why", action, "what", detail)
	}
	r.Events.Emit(event)
}

// setFailure decides whether a device is tried again. A refusal by the bounds is reported, and is no failure:
// everything else is done.
func (r *Reconciler) setFailure(d *device, now time.Time, done outcome, err error) {
	key, _ := r.Keys.Stored(d.cluster)
	switch {
	case err != nil || !key.Durable:
		r.fail(d, now, d.Problem, false)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			r.Schedule.Vanished(d.cluster, now)
		}
	case len(done.failed) > 0:
		r.fail(d, now, d.Problem, true)
	default:
		d.Failure = nil
		r.Schedule.Succeeded(d.cluster)
	}
}

func (r *Reconciler) fail(d *device, now time.Time, problem string, partial bool) {
	d.Failure = &status.Failure{Problem: problem, Partial: partial}
	r.Schedule.Failed(d.cluster, now, partial)
	r.metrics.requeues.WithLabelValues(d.cluster, d.name).Inc()
}

// recordConflicts reports when addresses or routes of this node begin and end to block a remote's subnets.
func (r *Reconciler) recordConflicts(d *device, conflicts []string) {
	for _, c := range plan.Missing(conflicts, d.conflicts) {
		r.Events.Emit(events.Device(d.cluster, "conflict", c))
	}
	for _, c := range plan.Missing(d.conflicts, conflicts) {
		r.Events.Emit(events.Device(d.cluster, "conflict-ended", c))
	}
	d.conflicts = conflicts
}

// wrongOf returns the problems of a device except those of its peers, a line each.
func wrongOf(done outcome, err error) []string {
	var lines []string
	for _, err := range append([]error{err}, done.failed...) {
		if err != nil {
			lines = append(lines, events.ProblemLine(err))
		}
	}
	return slices.Concat(lines, done.Refused, done.Conflicts)
}

// describeReport copies the read state of a device into its report. The port of a device that is not up yet was chosen
// by the kernel, and is not reported.
func describeReport(r *semaphorev1.DeviceReport, d *kernel.Device) {
	// A copy: a part of d would keep all of it, with its peers, as long as the report exists.
	r.PublicKey, r.ListenPort, r.Backend = slices.Clone(d.PublicKey[:]), 0, semaphorev1.BackendOf(d.Backend)
	if d.Up {
		r.ListenPort = uint32(d.ListenPort)
	}
	r.Peers, r.Mtu = uint32(len(d.Peers)), uint32(d.MTU)
	r.LastHandshake = status.NewestHandshake(d.Peers)
}

// describeKey sets the age of the key. The broker publishes the public key, so it is reported only if the private key
// is on the disk.
func (r *Reconciler) describeKey(report *semaphorev1.DeviceReport) {
	key, ok := r.Keys.Stored(report.GetCluster())
	if !ok {
		return
	}
	report.KeyCreatedAt = timestamppb.New(key.Created)
	if !key.Durable {
		report.PublicKey = nil
	}
}
