package scale

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// variable returns the number in an environment variable, by which a row is made smaller or larger.
func variable(b *testing.B, name string, otherwise int) int {
	b.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	return testkit.Value(strconv.Atoi(text))(b)
}

// idle is how long an idle broker is measured, after it has returned the memory of the first sync, and silence how long
// all remotes are away: longer than the broker takes to regard one as stale.
const returned, idle, silence = time.Minute, 20 * time.Second, 40 * time.Second

// mesh is a hub whose remote c2 is a real exporter with an apiserver of its own.
type mesh struct {
	*hub
	source     kubernetes.Interface
	sourceRest *rest.Config
	exporter   *program
	version    int

	mu   sync.Mutex
	seen map[string]time.Time // by the address of an endpoint of c2
	news chan struct{}
}

func newMesh(b *testing.B, of content) *mesh {
	m := &mesh{hub: newHub(b), seen: map[string]time.Time{}, news: make(chan struct{}, 1)}
	source := kubetest.Start(b)
	m.sourceRest = source
	m.source = kubernetes.NewForConfigOrDie(kube.Protobuf(source))
	kubetest.Namespace(b, m.source, shop)
	must(b, direct(b.Context(), source, shop, "c2", of))
	m.remoteOf("c2", 0, "size: large, podSubnets: [10.100.0.0/16]")
	m.start("encryption, services, policy")
	m.exporter = m.hub.source("c2", source, m.federation, "encryption, services, policy")
	m.watch()
	m.present("c2", of.services, 0)
	return m
}

// direct writes the objects that a broker makes of a remote's, with as many writers. In the namespace shop they are
// those that an exporter exports.
func direct(ctx context.Context, cfg *rest.Config, namespace, name string, of content) error {
	client := kubernetes.NewForConfigOrDie(kube.Protobuf(cfg))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range of.services {
		g.Go(func() error {
			s := sourceService(namespace, fmt.Sprint(name, "-web-", i))
			if _, err := client.CoreV1().Services(namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
				return err
			}
			_, err := client.DiscoveryV1().EndpointSlices(namespace).Create(ctx,
				sourceSlice(s, of.endpoints/of.services, i*(of.endpoints/of.services)), metav1.CreateOptions{})
			return err
		})
	}
	if namespace != shop && of.sets > 0 {
		sets := dynamic.NewForConfigOrDie(cfg).Resource(kubetest.CalicoCRD.WithResource("globalnetworksets"))
		for i := range of.sets {
			g.Go(func() error {
				var nets []any
				for n := range of.members / of.sets {
					nets = append(nets, sourceAddress(n)+"/32")
				}
				_, err := sets.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": kubetest.CalicoCRD.String(), "kind": "GlobalNetworkSet",
					"metadata": map[string]any{"name": fmt.Sprint(name, "-set-", i)}, "spec": map[string]any{"nets": nets},
				}}, metav1.CreateOptions{})
				return err
			})
		}
	}
	return g.Wait()
}

func sourceService(namespace, name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{"mirror.semaphore.uw.io/mirror-service": "true"}},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

// sourceSlice returns the slice of a Service, with endpoints from a number on.
func sourceSlice(s *corev1.Service, endpoints, first int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name + "-x7d2f", Labels: map[string]string{
			discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			"mirror.semaphore.uw.io/mirror-service": "true"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP),
			Port: ptr.To(int32(8080))}},
	}
	for i := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			Addresses:  []string{sourceAddress((first + i) % (1 << 15))}})
	}
	return slice
}

func sourceAddress(n int) string {
	return netip.AddrFrom4([4]byte{10, 100, byte(n >> 8), byte(n)}).String()
}

// watch notes when each address of c2 is first in a slice of the hub.
func (m *mesh) watch() {
	m.b.Helper()
	w := testkit.Value(m.kube.DiscoveryV1().EndpointSlices(mirrors).Watch(m.b.Context(),
		metav1.ListOptions{LabelSelector: naming.LabelSourceCluster + "=c2"}))(m.b)
	m.b.Cleanup(w.Stop)
	go func() {
		for e := range w.ResultChan() {
			slice, ok := e.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				return // a change that is not seen fails the benchmark
			}
			now := time.Now()
			m.mu.Lock()
			for _, e := range slice.Endpoints {
				if _, ok := m.seen[e.Addresses[0]]; !ok {
					m.seen[e.Addresses[0]] = now
				}
			}
			m.mu.Unlock()
			select {
			case m.news <- struct{}{}:
			default:
			}
		}
	}()
}

