package mirror

import (
	"fmt"
	"testing"

	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
)

// big is a plan that holds 100,000 endpoints of c2, in services of a size, whose source has 100 in a slice.
func big(tb testing.TB, size int, service *semaphorev1.Service, more ...string) (p *Plan,
	slice func(service, slice int, ready int) []replica.Change) {
	const all, inSlice = 100_000, 100
	cfg := configured(tb, more...)
	p = New(cfg)
	p.Begin(began)
	slice = func(service, slice, ready int) []replica.Change {
		s := &semaphorev1.EndpointSlice{Service: fmt.Sprintf("s%d", service), AddressType: "IPv4",
			Ports: []*semaphorev1.Port{{Name: "web", Protocol: "TCP", Port: 8080}}}
		for i := range min(size, inSlice) {
			n := service*size + slice*inSlice + i
			yes, is := true, i < ready
			s.Endpoints = append(s.Endpoints,
				&semaphorev1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 2+n>>16, n>>8&255, n&255)}, Ready: &is,
					Serving: &yes})
		}
		return []replica.Change{slc("shop", fmt.Sprintf("s%d-%d", service, slice), s)}
	}
	for i := range all / size {
		p.Apply("c2", []replica.Change{svc("shop", fmt.Sprintf("s%d", i), service)}, began)
		for j := range (size + inSlice - 1) / inSlice {
			p.Apply("c2", slice(i, j, inSlice), began)
		}
	}
	return p, slice
}

// BenchmarkChange is what it takes to decide on the change of one endpoint, in a plan of 100,000, and to make the slice
// that is to be written: for services of ten endpoints and of 10,000, which should make no difference.
func BenchmarkChange(b *testing.B) {
	for _, size := range []int{10, 10_000} {
		for name, service := range map[string]*semaphorev1.Service{"mirror": mirrored(), "global": global()} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				p, slice := big(b, size, service)
				last := min(size, 100)
				changes := [][]replica.Change{slice(1, 0, last-1), slice(1, 0, last)}
				n := 0
				b.ReportAllocs()
				for b.Loop() {
					touches := p.Apply("c2", changes[n%2], began)
					if len(touches.Slices) != 1 {
						b.Fatalf("touches %v", touches)
					}
					if _, wanted := p.Slice(touches.Slices[0].Name); !wanted {
						b.Fatal("the slice is not wanted")
					}
					n++
				}
				figure.Of(b, "allocs/op").AtMost(100) // however many endpoints the service has
			})
		}
	}
}
