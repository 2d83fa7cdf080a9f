package publish

import (
	"fmt"
	"math"
	"testing"
	"time"

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
		p.handleReceived(Received{Refusal: &semaphorev1.Refusal{Key: serviceKey(s.Name).Proto(), Revision: math.MaxUint64,
			Code: "OverLimit", Reason: "no"}})
		p.handleReceived(Received{Outcome: &semaphorev1.Outcome{Key: serviceKey(s.Name).Proto(), Code: "NameTaken",
			Reason: "no"}})
		b.catalog.DeleteService("shop", s.Name, time.Now())
		gone := &semaphorev1.Change{Revision: b.catalog.Journal().Head(),
			Change: &semaphorev1.Change_Delete{Delete: serviceKey(s.Name).Proto()}}
		p.recordSent(&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Changes{
			Changes: &semaphorev1.Changes{Changes: []*semaphorev1.Change{gone}}}}, time.Now())
	}
	if n := len(p.refused); n > 0 {
		t.Errorf("of %d exported services the exporter keeps %d refusals",
			p.catalog.Objects("c2", semaphorev1.Kind_KIND_SERVICE), n)
	}
	if n := len(p.outcomes); n > 10_000 {
		t.Errorf("and %d outcomes", n)
	}
}
