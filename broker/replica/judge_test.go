package replica

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// below accepts the members m0 to m9 whose names are below a limit.
func below(limit string) Admit {
	return func(o *semaphorev1.Object) (*semaphorev1.Object, []admission.Refusal) {
		if o.GetKey().GetName() < limit {
			return o, nil
		}
		return nil, []admission.Refusal{{Code: finding.IPOutsidePodSubnets, Reason: "for the test"}}
	}
}

// withdrawn are the names of deleted objects, and others those of the rest.
func withdrawn(r Result) (deleted, others []string) {
	for _, c := range r.Changes {
		if c.New == nil {
			deleted = append(deleted, c.Key.Name)
		} else {
			others = append(others, c.Key.Name)
		}
	}
	return deleted, others
}

// TestOtherBounds: narrower bounds withdraw what is outside of them at once, whatever the brake would retain or retains
// already. The stream that was judged by the earlier bounds has no effect any more, not even its snapshot that has
// begun. The next one begins with a snapshot, and only the difference to what is held is a change.
func TestOtherBounds(t *testing.T) {
	b := newBraked(t)
	b.remove(11, "m3", "m4", "m5", "m6", "m7", "m8", "m9")
	if n := b.Retained(kMember, 0).Total; n == 0 {
		t.Fatal("the brake retains nothing")
	}
	next := b.Open()
	testkit.Value(next.Receive(b.now, hello("e2", 20, 0, kMember)))(t)
	for _, m := range []*semaphorev1.PublishRequest{begin(kMember, 20), changes(upserts("m0", "m9")...)} {
		testkit.Value(next.Receive(b.now, m))(t)
	}
	result := b.Judge(b.now, below("m2"))
	deleted, others := withdrawn(result)
	if len(others) > 0 || len(result.Retained) > 0 || slices.Contains(deleted, "m0") || !slices.Contains(deleted, "m2") ||
		!slices.Contains(deleted, "m9") {
		t.Errorf("withdrawn %v, changed %v, retained %v", deleted, others, result.Retained)
	}
	if n, _ := b.Count(kMember); n != 2 || b.Retained(kMember, 0).Total > 0 || !b.Complete(kMember) {
		t.Errorf("%d objects are held, of which %d are retained", n, b.Retained(kMember, 0).Total)
	}
	if _, err := next.Receive(b.now, end(kMember, 20, 2)); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the snapshot that was judged before ends with %v", err)
	}

	// Nothing of before is offered: a digest or a position would leave out what only wider bounds accept.
	b.Judge(b.now, below("m5"))
	if w := b.connect("e1", 30); w.GetResumeEpoch() != "" || len(w.GetHeld()) > 0 {
		t.Errorf("the next stream is offered %v", w)
	}
	deleted, others = withdrawn(b.snapshot(30, members(0, 10)...))
	if got := strings.Join(others, " "); len(deleted) > 0 || got != "m2 m3 m4" {
		t.Errorf("wider bounds: withdrawn %v, changed %s", deleted, got)
	}
	if w := b.connect("e1", 30); w.GetResumeEpoch() != "e1" || len(w.GetHeld()) != 1 {
		t.Errorf("the stream after that is offered %v", w)
	}
}

// TestBoundsCutAnObject: of an object that is outside in part, the rest stays, and the refusal is known before the
// remote sends it again.
func TestBoundsCutAnObject(t *testing.T) {
	b := newBraked(t)
	cut := object(kMember, "m0", "a")
	cut.GetSetMember().Ips = []string{"10.2.0.9"}
	result := b.Judge(b.now, func(o *semaphorev1.Object) (*semaphorev1.Object, []admission.Refusal) {
		if o.GetKey().GetName() == "m0" {
			return cut, []admission.Refusal{{Code: finding.IPOutsidePodSubnets, Reason: "for the test"}}
		}
		return o, nil
	})
	if len(result.Changes) != 1 || result.Changes[0].New != cut || result.Changes[0].Old == nil {
		t.Errorf("changes %v", result.Changes)
	}
	if all := b.Refused(); len(all) != 1 || all[0].Key.Name != "m0" || len(result.Refused) != 1 {
		t.Errorf("refused %v", all)
	}
	if n, refused := b.Count(kMember); n != 10 || refused != 1 {
		t.Errorf("%d objects, %d refused", n, refused)
	}
}
