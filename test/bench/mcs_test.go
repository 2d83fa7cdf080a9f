package bench

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// Bounds of the ratio of an import's time, and of many concurrent ones, to that of the direct writes: the broker's
// slices share the apiserver with them.
const maxOfImport, maxOfImports = 2.5, 3

// maxOfBeside bounds what exports cost with the API's slices beside the imports, relative to the cost without them.
const maxOfBeside = 2.5

// mcsCluster is an apiserver that serves the Multi-Cluster Services API.
type mcsCluster struct {
	*cluster
	exports mcs.Resource[*mcsv1beta1.ServiceExport]
	imports mcs.Resource[*mcsv1beta1.ServiceImport]
}

func newMCSCluster(b *testing.B, namespaces ...string) *mcsCluster {
	c := &mcsCluster{cluster: newCluster(b, namespaces[0])}
	for _, name := range namespaces[1:] {
		kubetest.Namespace(b, c, name)
	}
	testkit.Value(mcs.ApplyDefinitions(b.Context(), dynamic.NewForConfigOrDie(c.rest)))(b)
	client := testkit.Value(mcs.New(c.rest, "bench"))(b)
	c.exports, c.imports = client.Exports(), client.Imports()
	testkit.Eventually(b, time.Minute, "the API is served", func() error {
		_, errImports := c.imports.Follow("", nil).ListWithContext(b.Context(), metav1.ListOptions{})
		_, errExports := c.exports.Follow("", nil).ListWithContext(b.Context(), metav1.ListOptions{})
		return errors.Join(errImports, errExports)
	})
	return c
}

// offer creates Services with one slice each, without ServiceExports.
func (c *mcsCluster) offer(services, endpoints int) {
	c.b.Helper()
	each(c.b, services, func(i int) error {
		s := service(i)
		s.Labels = nil
		if _, err := c.CoreV1().Services(shop).Create(c.b.Context(), s, metav1.CreateOptions{}); err != nil {
			return err
		}
		e := slice(shop, i, endpoints, 0)
		delete(e.Labels, mirrorLabel)
		_, err := c.DiscoveryV1().EndpointSlices(shop).Create(c.b.Context(), e, metav1.CreateOptions{})
		return err
	})
}

// export creates the ServiceExport of a Service, and returns when the apiserver answered.
func (c *mcsCluster) export(n int) (time.Time, error) {
	_, err := c.exports.Create(c.b.Context(),
		&mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: fmt.Sprint("web-", n)}})
	return time.Now(), err
}

// importDirectly makes the minimal writes of an import: a Service, for its IP, then the ServiceImport and its status.
func (c *mcsCluster) importDirectly(n int) error {
	ctx := c.b.Context()
	s := service(n)
	s.Namespace, s.Name, s.Spec.Selector = mirrors, fmt.Sprint("direct-", n), nil
	made, err := c.CoreV1().Services(mirrors).Create(ctx, s, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	i, err := c.imports.Create(ctx, &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: made.Name},
		Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: made.Spec.ClusterIPs,
			Ports: []mcsv1beta1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}},
	})
	if err != nil {
		return err
	}
	i.Status.Clusters = []mcsv1beta1.ClusterStatus{{Cluster: "c2"}}
	_, err = c.imports.UpdateStatus(ctx, i)
	return err
}

// importObserver records when each ServiceImport was first seen with an IP and an exporting cluster.
type importObserver struct {
	sightings
	at map[string]time.Time
}

func (c *mcsCluster) observeImports() *importObserver {
	o := &importObserver{newSightings(), map[string]time.Time{}}
	c.follow(c.imports.Example(), func(object any) {
		now, i := time.Now(), object.(*mcsv1beta1.ServiceImport)
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(i.Spec.IPs) > 0 && len(i.Status.Clusters) > 0 && o.at[i.Name].IsZero() {
			o.at[i.Name] = now
		}
		o.tell()
	}, c.imports.Follow("", nil))
	return o
}

// await returns when n imports exist.
func (o *importObserver) await(b *testing.B, n int) {
	b.Helper()
	o.until(b, fmt.Sprintf("%d imports", n), func() (int, bool) { return len(o.at), len(o.at) >= n })
}

