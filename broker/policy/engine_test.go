package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// woken is a loop that notes what is queued.
type woken struct{ names, owned []string }

func (w *woken) Mark(name, _ string, _ time.Time) { w.names = append(w.names, name) }
func (w *woken) Wake(name string)                 { w.names = append(w.names, name) }
func (w *woken) WakeOwned(cluster string)         { w.names = append(w.names, "all of "+cluster) }
func (w *woken) Observe(string)                   {}
func (w *woken) WakeAll()                         {}
func (w *woken) Synced() bool                     { return true }
func (w *woken) Owned(string) ([]string, bool)    { return w.owned, true }

func engine(now func() time.Time, remotes ...string) *Engine {
	cfg := &config.Broker{LabelDomains: []string{"d", "e"}, Sets: config.Sets{MaxSize: 100}}
	for _, name := range remotes {
		cfg.Remotes = append(cfg.Remotes, config.Remote{Name: name})
	}
	return NewEngine(cfg, func(_, _ string, _ finding.Code, _ string) bool { return true }, now)
}

// After a restart, an existing set stays as it is until the snapshot of its remote is taken whole, and then has all of
// it. A set that does not exist need not wait.
func TestASetStaysWhileASnapshotIsTakenInParts(t *testing.T) {
	const name = "c2-shop-web"
	e := engine(time.Now, "c2")
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
	if s := desired.Want(name, "").Object; s == nil || s.Labels["d/name"] != "web" || s.Labels["e/name"] != "web" {
		t.Errorf("it lacks labels of a configured domain: %v", s)
	}
	loop.names = nil
	e.Take(replica.Part{Cluster: "c2", Changes: pods("shop/b u2 web 10.2.0.2"), Completed: kindMember})
	if got := want("c2"); got != "[10.2.0.1/32 10.2.0.2/32]" || !slices.Contains(loop.names, "all of c2") {
		t.Errorf("with the last part: %s, and queued are %v", got, loop.names)
	}
}

// TestSetsOfAKindThatIsNoLongerExported: a new leader whose remote no longer exports pods keeps the sets of an earlier
// one, says why, and removes them by the operator's order alone: policies may deny by them.
func TestSetsOfAKindThatIsNoLongerExported(t *testing.T) {
	const name = "c2-shop-web"
	e := engine(time.Now, "c2")
	e.Bind(&woken{owned: []string{name}})
	desired := e.DesiredGlobal()
	e.Take(replica.Part{Cluster: "c2", Hello: &semaphorev1.Hello{}})
	if v, p := desired.Want(name, "c2").Verdict, finding.Texts(e.Findings()); v != writes.Unknown || len(p) != 1 ||
		!strings.Contains(p[0], "`semaphorectl release c2` (its exporter no longer exports this kind)") {
		t.Errorf("the verdict is %v, problems: %q", v, p)
	}
	e.Take(replica.Part{Cluster: "c2", Hello: &semaphorev1.Hello{UnreadKinds: []semaphorev1.Kind{kindMember}}})
	if n, p := e.Release("c2"), e.Findings(); len(n)+len(p) > 0 {
		t.Errorf("what it has not read yet: %v released, %v", n, p)
	}
	e.Take(replica.Part{Cluster: "c2", Hello: &semaphorev1.Hello{}})
	if n := e.Release("c2")[kindMember]; n != 1 || desired.Want(name, "c2").Verdict != writes.Absent ||
		desired.Want("without", "").Verdict != writes.Absent {
		t.Errorf("%d released, then the verdict is %v", n, desired.Want(name, "c2").Verdict)
	}
	e.Bind(&woken{}) // the leader that follows
	e.configure(nil)
	e.configure([]config.Remote{{Name: "c2"}})
	e.Take(replica.Part{Cluster: "c2", Hello: &semaphorev1.Hello{}})
	if v, p := desired.Want("without", "").Verdict, e.Findings(); v != writes.Absent || len(p) > 0 {
		t.Errorf("nothing of it exists: the verdict is %v, %v", v, p)
	}
}

