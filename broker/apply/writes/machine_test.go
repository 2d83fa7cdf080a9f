package writes

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// ours is a Service of c2, at a version of the apiserver.
func ours(name, version string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version, Labels: map[string]string{
		naming.LabelManagedBy: naming.ManagedByBroker, naming.LabelSourceCluster: "c2"}}}
}

// TestWhoseIsAnObjectThatIsInTheWay: a create that finds the name taken reads what has it. After a create that got no
// response it waits for the informer instead, as the object may be the one that it created.
func TestWhoseIsAnObjectThatIsInTheWay(t *testing.T) {
	taken := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "services"}, "echo")
	lost := errors.New("connection reset by peer")
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "echo", errors.New("no"))
	for _, c := range []struct {
		name string
		// before are the answers to earlier creates of the name; nil is success.
		before []error
		reads  bool
	}{
		{"the first create", nil, true},
		{"a create got no response", []error{lost}, false},
		{"a create was refused", []error{refused}, true},
		{"a create succeeded", []error{nil}, true},
		{"a create got no response, and the next one did", []error{lost, refused}, true},
		{"a create got no response, and the next one was not sent", []error{lost, NotSent{errors.New("blocked")}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := New(Kind[*corev1.Service]{Name: Service,
				Merge: func(_, want *corev1.Service) *corev1.Service { return want },
				Equal: func(_, _ *corev1.Service) bool { return true }}, nil)
			now := paceStart
			create := func(err error) Step[*corev1.Service] {
				t.Helper()
				now = now.Add(BeliefFor)
				m.Expire(now, "echo") // what was created is gone again
				step := m.Decide(now, m.Begin(now, "echo"), Answer[*corev1.Service]{Verdict: Present, Object: ours("echo", "")})
				if step.Write == nil || step.Write.Request != SendCreate {
					t.Fatalf("%+v, want a create", step)
				}
				return m.Settle(now, step.Write, ours("echo", "7"), err)
			}
			for _, err := range c.before {
				create(err)
			}
			step := create(taken)
			reads := step.Write != nil && step.Write.Request == SendRead
			if reads != c.reads || !reads && step.Result != Conflict {
				t.Errorf("reads %t, want %t (result %q)", reads, c.reads, step.Result)
			}
		})
	}
}

// TestConflictsWaitLonger: while the informer lags behind for a name, each conflict waits twice as long as the one
// before, up to half a minute. Only what shows that the name is up to date makes the next wait short again.
func TestConflictsWaitLonger(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "services"}, "echo", errors.New("changed"))
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "echo", errors.New("no"))
	type machine = Machine[*corev1.Service]
	// write writes a name, and returns the wait before it is reconciled again.
	write := func(m *machine, name string, err error) time.Duration {
		now := paceStart
		step := m.Decide(now, m.Begin(now, name), Answer[*corev1.Service]{Verdict: Present, Object: ours(name, "")})
		step = m.Settle(now, step.Write, ours(name, "9"), err)
		if err == conflict && (step.Result != Conflict || !step.Again) {
			t.Errorf("after a conflict: %+v", step)
		}
		return step.After
	}
	waits := []time.Duration{1, 2, 4, 8, 16, 30, 30}
	for _, c := range []struct {
		name   string
		then   func(*machine)
		resets bool
	}{
		{"nothing happens", func(*machine) {}, false},
		{"the informer reports the object", func(m *machine) { m.Informed("echo", ours("echo", "2"), false) }, true},
		{"the informer reports its deletion", func(m *machine) { m.Informed("echo", ours("echo", "2"), true) }, true},
		{"a write succeeds", func(m *machine) { write(m, "echo", nil) }, true},
		{"a write is refused", func(m *machine) { write(m, "echo", refused) }, false},
		{"its remote changes it", func(m *machine) { m.Changed(paceStart, "echo", Change{"c2", paceStart}) }, false},
		{"another name is reported", func(m *machine) { m.Informed("other", ours("other", "2"), false) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := New(Kind[*corev1.Service]{Name: Service,
				Merge: func(_, want *corev1.Service) *corev1.Service { return want },
				Equal: func(_, _ *corev1.Service) bool { return false }}, nil)
			for _, name := range []string{"echo", "other"} {
				m.Informed(name, ours(name, "1"), false)
			}
			for i, want := range waits {
				if wait := write(m, "echo", conflict); wait != want*time.Second {
					t.Errorf("conflict %d waits %s, want %d s", i+1, wait, want)
				}
			}
			if wait := write(m, "other", conflict); wait != AfterConflict {
				t.Errorf("the first conflict of another name waits %s", wait)
			}
			c.then(m)
			want := maxAfterConflict
			if c.resets {
				want = AfterConflict
			}
			if wait := write(m, "echo", conflict); wait != want {
				t.Errorf("then it waits %s, want %s", wait, want)
			}
		})
	}
}

