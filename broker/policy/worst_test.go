package policy

import (
	"fmt"
	"testing"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
)

// largest is a plan with a set of as many pods as the shipped limits allow a remote. ip returns the address of each.
func largest(ip func(i int) string) *Plan {
	p := plan()
	var changes []replica.Change
	for i := range 100_000 {
		changes = append(changes, pods(fmt.Sprintf("shop/pod-%d u%d web %s", i, i, ip(i)))...)
	}
	p.Apply("c2", changes)
	return p
}

func spread(i int) string { return fmt.Sprintf("10.%d.%d.%d", 2+i>>16, i>>8&255, i&255) }

// BenchmarkWorstSet is a pod of the largest set that gets another address, and the objects that change.
func BenchmarkWorstSet(b *testing.B) {
	p := largest(spread)
	b.ReportAllocs()
	defer figure.Of(b, "B/op").AtMost(310_000)
	defer figure.Of(b, "allocs/op").AtMost(4_200)
	n := 0
	for b.Loop() {
		n++
		for _, t := range p.Apply("c2", pods(fmt.Sprintf("shop/pod-7 u7 web %s", spread(200_000+n%2)))) {
			p.Set(t.Name, start)
		}
	}
}

// BenchmarkWorstClaim is a pod that claims the address that all pods of the largest set claim, or another.
func BenchmarkWorstClaim(b *testing.B) {
	p := largest(func(int) string { return "10.2.0.1" })
	b.ReportAllocs()
	defer figure.Of(b, "B/op").AtMost(4_500)
	defer figure.Of(b, "allocs/op").AtMost(65)
	n := 0
	for b.Loop() {
		n++
		for _, t := range p.Apply("c2", pods(fmt.Sprintf("shop/pod-7 u7 web 10.2.0.%d", 1+n%2))) {
			p.Set(t.Name, start)
		}
	}
}