// TestHoldersOfARemovedRemote: the pods of a removed remote have their IPs until its removal, whether their start is
// known or not, and whatever of it was queued. The remote that has its subnets then, or the same one again, has them
// after that.
func TestHoldersOfARemovedRemote(t *testing.T) {
	now := holdersStart
	e := engine(func() time.Time { return now }, "c2", "c4")
	e.Bind(&woken{})
	take := func(second int, cluster, line string) {
		now = at(second)
		e.Take(replica.Part{Cluster: cluster, Changes: pods(line)})
	}
	of := func(ip, want string) {
		t.Helper()
		if all, _ := e.Holders(netip.MustParseAddr(ip)); said(all) != want {
			t.Errorf("%s: %s\nwant %s", ip, said(all), want)
		}
	}
	first := pods("shop/b u2 web 10.2.0.2")
	first[0].ObservedAt = time.Time{} // of the first snapshot
	e.Take(replica.Part{Cluster: "c2", Changes: first, Completed: kindMember})
	take(10, "c2", "shop/a u1 web 10.2.0.1")
	take(10, "c4", "shop/d u4 web 10.4.0.1")
	now = at(20)
	e.Follow([]config.Remote{{Name: "c4"}})
	take(21, "c2", "shop/c u3 web 10.2.0.3")
	now = at(30)
	e.Follow([]config.Remote{{Name: "c2"}, {Name: "c3"}, {Name: "c4"}})
	take(31, "c3", "shop/z u9 db 10.2.0.1")
	take(31, "c2", "shop/b u2 web 10.2.0.2")
	of("10.2.0.1", "c3/shop/z(u9) in db 31-now; c2/shop/a(u1) in web 10-20")
	of("10.2.0.2", "c2/shop/b(u2) in web 31-now; c2/shop/b(u2) in web ?-20")
	of("10.2.0.3", "")
	of("10.4.0.1", "c4/shop/d(u4) in web 10-now")
}

// TestSubnetsOfASilentRemote: an existing set of a remote that has not been heard stays, but for what is outside of the
// remote's subnets now, whether these changed before the broker began or later.
func TestSubnetsOfASilentRemote(t *testing.T) {
	const name = "c2-shop-web"
	within := func(subnet string) []config.Remote {
		return []config.Remote{{Name: "c2", PodPrefixes: []netip.Prefix{netip.MustParsePrefix(subnet)}}}
	}
	unknown, absent := fmt.Sprint(writes.Unknown), fmt.Sprint(writes.Absent)
	for nets, want := range map[string]string{
		"10.2.0.1/32 10.2.9.1/32": "[10.2.0.1/32]",
		"10.2.9.1/32":             absent,
		"10.2.0.1/32":             unknown,
	} {
		existing := &calicov3.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{naming.LabelSourceCluster: "c2"}, Annotations: map[string]string{
				naming.AnnotationSourceNamespace: "shop", naming.AnnotationSourceName: "web"}},
			Spec: calicov3.GlobalNetworkSetSpec{Nets: strings.Fields(nets)}}
		for _, first := range []string{"10.2.0.0/16", "10.2.0.0/24"} {
			e, loop := engine(time.Now, "c2"), &woken{}
			e.Bind(loop)
			is := func(when, want string) {
				t.Helper()
				a := e.DesiredGlobal().Want(name, "c2")
				got := fmt.Sprint(a.Verdict)
				if a.Verdict == writes.Present {
					got = fmt.Sprint(a.Object.Spec.Nets)
				}
				if got != want || a.Object != nil && (a.Object.Labels["d/name"] != "web" || a.Object.Name != name) {
					t.Errorf("%s, within %s %s: it becomes %s, %v; want %s", nets, first, when, got, a.Object, want)
				}
			}
			e.Follow([]config.Remote{{Name: "c2"}})
			e.DesiredGlobal().Observed(name, existing, true)
			is("not bounded", unknown)
			e.Follow(within(first))
			if first != "10.2.0.0/24" {
				is("at first", unknown)
				e.Follow(within("10.2.0.0/24"))
			}
			is("in the end", want)
			if queued := slices.Contains(loop.names, name); queued != (want != unknown) {
				t.Errorf("%s: it is queued: %v", nets, queued)
			}
		}
	}
}
