package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
)

// ownCluster is what is written in the own cluster, as a loop reports it.
type ownCluster struct {
	names  []string
	synced bool
	woken  int
	// observe, if not nil, reports what is there of a remote.
	observe func(of string)
}

func (c *ownCluster) Mark(string, string, time.Time) {}
func (c *ownCluster) Wake(string)                    {}
func (c *ownCluster) WakeOwned(string)               { c.woken++ }
func (c *ownCluster) Observe(of string) {
	if c.observe != nil {
		c.observe(of)
	}
}
func (c *ownCluster) WakeAll()     { c.woken++ }
func (c *ownCluster) Synced() bool { return c.synced }
func (c *ownCluster) Owned(of string) ([]string, bool) {
	if of != "c2" {
		return nil, c.synced
	}
	return c.names, c.synced
}

type fixture struct {
	*Engine
	loop   *ownCluster
	now    time.Time
	warned []string
}

func newFixture(t *testing.T, there int) *fixture {
	t.Helper()
	cfg := testkit.Value(described.Broker(
		[]byte(`{"cluster": "c1", "localSubnets": ["10.1.0.0/16"], "features": ["services"],
		"remotes": [{"name": "c2", "podSubnets": ["10.2.0.0/16"]},
			{"name": "c3", "podSubnets": ["10.3.0.0/16"], "wireguard": {"listenPort": 51821}}]}`),
	))(t)
	cfg.MCS.Enabled = true
	f := &fixture{loop: &ownCluster{synced: true}, now: time.Unix(1_000_000, 0)}
	for i := range there {
		f.loop.names = append(f.loop.names, mirrorName(i))
	}
	f.Engine = New(cfg, func(_, _ string, _ finding.Code, note string) bool {
		f.warned = append(f.warned, note)
		return true
	}, func() time.Time { return f.now })
	f.Bind(Loops{Services: f.loop, Slices: &ownCluster{synced: true}})
	f.DesiredServices().Synced()
	return f
}

func mirrorName(i int) string { return fmt.Sprintf("c2-shop-73736d-s%d", i) }

// snapshot is a whole snapshot of c2 with the first n services.
func (f *fixture) snapshot(n int) {
	var changes []replica.Change
	for i := range n {
		changes = append(changes, svc("shop", fmt.Sprintf("s%d", i), web(&semaphorev1.Service{Mirror: true})))
	}
	f.take("c2", replica.Result{Changes: changes, Completed: kindService})
	f.take("c2", replica.Result{Completed: kindSlice})
}

// take has the engine take all of what a message led to.
func (f *fixture) take(cluster string, r replica.Result) {
	f.Queue().Push(cluster, r)
	for f.Queue().Turn(f.Take) {
	}
}

func (f *fixture) verdict(i int) writes.Verdict {
	var a writes.Answer[*corev1.Service] = f.DesiredServices().Want(mirrorName(i), "c2")
	return a.Verdict
}

// has checks the verdict on a mirror.
func (f *fixture) has(t *testing.T, when string, i int, want writes.Verdict) {
	t.Helper()
	if v := f.verdict(i); v != want {
		t.Errorf("%s: the verdict is %v, want %v", when, v, want)
	}
}

func TestNothingIsRemovedBeforeASnapshotIsComplete(t *testing.T) {
	f := newFixture(t, 3)
	f.take("c3", replica.Result{Completed: kindService})
	f.has(t, "with no snapshot of c2", 0, writes.Unknown)
	f.snapshot(2)
	if a, b := f.verdict(0), f.verdict(2); a != writes.Present || b != writes.Absent {
		t.Errorf("with a snapshot of two the verdicts are %v and, for the third, %v", a, b)
	}
}

// withoutServices is the Hello of an exporter without the feature services.
var withoutServices = replica.Result{Hello: &semaphorev1.Hello{Kinds: []semaphorev1.Kind{kindNode}}}

var ofServices = []semaphorev1.Kind{kindService, kindSlice}

