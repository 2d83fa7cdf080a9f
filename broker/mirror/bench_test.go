package mirror

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/broker/choice"
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

// BenchmarkMemory is what a plan of 100,000 endpoints holds beside what the replica has.
func BenchmarkMemory(b *testing.B) {
	for name, service := range map[string]*semaphorev1.Service{"mirror": mirrored(),
		"both": {Mirror: true, Global: true}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var before, between, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				p, _ := big(b, 100, service)
				runtime.GC()
				runtime.ReadMemStats(&between)
				held := p.exportedSlices // what the replica has
				*p = Plan{}
				runtime.GC()
				runtime.ReadMemStats(&after)
				runtime.KeepAlive(held)
				b.ReportMetric(float64(between.HeapAlloc-after.HeapAlloc)/1e5, "B/endpoint")
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e5, "B/endpoint-in-replica")
			}
		})
	}
}

// BenchmarkBegin is a broker that starts in a cluster with 100,000 endpoints.
func BenchmarkBegin(b *testing.B) {
	c := blank(b)
	for i := range 1000 {
		var addresses string
		for j := range 100 {
			n := i*100 + j
			addresses += fmt.Sprintf(" 10.2.%d.%d", n>>8&255, n&255)
		}
		name := fmt.Sprintf("s%d", i)
		c.apply("c2", svc("shop", name, mirrored()), slc("shop", name+"-x", endpoints(name, addresses)))
	}
	for b.Loop() {
		p := New(configured(b))
		for name, s := range c.Services {
			p.ObserveService(name, s, began)
		}
		for name, s := range c.Slices {
			p.ObserveSlice(name, s, began)
		}
		if n := len(p.Begin(began).Services); n != 1000 {
			b.Fatal(n)
		}
	}
}

// BenchmarkDrain is a cluster that is drained and put back, of as many global services with ten endpoints of each of
// two clusters: what is decided, and not what is written.
func BenchmarkDrain(b *testing.B) {
	for _, services := range []int{1000, 5000} {
		p := New(configured(b))
		p.Begin(began)
		for i := range services {
			for n, cluster := range []string{"c2", "c3"} {
				var addresses []string
				for e := range 10 {
					addresses = append(addresses, fmt.Sprintf("10.%d.%d.%d", 2+2*n, i>>5, i&31*8+e))
				}
				name := fmt.Sprintf("s%05d", i)
				p.Apply(cluster, []replica.Change{
					svc("shop", name, global()), slc("shop", name+"-x", endpoints(name, strings.Join(addresses, " "))),
				}, began)
			}
		}
		all := choice.NewDrains(choice.Drain{Target: choice.Target{Cluster: "c2"}})
		b.Run(fmt.Sprint("drain/", services), func(b *testing.B) {
			for b.Loop() {
				if n := len(p.SetDrains(all, began).Slices); n != services {
					b.Fatal(n)
				}
				p.SetDrains(choice.Drains{}, began)
			}
		})
		b.Run(fmt.Sprint("gone/", services), func(b *testing.B) {
			for b.Loop() {
				if n := len(p.SetGone("c2", true, began).Slices); n != services {
					b.Fatal(n)
				}
				p.SetGone("c2", false, began)
			}
		})
	}
}
