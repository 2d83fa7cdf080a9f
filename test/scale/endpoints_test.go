package scale

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// BenchmarkEndpoints measures a remote of 100,000 endpoints (SCALE_ENDPOINTS), 100 in a Service, with an exporter and
// an apiserver of its own, and one that stands for half as many pods, 1,000 in a set: first sync, memory, and changes
// of one in a hundred a minute. SCALE_CHURN says for how many minutes, ten by default.
func BenchmarkEndpoints(b *testing.B) {
	churn := time.Duration(variable(b, "SCALE_CHURN", 10)) * time.Minute
	endpoints := variable(b, "SCALE_ENDPOINTS", 100_000)
	of := content{services: endpoints / 100, endpoints: endpoints}
	in := content{members: endpoints / 2, sets: endpoints / 2000, first: netip.MustParseAddr("10.128.0.0")}
	m := newMesh(b, content{})
	empty := testkit.Value(m.broker.usage())(b)
	emptyExporter := testkit.Value(m.exporter.usage())(b)
	must(b, direct(b.Context(), m.sourceRest, shop, "c2", of))
	m.exporter.Kill(b)
	m.remoteOf("r1", 1, "size: large, podSubnets: [10.128.0.0/9]")
	p := m.play("r1", 1, in)
	w := m.watchSets(b)
	began := time.Now()
	m.exporter.run()
	stop := p.publish()
	defer stop()
	m.present("the first sync", of.services, in.sets)
	m.addressed(in.members)
	synced := time.Since(began)
	for range b.N {
		full := testkit.Value(m.broker.usage())(b)
		fullExporter := testkit.Value(m.exporter.usage())(b)
		objects := float64(2*of.services + of.endpoints + in.members)
		figure.Report(b, "broker-heap-MiB", full.heap).Floor(empty.heap)
		figure.Report(b, "broker-heap-B/object-or-endpoint", (full.heap-empty.heap)*(1<<20)/objects).AtMost(1024)
		figure.Report(b, "broker-resident-MiB", full.resident).Floor(empty.resident)
		figure.Report(b, "exporter-heap-MiB", fullExporter.heap).Floor(emptyExporter.heap)
		figure.Report(b, "exporter-heap-B/object-or-endpoint",
			(fullExporter.heap-emptyExporter.heap)*(1<<20)/float64(2*of.services+of.endpoints)).AtMost(1024)
		figure.Report(b, "exporter-resident-MiB", fullExporter.resident).Floor(emptyExporter.resident)
		m.churn(b, p, w, churn, of, in)
	}
	stop()
	m.broker.Kill(b)
	m.exporter.Kill(b)
	apart := kubetest.Start(b)
	kubetest.Namespace(b, kubernetes.NewForConfigOrDie(apart), mirrors)
	kubetest.InstallCalico(b, apart, kubetest.CalicoCRD, "globalnetworksets")
	began = time.Now()
	of.members, of.sets = in.members, in.sets
	must(b, direct(b.Context(), apart, mirrors, "r", of))
	figure.Report(b, "sync-s", synced.Seconds()).Floor(time.Since(began).Seconds()).AtMostTimesFloor(1.5)
	figure.WithoutTime(b)
}

// addressed waits until all sets together have so many addresses.
func (h *hub) addressed(addresses int) {
	h.b.Helper()
	testkit.Eventually(h.b, 5*time.Minute, "all addresses are in sets", func() error {
		time.Sleep(200 * time.Millisecond) // each look reads all sets
		n, err := h.sets(h.b.Context())
		if err == nil && n != addresses {
			err = fmt.Errorf("%d of %d are", n, addresses)
		}
		return err
	})
}

// watchedSets notes when each address is first in a set.
type watchedSets struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

func (h *hub) watchSets(b *testing.B) *watchedSets {
	b.Helper()
	w := &watchedSets{seen: map[string]time.Time{}}
	sets := dynamic.NewForConfigOrDie(h.rest).Resource(kubetest.CalicoCRD.WithResource("globalnetworksets"))
	watch := testkit.Value(sets.Watch(b.Context(), metav1.ListOptions{}))(b)
	b.Cleanup(watch.Stop)
	go func() {
		for e := range watch.ResultChan() {
			set, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				return // an address that is not seen fails the benchmark
			}
			now := time.Now()
			nets, _, _ := unstructured.NestedStringSlice(set.Object, "spec", "nets")
			w.mu.Lock()
			for _, n := range nets {
				if _, ok := w.seen[n]; !ok {
					w.seen[n] = now
				}
			}
			w.mu.Unlock()
		}
	}()
	return w
}

// churn changes one endpoint and one pod of a hundred a minute, each at its own moment, and reports how late the
// changes were seen in the hub.
func (m *mesh) churn(b *testing.B, p *player, w *watchedSets, length time.Duration, of, in content) {
	b.Helper()
	endpoints, members := map[string]time.Time{}, map[string]time.Time{}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(b.Context())
	perService := of.endpoints / of.services
	deadline := time.Now().Add(length)
	until := func(interval time.Duration, do func(i int) error) func() error {
		return func() error {
			err := every(ctx, interval, func(i int) error {
				if time.Now().After(deadline) {
					return context.DeadlineExceeded
				}
				return do(i)
			})
			if err == context.DeadlineExceeded {
				err = nil
			}
			return err
		}
	}
	g.Go(until(time.Minute*100/time.Duration(of.endpoints), func(i int) error {
		s := sourceService(shop, fmt.Sprint("c2-web-", i%of.services))
		slice := sourceSlice(s, perService, i%of.services*perService)
		address := sourceAddress(1<<15 + i)
		slice.Endpoints[perService-1].Addresses = []string{address}
		if _, err := m.source.DiscoveryV1().EndpointSlices(shop).Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		endpoints[address] = time.Now()
		return nil
	}))
	g.Go(until(time.Minute*100/time.Duration(in.members), func(i int) error {
		address := p.member(in.members + i)
		p.put(catalog.Key{Kind: semaphorev1.Kind_KIND_SET_MEMBER, Namespace: shop, Name: fmt.Sprint("pod-", i)},
			&semaphorev1.Object{Spec: &semaphorev1.Object_SetMember{SetMember: &semaphorev1.SetMember{
				PodUid: fmt.Sprint("new-", i), SetName: fmt.Sprint("set-", i%in.sets), Ips: []string{address}}}})
		mu.Lock()
		defer mu.Unlock()
		members[address+"/32"] = time.Now()
		return nil
	}))
	must(b, g.Wait())
	lateness(b, "endpoint", endpoints, &m.mu, m.seen)
	lateness(b, "address", members, &w.mu, w.seen)
}

// lateness waits until all is seen, and reports how long it took.
func lateness(b *testing.B, what string, changed map[string]time.Time, mu *sync.Mutex, seen map[string]time.Time) {
	b.Helper()
	var times []time.Duration
	testkit.Eventually(b, time.Minute, "all changes are there", func() error {
		mu.Lock()
		defer mu.Unlock()
		times = times[:0]
		for address, at := range changed {
			when, ok := seen[address]
			if !ok {
				return fmt.Errorf("%s is not", address)
			}
			times = append(times, when.Sub(at))
		}
		return nil
	})
	p50, p99 := figure.Quantiles(times)
	figure.Report(b, what+"-p50-ms", float64(p50.Microseconds())/1000)
	figure.Report(b, what+"-p99-ms", float64(p99.Microseconds())/1000)
	figure.Report(b, what+"-latest-ms", float64(slices.Max(times).Microseconds())/1000).AtMost(1000)
}
