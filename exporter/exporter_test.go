package exporter

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/replica"
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
	goleak.VerifyTestMain(kubetest.Reusing(m))
}

// must ends the test where there is an error.
var must = testkit.Must

// TestExporter runs the exporter of c1 against a real apiserver and publishes to the real FederationService of c2's
// broker.
func TestExporter(t *testing.T) {
	api := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(api)
	trust := trust.New(t, "c1", "c2")
	c2 := newBroker(t, trust, "c2")
	populate(t, admin)

	t.Run("what it may not read", func(t *testing.T) {
		nobody := rest.CopyConfig(api)
		nobody.Impersonate.UserName = "nobody"
		e := start(t, nobody, trust, c2.address)
		within(t, "/readyz says what is missing", func() bool {
			code, text := e.get("/readyz")
			return code == http.StatusServiceUnavailable &&
				strings.Contains(text, "not read yet: nodes: cannot list: nodes is forbidden") &&
				strings.Contains(text, "pods ("+naming.DefaultLabelDomain+"/name): cannot list: pods is forbidden")
		})
		if got := c2.holds(); got != "" {
			t.Errorf("the broker received %s", got)
		}
		if s := e.status(); s.GetReady() || len(s.GetProblems()) == 0 || s.GetLinks()[0].GetConnected() {
			t.Errorf("status is %v", s)
		}
	})

	t.Run("publish", func(t *testing.T) {
		e := start(t, api, trust, c2.address)
		want := "endpointslice shop/echo-1, node n1, service shop/echo, setmember shop/web"
		within(t, "c2 holds what is exported", func() bool { return c2.holds() == want })
		if code, text := e.get("/readyz"); code != http.StatusOK {
			t.Errorf("/readyz: %d %s", code, text)
		}
		within(t, "nothing waits", func() bool { s := e.status(); return s.GetReady() && s.GetLinks()[0].GetBehind() == 0 })
		checkStatus(t, e)
		checkMetrics(t, e)
		checkDebugListener(t, e, trust)

		pod := kubetest.Get(t, admin.CoreV1().Pods("shop"), "web")
		pod.Status.PodIP = "10.1.1.100"
		pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
		kubetest.UpdateStatus(t, admin.CoreV1().Pods("shop"), pod)
		within(t, "the new IP is there", func() bool { return c2.ip("shop/web") == pod.Status.PodIP })

		must(t, admin.CoreV1().Services("shop").Delete(t.Context(), "echo", metav1.DeleteOptions{}))
		within(t, "the service and its slice are gone", func() bool { return c2.holds() == "node n1, setmember shop/web" })
	})

	t.Run("ended while it is away", func(t *testing.T) {
		must(t, admin.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
		if got := c2.holds(); got != "node n1, setmember shop/web" {
			t.Fatalf("without an exporter, the broker holds %s", got)
		}
		start(t, api, trust, c2.address)
		within(t, "the node is gone with the next exporter's snapshot",
			func() bool { return c2.holds() == "setmember shop/web" })
	})
}

func populate(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	kubetest.Namespace(t, admin, "shop")
	newNode(t, admin, "n1", 1, "10.1.1.0/24")
	for _, name := range []string{"echo", "private"} {
		service := offered(name)
		if name == "private" {
			service.Labels = nil
		}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.1.7"}}},
		}
		maps.Copy(slice.Labels, service.Labels)
		kubetest.Create(t, admin.CoreV1().Services("shop"), service)
		kubetest.Create(t, admin.DiscoveryV1().EndpointSlices("shop"), slice)
	}
	newSetMember(t, admin, "web", "10.1.1.7")
}

// offered returns a Service that its owner offers.
func offered(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{"mirror.semaphore.uw.io/mirror-service": "true"}},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
}

// newNode creates a node with a key for c2 and an endpoint, both of a number.
func newNode(t *testing.T, admin kubernetes.Interface, name string, n int, podCIDR string) *corev1.Node {
	t.Helper()
	return kubetest.Create(t, admin.CoreV1().Nodes(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			naming.PubKeyAnnotation("c2"):   base64.StdEncoding.EncodeToString(slices.Repeat([]byte{byte(n)}, 32)),
			naming.EndpointAnnotation("c2"): fmt.Sprintf("192.0.2.%d:51820", n),
		}},
		Spec: corev1.NodeSpec{PodCIDR: podCIDR, PodCIDRs: []string{podCIDR}},
	})
}

func checkStatus(t *testing.T, e *running) {
	t.Helper()
	s := e.status()
	if s.GetPart() != "exporter" || s.GetCluster() != "c1" || len(s.GetProblems()) > 0 || len(s.GetLinks()) != 1 {
		t.Errorf("status is %v", s)
	}
	for _, k := range s.GetLinks()[0].GetKinds() {
		if k.GetObjects() != 1 || k.GetRefused() != 0 {
			t.Errorf("status has %v", k)
		}
	}
}