// changes replaces an endpoint of c2 so often, one after the other, and returns how long each took from the answer of
// the source's apiserver to the watch of the hub.
func (m *mesh) changes(n, endpoints int) (times []time.Duration) {
	m.b.Helper()
	s := sourceService(shop, "c2-web-0")
	for range n {
		m.version++
		last := 1<<15 + m.version
		slice := sourceSlice(s, endpoints, 0)
		slice.Endpoints[endpoints-1].Addresses = []string{sourceAddress(last)}
		testkit.Value(m.source.DiscoveryV1().EndpointSlices(shop).Update(m.b.Context(), slice, metav1.UpdateOptions{}))(m.b)
		answered := time.Now()
		timeout := time.After(time.Minute)
		for seen := false; !seen; {
			select {
			case <-m.news:
			case <-timeout:
				m.b.Fatalf("change %d is not there after a minute", m.version)
			}
			m.mu.Lock()
			var at time.Time
			if at, seen = m.seen[sourceAddress(last)]; seen {
				times = append(times, at.Sub(answered))
			}
			m.mu.Unlock()
		}
	}
	return times
}

// present waits until the broker has written these Services with a slice each, and these sets.
func (h *hub) present(what string, services, sets int) {
	h.b.Helper()
	testkit.Eventually(h.b, 30*time.Minute, what, func() error {
		time.Sleep(200 * time.Millisecond) // a scrape of a hundred remotes costs the broker something
		scrape, err := h.broker.scrape()
		if err != nil {
			return err
		}
		for kind, want := range map[string]int{"service": services, "endpointslice": services, "globalnetworkset": sets} {
			n := testkit.Scraped(h.b, scrape, "semaphore_broker_objects_present", fmt.Sprintf("kind=%q", kind))
			if int(n) != want {
				return fmt.Errorf("%v %ss are present, want %d", n, kind, want)
			}
		}
		return nil
	})
}

// complete returns the number of kinds of which the broker has a complete snapshot, and of remotes that are connected;
// 0 while it starts.
func (h *hub) complete() (kinds float64) {
	scrape, err := h.broker.scrape()
	if err != nil {
		return 0
	}
	return testkit.Scraped(h.b, scrape, "semaphore_broker_snapshot_complete") +
		testkit.Scraped(h.b, scrape, "semaphore_broker_connected")
}

// written returns the writes of mirrors and sets of the broker's process.
func (h *hub) written(with string) (writes float64) {
	for _, kind := range []string{"service", "endpointslice", "globalnetworkset"} {
		writes += h.broker.metric("semaphore_broker_writes_total", fmt.Sprintf("kind=%q,op=%s", kind, with))
	}
	return writes
}

// state is what a mesh of some size costs.
type state struct {
	usage
	idle    float64 // percent of a processor
	p50     time.Duration
	p99     time.Duration
	restart time.Duration
	late    time.Duration // a change after the restart
	writes  float64       // after the restart
}

// measure measures the broker with the remotes that there are.
func (m *mesh) measure(endpoints int) (s state) {
	m.b.Helper()
	time.Sleep(returned)
	s.usage = testkit.Value(m.broker.usage())(m.b)
	before := testkit.Value(m.broker.cpu())(m.b)
	time.Sleep(idle)
	after := testkit.Value(m.broker.cpu())(m.b)
	s.idle = 100 * (after - before).Seconds() / idle.Seconds()
	m.changes(10, endpoints)
	s.p50, s.p99 = figure.Quantiles(m.changes(200, endpoints))
	kinds := m.complete()
	m.broker.Kill(m.b)
	began := time.Now()
	m.broker.run()
	m.all("the broker is back", kinds)
	s.restart = time.Since(began)
	s.late = m.changes(1, endpoints)[0] // what a restart writes is written before
	if s.writes = m.written("") - 1; s.writes > 0 {
		scrape := testkit.Value(m.broker.scrape())(m.b)
		for line := range strings.Lines(scrape) {
			if strings.HasPrefix(line, "semaphore_broker_writes_total{") {
				m.b.Log(line)
			}
		}
	}
	return s
}

// all waits until the broker has complete snapshots of so many kinds.
func (h *hub) all(what string, kinds float64) {
	h.b.Helper()
	testkit.Eventually(h.b, 5*time.Minute, what, func() error {
		if n := h.complete(); n != kinds {
			return fmt.Errorf("%v kinds and remotes are there, want %v", n, kinds)
		}
		return nil
	})
}

