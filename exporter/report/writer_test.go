package report

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// counted counts the writes of conditions, and refuses those of one export.
type counted struct {
	mu      sync.Mutex
	names   []string
	refuses string
	// requests counts all.
	requests int
	next     http.RoundTripper
}

func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.requests++
	parts := strings.Split(r.URL.Path, "/")
	name := parts[max(len(parts)-2, 0)]
	if r.Method == http.MethodPut && parts[len(parts)-1] == "status" {
		if c.names = append(c.names, name); name == c.refuses {
			c.mu.Unlock()
			return nil, fmt.Errorf("%s is refused", name)
		}
	}
	c.mu.Unlock()
	return c.next.RoundTrip(r)
}

// took returns the exports that were written since the last call, in order.
func (c *counted) took() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := c.names
	c.names = nil
	return names
}

// world has a real apiserver with exports of n Services, echo-0 and so on, and a writer whose passes a test makes, at
// times of its own.
type world struct {
	t          testing.TB
	catalog    *catalog.Catalog
	writer     *Conditions
	own, other *answer
	now        time.Time
	counted
}

func newWorld(t testing.TB, n int) *world {
	w := &world{t: t, own: (&answer{}).set("", true), other: (&answer{}).set("", true), now: time.Now()}
	cfg := rest.CopyConfig(kubetest.Start(t))
	cfg.QPS = -1
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		w.next = next
		return &w.counted
	})
	client := serveExports(t, cfg)
	w.catalog = newCatalog()
	for i := range n {
		e := createExport(t, client, fmt.Sprintf("echo-%d", i))
		w.catalog.PutExport(e, w.now)
		w.service(e.Name, 80)
	}
	w.writer = NewConditions("c1", client, w.catalog,
		func() map[string]Broker { return map[string]Broker{"c1": w.own, "c2": w.other} },
		NewConditionMetrics(prometheus.NewRegistry()), slog.Default())
	return w
}

// serveExports has an apiserver serve ServiceExports, and returns the exporter's client.
func serveExports(t testing.TB, cfg *rest.Config) *mcs.Client {
	t.Helper()
	testkit.Value(mcs.ApplyDefinitions(t.Context(), dynamic.NewForConfigOrDie(cfg)))(t)
	kubetest.Namespace(t, kubernetes.NewForConfigOrDie(cfg), "shop")
	return testkit.Value(mcs.New(cfg, "semaphore-exporter"))(t)
}

// createExport creates a ServiceExport, once the API is served.
func createExport(t testing.TB, client *mcs.Client, name string) (e *mcsv1beta1.ServiceExport) {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, "the API", func() (err error) {
		e, err = client.Exports().Create(t.Context(),
			&mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}})
		return err
	})
	return e
}

func newCatalog() *catalog.Catalog {
	return catalog.New(catalog.Rules{Features: config.Features{config.Services}, Own: "c1",
		Clusters: []string{"c1", "c2"}, MultiCluster: true, Mirror: labels.Nothing(), Global: labels.Nothing()})
}

func (w *world) service(name string, port int32) {
	w.catalog.PutService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port, Protocol: "TCP"}}}}, w.now)
}

// after has the writer look again, some time later, and as often as it takes to write all that is due.
func (w *world) after(d time.Duration) []string {
	w.t.Helper()
	w.now = w.now.Add(d)
	var all []string
	for {
		testkit.Must(w.t, w.writer.pass(w.t.Context(), w.now))
		names := w.took()
		if all = append(all, names...); len(names) == 0 {
			return all
		}
	}
}

func (w *world) message(name string) string {
	w.t.Helper()
	e, err := w.writer.exports.Get(w.t.Context(), "shop", name)
	testkit.Must(w.t, err)
	for _, c := range e.Status.Conditions {
		if c.Type == string(mcsv1beta1.ServiceExportConditionReady) {
			return c.Message
		}
	}
	return "none"
}

