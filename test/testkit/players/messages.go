// Package players has what the other end of a stream says: the messages and objects of an exporter and of an agent, and
// an exporter whose stream a test drives.
//
// Its input is what a test wants to be said, and it returns the messages of proto/semaphore/v1. A message that no
// correct program sends is made by changing one of these.
package players

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Hello begins a stream of a cluster's exporter.
func Hello(cluster, epoch string, head uint64, kinds ...semaphorev1.Kind) *semaphorev1.PublishRequest {
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Hello{Hello: &semaphorev1.Hello{
		Cluster: cluster, ProtocolVersion: 1, MinProtocolVersion: 1, Epoch: epoch, HeadRevision: head, Kinds: kinds,
		SoftwareVersion: "test",
	}}}
}

// Begin and End enclose a snapshot of a kind at a revision.
func Begin(kind semaphorev1.Kind, revision uint64) *semaphorev1.PublishRequest {
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotBegin{
		SnapshotBegin: &semaphorev1.SnapshotBegin{Kind: kind, Revision: revision}}}
}

// End ends a snapshot of so many objects.
func End(kind semaphorev1.Kind, revision, objects uint64) *semaphorev1.PublishRequest {
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotEnd{
		SnapshotEnd: &semaphorev1.SnapshotEnd{Kind: kind, Revision: revision, Objects: objects}}}
}

// Unchanged stands for a snapshot of objects that the broker holds.
func Unchanged(kind semaphorev1.Kind, revision, objects uint64, sum streams.Digest) *semaphorev1.PublishRequest {
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotUnchanged{
		SnapshotUnchanged: &semaphorev1.SnapshotUnchanged{Kind: kind, Revision: revision, Objects: objects,
			Digest: sum.Bytes()}}}
}

// Beat is a heartbeat of an exporter that has changes up to head, and has sent those up to sent.
func Beat(head, sent uint64) *semaphorev1.PublishRequest {
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Heartbeat{
		Heartbeat: &semaphorev1.Heartbeat{HeadRevision: head, SentRevision: sent}}}
}

func Changes(all ...*semaphorev1.Change) *semaphorev1.PublishRequest {
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Changes{
		Changes: &semaphorev1.Changes{Changes: all}}}
}

// Upsert is a change that was observed just now.
func Upsert(revision uint64, o *semaphorev1.Object) *semaphorev1.Change {
	return &semaphorev1.Change{Revision: revision, ObservedAt: timestamppb.Now(),
		Change: &semaphorev1.Change_Upsert{Upsert: o}}
}

// Delete is the end of an object that was observed just now.
func Delete(revision uint64, key *semaphorev1.ObjectKey) *semaphorev1.Change {
	return &semaphorev1.Change{Revision: revision, ObservedAt: timestamppb.Now(),
		Change: &semaphorev1.Change_Delete{Delete: key}}
}

// Upserts have consecutive revisions from first.
func Upserts(first uint64, objects ...*semaphorev1.Object) *semaphorev1.PublishRequest {
	var all []*semaphorev1.Change
	for i, o := range objects {
		all = append(all, Upsert(first+uint64(i), o))
	}
	return Changes(all...)
}

// Deletion is a message with the end of one object.
func Deletion(revision uint64, o *semaphorev1.Object) *semaphorev1.PublishRequest {
	return Changes(Delete(revision, o.GetKey()))
}

// maxChanges and maxBytes bound a message of a snapshot, as exporters do.
const maxChanges, maxBytes = 1000, 500_000

func Snapshot(kind semaphorev1.Kind, revision uint64, objects ...*semaphorev1.Object) []*semaphorev1.PublishRequest {
	out := []*semaphorev1.PublishRequest{Begin(kind, revision)}
	first, size := 0, 0
	for i, o := range objects {
		n := proto.Size(o)
		if i-first == maxChanges || i > first && size+n > maxBytes {
			out = append(out, Upserts(uint64(first+1), objects[first:i]...))
			first, size = i, 0
		}
		size += n
	}
	if first < len(objects) {
		out = append(out, Upserts(uint64(first+1), objects[first:]...))
	}
	return append(out, End(kind, revision, uint64(len(objects))))
}

// Snapshots are those of kinds at a revision, in this order. Each object is in that of its kind.
func Snapshots(kinds []semaphorev1.Kind, revision uint64,
	objects ...*semaphorev1.Object) (all []*semaphorev1.PublishRequest) {
	for _, kind := range kinds {
		of := slices.DeleteFunc(slices.Clone(objects),
			func(o *semaphorev1.Object) bool { return o.GetKey().GetKind() != kind })
		all = append(all, Snapshot(kind, revision, of...)...)
	}
	return all
}

// AgentHello begins a stream of an agent.
func AgentHello(h *semaphorev1.AgentHello) *semaphorev1.AttachRequest {
	return &semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Hello{Hello: h}}
}

// Report is what an agent's node has.
func Report(devices ...*semaphorev1.DeviceReport) *semaphorev1.AttachRequest {
	return &semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Report{
		Report: &semaphorev1.AgentReport{Devices: devices}}}
}

// Applied acknowledges what an agent was sent up to a revision.
func Applied(revision uint64) *semaphorev1.AttachRequest {
	return &semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Applied{
		Applied: &semaphorev1.Applied{Revision: revision}}}
}