// TestEarliestChangeCounts: of the changes that wait for one write the earliest is reported, which has waited longest.
func TestEarliestChangeCounts(t *testing.T) {
	m := New(Kind[*corev1.Service]{Name: Service}, nil)
	for _, at := range []time.Duration{2 * time.Second, time.Second, 3 * time.Second} {
		m.Changed(paceStart, "echo", Change{"c2", paceStart.Add(at)})
	}
	if got := m.Begin(paceStart, "echo").Change.ObservedAt; !got.Equal(paceStart.Add(time.Second)) {
		t.Errorf("the change of %s is reported", got)
	}
}

// TestChangeSinceBegin: a change that comes between the question for the desired object and the decision belongs to the
// write that follows, and to the next one if nothing is written.
func TestChangeSinceBegin(t *testing.T) {
	m := New(Kind[*corev1.Service]{Name: Service, Equal: func(_, _ *corev1.Service) bool { return true },
		Merge: func(have, _ *corev1.Service) *corev1.Service { return have }}, nil)
	change := Change{"c2", paceStart}
	absent := m.Begin(paceStart, "echo")
	m.Changed(paceStart, "echo", change)
	step := m.Decide(paceStart, absent, Answer[*corev1.Service]{Verdict: Absent})
	if step.Write != nil || m.Begin(paceStart, "echo").Change != change {
		t.Errorf("nothing is written (%v), and the next write lacks the change", step.Write)
	}
	missing := m.Begin(paceStart, "echo")
	m.Changed(paceStart, "echo", change)
	step = m.Decide(paceStart, missing, Answer[*corev1.Service]{Verdict: Present, Object: ours("echo", "")})
	if step.Write == nil || step.Write.Change != change {
		t.Errorf("the write lacks the change: %+v", step.Write)
	}
	if left := m.Begin(paceStart, "echo").Change; left != (Change{}) {
		t.Errorf("the next write has the change, too: %v", left)
	}
}

// TestWhatComesFirst: a write that waits for another object has a reason.
func TestWhatComesFirst(t *testing.T) {
	m := New(Kind[*corev1.Service]{Name: Service}, nil)
	step := m.Decide(paceStart, m.Begin(paceStart, "echo"), Answer[*corev1.Service]{Again: time.Minute})
	if !step.Again || step.After != time.Minute || step.Why != Stale {
		t.Errorf("%+v", step)
	}
}

// TestEachWriteIsCharged to its remote's budget, also one that follows a write that waited, and to no other's.
func TestEachWriteIsCharged(t *testing.T) {
	remote := config.Remote{Name: "c2", Limits: config.Limits{KibibytesPerSecond: 1}}
	other := remote
	other.Name = "c3"
	m := New(Kind[*corev1.Service]{Name: Service}, NewBudgets([]config.Remote{remote, other}))
	large := ours("echo", "1")
	large.Annotations = map[string]string{"x": strings.Repeat("x", config.ByteBurst<<10)}
	now, step := paceStart, Step[*corev1.Service]{}
	for i, waits := range []bool{false, true, false, true} {
		wait := m.afford(now, "echo", "c2", large, &step)
		if (wait > 0) != waits {
			t.Errorf("request %d waits for %s", i, wait)
		}
		if i == 1 && m.afford(now, "of c3", "c3", large, &step) > 0 {
			t.Error("a remote waits for the budget of another")
		}
		now = now.Add(wait)
	}
}

