package publish

import (
	"fmt"
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestRefusalsOfDeletedObjects: what a broker says of objects that are gone is not kept, whatever revision it names.
func TestRefusalsOfDeletedObjects(t *testing.T) {
	b := newBench(t, "c2")
	p := b.ofServices()
	for i := range 12000 {
		s := echoAt(80)
		s.Name = fmt.Sprint("echo-", i)
		b.catalog.PutService(s, time.Now())
		p.recordRefusal(&semaphorev1.Refusal{Key: serviceKey(s.Name).Proto(), Revision: math.MaxUint64,
			Code: "OverLimit", Reason: "no"})
		p.recordOutcome(&semaphorev1.Outcome{Key: serviceKey(s.Name).Proto(), Code: "NameTaken", Reason: "no"})
		b.catalog.DeleteService("shop", s.Name, time.Now())
		p.recordSent(changed(&semaphorev1.Change{Revision: b.catalog.Journal().Head(),
			Change: &semaphorev1.Change_Delete{Delete: serviceKey(s.Name).Proto()}}), time.Now())
	}
	if n := len(p.refused); n > 0 {
		t.Errorf("of %d exported services the exporter keeps %d refusals",
			p.catalog.Objects("c2", semaphorev1.Kind_KIND_SERVICE), n)
	}
	if n := len(p.outcomes); n > 10_000 {
		t.Errorf("and %d outcomes", n)
	}
}

func changed(change *semaphorev1.Change) *semaphorev1.PublishRequest {
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Changes{
		Changes: &semaphorev1.Changes{Changes: []*semaphorev1.Change{change}}}}
}

// TestRefusalsOfEarlierStates: a refusal that arrives after a newer state was sent says nothing about that state. One
// of the present content stays, although the audience has changed since.
func TestRefusalsOfEarlierStates(t *testing.T) {
	for name, test := range map[string]struct {
		then func(*corev1.Service)
		kept int
	}{
		"the content changes":      {func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }, 0},
		"another cluster loses it": {func(s *corev1.Service) { s.Annotations[naming.AnnotationExportTo] = "c2" }, 1},
	} {
		b := newBench(t, "c2")
		p := b.ofServices()
		b.catalog.SetRemotes([]string{"c2", "c3"}, nil, time.Now())
		s, key := echoAt(80), serviceKey("echo")
		s.Annotations = map[string]string{naming.AnnotationExportTo: "c2,c3"}
		b.catalog.PutService(s, time.Now())
		first := b.catalog.Journal().Head()
		s = s.DeepCopy()
		test.then(s)
		b.catalog.PutService(s, time.Now())
		if e, _ := b.catalog.Journal().Last(key); catalog.ChangeFor(e, "c2", first) == catalog.Upsert {
			p.recordSent(changed(&semaphorev1.Change{Revision: e.Revision,
				Change: &semaphorev1.Change_Upsert{Upsert: e.Value.Object}}), time.Now())
		}
		p.recordRefusal(&semaphorev1.Refusal{Key: key.Proto(), Revision: first, Code: "OverLimit", Reason: "no"})
		if len(p.refused) != test.kept {
			t.Errorf("%s: %d refusals are kept, want %d", name, len(p.refused), test.kept)
		}
	}
}
