package services

import (
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/policy"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
)

// Where the own exporter is taken, what came of the own cluster is gone only once that has been heard whole; of kinds
// that it is not asked of, it is not waited for.
func TestTheOwnClusterIsWaitedFor(t *testing.T) {
	for _, taken := range []bool{false, true} {
		text := `{"cluster": "c1", "localSubnets": ["10.1.0.0/16"], "features": ["services", "policy"], "remotes": ` +
			`[{"name": "c2", "podSubnets": ["10.2.0.0/16"]}]`
		if taken {
			text += `, "globalServices": {"podSubnets": ["10.1.0.0/16"]}`
		}
		cfg := testkit.Value(described.Broker([]byte(text + "}")))(t)
		warn := func(_, _ string, _ finding.Code, _ string) bool { return true }
		p, s := New(cfg, warn, time.Now), policy.NewEngine(cfg, warn, time.Now)
		loop := &ownCluster{synced: true}
		p.Bind(Loops{Services: loop, Slices: loop})
		s.Bind(loop)
		services, sets := p.DesiredServices(), s.DesiredGlobal()
		services.Synced()
		complete := func(cluster string, kind semaphorev1.Kind) {
			p.Take(replica.Part{Cluster: cluster, Completed: kind})
			s.Take(replica.Part{Cluster: cluster, Completed: kind})
		}
		is := func(what string, got, want writes.Verdict) {
			t.Helper()
			if got != want {
				t.Errorf("own exporter taken %v: %s is %v, not %v", taken, what, got, want)
			}
		}
		service := func(owner string) writes.Verdict { return services.Want("gl-shop-73736d-echo", owner).Verdict }
		before, after := writes.Absent, writes.Absent
		if taken {
			before = writes.Unknown
		}
		is("a service of the own cluster", service("c1"), before)
		complete("c2", semaphorev1.Kind_KIND_SERVICE)
		is("a service of nobody", service(""), before)
		complete("c2", semaphorev1.Kind_KIND_SET_MEMBER)
		is("a set of nobody", sets.Want("c9-shop-web", "").Verdict, writes.Absent)
		if taken {
			complete("c1", semaphorev1.Kind_KIND_SERVICE)
			is("a service of the own cluster", service("c1"), after)
			is("a service of nobody", service(""), after)
		}
	}
}

// marked is a loop that remembers which names it is to look at.
type marked struct {
	ownCluster
	names []string
}

func (m *marked) Mark(name, _ string, _ time.Time) { m.names = append(m.names, name) }

// A Service of somebody else under the name of a mirror is given no endpoints: slices are made once the Service exists
// as ours, and at once then.
func TestSlicesAreMadeForOwnedServicesOnly(t *testing.T) {
	f := newFixture(t, 0)
	loop := &marked{ownCluster: ownCluster{synced: true}}
	f.Bind(Loops{Services: f.loop, Slices: loop})
	f.snapshot(1)
	f.take("c2", replica.Result{Changes: []replica.Change{slc("shop", "s0-x", endpoints("s0", "10.2.0.1"))}})
	services, slices := f.DesiredServices(), f.DesiredSlices()
	service := services.Want(mirrorName(0), "")
	names := slices.Names()
	if service.Verdict != writes.Present || len(names) != 1 {
		t.Fatalf("wanted are %v and the slices %q", service.Verdict, names)
	}
	if a := slices.Want(names[0], ""); a.Verdict != writes.Unknown || a.Again == 0 {
		t.Errorf("without its Service the slice is %+v", a)
	}
	loop.names = nil
	services.Observed(mirrorName(0), service.Object, true)
	if a := slices.Want(names[0], ""); a.Verdict != writes.Present || len(loop.names) != 1 {
		t.Errorf("with its Service the slice is %v, and %q are looked at", a.Verdict, loop.names)
	}
	// One that is there stays as it is to be when its Service goes for a moment.
	services.Observed(mirrorName(0), nil, false)
	if a := slices.Want(names[0], "c2"); a.Verdict != writes.Present {
		t.Errorf("a slice that is there is %v", a.Verdict)
	}
}
