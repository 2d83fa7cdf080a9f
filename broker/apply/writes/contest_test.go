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
	if !slices.Equal(waits[:len(want)], want) || waits[19] != maxRestore {
		t.Errorf("waits %s", waits)
	}
	lines := c.lines("service", now)
	if len(lines) != 1 || !strings.Contains(lines[0], "service s: kyverno changes spec.ports each time") {
		t.Errorf("lines %q", lines)
	}
	now = now.Add(2*maxRestore + time.Second)
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