func checkMetrics(t *testing.T, e *running) {
	t.Helper()
	// The stream's metrics are updated after its state, by which the test knows that everything is acknowledged.
	within(t, "the acknowledgement is in the metrics", func() bool {
		_, text := e.get("/metrics")
		return strings.Contains(text, `semaphore_exporter_last_ack_timestamp_seconds{cluster="c2"} `)
	})
	_, text := e.get("/metrics")
	for _, line := range []string{
		`semaphore_exporter_connected{cluster="c2"} 1`,
		`semaphore_exporter_behind{cluster="c2"} 0`,
		`semaphore_exporter_objects{cluster="c2",kind="node"} 1`,
		`semaphore_exporter_objects{cluster="c2",kind="setmember"} 1`,
		`semaphore_exporter_acked_revision{cluster="c2"} 4`,
		`semaphore_exporter_changes_sent_total{cluster="c2",kind="endpointslice"} 1`,
		`semaphore_exporter_watch_errors_total{resource="pods",verb="list"} 0`,
		`semaphore_exporter_problems{reason="InvalidExportTo"} 0`,
		`semaphore_exporter_last_heard_timestamp_seconds{cluster="c2"} `,
		`semaphore_exporter_sent_bytes_total{cluster="c2"} `,
		`grpc_client_started_total{`,
		`semaphore_build_info{`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("/metrics has no line with %s", line)
		}
	}
}

func checkDebugListener(t *testing.T, e *running, trust trust.Dir) {
	t.Helper()
	ask := func(part string) (*grpc.ClientConn, error) {
		source := testkit.Value(identity.NewSource(trust.Files("c1", part)))(t)
		conn := testkit.Value(grpc.NewClient(e.debug,
			grpc.WithTransportCredentials(credentials.NewTLS(source.ClientTLS(identity.Exporter("c1"))))))(t)
		t.Cleanup(func() { conn.Close() })
		_, err := semaphorev1.NewDebugServiceClient(conn).GetStatus(t.Context(), &semaphorev1.GetStatusRequest{})
		return conn, err
	}
	if _, err := ask("broker"); err == nil {
		t.Error("c1's broker receives the status")
	}
	// Of 70 connections of one operator, the oldest 6 are closed for the others.
	all := make([]*grpc.ClientConn, 70)
	for i := range all {
		all[i] = testkit.Value(ask("semaphorectl"))(t)
	}
	testkit.Eventually(t, time.Minute, "an operator has 64 connections", func() error {
		for i, conn := range all {
			if ready := conn.GetState() == connectivity.Ready; ready != (i >= 6) {
				return fmt.Errorf("connection %d is %s", i, conn.GetState())
			}
		}
		return nil
	})
}

type running struct {
	t           *testing.T
	http, debug string
	client      semaphorev1.DebugServiceClient
	done        chan error // receives the result of Run; stop reads it
	stop        func()
}

// short are the intervals of the tests' exporters. A heartbeat comes before settle has passed.
var short = intervals{
	heartbeat: 200 * time.Millisecond, store: time.Second, poll: 100 * time.Millisecond, settle: time.Second,
}

// alone is the configuration of an exporter that is the only one.
const alone = "leaderElection: {enabled: false}\n"

// start runs the exporter, alone and with more lines of configuration, until the test ends or stop is called.
func start(t *testing.T, api *rest.Config, trust trust.Dir, broker string, more ...string) *running {
	t.Helper()
	return startAs(t, api, trust, broker, alone+strings.Join(more, "\n"))
}

// startAs is start for one of possibly several.
func startAs(t *testing.T, api *rest.Config, trust trust.Dir, broker, more string) *running {
	t.Helper()
	return startWith(t, api, trust, fmt.Sprintf("localBroker: {cluster: c2, address: %q}\n%s", broker, more),
		trust.Files("c1", "exporter").BundleDir)
}

// startWith runs the exporter with additional configuration and a directory of bundles.
func startWith(t *testing.T, api *rest.Config, trust trust.Dir, more, bundles string) *running {
	t.Helper()
	e := &running{t: t, http: loopback.Address(t), debug: loopback.Address(t)}
	socket := filepath.Join(t.TempDir(), "exporter.sock")
	cfg := configOf(t, api, trust, fmt.Sprintf("%s\nlisten: {http: %q, debug: %q, debugSocket: %q}", more, e.http, e.debug,
		socket), bundles)
	cfg.LeaderElection.Renew = 500 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	e.done = done
	go func() { done <- runAt(ctx, cfg, short) }()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	e.client = semaphorev1.NewDebugServiceClient(conn)
	e.stop = sync.OnceFunc(func() {
		conn.Close()
		cancel()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the exporter ended with %v", err)
			}
		case <-time.After(30 * time.Second): // a kubelet would kill it then
			t.Error("the exporter has not ended 30 s after it was asked to")
		}
	})
	t.Cleanup(e.stop)
	within(t, "it listens", func() bool {
		code, _ := e.get("/healthz")
		_, err := e.client.GetStatus(t.Context(), &semaphorev1.GetStatusRequest{})
		return code == http.StatusOK && err == nil
	})
	return e
}

