package publish

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The cost of an exporter with 100,000 objects and 100 brokers.
const (
	manyObjects = 100_000
	manyBrokers = 100
)

func manyClusters() []string {
	var out []string
	for i := range manyBrokers {
		out = append(out, fmt.Sprint("cluster-", i))
	}
	return out
}

func largeCatalog(exportTo string) *catalog.Catalog {
	c := catalog.New(catalog.Rules{Features: config.Features{config.Policy}, Clusters: manyClusters(),
		LabelDomains: []string{naming.DefaultLabelDomain}})
	for i := range manyObjects {
		putPod(c, i, 0, exportTo)
	}
	return c
}

func putPod(c *catalog.Catalog, i, version int, exportTo string) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("team-", i%97), Name: fmt.Sprintf("web-7d9c5f6b8d-%d", i),
			UID:    "9b2f3c1e-6f0c-4d39-9d0a-2f4f5f1b7c11",
			Labels: map[string]string{naming.DefaultLabelDomain + "/name": "front"}},
		Status: corev1.PodStatus{PodIP: fmt.Sprintf("10.%d.%d.%d", version%250, i/250%250, i%250)},
	}
	if exportTo != "" {
		pod.Annotations = map[string]string{naming.AnnotationExportTo: exportTo}
	}
	c.PutPod(pod, time.Unix(1, 0))
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkCatalogMemory(b *testing.B) {
	for name, exportTo := range map[string]string{"everyone": "", "two": "cluster-1,cluster-2"} {
		b.Run(name, func(b *testing.B) {
			var per float64
			for b.Loop() {
				before := heap()
				c := largeCatalog(exportTo)
				per = float64(heap()-before) / manyObjects
				runtime.KeepAlive(c)
			}
			b.ReportMetric(per, "B/object")
		})
	}
}

func BenchmarkPut(b *testing.B) {
	for name, exportTo := range map[string]string{"everyone": "", "two": "cluster-1,cluster-2"} {
		c := largeCatalog(exportTo)
		b.Run(name+"/changed", func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				putPod(c, i%manyObjects, i/manyObjects+1, exportTo)
			}
		})
		b.Run(name+"/unchanged", func(b *testing.B) {
			putPod(c, 0, 0, exportTo)
			for b.Loop() {
				putPod(c, 0, 0, exportTo)
			}
		})
	}
}

// BenchmarkWelcome is what it takes until a session can send its first message: of all objects, and where the broker
// holds them.
func BenchmarkWelcome(b *testing.B) {
	for name, exportTo := range map[string]string{"everyone": "", "two": "cluster-1,cluster-2"} {
		c := largeCatalog(exportTo)
		begin := func(held ...*semaphorev1.KindState) *Session {
			s := NewSession("c1", "cluster-1", "test", 0, "", c.Rules().Kinds(), c.Journal())
			_, err := s.Receive(welcome(&semaphorev1.Welcome{Cluster: "cluster-1", ProtocolVersion: 1, Held: held}))
			must(b, err)
			return s
		}
		first := begin()
		b.Run(name+"/snapshot", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				begin()
			}
		})
		of := first.snapshots[0]
		held := &semaphorev1.KindState{Kind: of.kind, Objects: of.total, Digest: of.digest.Bytes()}
		b.Run(name+"/unchanged", func(b *testing.B) {
			for b.Loop() {
				if !begin(held).snapshots[0].unchanged {
					b.Fatal("a snapshot is sent")
				}
			}
		})
	}
}
