package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/exporter/publish"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	goleak.VerifyTestMain(m)
}

// must ends the test on an error.
var must = testkit.Must

// world is the exporter of c2 and the broker of c1, without apiservers.
type world struct {
	tb      testing.TB
	dir     string
	cfg     *config.Broker
	catalog *catalog.Catalog
	server  *federation.Server
	sink    *sink
	address string
	// publisher exists from the first publish to the restart of the exporter.
	publisher *publish.Publisher
	registry  *prometheus.Registry
}

// newWorld starts the broker, without any exports.
func newWorld(tb testing.TB) *world {
	w := &world{tb: tb, dir: tb.TempDir(), sink: &sink{}}
	trust.In(tb, w.dir, "c1", "c2")
	w.cfg = brokerConfig(tb, w.dir)
	w.catalog = newCatalog()
	w.serve()
	return w
}

func newCatalog() *catalog.Catalog {
	return catalog.New(catalog.Rules{
		Features: config.Features{config.Encryption, config.Services, config.Policy}, Clusters: []string{"c1"},
		LabelDomains: []string{naming.DefaultLabelDomain},
	})
}

func brokerConfig(tb testing.TB, dir string) *config.Broker {
	return testkit.Value(described.Broker([]byte(fmt.Sprintf(`
cluster: c1
localSubnets: [172.18.1.0/24]
tls: {certFile: %[1]s/c1/broker/tls.crt, keyFile: %[1]s/c1/broker/tls.key, bundleDir: %[1]s/bundles}
remotes:
  - name: c2
    podSubnets: [10.0.0.0/8]
    nodeSubnets: [172.16.0.0/12]
    limits: {nodes: 5000, podCIDRs: 50000, services: 10000, clusterIPs: 10000, endpointSlices: 20000,
      kibibytesPerSecond: 100000}
    wireguard: {listenPort: 51822}
`, dir))))(tb)
}

func (w *world) source(cluster, part string) *identity.Source {
	return trust.Dir(w.dir).Source(w.tb, cluster, part)
}

func (w *world) serve() {
	w.server = federation.New(federation.Options{
		Cluster: "c1", Local: w.cfg.LocalPrefixes,
		Metrics: federation.NewMetrics(prometheus.NewRegistry()), Recorder: debug.NewRecorder("broker", "c1", ""),
		Log: slog.Default(),
	})
	w.server.Begin(w.cfg.Remotes, nil, federation.Engines{Sink: w.sink})
	g := grpc.NewServer(append(federation.ServerOptions(),
		grpc.Creds(credentials.NewTLS(w.source("c1", "broker").ServerTLS(w.server.Authorize))))...)
	semaphorev1.RegisterFederationServiceServer(g, w.server)
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(w.tb)
	w.address = listener.Addr().String()
	done := make(chan error, 1)
	go func() { done <- g.Serve(listener) }()
	w.tb.Cleanup(func() {
		g.Stop()
		must(w.tb, <-done)
	})
}

// restartExporter replaces the exporter's catalog by an empty one with an epoch of its own. The exporter must not be
// publishing.
func (w *world) restartExporter() {
	w.catalog, w.publisher = newCatalog(), nil
	w.sink.mu.Lock()
	defer w.sink.mu.Unlock()
	w.sink.head = 0
}

// publish connects the exporter of the catalog until stop is called. stop returns the bytes of the messages that it
// sent meanwhile.
func (w *world) publish() (stop func() (sent float64)) {
	if w.publisher == nil {
		w.registry = prometheus.NewRegistry()
		w.publisher = publish.New("c2", 0, config.ExporterBroker{Cluster: "c1", Address: w.address},
			w.source("c2", "exporter"), w.catalog, debug.NewRecorder("exporter", "c2", ""), publish.NewMetrics(w.registry),
			publish.Options{})
	}
	p, registry := w.publisher, w.registry
	before := sum(w.tb, registry, "semaphore_exporter_sent_bytes_total")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	return sync.OnceValue(func() float64 {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			w.tb.Error(err)
		}
		return sum(w.tb, registry, "semaphore_exporter_sent_bytes_total") - before
	})
}