// TestFlappingStreams: conditions are written once each, however often the streams to brokers break, and for however
// long: what a broker said of a Service holds until it says something else. Of a Service that changed meanwhile it is
// said, once, that the broker has not confirmed it.
func TestFlappingStreams(t *testing.T) {
	const n = 30
	w := newWorld(t, n)
	if got := w.after(0); len(got) != n {
		t.Errorf("%d writes for %d exports: %q", len(got), n, got)
	}
	for i, down := range []time.Duration{time.Second, 20 * time.Second, time.Minute, time.Hour} {
		for _, b := range []*answer{w.other, w.own} {
			b.set("", false)
			if got := w.after(time.Second); len(got) != 0 {
				t.Errorf("break %d: %d writes", i, len(got))
			}
			if got := w.after(down); len(got) != 0 {
				t.Errorf("break %d, %s later: %d writes", i, down, len(got))
			}
			b.set("", true)
			if got := w.after(time.Second); len(got) != 0 {
				t.Errorf("end of break %d: %d writes", i, len(got))
			}
		}
	}

	// Conflicts, which a stream that begins knows nothing of.
	w.own.set("", true, "PortConflict")
	if got := w.after(ofConditions.Least); len(got) != n {
		t.Errorf("a conflict: %d writes", len(got))
	}
	for i, down := range []time.Duration{time.Second, time.Minute} {
		w.own.set("", false)
		got := w.after(down)
		w.own.set("", true) // a broker that has just started has heard no other export
		got = append(got, w.after(unconfirmedFor-time.Second)...)
		w.own.set("", true, "PortConflict")
		if got = append(got, w.after(time.Minute)...); len(got) != 0 {
			t.Errorf("break %d with a conflict: %d writes", i, len(got))
		}
	}
	w.own.set("", true)
	w.after(0)
	if got := w.after(unconfirmedFor); len(got) != n {
		t.Errorf("the end of a conflict: %d writes", len(got))
	}
	w.now = w.now.Add(time.Hour)

	w.other.set("", false)
	w.service("echo-7", 81)
	if got := w.after(time.Second); len(got) != 0 {
		t.Errorf("a change during a break: %q", got)
	}
	if got := w.after(unconfirmedFor - time.Second); len(got) != 0 {
		t.Errorf("a change during a break, at its bound: %q", got)
	}
	if got := w.after(time.Second); len(got) != 1 || got[0] != "echo-7" ||
		w.message("echo-7") != "not confirmed yet by c2" || w.message("echo-8") != "exported to c2" {
		t.Errorf("a change that is not confirmed: %q, %q, %q", got, w.message("echo-7"), w.message("echo-8"))
	}
	if got := w.after(time.Hour); len(got) != 0 {
		t.Errorf("later: %q", got)
	}
	w.other.set("", true)
	if got := w.after(time.Second); len(got) != 1 || w.message("echo-7") != "exported to c2" {
		t.Errorf("it is confirmed: %q, %q", got, w.message("echo-7"))
	}
	w.other.set("it has no port", true)
	if got := w.after(time.Second); len(got) != n || w.message("echo-8") != "cluster c2: it has no port" {
		t.Errorf("it is refused: %d writes, %q", len(got), w.message("echo-8"))
	}
}

// TestObjectionsOfABrokerThatStarts: a broker that has just started says nothing against a Service before it has tried
// to write it. Its objection holds meanwhile; it ends when the broker has not repeated it for a time, or takes the
// Service as it has become.
func TestObjectionsOfABrokerThatStarts(t *testing.T) {
	w := newWorld(t, 1)
	w.other.set("it has no port", true)
	if got := w.after(0); len(got) != 1 || w.message("echo-0") != "cluster c2: it has no port" {
		t.Errorf("it is refused: %q, %q", got, w.message("echo-0"))
	}
	for i, down := range []time.Duration{time.Second, time.Minute} {
		w.other.set("", false)
		got := w.after(down)
		w.other.set("", true)
		got = append(append(got, w.after(0)...), w.after(unconfirmedFor-time.Second)...)
		w.other.set("it has no port", true)
		if got = append(got, w.after(time.Minute)...); len(got) != 0 {
			t.Errorf("restart %d: %d writes", i, len(got))
		}
	}
	w.other.set("", true)
	if got := w.after(time.Second); len(got) != 0 {
		t.Errorf("it is refused no more, for a moment: %q", got)
	}
	if got := w.after(unconfirmedFor); len(got) != 1 || w.message("echo-0") != "exported to c2" {
		t.Errorf("it is refused no more: %q, %q", got, w.message("echo-0"))
	}
	if w.writer.waiting() {
		t.Error("the writer waits, with nothing to wait for")
	}
	w.other.set("it has no port", true)
	w.after(time.Hour)
	w.service("echo-0", 81)
	w.other.set("", true)
	if got := w.after(time.Hour); len(got) != 1 || w.message("echo-0") != "exported to c2" {
		t.Errorf("it has changed, and is not refused: %q, %q", got, w.message("echo-0"))
	}
}

// TestNothingIsWaitedFor that no pass asks about any more: an idle exporter does not look at all its exports.
func TestNothingIsWaitedFor(t *testing.T) {
	w := newWorld(t, 1)
	waits := func(what string, want bool) {
		t.Helper()
		w.after(time.Hour)
		w.after(time.Hour)
		if got := w.writer.waiting(); got != want {
			t.Errorf("%s: waiting is %t", what, got)
		}
	}
	waits("all is said", false)
	doubts := map[string]func(){
		"a Service that is not confirmed": func() { w.other.set("", false); w.service("echo-0", 81) },
		"an objection that ends":          func() { w.other.set("", true) },
		"a conflict that ends":            func() { w.own.set("", true) },
	}
	ends := map[string]func(){
		"it is deleted":          func() { w.catalog.DeleteService("shop", "echo-0", w.now) },
		"the own broker refuses": func() { w.own.set("it is foreign", true); w.service("echo-0", 82) },
	}
	for doubt, begin := range doubts {
		for end, do := range ends {
			w.service("echo-0", 80)
			w.own.set("", true, "PortConflict")
			w.other.set("it has no port", true)
			waits(doubt+", before", false)
			begin()
			w.after(time.Second)
			if !w.writer.waiting() {
				t.Errorf("%s: nothing is waited for", doubt)
			}
			do()
			waits(doubt+", "+end, false)
		}
	}
}