// TestUndesiredObjectsWaitForTheirRemote: nothing is deleted before it is known that its remote does not export it.
func TestUndesiredObjectsWaitForTheirRemote(t *testing.T) {
	for knows, want := range map[bool]Verdict{false: Unknown, true: Absent} {
		if got := Decide[*corev1.Service](nil, false, "c2", func(string) bool { return knows }).Verdict; got != want {
			t.Errorf("known: %t, and the verdict is %d, not %d", knows, got, want)
		}
	}
}

// TestNothingStaysOfADeletedObject: also while it is unknown whether its name is desired, as it is for as long as any
// remote is away; names come and go, and a broker runs for months.
func TestNothingStaysOfADeletedObject(t *testing.T) {
	unknown := Answer[*corev1.Service]{Verdict: Unknown}
	for name, finalizers := range map[string][]string{"": nil, ", with a finalizer": {"example.org/keep"}} {
		for order, watchFirst := range map[string]bool{"the response comes first": false, "the watch is faster": true} {
			object := ours("echo", "7")
			object.UID, object.Finalizers = "u", finalizers
			m := New(Kind[*corev1.Service]{Name: Service}, nil)
			m.Informed("echo", object, false)
			step := m.Decide(paceStart, m.Begin(paceStart, "echo"), Answer[*corev1.Service]{Verdict: Absent})
			if step.Write == nil || step.Write.Request != SendDelete {
				t.Fatalf("%+v, want a deletion", step)
			}
			if watchFirst {
				m.Informed("echo", object, true)
				m.Settle(paceStart, step.Write, nil, nil)
			} else {
				m.Settle(paceStart, step.Write, nil, nil)
				m.Informed("echo", object, true)
			}
			m.Decide(paceStart, m.Begin(paceStart, "echo"), unknown)
			if kept := keptOf(m); kept > 0 {
				t.Errorf("%s%s: %d entries stay", order, name, kept)
			}
		}
	}
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "services"}, "echo", errors.New("changed"))
	for name, err := range map[string]error{"deleted by another": nil, "a conflict": conflict, "no response": io.EOF} {
		m := New(Kind[*corev1.Service]{Name: Service, Paced: true,
			Merge: func(_, want *corev1.Service) *corev1.Service { return want },
			Equal: func(_, _ *corev1.Service) bool { return true }}, nil)
		step := m.Decide(paceStart, m.Begin(paceStart, "echo"),
			Answer[*corev1.Service]{Verdict: Present, Object: ours("echo", "")})
		if m.Settle(paceStart, step.Write, ours("echo", "7"), err); err == nil {
			m.Informed("echo", ours("echo", "7"), false)
			m.Informed("echo", ours("echo", "8"), true)
		}
		m.Decide(paceStart, m.Begin(paceStart, "echo"), Answer[*corev1.Service]{Verdict: Absent})
		if kept := keptOf(m) + len(m.pace.objects); kept > 0 {
			t.Errorf("%s: %d entries stay", name, kept)
		}
	}
}

// keptOf counts what a machine without writes in flight keeps of names.
func keptOf(m *Machine[*corev1.Service]) int {
	return len(m.lost) + len(m.changes) + len(m.sources) + len(m.conflicts) + len(m.failing) + len(m.unanswered) +
		len(m.due) + len(m.leaving) + len(m.asked)
}

