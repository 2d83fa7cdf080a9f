package policy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// woken is a loop that notes what is queued.
type woken struct{ names []string }

func (w *woken) Mark(name, _ string, _ time.Time)      { w.names = append(w.names, name) }
func (w *woken) Wake(name string)                      { w.names = append(w.names, name) }
func (w *woken) WakeOwned(cluster string)              { w.names = append(w.names, "all of "+cluster) }
func (w *woken) Observe(string)                        {}
func (w *woken) WakeAll()                              {}
func (w *woken) Synced() bool                          { return true }
func (w *woken) Owned(string) (names []string, _ bool) { return nil, true }

// After a restart, an existing set stays as it is until the snapshot of its remote is taken whole, and then has all of
// it. A set that does not exist need not wait.
func TestASetStaysWhileASnapshotIsTakenInParts(t *testing.T) {
	const name = "c2-shop-web"
	e := NewEngine(&config.Broker{LabelDomains: []string{"d"}, Sets: config.Sets{MaxSize: 100},
		Remotes: []config.Remote{{Name: "c2"}}}, func(_, _ string, _ finding.Code, _ string) bool { return true }, time.Now)
	loop := &woken{}
	e.Bind(loop)
	desired := e.DesiredGlobal()
	desired.Observed(name, &calicov3.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: calicov3.GlobalNetworkSetSpec{Nets: []string{"10.2.0.1/32", "10.2.0.2/32"}}}, true)
	want := func(owner string) string {
		a := desired.Want(name, owner)
		if a.Verdict != writes.Present {
			return fmt.Sprint(a.Verdict)
		}
		return fmt.Sprint(a.Object.Spec.Nets)
	}
	e.Take(replica.Part{Cluster: "c2", Changes: pods("shop/a u1 web 10.2.0.1")})
	if got := want("c2"); got != fmt.Sprint(writes.Unknown) {
		t.Errorf("the existing set becomes %s with a part of the snapshot", got)
	}
	if got := want(""); got != "[10.2.0.1/32]" {
		t.Errorf("a new set is %s", got)
	}
	loop.names = nil
	e.Take(replica.Part{Cluster: "c2", Changes: pods("shop/b u2 web 10.2.0.2"), Completed: kindMember})
	if got := want("c2"); got != "[10.2.0.1/32 10.2.0.2/32]" || !slices.Contains(loop.names, "all of c2") {
		t.Errorf("with the last part: %s, and queued are %v", got, loop.names)
	}
}
