package plans_test

import (
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/plans"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Where the own exporter is taken, what came of the own cluster is gone only once that has been heard whole; of kinds that
// it is not asked of, it is not waited for.
func TestTheOwnClusterIsWaitedFor(t *testing.T) {
	for _, taken := range []bool{false, true} {
		text := `{"cluster": "c1", "localSubnets": ["10.1.0.0/16"], "features": ["services", "policy"], "remotes": [{"name": "c2", "podSubnets": ["10.2.0.0/16"]}]`
		if taken {
			text += `, "globalServices": {"podSubnets": ["10.1.0.0/16"]}`
		}
		cfg, err := config.Parse[config.Broker]([]byte(text + "}"))
		if err != nil {
			t.Fatal(err)
		}
		p := plans.New(cfg, nil, func(string, string) {}, time.Now)
		loop := &cluster{synced: true}
		p.Wake(plans.Loops{Services: loop, Slices: loop, Sets: loop})
		services, sets := p.DesiredServices(), p.DesiredSets()
		complete := func(cluster string, kind semaphorev1.Kind) { p.Take(cluster, replica.Result{Completed: kind}) }
		is := func(what string, got, want apply.Verdict) {
			t.Helper()
			if got != want {
				t.Errorf("own exporter taken %v: %s is %v, not %v", taken, what, got, want)
			}
		}
		service := func(owner string) apply.Verdict { return services.Want("gl-shop-73736d-echo", owner).Verdict }
		before, after := apply.Absent, apply.Absent
		if taken {
			before = apply.Unknown
		}
		is("a service of the own cluster", service("c1"), before)
		complete("c2", semaphorev1.Kind_KIND_SERVICE)
		is("a service of nobody", service(""), before)
		complete("c2", semaphorev1.Kind_KIND_SET_MEMBER)
		is("a set of nobody", sets.Want("c9-shop-web", "").Verdict, apply.Absent)
		if taken {
			complete("c1", semaphorev1.Kind_KIND_SERVICE)
			is("a service of the own cluster", service("c1"), after)
			is("a service of nobody", service(""), after)
		}
	}
}