// TestADeletionIsAskedForOnce: of an object that a finalizer keeps, also if the watch reports the deletion between the
// look at the object and the decision about it.
func TestADeletionIsAskedForOnce(t *testing.T) {
	object := ours("echo", "7")
	object.UID, object.Finalizers = "u", []string{"example.org/keep"}
	m := New(Kind[*corev1.Service]{Name: Service}, nil)
	m.Informed("echo", object, false)
	absent := Answer[*corev1.Service]{Verdict: Absent}
	step := m.Decide(paceStart, m.Begin(paceStart, "echo"), absent)
	m.Settle(paceStart, step.Write, nil, nil)
	seen := m.Begin(paceStart, "echo")
	marked := object.DeepCopy()
	marked.ResourceVersion, marked.DeletionTimestamp = "8", &metav1.Time{Time: paceStart}
	m.Informed("echo", marked, false)
	if step := m.Decide(paceStart, seen, absent); step.Write != nil {
		t.Errorf("asked once more: %+v", step.Write)
	}
}

// keepsItsIP is a kind whose objects are created again with the ClusterIP that they had.
var keepsItsIP = Kind[*corev1.Service]{Name: Service,
	Merge: func(_, want *corev1.Service) *corev1.Service { return want },
	Equal: func(_, _ *corev1.Service) bool { return true },
	Recreate: func(gone, want *corev1.Service) *corev1.Service {
		out := want.DeepCopy()
		out.Spec.ClusterIP = gone.Spec.ClusterIP
		return out
	}}

// TestRecreate: an object that another writer deleted is created from what it was, and charged to no remote; one that
// the broker deleted itself, or that was never there, is created as it is desired.
func TestRecreate(t *testing.T) {
	remote := config.Remote{Name: "c2"}
	remote.Limits.KibibytesPerSecond = 1
	for _, c := range []struct {
		name string
		by   func(m *Machine[*corev1.Service], stood *corev1.Service)
		want string
	}{
		{"by another writer", func(m *Machine[*corev1.Service], stood *corev1.Service) {
			m.Informed("echo", stood, true)
		}, "10.96.0.9"},
		{"by the broker", func(m *Machine[*corev1.Service], stood *corev1.Service) {
			m.Informed("echo", stood, true)
			m.Decide(paceStart, m.Begin(paceStart, "echo"), Answer[*corev1.Service]{Verdict: Absent})
		}, ""},
		{"by nobody", func(*Machine[*corev1.Service], *corev1.Service) {}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := New(keepsItsIP, NewBudgets([]config.Remote{remote}))
			stood := ours("echo", "7")
			stood.Spec.ClusterIP = "10.96.0.9"
			m.contests.agree("echo", "7")
			c.by(m, stood)
			step := m.Decide(paceStart, m.Begin(paceStart, "echo"),
				Answer[*corev1.Service]{Verdict: Present, Object: ours("echo", "")})
			if step.Write == nil || step.Write.Op != Create || step.Write.Object.Spec.ClusterIP != c.want {
				t.Errorf("%+v, want a create with the ClusterIP %q", step.Write, c.want)
			}
		})
	}
	// A thousand deletions exhaust no budget.
	m, now := New(keepsItsIP, NewBudgets([]config.Remote{remote})), paceStart
	m.contests.agree("echo", "7")
	for i := range 1000 {
		m.Informed("echo", ours("echo", "7"), true)
		now = now.Add(ofChanges.Least)
		want := ours("echo", "")
		want.Annotations = map[string]string{"x": strings.Repeat("x", 1000)}
		answer := Answer[*corev1.Service]{Verdict: Present, Object: want}
		step := m.Decide(now, m.Begin(now, "echo"), answer)
		if step.Write == nil {
			now = now.Add(step.After)
			step = m.Decide(now, m.Begin(now, "echo"), answer)
		}
		if step.Write == nil {
			t.Fatalf("deletion %d waits for %s more", i+1, step.After)
		}
		m.contests.agree("echo", "7")
	}
}

