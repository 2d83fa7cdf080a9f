package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// Namespaces of the source and of the mirrors.
const (
	shop    = "shop"
	mirrors = "semaphore"
)

const mirrorLabel = "mirror.semaphore.uw.io/mirror-service"

// cluster is an apiserver with its clients.
type cluster struct {
	b    *testing.B
	rest *rest.Config
	kubernetes.Interface
}

func newCluster(b *testing.B, namespace string) *cluster {
	c := &cluster{b: b, rest: kubetest.Start(b)}
	c.Interface = kubernetes.NewForConfigOrDie(kube.Protobuf(c.rest))
	kubetest.Namespace(b, c, namespace)
	return c
}

// slice returns the slice of a service in a version. Versions differ in the last endpoint, whose address has both
// numbers.
func slice(namespace string, service, endpoints, version int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("web-%d-x7", service),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: fmt.Sprint("web-", service),
				discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
				mirrorLabel:                  "true", // that controller copies it from the Service
			}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP),
			Port: ptr.To(int32(8080))}},
	}
	for i := range endpoints - 1 {
		s.Endpoints = append(s.Endpoints, endpoint(stays(service, i)))
	}
	s.Endpoints = append(s.Endpoints, endpoint(versioned(service, version)))
	return s
}

func endpoint(a netip.Addr) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses:  []string{a.String()},
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
		NodeName:   ptr.To("n1"), TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: shop, Name: a.String()},
	}
}

// Endpoints that do not change have addresses in 10.128.0.0/9; those that encode a version have addresses in
// 10.0.0.0/9.
const maxVersions = 1024

func stays(service, i int) netip.Addr { return address(1<<23 + service*256 + i) }

func versioned(service, version int) netip.Addr { return address(service*maxVersions + version) }

func address(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// versionOf decodes an address; ok is false for an endpoint that does not change.
func versionOf(a netip.Addr) (service, version int, ok bool) {
	b := a.As4()
	n := int(b[1])<<16 | int(b[2])<<8 | int(b[3])
	return n / maxVersions, n % maxVersions, n < 1<<23
}

func service(n int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: fmt.Sprint("web-", n),
			Labels: map[string]string{mirrorLabel: "true"}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80,
				TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

// each calls f for 0 to n-1, 16 at a time, which is the number of the broker's writers.
func each(b *testing.B, n int, f func(i int) error) {
	b.Helper()
	var g errgroup.Group
	g.SetLimit(16)
	for i := range n {
		g.Go(func() error { return f(i) })
	}
	must(b, g.Wait())
}

// create creates services with one slice each.
func (c *cluster) create(namespace string, services, endpoints int) {
	c.b.Helper()
	each(c.b, services, func(i int) error {
		s := service(i)
		s.Namespace = namespace
		if _, err := c.CoreV1().Services(namespace).Create(c.b.Context(), s, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := c.DiscoveryV1().EndpointSlices(namespace).Create(c.b.Context(), slice(namespace, i, endpoints, 0),
			metav1.CreateOptions{})
		return err
	})
}

// change writes a version of a slice, and returns when the apiserver answered.
func (c *cluster) change(namespace string, service, endpoints, version int) (time.Time, error) {
	_, err := c.DiscoveryV1().EndpointSlices(namespace).Update(c.b.Context(),
		slice(namespace, service, endpoints, version), metav1.UpdateOptions{})
	return time.Now(), err
}

// sightings guards what informers saw.
type sightings struct {
	mu   sync.Mutex
	news chan struct{}
}

func newSightings() sightings { return sightings{news: make(chan struct{}, 1)} }

func (s *sightings) tell() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// until returns when enough returns true. It calls enough, which also counts what was seen, under the lock.
func (s *sightings) until(b *testing.B, what string, enough func() (int, bool)) {
	b.Helper()
	timeout := time.After(4 * time.Minute)
	for {
		s.mu.Lock()
		n, ok := enough()
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-s.news:
		case <-timeout:
			b.Fatalf("%s: not within four minutes; %d are there", what, n)
		}
	}
}

// observer follows the Services and slices of a namespace, as kube-proxy does.
type observer struct {
	sightings
	// versions has when each version of a service, or a newer one, was first seen.
	versions map[int][]time.Time
	// endpoints has the number of endpoints by slice.
	endpoints map[string]int
	all       int
	services  map[string]bool
}

func newObserver() *observer {
	return &observer{sightings: newSightings(), versions: map[int][]time.Time{}, endpoints: map[string]int{},
		services: map[string]bool{}}
}

func (c *cluster) observe(namespace string) *observer {
	o := newObserver()
	endpoints, services := c.DiscoveryV1().EndpointSlices(namespace), c.CoreV1().Services(namespace)
	c.follow(&discoveryv1.EndpointSlice{}, o.saw, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, l metav1.ListOptions) (runtime.Object,
			error) {
			return endpoints.List(ctx, l)
		},
		WatchFuncWithContext: func(ctx context.Context, l metav1.ListOptions) (watch.Interface, error) {
			return endpoints.Watch(ctx, l)
		},
	})
	c.follow(&corev1.Service{}, o.sawService, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, l metav1.ListOptions) (runtime.Object, error) {
			return services.List(ctx, l)
		},
		WatchFuncWithContext: func(ctx context.Context, l metav1.ListOptions) (watch.Interface, error) {
			return services.Watch(ctx, l)
		},
	})
	return o
}