// newMCS returns c2, with Services without ServiceExports, and c1, whose broker imports what c2 exports.
func newMCS(b *testing.B, services, endpoints int, beside config.ImportSlices) (c1, c2 *mcsCluster) {
	c1, c2 = newMCSCluster(b, mirrors, shop), newMCSCluster(b, shop)
	c2.offer(services, endpoints)
	w := newRealBroker(b, c1.rest, "services", func(c *config.Broker) {
		c.GlobalServices.PodSubnets = []string{"172.18.1.0/24"}
		c.GlobalServices.PodPrefixes = []netip.Prefix{netip.MustParsePrefix("172.18.1.0/24")}
		c.MCS.Enabled, c.MCS.EndpointSlices = true, beside
		c.MCS.Settle.Duration = 0 // the writes are measured, not the wait for them
	})
	for name, c := range map[string]*mcsCluster{"c1": c1, "c2": c2} {
		w.exportAs(name, c.rest, "services", func(c *config.Exporter) { c.MCS.Enabled = true })
	}
	return c1, c2
}

// BenchmarkExport measures one ServiceExport, from the answer of its apiserver until the other cluster's watch has the
// ServiceImport with an IP. In alternation, the same objects are written directly in that other cluster: a Service, the
// import and its status. The broker also writes two EndpointSlices. It reads the definitions of the API every five
// seconds.
func BenchmarkExport(b *testing.B) {
	const warm, exports = 5, 200
	c1, c2 := newMCS(b, warm+exports, 10, config.AllImportSlices)
	o := c1.observeImports()
	for i := range warm {
		testkit.Value(c2.export(i))(b)
	}
	o.await(b, warm)
	var through, direct []time.Duration
	_, writes, _ := requests(b, c1.rest, "serviceimports")
	asked, _, _ := requests(b, c1.rest, "customresourcedefinitions")
	began := time.Now()
	for b.Loop() {
		through, direct = nil, nil
		for i := range exports {
			answered := testkit.Value(c2.export(warm + i))(b)
			o.await(b, warm+2*i+1)
			through = append(through, o.at[fmt.Sprint("web-", warm+i)].Sub(answered))
			from := time.Now()
			must(b, c1.importDirectly(i))
			o.await(b, warm+2*i+2)
			direct = append(direct, o.at[fmt.Sprint("direct-", i)].Sub(from))
		}
	}
	// Both parts of c1 read two definitions every five seconds, and when a watch begins again. The direct client reads
	// them at most once in ten seconds.
	looks := 2 + int(time.Since(began)/(5*time.Second))
	_, moreWrites, _ := requests(b, c1.rest, "serviceimports")
	moreAsked, _, _ := requests(b, c1.rest, "customresourcedefinitions")
	reportQuantiles(b, through, direct, maxOfImport)
	figure.WithoutTime(b)
	figure.Report(b, "writes/import", float64(moreWrites-writes-2*exports)/exports).Floor(2).AtMost(2)
	figure.Report(b, "definitions-read", float64(moreAsked-asked)).AtMost(float64(looks * 3 * 2))
}

