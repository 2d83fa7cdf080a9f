package mirror

import (
	"fmt"
	"testing"

	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
)

// worst is a plan with the costliest Service that the limits allow: a headless global one of 100 ports, whose 10,000
// endpoints are in slices of one each, no two of which have the same ports.
func worst(b *testing.B) (p *cluster, slice func(i int, ready bool) replica.Change,
	service func(first int) replica.Change) {
	const ports, slices = 100, 10_000
	p = blank(b)
	service = func(first int) replica.Change {
		s := &semaphorev1.Service{Mirror: true, Global: true, Headless: true}
		for i := range ports {
			s.Ports = append(s.Ports, &semaphorev1.Port{Name: fmt.Sprintf("p%d", first+i), Protocol: "TCP", Port: int32(1 + i)})
		}
		return svc("shop", "wide", s)
	}
	slice = func(i int, ready bool) replica.Change {
		s := &semaphorev1.EndpointSlice{Service: "wide", AddressType: "IPv4", Endpoints: []*semaphorev1.Endpoint{
			{Addresses: []string{fmt.Sprintf("10.2.%d.%d", i>>8, i&255)}, Ready: &ready, Hostname: fmt.Sprint("h", i)},
		}}
		for n := range ports {
			s.Ports = append(s.Ports, &semaphorev1.Port{Name: fmt.Sprintf("p%d", n), Protocol: "TCP",
				Port: int32(1 + (i*7+n)%60_000)})
		}
		return slc("shop", fmt.Sprint("wide-", i), s)
	}
	changes := []replica.Change{service(0)}
	for i := range slices {
		changes = append(changes, slice(i, true))
	}
	p.Apply("c2", changes, p.Now)
	return p, slice, service
}

// BenchmarkWorstEndpoint is one endpoint of the costliest Service that becomes ready, or not.
func BenchmarkWorstEndpoint(b *testing.B) {
	p, slice, _ := worst(b)
	b.ReportAllocs()
	defer figure.Of(b, "B/op").AtMost(150_000)
	defer figure.Of(b, "allocs/op").AtMost(800)
	n := 0
	for b.Loop() {
		n++
		p.Apply("c2", []replica.Change{slice(n%100, n/100%2 == 1)}, p.Now)
	}
}

// BenchmarkWorstService is the costliest Service that gets other ports.
func BenchmarkWorstService(b *testing.B) {
	p, _, service := worst(b)
	b.ReportAllocs()
	defer figure.Of(b, "B/op").AtMost(2_500_000)
	defer figure.Of(b, "allocs/op").AtMost(20_000)
	n := 0
	for b.Loop() {
		n++
		p.Apply("c2", []replica.Change{service(n % 2)}, p.Now)
	}
}

// BenchmarkWorstSwitch is the costliest Service that is offered as a global one, or no longer: all its endpoints
// come or go.
func BenchmarkWorstSwitch(b *testing.B) {
	p, _, service := worst(b)
	b.ReportAllocs()
	defer figure.Of(b, "B/op").AtMost(18_000_000)
	defer figure.Of(b, "allocs/op").AtMost(70_000)
	n := 0
	for b.Loop() {
		n++
		c := service(0)
		c.New.GetService().Global = n%2 == 0
		p.Apply("c2", []replica.Change{c}, p.Now)
	}
}
