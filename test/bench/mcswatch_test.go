package bench

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/exporter/publish"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// maxHeldOfUnexported bounds the heap for an endpoint that nobody exports, in bytes.
const maxHeldOfUnexported = 800

// BenchmarkServicesRead measures what it costs an exporter with mcs.enabled to watch all Services and EndpointSlices:
// 2,000 Services with 20,000 endpoints, of which ServiceExports export a twentieth. Then slices change that nobody
// exports, one for each of 1,000 Services.
//
// The floor is an exporter without mcs.enabled, for which the same twentieth has the label of mirrors. Its watches
// select that label, so it reads only what it exports. No other way to find the Services of ServiceExports reads less
// than that.
func BenchmarkServicesRead(b *testing.B) {
	const services, endpoints, exported, changes = 2_000, 10, 100, 1_000
	const unexported = (services - exported) * endpoints
	c := newMCSCluster(b, shop)
	each(b, services, func(i int) error {
		s, e := service(i), slice(shop, i, endpoints, 0)
		if i >= exported {
			s.Labels = nil
			delete(e.Labels, mirrorLabel)
		}
		if _, err := c.CoreV1().Services(shop).Create(b.Context(), s, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := c.DiscoveryV1().EndpointSlices(shop).Create(b.Context(), e, metav1.CreateOptions{}); err != nil ||
			i >= exported {
			return err
		}
		_, err := c.export(i)
		return err
	})
	version := 0
	var floor, floorOfChanges cost
	var floorUntil time.Duration
	for _, how := range []string{"label", "mcs"} {
		b.Run(how, func(b *testing.B) {
			for b.Loop() {
				before, began := costs(b, c), time.Now()
				journal := c.read(b, how == "mcs", exported)
				until := time.Since(began)
				read := costs(b, c).since(before)

				version++
				before = costs(b, c)
				head := journal.Head()
				// The last change is of a slice that is exported: once it is there, the exporter has seen the others.
				for i := changes; i >= 0; i-- {
					n := exported + i - 1
					if i == 0 {
						n = 0
					}
					testkit.Value(c.change(shop, n, endpoints, version))(b)
				}
				testkit.Eventually(b, 2*time.Minute, "the last change",
					testkit.True(func() bool { return journal.Head() > head }))
				changed := costs(b, c).since(before)

				figure.WithoutTime(b)
				complete := figure.Report(b, "complete-ms", milliseconds(until))
				heap := figure.Report(b, "heap-MiB", read.heap/(1<<20))
				cpu := figure.Report(b, "CPU-ms", read.cpu*1e3)
				apiserver := figure.Report(b, "apiserver-CPU-ms", read.apiserver*1e3)
				if how == "label" {
					floor, floorOfChanges, floorUntil = read, changed, until
					continue
				}
				complete.Floor(milliseconds(floorUntil))
				heap.Floor(floor.heap / (1 << 20))
				cpu.Floor(floor.cpu * 1e3)
				apiserver.Floor(floor.apiserver * 1e3)
				figure.Report(b, "heap-B/unexported-endpoint", (read.heap-floor.heap)/unexported).AtMost(maxHeldOfUnexported)
				figure.Report(b, "CPU-µs/unexported-change", (changed.cpu-floorOfChanges.cpu)*1e6/changes)
			}
		})
	}
}

// read starts the watches of an exporter, and returns its journal once that has the exported Services and their slices.
func (c *mcsCluster) read(b *testing.B, multiCluster bool, exported int) *catalog.Journal {
	b.Helper()
	mirror := testkit.Value(labels.Parse(mirrorLabel + "=true"))(b)
	none := testkit.Value(labels.Parse("example.org/none=true"))(b)
	if multiCluster {
		mirror = none
	}
	all := catalog.New(catalog.Rules{Features: config.Features{config.Services}, Clusters: []string{"c2"},
		Mirror: mirror, Global: none, MultiCluster: multiCluster})
	var o publish.WatcherOptions
	if multiCluster {
		o.Exports = func(u *kube.Unread) *cache.ListWatch { return c.exports.Follow("", u) }
	}
	w, err := publish.NewWatcher(c.Interface, kube.NewBlockAffinities(c.rest), all, prometheus.NewRegistry(), o)
	must(b, err)
	run(b, w.Run)
	testkit.Eventually(b, 2*time.Minute, "the first snapshot", testkit.True(func() bool {
		entries, _ := all.Journal().Snapshot()
		return w.Synced() == nil && len(entries) == 2*exported
	}))
	return all.Journal()
}
