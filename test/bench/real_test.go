package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/broker"
	"github.com/kube-semaphore/semaphore/exporter"
	"github.com/kube-semaphore/semaphore/internal/config"
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

// realBroker is cluster c1 with a real apiserver and the whole broker.
type realBroker struct {
	b       *testing.B
	dir     string // of keys
	c1      *rest.Config
	address string // of the broker
	http    string // where its metrics are
}

// newRealBroker starts a broker with one feature, and with a configuration that change modifies.
func newRealBroker(b *testing.B, c1 *rest.Config, feature string, change func(*config.Broker)) *realBroker {
	w := &realBroker{b: b, dir: b.TempDir(), c1: c1, address: loopback.Address(b), http: loopback.Address(b)}
	trust.In(b, w.dir, "c1", "c2")
	cfg := testkit.Value(described.Broker([]byte(fmt.Sprintf(`
cluster: c1
features: [%[6]s]
localSubnets: [172.18.1.0/24]
leaderElection: {enabled: false}
tls: {certFile: %[1]s/c1/broker/tls.crt, keyFile: %[1]s/c1/broker/tls.key, bundleDir: %[1]s/bundles}
kube: {kubeConfigPath: %[2]q}
listen: {federation: %[3]q, peering: %[4]q, http: %[5]q, debugSocket: %[1]s/broker.sock}
remotes:
  - {name: c2, podSubnets: [10.0.0.0/8], nodeSubnets: [172.16.0.0/12], limits: {nodes: 5000,
      podCIDRs: 50000, services: 10000, clusterIPs: 10000, endpointSlices: 20000, changesPerSecond: 100000,
      kibibytesPerSecond: 100000}}
`, w.dir, kubetest.Kubeconfig(b, w.c1), w.address, loopback.Address(b), w.http, feature))))(b)
	change(cfg)
	file := kubetest.Described(b, w.c1, cfg)
	w.run(func(ctx context.Context) error { return broker.Run(ctx, file) })
	return w
}

// export starts the whole exporter of cluster c2, with a real apiserver.
func (w *realBroker) export(c2 *rest.Config, feature string) {
	w.exportAs("c2", c2, feature, func(*config.Exporter) {})
}

// exportAs starts the exporter of a cluster, with a configuration that change modifies.
func (w *realBroker) exportAs(cluster string, source *rest.Config, feature string, change func(*config.Exporter)) {
	cfg := testkit.Value(config.Parse[config.Exporter]([]byte(fmt.Sprintf(`
cluster: %[6]s
features: [%[5]s]
localBroker: {cluster: c1, address: %[3]q}
leaderElection: {enabled: false}
tls: {certFile: %[1]s/%[6]s/exporter/tls.crt, keyFile: %[1]s/%[6]s/exporter/tls.key, bundleDir: %[1]s/bundles}
kube: {kubeConfigPath: %[2]q}
listen: {http: %[4]q, debugSocket: %[1]s/exporter-%[6]s.sock}
`, w.dir, kubetest.Kubeconfig(w.b, source), w.address, loopback.Address(w.b), feature, cluster))))(w.b)
	change(cfg)
	w.run(func(ctx context.Context) error { return exporter.Run(ctx, cfg) })
}

// run runs f until the benchmark ends.
func (w *realBroker) run(f func(context.Context) error) { run(w.b, f) }

func run(b *testing.B, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			b.Error(err)
		}
	})
}

// requests returns the number of requests for a resource to c1's apiserver, without watches, and the CPU seconds that
// it used.
func (w *realBroker) requests(resource string) (reads, writes int, cpu float64) {
	w.b.Helper()
	return requests(w.b, w.c1, resource)
}

func requests(b *testing.B, cluster *rest.Config, resource string) (reads, writes int, cpu float64) {
	b.Helper()
	text := testkit.Value(kubernetes.NewForConfigOrDie(cluster).
		Discovery().
		RESTClient().
		Get().
		AbsPath("/metrics").
		DoRaw(context.Background()))(b)
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if i := strings.LastIndex(line, "} "); i > 0 {
			name, value = line[:i+1], strings.TrimSpace(line[i+2:])
		}
		n, _ := strconv.ParseFloat(value, 64)
		switch {
		case name == "process_cpu_seconds_total":
			cpu = n
		case !strings.HasPrefix(name, "apiserver_request_total{") ||
			!strings.Contains(name, fmt.Sprintf("resource=%q", resource)):
		case strings.Contains(name, `verb="GET"`), strings.Contains(name, `verb="LIST"`):
			reads += int(n)
		case !strings.Contains(name, `verb="WATCH"`):
			writes += int(n)
		}
	}
	return reads, writes, cpu
}

// propagation is the broker's histogram of the propagation times of a kind, as a count for each bucket.
type propagation map[float64]float64

func (w *realBroker) propagation(kind string) propagation {
	w.b.Helper()
	response := testkit.Value(http.Get("http://" + w.http + "/metrics"))(w.b)
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families := testkit.Value(parser.TextToMetricFamilies(response.Body))(w.b)
	out := propagation{}
	for _, m := range families["semaphore_broker_propagation_seconds"].GetMetric() {
		if slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool {
			return l.GetName() == "kind" &&
				l.GetValue() == kind
		}) {
			for _, b := range m.GetHistogram().GetBucket() {
				out[b.GetUpperBound()] += float64(b.GetCumulativeCount())
			}
		}
	}
	return out
}

// since returns the changes since before was taken.
func (p propagation) since(before propagation) propagation {
	out := propagation{}
	for bound, n := range p {
		out[bound] = n - before[bound]
	}
	return out
}

// milliseconds returns a quantile, with the resolution of the buckets.
func (p propagation) milliseconds(quantile float64) float64 {
	bounds := slices.Sorted(maps.Keys(p))
	var from, below float64
	for _, bound := range bounds {
		want := quantile * p[bounds[len(bounds)-1]]
		if p[bound] >= want && p[bound] > below {
			if math.IsInf(bound, 1) {
				return from * 1000
			}
			return (from + (bound-from)*(want-below)/(p[bound]-below)) * 1000
		}
		from, below = bound, p[bound]
	}
	return 0
}
