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

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testbed/proxy"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

// settle is the timeout of everything that has no bound of its own, for a busy machine. kubelet restarts a container
// that was killed a few times only after up to 80 s.
const settle = 3 * time.Minute

// fabricAddress is the address of the fabric's bridge, where the proxies listen.
const fabricAddress = "172.18.0.1"

// withoutAgent is the label of nodes on which no agent runs.
const withoutAgent = "without-agent"

// life is the context of all tests of the package. It ends on an interrupt, so that an interrupted run cleans up too.
var life context.Context

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare, func() error {
		_, err := buildPrograms(context.Background())
		return err
	})
	var stop context.CancelFunc
	life, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := kubetest.Reusing(m).Run()
	if err := shared.down(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	stop()
	os.Exit(code)
}

// bed is two connected clusters that all tests of the package use one after the other.
type bed struct {
	tb      *testbed.Testbed
	install *e2e.Installation
	c1, c2  *testbed.Cluster
	// toC1 and toC2 are proxies in front of the brokers of c1 and c2. The other cluster's exporter dials them.
	toC1, toC2 *proxy.Proxy
	records    []*record

	end     context.CancelFunc // of proxies and records
	running sync.WaitGroup
}

// theBed is created by the first test that needs it.
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

// onBed returns the bed for a test, connected and complete, and checks it again after the test: a case fails if the bed
// does not recover.
func onBed(t *testing.T) *bed {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: brings up two clusters")
	}
	testkit.NeedsRoot(t, "it makes network namespaces")
	shared.once.Do(func() { shared.bed, shared.err = newBed(t.Output()) })
	testkit.Must(t, shared.err)
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
	repo, err := filepath.Abs("../../..")
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
	b.install.Patches = `
  - target: {kind: DaemonSet, name: semaphore-agent}
    patch: |
      - op: add
        path: /spec/template/spec/affinity
        value:
          nodeAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms: [{matchExpressions: [{key: ` + withoutAgent + `, operator: DoesNotExist}]}]`
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

// proxy runs a proxy on the fabric in front of the NodePort of a cluster's broker.
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

// before returns the proxy in front of a cluster's broker.
func (b *bed) before(c *testbed.Cluster) *proxy.Proxy {
	if c == b.c1 {
		return b.toC1
	}
	return b.toC2
}

// other returns the cluster that a cluster is connected to.
func (b *bed) other(c *testbed.Cluster) *testbed.Cluster {
	if c == b.c1 {
		return b.c2
	}
	return b.c1
}

// active returns the leading broker or exporter of a cluster, according to its own status.
func active(ctx context.Context, c *testbed.Cluster, name string) (*testbed.Pod, error) {
	pods, err := e2e.Part(ctx, c, name)
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
		if strings.Contains(page.String(), "standby") { // a standby is ready too
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

// waitActive waits for the leader of a part.
func waitActive(t *testing.T, c *testbed.Cluster, name string) *testbed.Pod {
	t.Helper()
	var found *testbed.Pod
	eventually(t, settle, func(ctx context.Context) (err error) {
		found, err = active(ctx, c, name)
		return err
	})
	return found
}

// get requests a path of a part's HTTP listener from inside its pod.
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

// process is the first process of a pod's first container. It changes when kubelet restarts the container.
type process struct{ pid int }

func processOf(p *testbed.Pod) process { return process{p.Container.PID} }

func (p process) signal(s syscall.Signal) error { return syscall.Kill(p.pid, s) }

func (p process) ended() bool { return errors.Is(syscall.Kill(p.pid, 0), syscall.ESRCH) }

// status returns a part's status from semaphorectl in its own container.
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

// metrics returns a part's counters and gauges, summed over the lines of each name.
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

// eventually waits until f returns nil, and fails the test on timeout.
func eventually(t *testing.T, within time.Duration, f func(context.Context) error) time.Duration {
	t.Helper()
	started := time.Now()
	// The test's context has ended when a cleanup waits, so use life.
	testkit.Must(t, testbed.WaitFor(life, within, "what the case asks for", f))
	return time.Since(started)
}

func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-life.Done():
		t.Fatal("interrupted")
	}
}

// seconds formats a duration for a log.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// iptables runs iptables in a namespace of the testbed.
func iptables(ns *netns.Namespace, args ...string) error {
	return testkit.CommandIn(ns, "iptables", append([]string{"-w", "5"}, args...)...)
}