// BenchmarkMesh measures a broker of 99 remotes of 50 nodes, 2,000 endpoints and 500 pods in sets each, beside the same
// broker with one remote. SCALE_REMOTES and SCALE_SERVICES have other numbers of remotes, and of Services of each.
func BenchmarkMesh(b *testing.B) {
	remotes := variable(b, "SCALE_REMOTES", 99)
	of := content{nodes: 50, services: variable(b, "SCALE_SERVICES", 50), endpoints: 2000, members: 500, sets: 10}
	perService := of.endpoints / of.services
	m := newMesh(b, of)
	one := m.measure(perService)
	var players []*player
	for i := 1; i < remotes; i++ {
		name := fmt.Sprintf("r%02d", i)
		m.remote(name, i)
		players = append(players, m.play(name, i, of))
	}
	var stops []func()
	publish := func() {
		for _, p := range players {
			stops = append(stops, p.publish())
		}
	}
	began := time.Now()
	publish()
	m.present("the first sync", remotes*of.services, len(players)*of.sets)
	synced := time.Since(began)
	written := m.written("")
	for range b.N {
		many := m.measure(perService)
		m.report(one, many, len(players), of)
		kinds := m.complete()
		m.exporter.Kill(b)
		for _, stop := range stops {
			stop()
		}
		time.Sleep(silence)
		began := time.Now()
		m.exporter.run()
		publish()
		m.all("all remotes are back", kinds)
		figure.Report(b, "return-s", time.Since(began).Seconds()).Floor(one.restart.Seconds())
		m.present("what was there", remotes*of.services, len(players)*of.sets)
		figure.Report(b, "return-deletes", m.written(`"delete"`)).AtMost(0)
	}
	for _, stop := range stops {
		stop()
	}
	m.broker.Kill(b)
	apart := kubetest.Start(b)
	kubetest.Namespace(b, kubernetes.NewForConfigOrDie(apart), mirrors)
	kubetest.InstallCalico(b, apart, kubetest.CalicoCRD, "globalnetworksets")
	began = time.Now()
	all := of
	all.services, all.endpoints, all.members, all.sets = of.services*len(players), of.endpoints*len(players),
		of.members*len(players), of.sets*len(players)
	must(b, direct(b.Context(), apart, mirrors, "r", all))
	figure.Report(b, "sync-s", synced.Seconds()).Floor(time.Since(began).Seconds()).AtMostTimesFloor(1.5)
	objects := float64(2*of.services+of.sets) * float64(len(players))
	// The set of a remote whose pods come in two messages is written twice.
	figure.Report(b, "writes/object", (written-1)/objects).Floor(1).AtMostTimesFloor(1.5)
	figure.WithoutTime(b)
}

// report reports the cost of a mesh beside that of one remote.
func (m *mesh) report(one, many state, players int, of content) {
	m.b.Helper()
	milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	// A Service with its slice takes as much as ten endpoints.
	objects := float64(players * (of.nodes + 10*of.services + of.members + of.endpoints))
	figure.Report(m.b, "heap-MiB", many.heap).Floor(one.heap)
	figure.Report(m.b, "heap-B/object-or-endpoint", (many.heap-one.heap)*(1<<20)/objects).AtMost(1024)
	figure.Report(m.b, "resident-MiB", many.resident).Floor(one.resident)
	figure.Report(m.b, "resident-B/object-or-endpoint", (many.resident-one.resident)*(1<<20)/objects).AtMost(2048)
	figure.Report(m.b, "series", many.series).Floor(one.series)
	figure.Report(m.b, "idle-percent", many.idle).Floor(one.idle).AtMost(5)
	figure.Report(m.b, "change-p50-ms", milliseconds(many.p50)).Floor(milliseconds(one.p50)).AtMostTimesFloor(1.5)
	figure.Report(m.b, "change-p99-ms", milliseconds(many.p99)).Floor(milliseconds(one.p99)).AtMostTimesFloor(3)
	figure.Report(m.b, "restart-s", many.restart.Seconds()).Floor(one.restart.Seconds())
	figure.Report(m.b, "restart-change-ms", milliseconds(many.late)).Floor(milliseconds(one.late)).AtMost(1000)
	figure.Report(m.b, "restart-writes", many.writes).AtMost(0)
}