// TestWritesOfOneExport are further apart each time while it changes all the time, and it is written at once when it
// has been calm.
func TestWritesOfOneExport(t *testing.T) {
	w := newWorld(t, 1)
	writes := len(w.after(0))
	for i := range 3600 {
		w.other.set(fmt.Sprintf("reason %d", i%2), true)
		writes += len(w.after(time.Second))
	}
	// 1, 2, 4, 8, 16 and 32 seconds, then one each minute of an hour.
	if writes > 70 || writes < 50 {
		t.Errorf("%d writes in an hour of 3600 changes", writes)
	}
	w.after(2 * ofConditions.Most)
	w.other.set("it has no port", true)
	if got := w.after(ofConditions.Calm); len(got) != 1 || w.message("echo-0") != "cluster c2: it has no port" {
		t.Errorf("after a calm: %q, %q", got, w.message("echo-0"))
	}
}

// TestWriteOrder: what has just changed is written before what waits, and an export that cannot be written delays no
// other.
func TestWriteOrder(t *testing.T) {
	w := newWorld(t, 8)
	w.refuses = "echo-3"
	got := w.after(0)
	if len(got) != 8 {
		t.Errorf("with one that is refused %q were written", got)
	}
	if p := w.writer.Problems(); len(p) != 1 || !strings.Contains(p[0], "ServiceExport shop/echo-3 are not written") {
		t.Errorf("problems %q", p)
	}
	w.refuses = ""
	if got := w.after(ofConditions.Least); len(got) != 1 || len(w.writer.Problems()) != 0 {
		t.Errorf("when it is not refused any more: %q, %q", got, w.writer.Problems())
	}
	// All change, and then one more.
	w.other.set("it has no port", true)
	w.now = w.now.Add(2 * ofConditions.Most)
	w.writer.due(w.writer.brokers(), w.now)
	w.service("echo-5", 81)
	w.catalog.DeleteService("shop", "echo-5", w.now)
	w.now = w.now.Add(time.Second)
	all := w.writer.due(w.writer.brokers(), w.now)
	unwritten := w.writer.unwritten()
	if len(all) != 8 || unwritten != 8 || all[0].export.Name != "echo-5" {
		t.Errorf("%d of %d are due, first %v", len(all), unwritten, all[0].export)
	}
}

// BenchmarkConditions is how long a real apiserver takes for the first conditions of many exports, at the pace of the
// writer. Each costs one read and one write.
func BenchmarkConditions(b *testing.B) {
	const n = 1000
	w := newWorld(b, n)
	writes, round := 0, 0
	for b.Loop() {
		b.StopTimer()
		clear(w.writer.states)
		round++
		w.other.set(fmt.Sprintf("reason %d", round), true)
		before := w.requests
		b.StartTimer()
		began := time.Now()
		writes += len(w.after(0))
		b.ReportMetric(n/time.Since(began).Seconds(), "exports/s")
		figure.Report(b, "requests/export", float64(w.requests-before)/n).AtMost(2.1) // and the definitions, now and then
	}
	figure.Report(b, "writes/export", float64(writes)/float64(n*round)).Floor(1).AtMost(1)
}

// BenchmarkLook is what it costs the exporter to look at the conditions of 100,000 exports when something has changed,
// and what it remembers of each.
func BenchmarkLook(b *testing.B) {
	const n = 100_000
	w := &world{t: b, own: (&answer{}).set("", true), other: (&answer{}).set("", true), now: time.Now()}
	client, err := mcs.New(&rest.Config{Host: "http://127.0.0.1:1"}, "bench")
	testkit.Must(b, err)
	w.catalog = newCatalog()
	w.writer = NewConditions("c1", client, w.catalog,
		func() map[string]Broker { return map[string]Broker{"c1": w.own, "c2": w.other} },
		NewConditionMetrics(prometheus.NewRegistry()), slog.Default())
	for i := range n {
		name := fmt.Sprintf("echo-%d", i)
		w.catalog.PutExport(&mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
			UID: types.UID(name), Generation: 1}}, w.now)
		w.service(name, 80)
	}
	before := inUse()
	w.writer.due(w.writer.brokers(), w.now)
	remembered := float64(inUse()-before) / n
	looked, began := 0, testkit.ProcessorTime()
	for b.Loop() {
		w.writer.due(w.writer.brokers(), w.now)
		looked++
	}
	b.ReportMetric((testkit.ProcessorTime()-began).Seconds()*1000/float64(looked), "CPU-ms")
	figure.Report(b, "B/export", remembered).AtMost(512)
	figure.WithoutTime(b)
	runtime.KeepAlive(w)
}

func inUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
