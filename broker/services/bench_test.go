package services

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
)

// BenchmarkImportSlices is what the EndpointSlices beside ServiceImports cost, for 1,000 exports of 100 endpoints each:
// what the plan holds, and all slices made once, as after the start of a broker. The floor is the same without them.
func BenchmarkImportSlices(b *testing.B) {
	const exports, endpointsOfEach, all = 1_000, 100, 100_000.0
	type cost struct{ held, size, bytes, allocs, ns float64 }
	var without cost
	for i, beside := range []config.ImportSlices{config.NoImportSlices, config.AllImportSlices} {
		b.Run(string(beside), func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			p := blank(b, "mcs: {enabled: true, endpointSlices: "+string(beside)+"}")
			for i := range exports {
				name, addresses := fmt.Sprintf("s%d", i), ""
				for n := range endpointsOfEach {
					addresses += fmt.Sprintf(" 10.2.%d.%d", (i*endpointsOfEach+n)>>8&255, (i*endpointsOfEach+n)&255)
				}
				p.Apply("c2", []replica.Change{svc("shop", name, exported()), slc("shop", name, endpoints(name, addresses))}, p.Now)
			}
			p.SetNamespaces([]string{"shop"})
			runtime.GC()
			runtime.ReadMemStats(&after)
			now := cost{held: float64(after.HeapAlloc-before.HeapAlloc) / all}
			var slices, size int
			runtime.ReadMemStats(&before)
			began := time.Now()
			for b.Loop() {
				slices, size = 0, 0
				p.EachSlice(func(name, _, _ string, _ bool) {
					s, _ := p.Slice(name)
					slices, size = slices+1, size+s.Size()
				})
				for _, name := range p.ImportSlices() {
					s, _ := p.ImportSlice(name)
					slices, size = slices+1, size+s.Size()
				}
			}
			runtime.ReadMemStats(&after)
			made := all * float64(b.N)
			now.ns = float64(time.Since(began).Nanoseconds()) / made
			now.bytes = float64(after.TotalAlloc-before.TotalAlloc) / made
			now.allocs = float64(after.Mallocs-before.Mallocs) / made
			now.size = float64(size) / all
			if i == 0 {
				without = now
			}
			figure.Report(b, "slices/export", float64(slices)/exports).AtMost(float64(1 + i))
			figure.Report(b, "held-B/endpoint", now.held).Floor(without.held).AtMostTimesFloor(1.05)
			figure.Report(b, "written-B/endpoint", now.size).Floor(without.size).AtMostTimesFloor(2.1)
			figure.Report(b, "B/endpoint", now.bytes).Floor(without.bytes).AtMostTimesFloor(2.1)
			figure.Report(b, "allocs/endpoint", now.allocs).Floor(without.allocs).AtMostTimesFloor(2.1)
			figure.Report(b, "ns/endpoint", now.ns).Floor(without.ns).AtMostTimesFloor(3)
			figure.WithoutTime(b)
		})
	}
}

// BenchmarkWorstExport is a ServiceExport with as many annotations as are taken, of 16 KiB in all, that changes one of
// them, among as many as the limits allow. Each has 100 ports.
func BenchmarkWorstExport(b *testing.B) {
	p := blank(b, enabled)
	change := func(i, version int) replica.Change {
		s := &semaphorev1.Service{MultiCluster: &semaphorev1.MultiClusterExport{}}
		for n := range 100 {
			s.Ports = append(s.Ports, &semaphorev1.Port{Name: fmt.Sprintf("p%d", n), Protocol: "TCP", Port: int32(1 + n)})
		}
		for n := range 64 {
			s.MultiCluster.Annotations = append(s.MultiCluster.Annotations, &semaphorev1.Annotation{
				Key: fmt.Sprintf("example.org/a%02d", n), Value: strings.Repeat(fmt.Sprint(version%2), 230)})
		}
		return svc("shop", fmt.Sprint("export-", i), s)
	}
	for i := range 1000 {
		p.Apply("c2", []replica.Change{change(i, 0)}, p.Now)
	}
	b.ReportAllocs()
	defer figure.Of(b, "B/op").AtMost(215_000)
	defer figure.Of(b, "allocs/op").AtMost(1_550)
	n := 0
	for b.Loop() {
		n++
		touched := p.Apply("c2", []replica.Change{change(n%1000, n/1000+1)}, p.Now)
		for _, t := range touched.Services {
			p.Service(t.Name)
		}
		for _, t := range p.Touched(touched).Imports {
			p.Import(t.Name)
		}
	}
}
