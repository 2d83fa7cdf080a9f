package status

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// maxReport is less than a broker accepts in one message, in bytes, and maxProblems is how many problems it keeps.
	maxReport   = 192 << 10
	maxProblems = 64
	// notNamed is the problem of an orphan after the broker sent its complete state without it.
	notNamed = "the broker sent nothing about this cluster, so the agent leaves its device unchanged"
)

// orphan returns the report of an orphan. It is no problem before the broker has sent its complete state.
func (v View) orphan(cluster string, stream stream.View) *semaphorev1.DeviceReport {
	r := v.Orphans[cluster]
	if r.GetProblem() == "" && stream.Current {
		r = proto.CloneOf(r)
		r.Problem = notNamed
	}
	return r
}

// Report returns the agent's report to the broker. peers adds the state of a desired device's peers.
func Report(
	v View, stream stream.View, peers func(*semaphorev1.DeviceReport) *semaphorev1.DeviceReport,
) *semaphorev1.AgentReport {
	r := &semaphorev1.AgentReport{Problems: v.Node.Problems(), ClearPackets: v.Node.ClearPackets(),
		Guarded: v.Node.Guarded, ServiceTraffic: v.Traffic}
	for _, cluster := range slices.Sorted(maps.Keys(v.Devices)) {
		d := v.Devices[cluster]
		if d.Report == nil {
			continue
		}
		report := d.Report
		if _, ok := stream.Remote(cluster); ok {
			report = peers(report)
		}
		if d.Clear != nil {
			report = v.addClear(report, d.Clear)
		}
		r.Devices = append(r.Devices, report)
	}
	for _, cluster := range slices.Sorted(maps.Keys(v.Orphans)) {
		if v.Devices[cluster].Report == nil {
			r.Devices = append(r.Devices, v.orphan(cluster, stream))
		}
	}
	r.Findings = finding.Messages(finding.Merge(v.findings(stream)))
	r.Findings = r.Findings[:min(len(r.Findings), maxFindings)]
	shorten(r)
	return r
}

const maxFindings = 16

