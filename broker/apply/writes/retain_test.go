package writes

import (
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
)

const (
	service = semaphorev1.Kind_KIND_SERVICE
	slice   = semaphorev1.Kind_KIND_ENDPOINT_SLICE
)

func testBrake(t *testing.T) config.Brake {
	t.Helper()
	cfg := testkit.Value(described.Broker(
		[]byte(
			`{"cluster": "c1", "localSubnets": ["10.1.0.0/16"], "remotes": [{"name": "c2", "podSubnets": ["10.2.0.0/16"], ` +
				`"nodeSubnets": ["192.0.2.0/24"]}]}`,
		),
	))(t)
	return cfg.Brake
}

// TestGuard plays what a remote sends, what exists then, and what may be removed.
func TestGuard(t *testing.T) {
	brake := testBrake(t)
	hold := brake.Hold.Duration
	sends := func(kinds ...semaphorev1.Kind) *semaphorev1.Hello { return &semaphorev1.Hello{Kinds: kinds} }
	unread := &semaphorev1.Hello{UnreadKinds: []semaphorev1.Kind{service}}
	const none, ended, bySnapshot = "none", "no longer exports this kind", "until a snapshot after"
	type step struct {
		hello          *semaphorev1.Hello
		complete       semaphorev1.Kind
		pass           time.Duration
		withdrawn, all int
		unknown        bool // the existing objects are unknown
		release        bool
		retains, warns bool
		due            bool
		says           string // in the problem; none for no problem
	}
	for name, test := range map[string]struct {
		kinds []semaphorev1.Kind
		steps []step
	}{
		"nothing goes before all kinds were heard": {[]semaphorev1.Kind{service, slice}, []step{
			{retains: true},
			{complete: service, all: 3, retains: true},
			{complete: service, all: 3, retains: true},
			{complete: slice, withdrawn: 1, all: 3, retains: false},
		}},
		"a kind that is another's is none of it": {[]semaphorev1.Kind{service}, []step{{complete: slice, retains: true}}},
		"a first snapshot that withdraws most": {[]semaphorev1.Kind{service}, []step{
			{complete: service, withdrawn: 30, all: 40, retains: true, warns: true},
			{complete: service, withdrawn: 30, all: 40, retains: true},
			{pass: hold - time.Second, withdrawn: 30, all: 40, retains: true},
			{pass: time.Second, withdrawn: 30, all: 40, retains: true, due: true},
			{complete: service, withdrawn: 30, all: 40, retains: false},
		}},
		"one that has it all again": {[]semaphorev1.Kind{service}, []step{
			{complete: service, withdrawn: 40, all: 40, retains: true, warns: true},
			{complete: service, withdrawn: 1, all: 40, retains: false},
			{complete: service, withdrawn: 40, all: 40, retains: false}, // the replica's brake is what holds now
		}},
		"once all may go, the replica's brake is what holds": {[]semaphorev1.Kind{service}, []step{
			{complete: service, all: 40, retains: false},
			{complete: service, withdrawn: 40, all: 40, retains: false},
		}},
		"the operator releases": {[]semaphorev1.Kind{service}, []step{
			{complete: service, withdrawn: 30, all: 40, retains: true, warns: true},
			{withdrawn: 30, all: 40, release: true, retains: false},
		}},
		"a kind that is not exported stays until the operator releases it": {[]semaphorev1.Kind{service, slice}, []step{
			{hello: sends(service), unknown: true, retains: true},
			{withdrawn: 30, all: 30, retains: true, warns: true},
			{pass: 3 * hold, hello: sends(service), withdrawn: 30, all: 30, retains: true},
			{withdrawn: 30, all: 30, release: true, retains: false},
		}},
		"or until it is exported again": {[]semaphorev1.Kind{service}, []step{
			{hello: sends(), withdrawn: 30, all: 30, retains: true, warns: true},
			{pass: 3 * hold, hello: sends(service), complete: service, withdrawn: 30, all: 40, retains: true, warns: true},
			{pass: hold, withdrawn: 30, all: 40, retains: true, due: true},
		}},
		"one that is exported again, and not read yet": {[]semaphorev1.Kind{service}, []step{
			{hello: sends(), withdrawn: 30, all: 30, retains: true, warns: true, says: ended},
			{hello: unread, retains: true, says: none},
			{release: true, retains: true},
			{complete: service, withdrawn: 30, all: 40, retains: true, warns: true, says: bySnapshot},
		}},
		"a first snapshot that withdraws most, and then no export": {[]semaphorev1.Kind{service}, []step{
			{complete: service, withdrawn: 30, all: 40, retains: true, warns: true, says: bySnapshot},
			{hello: sends(), withdrawn: 30, all: 40, retains: true, says: ended},
			{pass: 3 * hold, withdrawn: 30, all: 40, retains: true},
			{hello: sends(service), withdrawn: 30, all: 40, retains: true, due: true, says: bySnapshot},
			{complete: service, withdrawn: 30, all: 40, retains: false},
		}},
		"the same before the existing objects are known": {[]semaphorev1.Kind{service}, []step{
			{complete: service, unknown: true, retains: true},
			{hello: sends(), unknown: true, retains: true},
			{withdrawn: 30, all: 40, retains: true, warns: true, says: ended},
			{pass: 3 * hold, withdrawn: 30, all: 40, retains: true},
			{withdrawn: 30, all: 40, release: true, retains: false},
		}},
		"a first snapshot that withdraws most, and then an exporter that may not read": {[]semaphorev1.Kind{service}, []step{
			{complete: service, withdrawn: 30, all: 40, retains: true, warns: true, says: bySnapshot},
			{pass: 3 * hold, hello: unread, withdrawn: 30, all: 40, retains: true, says: bySnapshot},
			{hello: sends(service), withdrawn: 30, all: 40, retains: true, due: true},
			{complete: service, withdrawn: 30, all: 40, retains: false},
		}},
		"a snapshot that waits for the existing objects is not asked for again": {[]semaphorev1.Kind{service}, []step{
			{complete: service, withdrawn: 30, all: 40, retains: true, warns: true, says: bySnapshot},
			{pass: hold, unknown: true, retains: true, due: true, says: bySnapshot},
			{complete: service, unknown: true, retains: true, says: bySnapshot},
			{withdrawn: 30, all: 40, retains: false},
		}},
		"somebody removes what is no longer exported": {[]semaphorev1.Kind{service}, []step{
			{hello: sends(), withdrawn: 30, all: 40, retains: true, warns: true, says: ended},
			{withdrawn: 10, all: 20, retains: true, says: "10 of the 20 objects"},
			{retains: false},
		}},
		"nothing waits for what never existed": {[]semaphorev1.Kind{service, slice}, []step{
			{hello: sends(service), unknown: true, retains: true},
			{retains: false},
		}},
		"what is not known yet is released, too": {[]semaphorev1.Kind{service}, []step{
			{hello: sends(), unknown: true, retains: true},
			{unknown: true, release: true, retains: false},
		}},
		"after a snapshot, the replica is what retains": {[]semaphorev1.Kind{service}, []step{
			{complete: service, all: 40, retains: false},
			{hello: sends(), all: 40, retains: false},
		}},
		"the existing objects are not known yet": {[]semaphorev1.Kind{service}, []step{
			{complete: service, unknown: true, retains: true},
			{withdrawn: 1, all: 11, retains: false},
		}},
		"what was removed by hand is held no more": {[]semaphorev1.Kind{service}, []step{
			{complete: service, withdrawn: 40, all: 40, retains: true, warns: true},
			{pass: hold, retains: true, due: true},
			{complete: service, retains: false},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g, now := NewRetention("c2", Service, brake, test.kinds...), time.Unix(1_000_000, 0)
			for i, s := range test.steps {
				now = now.Add(s.pass)
				if s.hello != nil {
					g.Hello(s.hello)
				}
				if s.complete != 0 {
					g.Complete(s.complete)
				}
				before := g.Retains()
				changed, warning := g.Evaluate(now, func() (int, int, bool) { return s.withdrawn, s.all, !s.unknown })
				if s.release {
					if n := g.Release(); n != s.withdrawn && !s.unknown {
						t.Errorf("step %d: released %d", i, n)
					}
				} else if changed != (before && !g.Retains()) {
					t.Errorf("step %d: changed %v", i, changed)
				}
				if g.Retains() != s.retains || (warning != "") != s.warns || g.Due(now) != s.due {
					t.Errorf("step %d: retains %v, warns %q, due %v", i, g.Retains(), warning, g.Due(now))
				}
				held := g.Problem() != ""
				if held && !s.retains || s.warns && !held || s.says == none && held ||
					s.says != none && !strings.Contains(g.Problem(), s.says) {
					t.Errorf("step %d: %q", i, g.Problem())
				}
			}
		})
	}
}
