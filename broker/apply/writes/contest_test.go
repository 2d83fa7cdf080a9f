package writes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Restores come ever more rarely, and at once again when it was calm.
func TestContests(t *testing.T) {
	c, now, version := newContests(), time.Unix(1_800_000_000, 0), 1
	who := func() (string, []string) { return "kyverno", []string{"spec.ports"} }
	ours := func() string {
		version++
		v := fmt.Sprint(version)
		c.agree("s", v)
		return v
	}
	if contest, wait := c.meet("s", "7", now, who); contest != nil || wait != 0 {
		t.Errorf("an object that was never as it is wanted: %+v, %s", contest, wait)
	}
	v := ours()
	if contest, wait := c.meet("s", v, now, who); contest != nil || wait != 0 {
		t.Errorf("one that nobody has changed: %+v, %s", contest, wait)
	}
	var waits []time.Duration
	for range 20 {
		_, wait := c.meet("s", "theirs", now, who)
		if _, again := c.meet("s", "theirs again", now.Add(wait/2), who); again != wait-wait/2 {
			t.Errorf("changed again after half of %s: %s are left", wait, again)
		}
		waits = append(waits, wait)
		now = now.Add(wait)
		if _, left := c.meet("s", "theirs", now, who); left != 0 {
			t.Errorf("%s are left when it is due", left)
		}
		ours()
	}
	want := []time.Duration{0, 0, 0, ms(100), ms(200), ms(400), ms(800)}
	if !slices.Equal(waits[:len(want)], want) || waits[19] != ofChanges.Most {
		t.Errorf("waits %s", waits)
	}
	lines := c.lines("service", now)
	if len(lines) != 1 || !strings.Contains(lines[0], "service s: kyverno changes spec.ports each time") {
		t.Errorf("lines %q", lines)
	}
	now = now.Add(2*ofChanges.Most + time.Second)
	if lines := c.lines("service", now); len(lines) != 0 {
		t.Errorf("when it was calm: %q", lines)
	}
	if _, wait := c.meet("s", "theirs", now, who); wait != 0 {
		t.Errorf("when it was calm: %s", wait)
	}
	c.forget("s")
	if len(c.agreed)+len(c.all) != 0 {
		t.Errorf("left over: %v %v", c.agreed, c.all)
	}
}

// TestMissingObjects: an object that somebody deletes again and again is created after 100 ms at most each time,
// however often that was; and a change of it is restored as if it had never been deleted.
func TestMissingObjects(t *testing.T) {
	c, now := newContests(), time.Unix(1_800_000_000, 0)
	if contest, wait := c.missing("s", now); contest != nil || wait != 0 {
		t.Errorf("an object that never was: %+v, %s", contest, wait)
	}
	c.agree("s", "1")
	var waits []time.Duration
	for i := range 1000 {
		contest, wait := c.missing("s", now)
		if !contest.Missing || contest.Times != i+1 || contest.Contested() != (i >= ofDeletions.Free) {
			t.Fatalf("deletion %d: %+v", i+1, contest)
		}
		if _, again := c.missing("s", now.Add(wait/2)); again != wait-wait/2 {
			t.Fatalf("asked again after half of %s: %s are left", wait, again)
		}
		waits = append(waits, wait)
		now = now.Add(wait + time.Second)
		c.agree("s", fmt.Sprint(i+2))
	}
	if want := []time.Duration{0, 0, 0, ms(100)}; !slices.Equal(waits[:4], want) || slices.Max(waits) != ms(100) {
		t.Errorf("waits %s, and up to %s", waits[:4], slices.Max(waits))
	}
	const line = "service s: somebody deletes it each time that the broker restores it: make them leave this object alone"
	if lines := c.lines("service", now); len(lines) != 1 || !strings.HasPrefix(lines[0], line) {
		t.Errorf("lines %q", lines)
	}
	contest, wait := c.meet("s", "theirs", now, func() (string, []string) { return "kyverno", []string{"spec.ports"} })
	if wait != 0 || contest.Times != 1 || contest.Missing {
		t.Errorf("a change after the deletions waits %s: %+v", wait, contest)
	}
	c.forget("s")
	if len(c.agreed)+len(c.all) != 0 {
		t.Errorf("left over: %v %v", c.agreed, c.all)
	}
}

// TestChangesDelayNoCreation: an object whose changes are restored after minutes is created at once when somebody
// deletes it.
func TestChangesDelayNoCreation(t *testing.T) {
	c, now := newContests(), time.Unix(1_800_000_000, 0)
	for i := range 20 {
		c.agree("s", fmt.Sprint(i))
		_, wait := c.meet("s", "theirs", now, func() (string, []string) { return "kyverno", []string{"spec.ports"} })
		now = now.Add(wait)
	}
	if _, wait := c.missing("s", now); wait != 0 {
		t.Errorf("it is created after %s", wait)
	}
}

func TestFieldsThatDiffer(t *testing.T) {
	a := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Labels: map[string]string{"a/b": "c"}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	b := a.DeepCopy()
	if got := fieldsThatDiffer(a, b); len(got) != 0 {
		t.Errorf("equal objects differ in %v", got)
	}
	b.ResourceVersion = "7"
	b.Labels["x/y"] = "z"
	b.Annotations = map[string]string{"a": "b"}
	b.Spec.Ports[0].Port = 81
	b.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	if got := strings.Join(fieldsThatDiffer(a, b),
		" "); got != "metadata.annotations[a] metadata.labels[x/y] spec.internalTrafficPolicy spec.ports" {
		t.Errorf("they differ in %s", got)
	}
}