// findings returns the faults of the node and its devices, except those that follow from the fields of a status.
func (v View) findings(stream stream.View) []finding.Finding {
	found := slices.Clone(v.Node.Findings)
	for _, cluster := range slices.Sorted(maps.Keys(v.Devices)) {
		d := v.Devices[cluster]
		found = append(found, d.found(cluster)...)
		if d.Clear != nil && d.Clear.Hold != "" {
			found = append(found, finding.New(finding.ClearHold, cluster, 1, d.Clear.Hold))
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(v.Orphans)) {
		if problem := v.orphan(cluster, stream).GetProblem(); problem != "" && v.Devices[cluster].Report == nil {
			found = append(found, finding.New(finding.OrphanDevice, cluster, 1, problem))
		}
	}
	return found
}

func (d Device) found(cluster string) []finding.Finding {
	if len(d.Findings) == 0 && d.Problem != "" {
		return []finding.Finding{finding.New(finding.DeviceFailed, cluster, 1, d.Problem)}
	}
	return d.Findings
}

func (d Device) failed(cluster string) (found []finding.Finding) {
	for _, f := range d.found(cluster) {
		if f.Code == finding.DeviceFailed || f.Code == finding.KeyFileProblem {
			found = append(found, f)
		}
	}
	return found
}

// Found returns the findings of an agent's status, except those that follow from its fields.
func (v View) Found(stream stream.View) []finding.Finding {
	found := v.findings(stream)
	if err := Ready(v, stream); err != nil {
		found = append(found, finding.New(finding.NotReady, "", 1, err.Error()))
	}
	return found
}

func (v View) addClear(r *semaphorev1.DeviceReport, c *Clear) *semaphorev1.DeviceReport {
	r = proto.CloneOf(r)
	counts := v.Node.Counts[r.GetCluster()]
	r.Permissive, r.ClearOut, r.ClearIn, r.PeersClear = true, counts.PassedOut, counts.PassedIn, uint32(max(0, c.Peers))
	r.LastClear = semaphorev1.Time(v.Node.LastClear[r.GetCluster()])
	if c.Hold != "" {
		r.Problem = events.AddProblem(r.GetProblem(), errors.New(c.Hold))
	}
	return r
}

// shorten removes from a report the parts above a broker's limits: problems, and silent peers beyond the first, which
// remain counted. Otherwise a node that reaches no peer would lose its broker too.
func shorten(r *semaphorev1.AgentReport) {
	r.Problems = r.Problems[:min(len(r.Problems), maxProblems)]
	for most := 25; proto.Size(r) > maxReport; most /= 2 {
		for i, d := range r.Devices {
			if len(d.Silent) > most || len(d.Problem) > maxReport/1024 {
				d = proto.CloneOf(d)
				d.Silent = d.Silent[:min(len(d.Silent), most)]
				d.Problem = finding.CleanTo(d.Problem, maxReport/1024)
				r.Devices[i] = d
			}
		}
		if most == 0 {
			return
		}
	}
}

// Ready returns nil once the node is as the broker, or the state of an earlier agent, desires, and while nothing fails.
// It stays nil without a broker: the kernel keeps working.
func Ready(v View, stream stream.View) error {
	if causes := v.Node.with(finding.NoWireGuard); len(causes) > 0 {
		return finding.Because(errors.New("this node can have no device: "+strings.Join(finding.Texts(causes), "; ")),
			causes...)
	}
	for _, cluster := range slices.Sorted(maps.Keys(v.Devices)) {
		d := v.Devices[cluster]
		if f := d.Failure; f != nil && !f.Partial {
			return finding.Because(fmt.Errorf("device %s: %s", naming.Device(cluster), f.Problem), d.failed(cluster)...)
		}
	}
	if v.Node.Heard && !v.Node.Guarded {
		return finding.Because(errors.New("the pod subnets of remotes are not all guarded yet"),
			v.Node.with(finding.Unguarded)...)
	}
	if !v.Programmed {
		if stream.LastError != "" {
			return fmt.Errorf("never attached to the broker: %s", stream.LastError)
		}
		return errors.New("the broker has not sent its complete state yet")
	}
	return nil
}

// Remarks returns a ready agent's reports about itself: the age of a desired state that no broker confirms, and
// problems of devices.
func Remarks(v View, stream stream.View, now time.Time) string {
	var remarks []string
	for _, r := range stream.Remotes {
		age, known := r.Age(now)
		text := age.Round(time.Second).String()
		switch {
		case !known:
			text = "unknown"
		case age == 0:
			continue
		}
		remarks = append(remarks, fmt.Sprintf("device %s stale, age %s, from the %s",
			r.Device(), text, semaphorev1.StateSourceName(r.Source)))
	}
	for _, cluster := range slices.Sorted(maps.Keys(v.Devices)) {
		if d := v.Devices[cluster]; d.Report != nil && d.Problem != "" {
			remarks = append(remarks, "device "+naming.Device(cluster)+": "+d.Problem)
		}
	}
	return strings.Join(remarks, "; ")
}

// Clusters returns the clusters of desired devices, of devices that could not be removed, and of orphans, sorted.
func Clusters(v View, stream stream.View) []string {
	clusters := slices.Collect(maps.Keys(v.Orphans))
	for _, r := range stream.Remotes {
		clusters = append(clusters, r.Cluster)
	}
	for cluster, d := range v.Devices {
		if d.Report != nil {
			clusters = append(clusters, cluster)
		}
	}
	slices.Sort(clusters)
	return slices.Compact(clusters)
}

// Status returns the agent's status for DebugService, without the kernel's state: AddKernel adds that. paths returns
// the status of the paths of a desired device.
func Status(v View, stream stream.View, paths func(cluster string) *semaphorev1.PathsStatus,
) *semaphorev1.GetStatusResponse {
	s := &semaphorev1.GetStatusResponse{Ready: Ready(v, stream) == nil}
	for _, cluster := range Clusters(v, stream) {
		s.Devices = append(s.Devices, v.device(cluster, stream, paths))
	}
	return s
}

func (v View) device(cluster string, stream stream.View, paths func(cluster string) *semaphorev1.PathsStatus,
) *semaphorev1.DeviceStatus {
	d := &semaphorev1.DeviceStatus{
		Cluster: cluster, Interface: naming.Device(cluster), AdoptedFrom: v.Devices[cluster].AdoptedFrom,
	}
	remote, desired := stream.Remote(cluster)
	if desired {
		d.PeersDesired, d.Source, d.Paths = uint32(remote.Peers), remote.Source, paths(cluster)
		d.ConfirmedAt = semaphorev1.Time(remote.ConfirmedAt)
	}
	if is := v.Devices[cluster]; is.Report != nil {
		d.Problem = is.Problem
	} else if v.Orphans[cluster] != nil && !desired {
		d.Problem = v.orphan(cluster, stream).GetProblem()
	}
	return d
}

// AddKernel adds the kernel's state to a status. It returns the devices that cannot be read.
func AddKernel(s *semaphorev1.GetStatusResponse, read func(name string) (*kernel.Device, error),
) (found []finding.Finding) {
	unreadable := func(d *semaphorev1.DeviceStatus, why string) {
		d.Problem = strings.TrimPrefix(d.Problem+"; "+why, "; ")
		found = append(found, finding.New(finding.DeviceUnreadable, d.GetCluster(), 1, d.GetInterface()+": "+why))
	}
	for _, d := range s.Devices {
		is, err := read(d.Interface)
		switch {
		case err != nil:
			unreadable(d, err.Error())
		case is == nil:
			unreadable(d, "there is no such interface")
		default:
			addDevice(d, is)
		}
	}
	return found
}

func addDevice(d *semaphorev1.DeviceStatus, is *kernel.Device) {
	d.Backend, d.PublicKey = semaphorev1.BackendOf(is.Backend), is.PublicKey.String()
	d.ListenPort, d.Mtu = uint32(is.ListenPort), uint32(is.MTU)
	d.PeersPresent = uint32(len(is.Peers))
	d.LastHandshake = NewestHandshake(is.Peers)
	for _, p := range is.Peers {
		if p.LastHandshakeTime.After(time.Unix(0, 0)) {
			d.PeersWithHandshake++
		}
		d.ReceivedBytes += uint64(p.ReceiveBytes)
		d.SentBytes += uint64(p.TransmitBytes)
	}
	for _, r := range is.Routes {
		d.Routes = append(d.Routes, r.String())
	}
}

func NewestHandshake(peers []wgtypes.Peer) *timestamppb.Timestamp {
	var newest time.Time
	for _, p := range peers {
		if p.LastHandshakeTime.After(newest) {
			newest = p.LastHandshakeTime
		}
	}
	return semaphorev1.Time(newest)
}

func Link(stream stream.View, cluster, address string) *semaphorev1.LinkStatus {
	return &semaphorev1.LinkStatus{
		Cluster: cluster, Address: address, Connected: stream.Attached, Since: timestamppb.New(stream.Since),
		LastError: stream.LastError, LastHeard: semaphorev1.Time(stream.Heard),
	}
}
