package catalog

import (
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// MaxObject is the size limit of one object in bytes, encoded, and MaxMemory that of its memory at a broker, as
// streams.MemoryOf has it; a larger object is not exported. A broker reads messages of 1 MiB that take 12 MiB: there is
// room for the message around an object. An EndpointSlice of 1,000 endpoints, the largest that an apiserver accepts,
// has some 100 KiB.
const (
	MaxObject = 1<<20 - 4<<10
	MaxMemory = 8 << 20
)

// Journal is the list of changes that publishers read.
type Journal = streams.Journal[Key, Export]

// Entry is the newest change of one exported object.
type Entry = streams.Entry[Key, Export]

// Export is an object with its audience. It is immutable.
type Export struct {
	Object *semaphorev1.Object
	// Digest is the digest of Object alone, Memory what it takes at a broker, in bytes.
	Digest streams.Digest
	Memory int
	// To are the clusters that receive the object.
	To Audience
	// withdrawn are the clusters that received the object before and may no longer; withdrawnAt is the revision at
	// which the last of them lost it. A reader that was complete at or after that revision has sent the deletion.
	withdrawn   Audience
	withdrawnAt uint64
	// contentAt is the revision since which the object is unchanged, and since are the clusters that could receive it
	// ever since: a later revision has nothing new for them.
	contentAt uint64
	since     Audience
}

var encoding = proto.MarshalOptions{Deterministic: true}

// NewExport returns an object with its audience. It returns an error if the object cannot be sent.
func NewExport(object *semaphorev1.Object, to Audience) (Export, error) {
	data, err := encoding.Marshal(object)
	if err != nil {
		return Export{}, fmt.Errorf("it cannot be encoded: %w", err)
	}
	if len(data) > MaxObject {
		return Export{}, fmt.Errorf("it has %d bytes, more than the limit of %d: make it smaller", len(data), MaxObject)
	}
	memory, err := streams.MemoryOf(data, object.ProtoReflect().Type(), MaxMemory)
	if err != nil || memory > MaxMemory {
		return Export{}, fmt.Errorf("its %d bytes take more than %d bytes of a broker's memory, the limit: make it smaller",
			len(data), MaxMemory)
	}
	// As digest.Of, without encoding twice.
	return Export{Object: object, Digest: sha256.Sum256(data), Memory: memory, To: to}, nil
}

// ChangeType is what an entry means for one cluster.
type ChangeType int

const (
	// NoChange: the object was never exported to the cluster, or the cluster has received the deletion.
	NoChange ChangeType = iota
	// Upsert: the object is new or changed.
	Upsert
	// Delete: the object is deleted, or is no longer exported to the cluster.
	Delete
)

// ChangeFor returns what an entry means for a reader for cluster. complete is the newest revision at which the reader
// had sent everything; 0 if unknown. Nothing, not even a name, may reach a cluster outside the audience.
func ChangeFor(e *Entry, cluster string, complete uint64) ChangeType {
	switch {
	case e.Value.To.Has(cluster):
		switch {
		case e.Deleted:
			return Delete
		case complete > 0 && complete >= e.Value.contentAt && e.Value.since.Has(cluster):
			return NoChange // it was sent; only the audience has changed
		}
		return Upsert
	case complete < e.Value.withdrawnAt && e.Value.withdrawn.Has(cluster):
		return Delete
	}
	return NoChange
}

// inheritWithdrawn records which clusters lose the object at revision at, and which have had it unchanged; old is the
// entry that this export replaces.
func (e *Export) inheritWithdrawn(old *Entry, at uint64, all universe) {
	if !old.Deleted && old.Value.Digest == e.Digest {
		e.contentAt, e.since = old.Value.contentAt, all.intersect(old.Value.since, e.To)
	}
	e.withdrawn, e.withdrawnAt = old.Value.withdrawn, old.Value.withdrawnAt
	lost := all.subtract(old.Value.To, e.To)
	switch {
	case lost == Nobody:
	case old.Deleted:
		// The deletion informed them.
		e.withdrawn, e.withdrawnAt = all.union(e.withdrawn, lost), old.Revision
	default:
		e.withdrawn, e.withdrawnAt = all.union(e.withdrawn, lost), at
	}
	if e.withdrawn = all.subtract(e.withdrawn, e.To); e.withdrawn == Nobody {
		e.withdrawnAt = 0
	}
}
