package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/e2e"
	"github.com/kube-semaphore/semaphore/internal/testkit"
	"github.com/kube-semaphore/semaphore/internal/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/internal/testkit/loopback"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/testbed"
	"github.com/kube-semaphore/semaphore/testbed/netns"
	"github.com/kube-semaphore/semaphore/testbed/proxy"
)

// settle is how long anything may take that has no bound of its own, on a machine with much else to do. A container
// that was killed a few times kubelet starts again after up to 80 s.
const settle = 3 * time.Minute

// fabricAddress is the fabric's own, where the proxies listen.
const fabricAddress = "172.18.0.1"

// life is that of the package's tests: an interrupted run cleans up like any other.
var life context.Context

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare, func() error {
		_, err := buildPrograms(context.Background())
		return err
	})
	var stop context.CancelFunc
	life, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := m.Run()
	if err := shared.down(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	stop()
	os.Exit(code)
}

// bed is two connected clusters, for all tests of the package one after the other.
type bed struct {
	tb      *testbed.Testbed
	install *e2e.Installation
	c1, c2  *testbed.Cluster
	// toC1 and toC2 are before the broker of c1 and that of c2: the exporters of the other dial them.
	toC1, toC2 *proxy.Proxy
	records    []*record

	end     context.CancelFunc // of proxies and records
	running sync.WaitGroup
}

// theBed is made by the first test that needs it.
type theBed struct {
	once sync.Once
	bed  *bed
	err  error
}

var shared theBed

func (s *theBed) down() error {
	if s.bed == nil {
		return nil
	}
	s.bed.end()
	s.bed.running.Wait()
	return s.bed.tb.Down()
}

// onBed gives a test the bed, connected and whole, and looks at it again when the test has ended: a case that does
// not heal fails, whatever it says itself.
func onBed(t *testing.T) *bed {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: brings up two clusters")
	}
	testkit.NeedsRoot(t, "it makes network namespaces")
	shared.once.Do(func() { shared.bed, shared.err = newBed(t.Output()) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	b := shared.bed
	b.converges(t, settle)
	t.Cleanup(func() {
		b.toC1.Set(proxy.Conditions{})
		b.toC2.Set(proxy.Conditions{})
		if !t.Failed() {
			b.converges(t, settle)
		}
		if t.Failed() {
			ctx := context.WithoutCancel(t.Context())
			t.Log(b.c1.Diagnose(ctx, e2e.Namespace), b.c2.Diagnose(ctx, e2e.Namespace))
		}
	})
	return b
}

func newBed(progress io.Writer) (_ *bed, err error) {
	repo, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	started := time.Now()
	tb, err := testbed.Up(life, testbed.Options{
		Clusters: []testbed.ClusterSpec{{Name: "c1", Nodes: 2}, {Name: "c2", Nodes: 1}},
		Progress: progress,
	})
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(life)
	b := &bed{tb: tb, install: e2e.NewInstallation(tb, repo), c1: tb.Cluster("c1"), c2: tb.Cluster("c2"), end: end}
	defer func() {
		if err != nil {
			end()
			b.running.Wait()
			err = errors.Join(err, tb.Down())
		}
	}()
	if b.toC1, err = b.proxy(ctx, b.c1, 7001); err != nil {
		return nil, err
	}
	if b.toC2, err = b.proxy(ctx, b.c2, 7002); err != nil {
		return nil, err
	}
	b.install.BrokerAddress = func(_, to *testbed.Cluster) string { return b.before(to).Address().String() }
	if err := b.install.Install(ctx, func(what string) { fmt.Fprintln(progress, what) }); err != nil {
		return nil, err
	}
	if err := b.populate(ctx); err != nil {
		return nil, fmt.Errorf("objects to export: %w", err)
	}
	for _, c := range tb.Clusters() {
		r, err := newRecord(ctx, c, &b.running)
		if err != nil {
			return nil, fmt.Errorf("following %s: %w", c.Name, err)
		}
		b.records = append(b.records, r)
	}
	fmt.Fprintf(progress, "the bed is made after %.1f s\n", time.Since(started).Seconds())
	return b, nil
}

// proxy runs a proxy on the fabric before the NodePort of a cluster's broker.
func (b *bed) proxy(ctx context.Context, to *testbed.Cluster, port int) (*proxy.Proxy, error) {
	listener, err := b.tb.Fabric().Listen(ctx, "tcp", fmt.Sprintf("%s:%d", fabricAddress, port))
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("%s:%d", to.Nodes[0].IP, e2e.FederationNodePort)
	p := proxy.New(listener, func(ctx context.Context) (net.Conn, error) {
		return b.tb.Fabric().DialContext(ctx, "tcp", address)
	})
	b.running.Go(func() {
		if err := p.Run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
	return p, nil
}

// before is the proxy before a cluster's broker.
func (b *bed) before(c *testbed.Cluster) *proxy.Proxy {
	if c == b.c1 {
		return b.toC1
	}
	return b.toC2
}

// other is the cluster that a cluster is connected with.
func (b *bed) other(c *testbed.Cluster) *testbed.Cluster {
	if c == b.c1 {
		return b.c2
	}
	return b.c1
}

// part is the pods of a part that are there and not on their way out.
func part(ctx context.Context, c *testbed.Cluster, name string) ([]corev1.Pod, error) {
	list, err := c.Client.CoreV1().Pods(e2e.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=semaphore,app.kubernetes.io/component=" + name,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: pods of the %s: %w", c.Name, name, err)
	}
	var out []corev1.Pod
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil && p.Status.PodIP != "" {
			out = append(out, p)
		}
	}
	return out, nil
}

// active is the one broker or exporter of a cluster that does the work: it says so itself.
func active(ctx context.Context, c *testbed.Cluster, name string) (*testbed.Pod, error) {
	pods, err := part(ctx, c, name)
	if err != nil {
		return nil, err
	}
	var found *testbed.Pod
	var why []error
	for _, p := range pods {
		running, err := c.Pod(ctx, p.Namespace, p.Name)
		if err != nil {
			why = append(why, err)
			continue
		}
		var page bytes.Buffer
		if err := get(ctx, running.Netns, "/readyz", &page); err != nil {
			why = append(why, fmt.Errorf("%s: %w", p.Name, err))
			continue
		}
		if strings.Contains(page.String(), "standby") { // ready to take over
			why = append(why, fmt.Errorf("%s: %s", p.Name, strings.TrimSpace(page.String())))
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("%s: two active at a time: %s and %s", c.Name, found.Name, p.Name)
		}
		found = running
	}
	if found == nil {
		return nil, fmt.Errorf("%s: no active %s among %d: %w", c.Name, name, len(pods), errors.Join(why...))
	}
	return found, nil
}

// waitActive waits for the active one.
func waitActive(t *testing.T, c *testbed.Cluster, name string) *testbed.Pod {
	t.Helper()
	var found *testbed.Pod
	eventually(t, settle, func(ctx context.Context) (err error) {
		found, err = active(ctx, c, name)
		return err
	})
	return found
}

// get asks a part's HTTP listener from inside its pod.
func get(ctx context.Context, ns *netns.Namespace, path string, into *bytes.Buffer) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8080"+path, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Transport{DialContext: ns.DialContext, DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if into == nil {
		into = new(bytes.Buffer)
	}
	if _, err := io.Copy(into, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", path, response.Status, strings.TrimSpace(into.String()))
	}
	return nil
}