// configOf returns the configuration of c1's exporter, with more lines and a directory of bundles.
func configOf(t *testing.T, api *rest.Config, trust trust.Dir, more, bundles string) *config.Exporter {
	t.Helper()
	files := trust.Files("c1", "exporter")
	return testkit.Value(config.Parse[config.Exporter](fmt.Appendf(nil,
		"cluster: c1\ntls: {certFile: %q, keyFile: %q, bundleDir: %q}\nkube: {kubeConfigPath: %q}\n%s\n",
		files.CertFile, files.KeyFile, bundles, kubetest.Kubeconfig(t, api), more)))(t)
}

func (e *running) get(path string) (int, string) {
	response, err := http.Get("http://" + e.http + path)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(e.t, err)
	return response.StatusCode, string(body)
}

func (e *running) status() *semaphorev1.GetStatusResponse {
	e.t.Helper()
	s, err := e.client.GetStatus(e.t.Context(), &semaphorev1.GetStatusRequest{})
	must(e.t, err)
	return s
}

func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, what, testkit.True(ok))
}

// broker is c2's broker with the objects that c1 exports. It implements federation.Sink.
type broker struct {
	address string
	mu      sync.Mutex
	objects map[string]*semaphorev1.Object
	// received counts changes.
	received int
	// unexported are the kinds that the exporter was said not to export.
	unexported []semaphorev1.Kind
}

func newBroker(t *testing.T, trust trust.Dir, cluster string) *broker {
	t.Helper()
	b := &broker{objects: map[string]*semaphorev1.Object{}}
	b.address = serveSink(t, trust, cluster, b, nil)
	return b
}

// brokerOf returns the configuration of a cluster's broker with the remote c1.
func brokerOf(t *testing.T, cluster string) *config.Broker {
	t.Helper()
	cfg, err := described.Broker([]byte("cluster: " + cluster + `
remotes: [{name: c1, podSubnets: [10.1.0.0/16], nodeSubnets: [192.0.2.0/24], wireguard: {listenPort: 51821}}]
localSubnets: [10.2.0.0/16, 10.102.0.0/16]
`))
	must(t, err)
	return cfg
}

// serveSink passes what c1's exporter sends to a cluster's broker to a sink. The broker reports outcomes of Services,
// if there are any.
func serveSink(t *testing.T, trust trust.Dir, cluster string, sink federation.Sink,
	outcomes func(string) []*semaphorev1.Outcome) (address string) {
	t.Helper()
	cfg := brokerOf(t, cluster)
	server := federation.New(federation.Options{
		Cluster: cluster, Local: cfg.LocalPrefixes,
		Metrics:  federation.NewMetrics(prometheus.NewRegistry()),
		Recorder: debug.NewRecorder("broker", cluster, ""), Log: slog.Default(),
	})
	server.Begin(cfg.Remotes, nil, federation.Engines{Sink: sink, Outcomes: outcomes})
	return serve(t, trust, cluster, server, server.Authorize, federation.ServerOptions()...)
}

// serve has a service of a cluster's broker listen until the test ends.
func serve(t *testing.T, trust trust.Dir, cluster string, service semaphorev1.FederationServiceServer,
	authorize func(spiffeid.ID) error, options ...grpc.ServerOption) (address string) {
	t.Helper()
	source, err := identity.NewSource(trust.Files(cluster, "broker"))
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	g := grpc.NewServer(append(options, grpc.Creds(credentials.NewTLS(source.ServerTLS(authorize))),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)...)
	semaphorev1.RegisterFederationServiceServer(g, service)
	testkit.Serve(t, listener, g)
	return listener.Addr().String()
}

// Take implements federation.Sink.
func (b *broker) Take(_ string, r replica.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, kind := range semaphorev1.Kinds {
		if h := r.Hello; h != nil && !slices.Contains(slices.Concat(h.GetKinds(), h.GetUnreadKinds()), kind) {
			b.unexported = append(b.unexported, kind)
		}
	}
	b.received += len(r.Changes)
	for _, c := range r.Changes {
		if b.objects[c.Key.String()] = c.New; c.New == nil {
			delete(b.objects, c.Key.String())
		}
	}
}

func (b *broker) changes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.received
}

func (b *broker) holds() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var keys []string
	for key := range b.objects {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return strings.Join(keys, ", ")
}

func (b *broker) ip(pod string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.objects["setmember "+pod].GetSetMember().GetIps(), " ")
}