// waits returns what waits for a remote, of the objects that belong to none: global and derived Services,
// ServiceImports and slices.
func (f *fixture) waits() (names []string) {
	for name, v := range map[string]writes.Verdict{
		"global": f.DesiredServices().Want(glEcho, "").Verdict, "derived": f.DesiredServices().Want(derivedEcho, "").Verdict,
		"import": f.DesiredImports().Want("shop/echo", "").Verdict, "slice": f.DesiredSlices().Want("slice", "").Verdict,
	} {
		if v != writes.Absent {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// TestMirrorsOfAKindThatIsNoLongerExported: a new leader whose remote no longer exports Services keeps what an earlier
// one wrote for it, says why, and removes it by the operator's order alone. After that nothing of it is left, and
// nothing waits for it, also under the leader that follows.
func TestMirrorsOfAKindThatIsNoLongerExported(t *testing.T) {
	clusters := map[string]string{glEcho: naming.AnnotationGlobalClusters, derivedEcho: naming.AnnotationExportingClusters}
	for name, test := range map[string]struct {
		mirrors int
		shared  string // a Service of c2 and c3
		want    int
	}{
		"mirrors without endpoints": {mirrors: 3, want: 3},
		"a global Service alone":    {shared: glEcho, want: 1},
		"a derived Service alone":   {shared: derivedEcho, want: 1},
		"both":                      {mirrors: 3, shared: glEcho, want: 4},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.mirrors)
			if test.shared != "" {
				f.DesiredServices().Observed(test.shared, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: test.shared,
					Annotations: map[string]string{clusters[test.shared]: "c2,c3"}}}, true)
			}
			for _, kind := range ofServices {
				f.take("c3", replica.Result{Completed: kind})
			}
			f.take("c2", withoutServices)
			all := f.waits()
			if p := finding.Texts(f.Findings()); len(all) != 4 || len(p) != 1 ||
				!strings.Contains(p[0], "`semaphorectl release c2` (its exporter no longer exports this kind)") ||
				f.ResyncDue("c2") || len(f.warned) != 1 {
				t.Errorf("%v wait, problems: %q, warned %q", all, p, f.warned)
			}
			f.has(t, "without the kind", 0, writes.Unknown)
			f.now = f.now.Add(48 * time.Hour)
			if f.has(t, "two days later", 0, writes.Unknown); f.ResyncDue("c2") {
				t.Error("no snapshot will tell")
			}
			f.loop.woken = 0
			if got := f.Release("c2"); got[kindService] != test.want || f.loop.woken == 0 {
				t.Errorf("released %v, woken %d times", got, f.loop.woken)
			}
			f.has(t, "released", 0, writes.Absent)
			if all := f.waits(); len(all) > 0 || !f.ServicesComplete("c2") || !f.ServicesComplete("") ||
				len(finding.Texts(f.Findings())) > 0 {
				t.Errorf("released: %v wait, %v", all, f.Findings())
			}
			f.snapshot(2)
			f.has(t, "exported again", 0, writes.Present)
		})
	}
}

// TestEachHelloSaysWhatIsExported: a kind that the exporter exports again, and has not read yet, is none that it no
// longer exports. A kind that it no longer exports after a first snapshot that withdrew most asks for no other
// snapshot.
func TestEachHelloSaysWhatIsExported(t *testing.T) {
	f := newFixture(t, 40)
	f.take("c2", withoutServices)
	if p := f.Findings(); len(p) != 1 {
		t.Errorf("without the kind: %v", p)
	}
	f.take("c2", replica.Result{Hello: &semaphorev1.Hello{UnreadKinds: ofServices}})
	if p := f.Findings(); len(p) > 0 || len(f.Release("c2")) > 0 {
		t.Errorf("not read yet: %v, and something is released", p)
	}
	f.has(t, "not read yet", 0, writes.Unknown)
	f.snapshot(2)
	f.take("c2", withoutServices)
	f.now = f.now.Add(48 * time.Hour)
	if p := finding.Texts(f.Findings()); f.ResyncDue("c2") || len(p) != 1 || !strings.Contains(p[0], "38 of the 40") ||
		!strings.Contains(p[0], "no longer exports this kind") {
		t.Errorf("after a snapshot and without the kind: due %t, %q", f.ResyncDue("c2"), p)
	}
}

// TestExportedGlobalServicesAreTheReplicas: a global Service of a remote that was heard, and then no longer exports
// Services, is retained by the replica, and not counted once more as an earlier broker's.
func TestExportedGlobalServicesAreTheReplicas(t *testing.T) {
	f := newFixture(t, 0)
	f.DesiredServices().Observed(glEcho, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: glEcho,
		Annotations: map[string]string{naming.AnnotationGlobalClusters: "c2,c3"}}}, true)
	f.loop.synced = false
	echo := svc("shop", "echo", web(&semaphorev1.Service{Global: true}))
	f.take("c2", replica.Result{Changes: []replica.Change{echo}, Completed: kindService})
	f.take("c2", replica.Result{Completed: kindSlice})
	f.take("c2", withoutServices)
	f.loop.synced = true
	f.DesiredServices().Synced()
	if n, _ := f.Retained("c2", kindService); n != 0 || len(f.warned) > 0 {
		t.Errorf("%d retained, warnings %v", n, f.warned)
	}
}

// TestNothingWaitsForARemoteWithoutServices: a remote that exports no Services, and of which nothing exists, keeps
// nothing from being removed, and is no problem.
func TestNothingWaitsForARemoteWithoutServices(t *testing.T) {
	f := newFixture(t, 0)
	f.snapshot(0)
	if all := f.waits(); len(all) != 4 {
		t.Errorf("before c3 is heard %v wait", all)
	}
	f.loop.woken = 0
	f.take("c3", withoutServices)
	if all := f.waits(); len(all) > 0 || f.loop.woken == 0 || !f.ServicesComplete("c3") || !f.ServicesComplete("") {
		t.Errorf("%v wait, woken %d times", all, f.loop.woken)
	}
	if p := f.Findings(); len(p)+len(f.warned) > 0 || len(f.Release("c3")) > 0 {
		t.Errorf("findings %v, warned %q", p, f.warned)
	}
}