// watchSlices follows the slices of a namespace alone, and keeps none of them. The namespace has none yet. The
// apiserver ends the watch of a client that is slow; it begins again where it ended.
func (c *cluster) watchSlices(namespace string) *observer {
	o := newObserver()
	run(c.b, func(ctx context.Context) error {
		endpoints := c.DiscoveryV1().EndpointSlices(namespace)
		list, err := endpoints.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
			WatchFuncWithContext: func(ctx context.Context, l metav1.ListOptions) (watch.Interface, error) {
				return endpoints.Watch(ctx, l)
			}})
		if err != nil {
			return err
		}
		defer w.Stop()
		for e := range w.ResultChan() {
			if _, ok := e.Object.(*discoveryv1.EndpointSlice); !ok && ctx.Err() == nil {
				return fmt.Errorf("the watch of slices has %v", e.Object)
			}
			if ctx.Err() == nil {
				o.saw(e.Object)
			}
		}
		return ctx.Err()
	})
	return o
}

func (c *cluster) follow(example runtime.Object, saw func(any), objects *cache.ListWatch) {
	informer := cache.NewSharedIndexInformer(objects, example, 0, nil)
	testkit.Value(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: saw,
		UpdateFunc: func(_, o any) { saw(o) }}))(c.b)
	run(c.b, func(ctx context.Context) error {
		informer.RunWithContext(ctx)
		return nil
	})
}

func (o *observer) sawService(object any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.services[object.(*corev1.Service).Name] = true
	o.tell()
}

func (o *observer) saw(object any) {
	now, s := time.Now(), object.(*discoveryv1.EndpointSlice)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range s.Endpoints {
		if service, version, ok := versionOf(netip.MustParseAddr(e.Addresses[0])); ok {
			for len(o.versions[service]) <= version {
				o.versions[service] = append(o.versions[service], now)
			}
		}
	}
	o.all += len(s.Endpoints) - o.endpoints[s.Name]
	o.endpoints[s.Name] = len(s.Endpoints)
	o.tell()
}

// seen returns when a version was seen. It fails the benchmark if it was not.
func (o *observer) seen(service, version int) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.versions[service][version]
}

// await returns when f returns true. It calls f with the observed state.
func (o *observer) await(b *testing.B, what string, f func() bool) {
	b.Helper()
	o.until(b, what, func() (int, bool) { return o.all, f() })
}

// twoClusters returns c2 with services, and c1 with their mirrors and the broker.
func twoClusters(b *testing.B, services, endpoints int) (c1, c2 *cluster, o *observer, w *realBroker) {
	c1, c2 = newCluster(b, mirrors), newCluster(b, shop)
	c2.create(shop, services, endpoints)
	o = c1.observe(mirrors)
	w = newRealBroker(b, c1.rest, "services", func(*config.Broker) {})
	w.export(c2.rest, "services")
	o.await(b, "the first sync", func() bool { return o.all == services*endpoints && len(o.services) == services })
	return c1, c2, o, w
}

// spare creates slices without a Service in c1, beside those of the mirrors, for direct writes. Their numbers begin
// with first.
func (c *cluster) spare(o *observer, first, services, endpoints int) {
	c.b.Helper()
	each(c.b, services, func(i int) error {
		_, err := c.DiscoveryV1().EndpointSlices(mirrors).Create(c.b.Context(), slice(mirrors, first+i, endpoints, 0),
			metav1.CreateOptions{})
		return err
	})
	o.await(c.b, "the slices for direct writes", func() bool { return len(o.endpoints) == first+services })
}

// timing reports the times of changes through exporter and broker, and of the direct writes.
func timing(b *testing.B, through, direct []time.Duration) {
	b.Helper()
	reportQuantiles(b, through, direct, maxOfDirect)
	figure.WithoutTime(b) // the benchmark generates the changes
}