func sum(tb testing.TB, registry *prometheus.Registry, name string) float64 {
	total, _ := testkit.Metric(tb, registry, name)
	return total
}

// caughtUp waits until the broker has the content of the catalog.
func (w *world) caughtUp() {
	w.tb.Helper()
	head := w.catalog.Journal().Head()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if w.sink.taken() >= head {
			return
		}
		if time.Now().After(deadline) {
			w.tb.Fatalf("the broker has not taken revision %d: it is at %d, %v", head, w.sink.taken(), w.server.Status())
		}
	}
}

// sink takes the place of the broker's writers: it records which revision was acknowledged.
type sink struct {
	mu   sync.Mutex
	head uint64
}

// Take implements federation.Sink.
func (s *sink) Take(_ string, r replica.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range r.Responses {
		if ack := m.GetAck(); ack != nil {
			s.head = max(s.head, ack.GetRevision())
		}
	}
}

func (s *sink) taken() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.head
}

// fill exports n objects: of each hundred, 3 nodes, 4 services, 6 slices with ten endpoints, and otherwise pods in
// sets.
func fill(j *catalog.Journal, n int) {
	now := time.Now()
	for i := range n {
		key, object := export(i, i)
		put(j, key, object, now)
	}
}

// put exports an object to all clusters.
func put(j *catalog.Journal, key catalog.Key, object *semaphorev1.Object, now time.Time) (revision uint64) {
	e, err := catalog.NewExport(object, catalog.Everyone)
	if err != nil {
		panic(err)
	}
	return j.Put(key, e, now)
}

// export returns the object with a number, whose content depends on version.
func export(i, version int) (catalog.Key, *semaphorev1.Object) {
	key := catalog.Key{Namespace: fmt.Sprint("team-", i%97), Name: fmt.Sprintf("object-%d-7d9c5f6b8d", i)}
	object := &semaphorev1.Object{}
	ip := func(n int) string {
		return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}).String()
	}
	switch of := i % 100; {
	case of < 3:
		key.Kind, key.Namespace = semaphorev1.Kind_KIND_NODE, ""
		public := make([]byte, 32)
		copy(public, fmt.Sprintf("%032d", i))
		object.Spec = &semaphorev1.Object_Node{Node: &semaphorev1.Node{
			PodCidrs: []string{fmt.Sprintf("10.%d.%d.0/24", i>>8&255, i&255)},
			Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: public, Address: fmt.Sprintf("172.20.%d.%d:%d", i>>8&255, i&255,
				50000+version%1000)},
		}}
	case of < 7:
		key.Kind = semaphorev1.Kind_KIND_SERVICE
		object.Spec = &semaphorev1.Object_Service{Service: &semaphorev1.Service{
			Ports: []*semaphorev1.Port{{Name: "http", Protocol: "TCP", Port: int32(1 + version%60000)}}, Mirror: true,
		}}
	case of < 13:
		key.Kind = semaphorev1.Kind_KIND_ENDPOINT_SLICE
		yes := true
		slice := &semaphorev1.EndpointSlice{
			Service: "service-" + fmt.Sprint(i), AddressType: "IPv4",
			Ports: []*semaphorev1.Port{{Name: "http", Protocol: "TCP", Port: 8080}},
		}
		for n := range 10 {
			slice.Endpoints = append(slice.Endpoints, &semaphorev1.Endpoint{Addresses: []string{ip(10*version + n)}, Ready: &yes,
				Serving: &yes, Zone: "zone-a"})
		}
		object.Spec = &semaphorev1.Object_EndpointSlice{EndpointSlice: slice}
	default:
		key.Kind = semaphorev1.Kind_KIND_SET_MEMBER
		object.Spec = &semaphorev1.Object_SetMember{SetMember: &semaphorev1.SetMember{
			PodUid: fmt.Sprintf("%08x-0000-4000-8000-%012x", i, i), SetName: fmt.Sprint("app-", i%31),
			Ips: []string{ip(version)},
		}}
	}
	object.Key = key.Proto()
	return key, object
}
