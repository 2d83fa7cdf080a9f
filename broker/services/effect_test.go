package services

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/replica"
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

// BenchmarkAffected asks what the drain of a cluster affects, of as many global services with ten endpoints of each of
// two clusters.
func BenchmarkAffected(b *testing.B) {
	for _, services := range []int{1000, 5000} {
		c := alone(b, "")
		for i := range services {
			for n, cluster := range []string{"c2", "c3"} {
				var addresses []string
				for e := range 10 {
					addresses = append(addresses, fmt.Sprintf("10.%d.%d.%d", 2+2*n, i>>5, i&31*8+e))
				}
				name := fmt.Sprintf("s%05d", i)
				c.Apply(cluster, []replica.Change{
					svc("shop", name, global()), slc("shop", name+"-x", endpoints(name, strings.Join(addresses, " "))),
				}, c.Now)
			}
		}
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			for b.Loop() {
				if n := len(c.engine().Affected(choice.Drain{Target: choice.Target{Cluster: "c2"}})); n != services {
					b.Fatal(n)
				}
			}
		})
	}
}