// reportQuantiles reports the median and the 99th percentile of the times, with those of direct writes as floors.
func reportQuantiles(b *testing.B, through, direct []time.Duration, most float64) {
	b.Helper()
	p50, p99 := figure.Quantiles(through)
	floor50, floor99 := figure.Quantiles(direct)
	figure.Report(b, "p50-ms", milliseconds(p50)).Floor(milliseconds(floor50)).AtMostTimesFloor(most)
	figure.Report(b, "p99-ms", milliseconds(p99)).Floor(milliseconds(floor99)).AtMostTimesFloor(maxOfDirectP99)
}

// stages has when sequential changes passed each stage, in the order of the changes.
type stages struct {
	observed, received, written []time.Time
}

// stages returns those of the last changes of slices, from the events that the broker remembers.
func (w *realBroker) stages(changes int) (s stages) {
	w.b.Helper()
	conn, err := grpc.NewClient("unix:"+w.dir+"/broker.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(w.b, err)
	defer conn.Close()
	events := testkit.Value(semaphorev1.NewDebugServiceClient(conn).Watch(w.b.Context(),
		&semaphorev1.WatchRequest{Recent: true, OnlyRecent: true}))(w.b)
	for {
		m, err := events.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(w.b, err)
		e := m.GetEvent()
		if !strings.HasPrefix(e.GetObject(), "endpointslice ") {
			continue
		}
		switch e.GetAction() {
		case "receive":
			s.observed = append(s.observed, e.GetObservedAt().AsTime())
			s.received = append(s.received, e.GetTime().AsTime())
		case "update":
			s.written = append(s.written, e.GetTime().AsTime())
		}
	}
	if len(s.received) < changes || len(s.written) < changes {
		w.b.Fatalf("of %d changes the broker remembers that it received %d and wrote %d", changes, len(s.received),
			len(s.written))
	}
	for _, all := range []*[]time.Time{&s.observed, &s.received, &s.written} {
		*all = (*all)[len(*all)-changes:]
	}
	return s
}

// report reports the median of each stage: from the answer of the source's apiserver to the exporter, to the broker, to
// the answer of the other apiserver, and to its watch.
func (s stages) report(b *testing.B, answered, seen []time.Time) {
	b.Helper()
	for _, stage := range []struct {
		unit     string
		from, to []time.Time
	}{
		{"exporter-p50-ms", answered, s.observed}, {"broker-p50-ms", s.observed, s.received},
		{"write-p50-ms", s.received, s.written}, {"watch-p50-ms", s.written, seen},
	} {
		var took []time.Duration
		for i, from := range stage.from {
			took = append(took, stage.to[i].Sub(from))
		}
		slices.Sort(took)
		figure.Report(b, stage.unit, milliseconds(took[len(took)/2]))
	}
}

// BenchmarkServicesChange measures one changed endpoint of a slice of 100, from the answer of its apiserver until the
// other cluster's watch has it, and the stages between. In alternation, the same write is made directly to that other
// apiserver, measured from the request to the watch. Each change is one write, and nothing is read.
func BenchmarkServicesChange(b *testing.B) {
	const endpoints, changes = 100, 300
	c1, c2, o, w := twoClusters(b, 1, endpoints)
	c1.spare(o, 1, 1, endpoints)
	var through, direct []time.Duration
	var from, to []time.Time
	reads, writes, _ := requests(b, c1.rest, "endpointslices")
	for b.Loop() {
		for range changes {
			version := len(through) + 1
			answered := testkit.Value(c2.change(shop, 0, endpoints, version))(b)
			o.await(b, "a change", func() bool { return len(o.versions[0]) > version })
			from, to = append(from, answered), append(to, o.seen(0, version))
			through = append(through, to[version-1].Sub(answered))
			began := time.Now()
			testkit.Value(c1.change(mirrors, 1, endpoints, version))(b)
			o.await(b, "a direct change", func() bool { return len(o.versions[1]) > version })
			direct = append(direct, o.seen(1, version).Sub(began))
		}
	}
	moreReads, moreWrites, _ := requests(b, c1.rest, "endpointslices")
	timing(b, through, direct)
	last := len(from) - changes
	w.stages(changes).report(b, from[last:], to[last:])
	figure.Report(b, "writes/change", float64(moreWrites-writes-len(direct))/float64(len(through))).Floor(1).AtMost(1)
	figure.Report(b, "reads", float64(moreReads-reads)).AtMost(0)
}

// BenchmarkServicesFirstSync measures the time from the start of broker and exporter, without mirrors, until all
// services with ten endpoints are mirrored. Before that, as many writers create as many Services and slices directly,
// in a cluster of their own. Each object is written once.
func BenchmarkServicesFirstSync(b *testing.B) {
	const endpoints = 10
	for _, services := range []int{1_000, 5_000} {
		b.Run(fmt.Sprintf("%d-services", services), func(b *testing.B) {
			var created, synced time.Duration
			written := 0
			whole := func(o *observer) func() bool {
				return func() bool { return o.all == services*endpoints && len(o.services) == services }
			}
			for b.Loop() {
				apart := newCluster(b, mirrors)
				o := apart.observe(mirrors)
				// The broker's apiserver has just got this type, too, and works on it for seconds.
				kubetest.InstallRemoteClusters(b, apart.rest)
				began := time.Now()
				apart.create(mirrors, services, endpoints)
				o.await(b, "the creations", whole(o))
				created += time.Since(began)

				c1, c2 := newCluster(b, mirrors), newCluster(b, shop)
				c2.create(shop, services, endpoints)
				o = c1.observe(mirrors)
				_, services0, before := requests(b, c1.rest, "services")
				_, slices0, _ := requests(b, c1.rest, "endpointslices")
				broker := newRealBroker(b, c1.rest, "services", func(*config.Broker) {})
				began = time.Now()
				broker.export(c2.rest, "services")
				o.await(b, "the first sync", whole(o))
				synced += time.Since(began)
				_, services1, cpu := requests(b, c1.rest, "services")
				_, slices1, _ := requests(b, c1.rest, "endpointslices")
				written += services1 - services0 + slices1 - slices0
				figure.Report(b, "apiserver-CPU-s", cpu-before)
			}
			figure.Report(b, "sync-ms",
				milliseconds(synced)/float64(b.N)).Floor(milliseconds(created) / float64(b.N)).AtMostTimesFloor(maxOfDirect)
			figure.Report(b, "writes/object", float64(written)/float64(2*services*b.N)).Floor(1).AtMost(1)
			figure.WithoutTime(b)
		})
	}
}

// BenchmarkServicesChurn measures 100 changes a second for a minute, over 200 services with ten endpoints. Turns of ten
// seconds alternate with turns in which the same changes are written directly, to both apiservers one after the other:
// all of them share the machine, which would otherwise have half the work. Each change is at most one write, and
// nothing is read.
func BenchmarkServicesChurn(b *testing.B) {
	const (
		services, endpoints = 200, 10
		changes, interval   = 1_000, 10 * time.Millisecond // in a turn
		turns               = 6
		apart               = "apart" // a namespace of c2, with slices without a Service that are not exported
	)
	c1, c2, o, _ := twoClusters(b, services, endpoints)
	c1.spare(o, services, services, endpoints)
	kubetest.Namespace(b, c2, apart)
	each(b, services, func(i int) error {
		_, err := c2.DiscoveryV1().EndpointSlices(apart).Create(b.Context(), slice(apart, services+i, endpoints, 0),
			metav1.CreateOptions{})
		return err
	})
	// turn changes the services from first on, and returns how long each change took since change returned, and the
	// requests to c1.
	turn := func(first, version int, change func(service, version int) (since time.Time, err error)) (took []time.Duration,
		reads, writes int) {
		beforeReads, before, _ := requests(b, c1.rest, "endpointslices")
		from := make([]time.Time, changes)
		var g errgroup.Group
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for i := range changes {
			g.Go(func() (err error) {
				from[i], err = change(first+i%services, version+i/services)
				return err
			})
			<-tick.C
		}
		must(b, g.Wait())
		last := version + changes/services - 1
		o.await(b, "the last change", func() bool {
			for s := range services {
				if len(o.versions[first+s]) <= last {
					return false
				}
			}
			return true
		})
		for i := range changes {
			took = append(took, o.seen(first+i%services, version+i/services).Sub(from[i]))
		}
		afterReads, after, _ := requests(b, c1.rest, "endpointslices")
		return took, afterReads - beforeReads, after - before
	}
	var through, direct []time.Duration
	reads, writes, version := 0, 0, 1
	for b.Loop() {
		for range turns {
			took, r, w := turn(0, version, func(service, version int) (time.Time, error) {
				return c2.change(shop, service, endpoints, version)
			})
			through, reads, writes = append(through, took...), reads+r, writes+w
			took, _, _ = turn(services, version, func(service, version int) (time.Time, error) {
				answered, err := c2.change(apart, service, endpoints, version)
				if err != nil {
					return answered, err
				}
				_, err = c1.change(mirrors, service, endpoints, version)
				return answered, err
			})
			direct = append(direct, took...)
			version += changes / services
		}
	}
	timing(b, through, direct)
	figure.Report(b, "writes/change", float64(writes)/float64(len(through))).Floor(1).AtMost(1)
	figure.Report(b, "reads", float64(reads)).AtMost(0)
}