// TestDeletedBeforeTheResponse: another writer deletes what the broker has just created, and the watch reports both
// before the apiserver's response arrives: the object is created again at once, from what it was.
func TestDeletedBeforeTheResponse(t *testing.T) {
	m := New(keepsItsIP, nil)
	answer := Answer[*corev1.Service]{Verdict: Present, Object: ours("echo", "")}
	step := m.Decide(paceStart, m.Begin(paceStart, "echo"), answer)
	created := ours("echo", "7")
	created.UID, created.Spec.ClusterIP = "u", "10.96.0.9"
	deleted := created.DeepCopy()
	deleted.ResourceVersion = "8"
	m.Informed("echo", created, false)
	m.Informed("echo", deleted, true)
	m.Settle(paceStart, step.Write, created, nil)
	step = m.Decide(paceStart, m.Begin(paceStart, "echo"), answer)
	if step.Write == nil || step.Write.Op != Create || step.Write.Object.Spec.ClusterIP != "10.96.0.9" {
		t.Errorf("%+v, want a create with the ClusterIP that it had", step)
	}
}

// TestALabelThatSelectsIsRestored: the broker restores an object that the watch lost because somebody took off a label
// by which it selects. It leaves one that somebody else made under the name, or that has somebody else's label.
func TestALabelThatSelectsIsRestored(t *testing.T) {
	taken := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "endpointslices"}, "echo")
	slice := func(uid types.UID, labels ...string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "echo", UID: uid, ResourceVersion: "7",
			Labels:        map[string]string{},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl-label", Time: &metav1.Time{Time: paceStart}}}}}
		for _, l := range labels {
			key, value, _ := strings.Cut(l, "=")
			s.Labels[key] = value
		}
		return s
	}
	const managed = naming.LabelManagedBy + "=" + naming.ManagedByBroker
	const own = naming.LabelOwnName + "=failover"
	kind := Kind[*discoveryv1.EndpointSlice]{Name: OwnSlice,
		Merge: func(_, want *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice { return want },
		Equal: func(_, _ *discoveryv1.EndpointSlice) bool { return true },
		Replace: func(have, want *discoveryv1.EndpointSlice) bool {
			return have.Labels[naming.LabelOwnName] != want.Labels[naming.LabelOwnName]
		}}
	for _, c := range []struct {
		name string
		have *discoveryv1.EndpointSlice
		want Request
	}{
		{"the broker's label", slice("u1", own), SendUpdate},
		{"a label that only the watch selects by", slice("u1", managed, own, "x=y"), SendUpdate},
		{"a label that no update may set", slice("u1", managed), SendDelete},
		{"both", slice("u1"), SendUpdate}, // without the broker's label it may not be deleted
		{"another object", slice("u2", managed), SendAdopt},
		{"somebody else's label", slice("u1", naming.LabelManagedBy+"=helm"), SendAdopt},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := New(kind, nil)
			m.contests.agree("echo", "6")
			m.Informed("echo", slice("u1", managed, own), true)
			want := Answer[*discoveryv1.EndpointSlice]{Verdict: Present, Object: slice("", managed, own)}
			step := m.Decide(paceStart, m.Begin(paceStart, "echo"), want)
			step = m.Settle(paceStart, step.Write, nil, taken)
			step = m.Settle(paceStart, step.Write, c.have, nil)
			if step.Write == nil || step.Write.Request != c.want {
				t.Fatalf("%+v, want request %d", step, c.want)
			}
			if c.want == SendAdopt {
				return
			}
			stands := slice("u1", managed, own) // as the apiserver has it afterwards
			stands.ResourceVersion = "8"
			if step.Write.Request == SendDelete {
				stands.UID = "u3"
				if step = m.Settle(paceStart, step.Write, c.have, nil); step.Write == nil || step.Write.Request != SendCreate {
					t.Fatalf("%+v, want a create", step)
				}
			}
			step = m.Settle(paceStart, step.Write, stands, nil)
			if _, there := m.Newest(paceStart, "echo"); !there {
				t.Error("it does not know what it wrote")
			}
			if r := step.Restored; r == nil || r.Times != 1 || r.Manager != "kubectl-label" {
				t.Errorf("restored: %+v", r)
			}
			// Somebody who insists is counted.
			m.Informed("echo", stands, true)
			step = m.Decide(paceStart, m.Begin(paceStart, "echo"), want)
			if c := step.Contest; c == nil || c.Times != 2 {
				t.Errorf("the second time: %+v", c)
			}
		})
	}
}