// process is the first process of a pod's first container, which kubelet starts again as another one.
type process struct{ pid int }

func processOf(p *testbed.Pod) process { return process{p.Container.PID} }

func (p process) signal(s syscall.Signal) error { return syscall.Kill(p.pid, s) }

func (p process) ended() bool { return errors.Is(syscall.Kill(p.pid, 0), syscall.ESRCH) }

// status is what a part says of itself, by semaphorectl in its own container.
func status(ctx context.Context, c *testbed.Cluster, pod *testbed.Pod) (*semaphorev1.GetStatusResponse, error) {
	text, err := c.ExecPod(ctx, pod.Namespace, pod.Name, "semaphorectl", "status", "-o", "json")
	if text == "" && err != nil {
		return nil, err
	}
	out := &semaphorev1.GetStatusResponse{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), out); err != nil {
		return nil, fmt.Errorf("status of %s: %w in %q", pod.Name, err, text)
	}
	return out, nil
}

// metrics are a part's counters and gauges, the lines of one name added up.
func metrics(ctx context.Context, pod *testbed.Pod) (map[string]float64, error) {
	var text bytes.Buffer
	if err := get(ctx, pod.Netns, "/metrics", &text); err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for line := range strings.Lines(text.String()) {
		var value float64
		cut := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if strings.HasPrefix(line, "#") || cut < 0 {
			continue
		}
		if _, err := fmt.Sscan(line[cut+1:], &value); err != nil {
			return nil, fmt.Errorf("metric %q: %w", line, err)
		}
		name, _, _ := strings.Cut(line[:cut], "{")
		out[name] += value
	}
	return out, nil
}

// eventually waits until f is content, and fails the test when the time is over.
func eventually(t *testing.T, within time.Duration, f func(context.Context) error) time.Duration {
	t.Helper()
	started := time.Now()
	// Not the test's context, which has ended when a cleanup waits.
	if err := testbed.WaitFor(life, within, "what the case asks for", f); err != nil {
		t.Fatal(err)
	}
	return time.Since(started)
}

// pause lets a fault last.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-life.Done():
		t.Fatal("interrupted")
	}
}

// seconds is a duration for a person.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// containsWord reports whether the name of a mirror or set has that of its source.

// iptables runs iptables inside a namespace of the testbed.
func iptables(ns *netns.Namespace, args ...string) error {
	return testkit.CommandIn(ns, "iptables", append([]string{"-w", "5"}, args...)...)
}
