package writes

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The belief after each order in which our writes and the watch's events can come.
func TestBelief(t *testing.T) {
	object := func(uid, version string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: types.UID(uid), ResourceVersion: version}}
	}
	type env struct {
		n   *Belief[*corev1.Service]
		now time.Time
	}
	watched := func(uid, version string) func(*env) {
		return func(e *env) { e.n.Informed("s", object(uid, version), false) }
	}
	unwatched := func(uid, version string) func(*env) {
		return func(e *env) { e.n.Informed("s", object(uid, version), true) }
	}
	wrote := func(uid, version string) func(*env) {
		return func(e *env) { e.n.Wrote(e.now, "s", object(uid, version)) }
	}
	deleted := func(uid, version string) func(*env) {
		return func(e *env) { e.n.Deleted(e.now, "s", object(uid, version)) }
	}
	wait := func(e *env) { e.now = e.now.Add(BeliefFor) }
	expires := func(e *env) {
		e.n.Get(e.now, "s")
		if _, expired := e.n.Expire(e.now, "s"); !expired {
			t.Error("a look at the object took its expiry, and nobody observes it again")
		}
	}
	later := func(e *env) { // the name is reconciled meanwhile
		for range 6 {
			e.n.Get(e.now, "s")
			e.now = e.now.Add(goneFor / 6)
		}
	}
	for _, c := range []struct {
		name  string
		steps []func(*env)
		want  string // UID and version, or "" for none
		left  int    // entries of ours that are still held against the informer
	}{
		{"nothing", nil, "", 0},
		{"watched", []func(*env){watched("a", "5")}, "a5", 0},
		{"made, not seen yet", []func(*env){wrote("a", "5")}, "a5", 1},
		{"made and seen", []func(*env){wrote("a", "5"), watched("a", "5")}, "a5", 0},
		{"seen before the answer", []func(*env){watched("a", "5"), wrote("a", "5")}, "a5", 0},
		{"updated, old one seen late", []func(*env){wrote("a", "9"), watched("a", "5")}, "a9", 1},
		{"versions are numbers", []func(*env){wrote("a", "10"), watched("a", "9")}, "a10", 1},
		{"newer one seen before the answer", []func(*env){watched("a", "12"), wrote("a", "10")}, "a12", 0},
		{"deleted, not seen yet", []func(*env){watched("a", "5"), deleted("a", "5")}, "", 1},
		{"deleted and seen", []func(*env){watched("a", "5"), deleted("a", "5"), unwatched("a", "6")}, "", 0},
		{"made and deleted, none seen", []func(*env){wrote("a", "5"), deleted("a", "5")}, "", 1},
		{"made and deleted, then seen", []func(*env){wrote("a", "5"), deleted("a", "5"), watched("a", "5"),
			unwatched("a", "6")}, "", 0},
		{"made, then deleted by hand", []func(*env){wrote("a", "5"), watched("a", "5"), unwatched("a", "6")}, "", 0},
		{"updated, deleted by hand, event of that", []func(*env){watched("a", "5"), wrote("a", "7"), unwatched("a", "8")}, "",
			0},
		{"deleted and created again, end of the old one seen late",
			[]func(*env){watched("a", "5"), deleted("a", "5"), wrote("b", "8"), unwatched("a", "6")}, "b8", 1},
		{"deleted, someone makes another", []func(*env){watched("a", "5"), deleted("a", "5"), watched("b", "8")}, "b8", 0},
		{"deleted by hand, the answer last", []func(*env){watched("a", "5"), unwatched("a", "7"), wrote("a", "6")}, "", 0},
		{"the answer comes much later", []func(*env){watched("a", "5"), unwatched("a", "7"), later, wrote("a", "6")}, "", 0},
		{"made, deleted by hand, answer last", []func(*env){watched("a", "5"), unwatched("a", "6"), wrote("a", "5")}, "", 0},
		{"restored after it lost its label", []func(*env){watched("a", "5"), unwatched("a", "6"), wrote("a", "7")}, "a7", 1},
		{"made again under its name", []func(*env){watched("a", "5"), unwatched("a", "6"), wrote("b", "7")}, "b7", 1},
		{"a watch that skips our write", []func(*env){wrote("a", "5"), wait}, "", 1},
		{"a watch that skips our write, and that is noticed", []func(*env){wrote("a", "5"), wait, expires}, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &env{n: NewBelief[*corev1.Service](), now: time.Unix(1000, 0)}
			for _, step := range c.steps {
				step(e)
			}
			got := ""
			if o, ok := e.n.Get(e.now, "s"); ok {
				got = string(o.UID) + o.ResourceVersion
			}
			if got != c.want {
				t.Errorf("believes %q, want %q", got, c.want)
			}
			if n := len(e.n.written); n != c.left {
				t.Errorf("%d entries held, want %d", n, c.left)
			}
			for range 3 {
				later(e)
			}
			if n := len(e.n.gone) + len(e.n.wasGone); n > 0 {
				t.Errorf("%d deletions are remembered for good", n)
			}
		})
	}
}