// BenchmarkExportsAtOnce measures 1,000 ServiceExports of Services with 100 endpoints each, from the first one until
// all imports and slices exist, without and then with the API's slices beside the imports. Before that, as many writers
// create as many objects directly, in a cluster of their own. Then endpoints change, one at a time.
//
// The figures an endpoint are of this process: the broker, both exporters, and the watch that observes c1. The cost of
// the slices beside the imports is the difference between the two; their floor is the run without them.
func BenchmarkExportsAtOnce(b *testing.B) {
	const exports, endpoints, changes = 1_000, 100, 300
	const all = exports * endpoints
	var without importCost
	for _, beside := range []config.ImportSlices{config.NoImportSlices, config.AllImportSlices} {
		b.Run(string(beside), func(b *testing.B) {
			namespaces := []string{mirrors}
			if beside == config.AllImportSlices {
				namespaces = append(namespaces, shop)
			}
			for b.Loop() {
				apart := newMCSCluster(b, mirrors, shop)
				_, _, directCPU := requests(b, apart.rest, "endpointslices")
				began := time.Now()
				each(b, exports, func(i int) error {
					if err := apart.importDirectly(i); err != nil {
						return err
					}
					for _, ns := range namespaces {
						if _, err := apart.DiscoveryV1().EndpointSlices(ns).Create(b.Context(), slice(ns, i, endpoints, 0),
							metav1.CreateOptions{}); err != nil {
							return err
						}
					}
					return nil
				})
				direct := time.Since(began)
				_, _, cpu := requests(b, apart.rest, "endpointslices")
				directCPU = cpu - directCPU

				c1, c2 := newMCS(b, exports, endpoints, beside)
				imports := c1.observeImports()
				var observers []*observer
				for _, ns := range namespaces {
					observers = append(observers, c1.watchSlices(ns))
				}
				written := func(what string, is func(*observer) bool) {
					for _, o := range observers {
						o.await(b, what, func() bool { return is(o) })
					}
				}
				before := costs(b, c1)
				began = time.Now()
				each(b, exports, func(i int) error {
					_, err := c2.export(i)
					return err
				})
				imports.await(b, exports)
				imported := time.Since(began)
				written("the slices", func(o *observer) bool { return o.all == all })
				whole := time.Since(began)
				created := costs(b, c1).since(before)

				before = costs(b, c1)
				for i := range changes {
					testkit.Value(c2.change(shop, i, endpoints, 1))(b)
					written("the change", func(o *observer) bool { return len(o.versions[i]) > 1 })
				}
				changed := costs(b, c1).since(before)

				figure.Report(b, "all-ms", milliseconds(whole)).Floor(milliseconds(direct))
				figure.Report(b, "imports-ms", milliseconds(imported))
				figure.Report(b, "writes/slice",
					created.writes/float64(exports*len(namespaces))).Floor(1).AtMost(1)
				figure.Report(b, "apiserver-CPU-s", created.apiserver).Floor(directCPU).AtMostTimesFloor(maxOfImports)
				figure.Report(b, "writes/change", changed.writes/changes).AtMost(float64(len(namespaces)))
				of := func(unit string, value, floor, ratio float64) {
					f := figure.Report(b, unit, value)
					if beside == config.AllImportSlices {
						f.Floor(floor).AtMostTimesFloor(ratio)
					}
				}
				of("stored-B/endpoint", c1.stored()/all, without.stored, maxOfBeside)
				of("heap-B/endpoint", created.heap/all, without.created.heap/all, maxOfBeside)
				of("alloc-B/endpoint", created.bytes/all, without.created.bytes/all, maxOfBeside)
				of("allocs/endpoint", created.allocs/all, without.created.allocs/all, maxOfBeside)
				of("CPU-µs/endpoint", created.cpu*1e6/all, without.created.cpu*1e6/all, maxOfBeside)
				of("allocs/change", changed.allocs/changes, without.changed.allocs/changes, maxOfBeside)
				of("apiserver-CPU-ms/change", changed.apiserver*1e3/changes, without.changed.apiserver*1e3/changes, maxOfBeside)
				if beside == config.NoImportSlices {
					without = importCost{created, changed, c1.stored() / all}
				}
			}
			figure.WithoutTime(b)
		})
	}
}

// importCost is what exports without slices beside their imports cost.
type importCost struct {
	created, changed cost
	stored           float64 // bytes an endpoint
}

// cost is what this process and an apiserver used.
type cost struct {
	heap          float64 // bytes in use after a collection
	bytes, allocs float64 // allocated
	cpu           float64 // seconds of this process
	apiserver     float64 // seconds
	writes        float64 // of EndpointSlices
}

func costs(b *testing.B, c *mcsCluster) cost {
	b.Helper()
	used := testkit.ProcessorTime() // before what is done here to measure
	_, writes, apiserver := requests(b, c.rest, "endpointslices")
	runtime.GC()
	runtime.GC() // what the first one finds in pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return cost{heap: float64(m.HeapAlloc), bytes: float64(m.TotalAlloc), allocs: float64(m.Mallocs),
		cpu: used.Seconds(), apiserver: apiserver, writes: float64(writes)}
}

func (c cost) since(before cost) cost {
	return cost{c.heap - before.heap, c.bytes - before.bytes, c.allocs - before.allocs, c.cpu - before.cpu,
		c.apiserver - before.apiserver, c.writes - before.writes}
}

// stored is the size of all EndpointSlices of a cluster, as the apiserver stores them.
func (c *mcsCluster) stored() (bytes float64) {
	c.b.Helper()
	all := testkit.Value(c.DiscoveryV1().EndpointSlices("").List(c.b.Context(), metav1.ListOptions{}))(c.b)
	for i := range all.Items {
		bytes += float64(all.Items[i].Size())
	}
	return bytes
}
