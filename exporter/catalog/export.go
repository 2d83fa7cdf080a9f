package catalog

import (
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/stream/digest"
	"github.com/kube-semaphore/semaphore/internal/stream/journal"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// MaxObject is the most bytes that one object may have, encoded; a larger one is not exported. The largest
// that an apiserver takes, an EndpointSlice of 1,000 endpoints, has some 100 KiB.
const MaxObject = 1 << 20

// Journal is what publishers read.
type Journal = journal.Journal[Key, Export]

// Entry is a step in the life of one exported object.
type Entry = journal.Entry[Key, Export]

// Export is an object and who may see it. It is immutable.
type Export struct {
	Object *semaphorev1.Object
	// Digest is that of Object alone.
	Digest digest.Digest
	// To are the clusters that may see the object.
	To Audience
	// withdrawn are those that could see it once and no longer may, the last of them since
	// revision withdrawnAt: a reader that was told all there was then, or later, knows.
	withdrawn   Audience
	withdrawnAt uint64
}

var encoding = proto.MarshalOptions{Deterministic: true}

// NewExport is an object for an audience. It fails for what cannot be sent.
func NewExport(object *semaphorev1.Object, to Audience) (Export, error) {
	data, err := encoding.Marshal(object)
	if err != nil {
		return Export{}, fmt.Errorf("it cannot be encoded: %w", err)
	}
	if len(data) > MaxObject {
		return Export{}, fmt.Errorf("it has %d bytes, and %d is the most that is sent: make it smaller", len(data), MaxObject)
	}
	// As digest.Of, without encoding twice.
	return Export{Object: object, Digest: sha256.Sum256(data), To: to}, nil
}

// Sight is what a step in the life of an object looks like from one cluster.
type Sight int

// What there is to see.
const (
	// Nothing is to be seen: the object never was that cluster's to know of, or no longer is and it was told.
	Nothing Sight = iota
	// Upsert is a new or changed object.
	Upsert
	// Delete is the end of an object, or of the cluster's right to see it.
	Delete
)

// Seen is what a step looks like to a reader for cluster that has been told all there was at revision whole; 0 for a
// reader that does not know. Nothing that is not for a cluster may reach it, not even a name.
func Seen(e *Entry, cluster string, whole uint64) Sight {
	switch {
	case e.Value.To.Has(cluster):
		if e.Deleted {
			return Delete
		}
		return Upsert
	case whole < e.Value.withdrawnAt && e.Value.withdrawn.Has(cluster):
		return Delete
	}
	return Nothing
}

// succeed carries on who could see the object before: old is its last step.
func (e *Export) succeed(old *Entry, at uint64, all universe) {
	e.withdrawn, e.withdrawnAt = old.Value.withdrawn, old.Value.withdrawnAt
	lost := all.without(old.Value.To, e.To)
	switch {
	case lost == Nobody:
	case old.Deleted:
		// Its end told them.
		e.withdrawn, e.withdrawnAt = all.either(e.withdrawn, lost), old.Revision
	default:
		e.withdrawn, e.withdrawnAt = all.either(e.withdrawn, lost), at
	}
	if e.withdrawn = all.without(e.withdrawn, e.To); e.withdrawn == Nobody {
		e.withdrawnAt = 0
	}
}
