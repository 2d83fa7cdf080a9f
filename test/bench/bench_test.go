package bench

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// Limits of the cost of a healed partition. Within the journal's memory, they are relative to the size of the changes;
// with a snapshot, relative to a JSON list of the same objects.
const (
	maxOfDelta = 1.2
	maxOfList  = 0.3
)

// TestHealAfterPartition changes 1 % of 10,000 objects while the exporter is disconnected.
func TestHealAfterPartition(t *testing.T) {
	const objects, changed = 10_000, 100
	w := newWorld(t)
	fill(w.catalog.Journal(), objects)
	stop := w.publish()
	w.caughtUp()
	whole := stop()

	var list bytes.Buffer
	entries, _ := w.catalog.Journal().Snapshot()
	for _, e := range entries {
		data := testkit.Value(protojson.Marshal(e.Value.Object))(t)
		must(t, json.Compact(&list, data))
	}
	change := func(from, to int) (delta int) {
		before := w.catalog.Journal().Head()
		for i := from; i < to; i++ {
			key, object := export(100*i%objects+50, objects+i)
			put(w.catalog.Journal(), key, object, time.Now())
		}
		entries, _, _ := w.catalog.Journal().Since(before, objects)
		return compressed(t, entries)
	}

	delta := change(0, changed)
	began := time.Now()
	stop = w.publish()
	w.caughtUp()
	took := time.Since(began)
	healed := stop()
	t.Logf("first connect %.0f B, %.2f of %d B as JSON; heal %.0f B, %.2f of the delta's %d B, in %s",
		whole, whole/float64(list.Len()), list.Len(), healed, healed/float64(delta), delta, took)
	if healed > maxOfDelta*float64(delta) {
		t.Errorf("%.0f B to heal; the delta is %d B", healed, delta)
	}
	if whole > maxOfList*float64(list.Len()) {
		t.Errorf("%.0f B of snapshot; the list is %d B", whole, list.Len())
	}

	// The exporter has another epoch: for unchanged objects it sends only a digest.
	w.restartExporter()
	fill(w.catalog.Journal(), objects)
	change(0, changed)
	change(changed, 2*changed)
	stop = w.publish()
	w.caughtUp()
	other := stop()
	t.Logf("after a restart of the exporter %.0f B", other)
	if other > maxOfList*float64(list.Len()) {
		t.Errorf("%.0f B after a restart of the exporter; the list is %d B", other, list.Len())
	}

	w.restartExporter()
	fill(w.catalog.Journal(), objects)
	change(0, 2*changed)
	stop = w.publish()
	w.caughtUp()
	if same := stop(); same > 2048 {
		t.Errorf("%.0f B after a restart of the exporter with nothing changed", same)
	} else {
		t.Logf("after a restart of the exporter with nothing changed %.0f B", same)
	}
}

// compressed returns the size of changes as one compressed message.
func compressed(t *testing.T, entries []*catalog.Entry) int {
	all := &semaphorev1.Changes{}
	for _, e := range entries {
		all.Changes = append(all.Changes, &semaphorev1.Change{
			Revision: e.Revision, ObservedAt: timestamppb.New(e.ObservedAt),
			Change: &semaphorev1.Change_Upsert{Upsert: e.Value.Object},
		})
	}
	data, err := proto.Marshal(&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Changes{Changes: all}})
	must(t, err)
	var packed bytes.Buffer
	w := testkit.Value(encoding.GetCompressor(gzip.Name).Compress(&packed))(t)
	testkit.Value(w.Write(data))(t)
	must(t, w.Close())
	return packed.Len()
}
