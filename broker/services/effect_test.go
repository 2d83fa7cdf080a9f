package services

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kube-semaphore/semaphore/broker/choice"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func TestAffected(t *testing.T) {
	c := alone(t, "rules: [{prefer: [c2, c3], whenGone: withdraw}]")
	c.apply("c2", offering(web(&semaphorev1.Service{Mirror: true, Global: true}), "10.2.0.1 10.2.0.2 10.2.0.3?")...)
	c.apply("c3", offering(global(), "10.4.0.1 10.4.0.2")...)
	c.heard("c2", "c2-a", "c3")
	c.Is("c2 suffices", glEcho, "c2-1: 10.2.0.1 10.2.0.2 10.2.0.3?; c3-1: 10.4.0.1- 10.4.0.2-")
	node := choice.Drain{Target: choice.Target{Cluster: "c2", Node: "n1"},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.2.0.2/31")}}
	of := func(cluster, namespace, service string) choice.Drain {
		return choice.Drain{Target: choice.Target{Cluster: cluster, Namespace: namespace, Service: service}}
	}
	affects := func(what string, d choice.Drain, want string) {
		t.Helper()
		if got := fmt.Sprint(c.engine().Affected(d)); got != want {
			t.Errorf("%s: %s affects %s, not %s", what, d, got, want)
		}
	}
	affects("two suffice", node, "[{c2-shop-73736d-echo 1 1 1} {gl-shop-73736d-echo 1 1 3}]")
	affects("the mirror is left with none", of("c2", "", ""), "[{c2-shop-73736d-echo 2 2 0} {gl-shop-73736d-echo 2 2 2}]")
	affects("what is not in use", of("c3", "", ""), "[{gl-shop-73736d-echo 2 0 2}]")
	affects("of all clusters", of("", "shop", "echo"), "[{c2-shop-73736d-echo 2 2 0} {gl-shop-73736d-echo 4 2 0}]")
	affects("nobody knows it", of("", "shop", "other"), "[]")
	c.follow(c.SetGone("c3", true, c.Now))
	affects("what is withdrawn is not left", of("c2", "", ""), "[{c2-shop-73736d-echo 2 2 0} {gl-shop-73736d-echo 2 2 0}]")
	c.follow(c.SetGone("c3", false, c.Now))

	if got := fmt.Sprint(c.engine().Drained()); got != "map[]" {
		t.Errorf("nothing is drained: %s", got)
	}
	c.follow(c.SetDrains(choice.NewDrains(node), c.Now))
	affects("what is not used already", node, "[{c2-shop-73736d-echo 1 0 1} {gl-shop-73736d-echo 1 0 3}]")
	affects("what is left", of("c2", "", ""), "[{c2-shop-73736d-echo 2 1 0} {gl-shop-73736d-echo 2 1 2}]")
	c.follow(c.SetDrains(choice.NewDrains(node, of("c3", "", "")), c.Now))
	if got := fmt.Sprint(c.engine().Drained()); got != "map[node c2/n1:{2 2} cluster c3:{2 1}]" {
		t.Errorf("drained: %s", got)
	}
}