func TestAnObjectOfARemoteThatIsNotConfiguredIsGone(t *testing.T) {
	f := newFixture(t, 0)
	if a := f.DesiredServices().Want("c9-shop-73736d-s0", "c9"); a.Verdict != writes.Absent {
		t.Errorf("the verdict is %v", a.Verdict)
	}
}

func TestAFirstSnapshotThatWithdrawsMostIsHeld(t *testing.T) {
	f := newFixture(t, 40)
	f.snapshot(10)
	f.has(t, "30 of 40 withdrawn by a first snapshot", 30, writes.Unknown)
	f.has(t, "what is exported", 5, writes.Present)
	if len(f.warned) != 1 || !strings.Contains(f.warned[0], "withdraws 30 of 40") {
		t.Errorf("warned: %q", f.warned)
	}
	if p := finding.Texts(f.Findings()); len(p) != 1 || !strings.Contains(p[0], "retained since") {
		t.Errorf("problems: %q", p)
	}
	f.snapshot(10)
	f.has(t, "a second snapshot at once", 30, writes.Unknown)
	f.now = f.now.Add(59 * time.Minute)
	if f.ResyncDue("c2") {
		t.Error("another snapshot is asked for before its time")
	}
	f.now = f.now.Add(time.Minute)
	if !f.ResyncDue("c2") || f.ResyncDue("c3") {
		t.Error("after the hold no other snapshot is asked for, or one of another remote")
	}
	f.has(t, "time alone", 30, writes.Unknown)
	f.snapshot(10)
	f.has(t, "after the hold a snapshot that says the same", 30, writes.Absent)
	if f.ResyncDue("c2") || len(finding.Texts(f.Findings())) != 0 {
		t.Errorf("still held: %v", finding.Texts(f.Findings()))
	}
}

func TestASnapshotThatHasItAllAgainEndsTheHold(t *testing.T) {
	f := newFixture(t, 40)
	f.snapshot(0)
	f.verdict(0)
	f.snapshot(39)
	f.has(t, "one of 40 has gone", 39, writes.Absent)
}

func TestTheOperatorReleases(t *testing.T) {
	f := newFixture(t, 40)
	f.snapshot(10)
	f.verdict(30)
	if let := f.Release("c3"); len(let) != 0 {
		t.Errorf("released %v of a remote of which nothing is held", let)
	}
	if let := f.Release("c2", semaphorev1.Kind_KIND_SET_MEMBER); len(let) != 0 {
		t.Errorf("another kind's release removes %v", let)
	}
	if let := f.Release("c2"); let[kindService] != 30 || f.loop.woken == 0 {
		t.Errorf("released %v, woken %d times", let, f.loop.woken)
	}
	f.has(t, "released", 30, writes.Absent)
}

// An operator who removes by hand what is retained leaves no object that asks, and so nothing that would learn that the
// rest is released: every stream would be ended once a minute, forever.
func TestObjectsRemovedByHandAreNotRetained(t *testing.T) {
	f := newFixture(t, 40)
	f.snapshot(0)
	f.verdict(0)
	if len(finding.Texts(f.Findings())) != 1 {
		t.Fatalf("problems: %q", finding.Texts(f.Findings()))
	}
	f.loop.names = nil
	f.now = f.now.Add(time.Hour)
	if !f.ResyncDue("c2") {
		t.Fatal("no other snapshot is asked for")
	}
	f.snapshot(0)
	if f.ResyncDue("c2") || len(finding.Texts(f.Findings())) != 0 {
		t.Errorf("due %v; problems %q", f.ResyncDue("c2"), finding.Texts(f.Findings()))
	}
}

func TestTheBrakeWaitsForTheInformer(t *testing.T) {
	f := newFixture(t, 40)
	f.loop.synced = false
	f.snapshot(10)
	f.has(t, "what is there is not known", 30, writes.Unknown)
	f.loop.synced, f.loop.names = true, f.loop.names[:11]
	f.DesiredServices().Synced()
	f.has(t, "one of eleven has gone", 10, writes.Absent)
}

// TestWantOnlyReads: a slice whose endpoints were all withdrawn is deleted where it exists, however often somebody asks
// whether it is wanted where it does not. Only the loop that is about to write it finds out that it does not exist.
func TestWantOnlyReads(t *testing.T) {
	f := newFixture(t, 0)
	f.take("c2", replica.Result{Changes: offering(web(&semaphorev1.Service{Mirror: true}), "10.2.0.1")})
	names := f.DesiredSlices().Names()
	if len(names) != 1 {
		t.Fatalf("the slices %v are wanted, not one", names)
	}
	f.take("c2", replica.Result{Changes: []replica.Change{slc("shop", "a", nil)}})
	desired := f.DesiredSlices()
	for range 2 {
		desired.Want(names[0], "")
	}
	desired.Start(names[0], "c2") // and its deletion fails
	if a := desired.Want(names[0], "c2"); a.Verdict != writes.Absent {
		t.Errorf("where it exists the verdict is %v", a.Verdict)
	}
	desired.Start(names[0], "")
	if a := desired.Want(names[0], "c2"); a.Verdict != writes.Unknown {
		t.Errorf("when its loop has found that it does not exist, the verdict is %v", a.Verdict)
	}
}
