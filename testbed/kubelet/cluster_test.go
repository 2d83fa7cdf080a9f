//go:build linux

package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/kube/kubetest"
	"github.com/kube-semaphore/semaphore/internal/loopback"
	"github.com/kube-semaphore/semaphore/testbed/container"
	"github.com/kube-semaphore/semaphore/testbed/netns"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// TestMain makes the test binary the program of the image "server", which containers execute with "serve".
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		serve()
		return
	}
	loopback.Enter(kubetest.Prepare)
	goleak.VerifyTestMain(m)
}

// serve is an application: it answers HTTP on 8080 with who asks, is ready on /ready unless /tmp/unready exists, healthy on
// /healthy unless /tmp/sick does, serves gRPC health on 9090, and ends on TERM.
func serve() {
	missing := func(path string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if _, err := os.Stat(path); err == nil {
				http.Error(w, path, http.StatusServiceUnavailable)
			}
		}
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "%s sees %s", os.Getenv("HOSTNAME"), host)
	})
	http.HandleFunc("/ready", missing("/tmp/unready"))
	http.HandleFunc("/healthy", missing("/tmp/sick"))
	listener, err := net.Listen("tcp", ":9090")
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	healthv1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	go func() { panic(http.ListenAndServe(":8080", nil)) }()
	fmt.Println("serving")
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	<-terminated
	fmt.Println("terminated")
}

// cluster is an apiserver with two nodes that a Kubelet serves.
type cluster struct {
	*Kubelet
	t      *testing.T
	client kubernetes.Interface
	dir    string
	stop   func() error // ends Run and gives its error
}

// namespace of all pods of the tests.
const namespace = "shop"

func startCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("the kubelet needs root, and CI=true does not allow a skip")
		}
		t.Skip("SKIPPED: the kubelet needs root")
	}
	cfg := kubetest.Start(t)
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "app"}}
	if _, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	prefix := fmt.Sprintf("kubelet-test-%d-", os.Getpid())
	c := &cluster{t: t, client: client, dir: t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	config := Config{
		Cluster: "c1", REST: cfg, Dir: c.dir, NetnsPrefix: prefix + "p-",
		Nodes: makeNodes(t, client, prefix),
		Images: map[string]Image{
			"server": {Entrypoint: []string{"/usr/local/bin/server"}, Binaries: map[string]string{"/usr/local/bin/server": self}},
			"tools":  {Entrypoint: []string{"sh", "-c"}},
		},
		ClusterDNS: netip.MustParseAddr("10.101.0.10"), ClusterDomain: "cluster.local",
		APIServer: netip.MustParseAddrPort("10.101.0.1:443"),
		Log:       slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
	if c.Kubelet, err = New(config); err != nil {
		t.Fatal(err)
	}
	running, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(running) }()
	c.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(30 * time.Second):
			return errors.New("Run did not end within 30 s")
		}
	})
	t.Cleanup(func() {
		if err := c.stop(); err != nil {
			t.Error(err)
		}
		if left, err := netns.List(prefix + "p-"); err != nil || len(left) > 0 {
			t.Errorf("pod namespaces left: %v, %v", left, err)
		}
		for _, n := range config.Nodes {
			if pids, err := n.Netns.Processes(); err != nil || len(pids) > 0 {
				t.Errorf("processes left on %s: %v, %v", n.Name, pids, err)
			}
		}
		entries, err := os.ReadDir(c.dir)
		if err != nil || len(entries) != 1 || entries[0].Name() != "logs" {
			t.Errorf("left in the kubelet's directory: %v, %v", entries, err)
		}
	})
	return c
}

// testWriter is a log that shows with the test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimSpace(p))
	return len(p), nil
}

// makeNodes joins two node namespaces by a veth, with the routes that a fabric and BIRD would give.
func makeNodes(t *testing.T, client kubernetes.Interface, prefix string) []Node {
	t.Helper()
	var nodes []Node
	for i := 1; i <= 2; i++ {
		ns, err := netns.Create(fmt.Sprintf("%sn%d", prefix, i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := ns.Delete(); err != nil {
				t.Error(err)
			}
		})
		nodes = append(nodes, Node{
			Name: fmt.Sprintf("n%d", i), Netns: ns, Root: t.TempDir(),
			IP:      netip.AddrFrom4([4]byte{172, 18, 1, byte(10 + i)}),
			PodCIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), 0}), 24),
		})
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: nodes[i-1].Name, Labels: map[string]string{corev1.LabelHostname: nodes[i-1].Name}}}
		if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	first, err := nodes[0].Netns.Netlink()
	must(err)
	defer first.Close()
	peer, err := os.Open(nodes[1].Netns.Path())
	must(err)
	defer peer.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	must(first.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(peer.Fd()))}))
	for i, n := range nodes {
		other := nodes[1-i]
		must(writeSysctls(n.Netns, map[string]string{"net.ipv4.ip_forward": "1"}))
		links, err := n.Netns.Netlink()
		must(err)
		eth0, err := links.LinkByName("eth0")
		must(err)
		must(links.AddrAdd(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: n.IP.AsSlice(), Mask: net.CIDRMask(16, 32)}}))
		must(links.LinkSetUp(eth0))
		for _, dst := range []netip.Prefix{other.PodCIDR, netip.MustParsePrefix("0.0.0.0/0")} {
			must(links.RouteAdd(&netlink.Route{Gw: other.IP.AsSlice(),
				Dst: &net.IPNet{IP: dst.Addr().AsSlice(), Mask: net.CIDRMask(dst.Bits(), 32)}}))
		}
		links.Close()
	}
	return nodes
}

// pod makes a pod of one container that runs a shell script; change may alter it.
func (c *cluster) pod(name, script string, change func(*corev1.Pod)) *corev1.Pod {
	c.t.Helper()
	no := false
	grace := int64(2)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			Containers:         []corev1.Container{{Name: "main", Image: "tools:v1", Args: []string{script}}},
			ServiceAccountName: "app", AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &grace,
		},
	}
	if change != nil {
		change(p)
	}
	made, err := c.client.CoreV1().Pods(namespace).Create(c.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return made
}

// server makes a pod that runs the test's own application.
func (c *cluster) server(name string, change func(*corev1.Pod)) *corev1.Pod {
	return c.pod(name, "", func(p *corev1.Pod) {
		p.Spec.Containers[0].Image = "registry.example/x/server:v1"
		p.Spec.Containers[0].Args = []string{"serve"}
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromString("http")}}}
		if change != nil {
			change(p)
		}
	})
}

// wait polls until a pod is as wanted, and gives it.
func (c *cluster) wait(name, what string, wanted func(*corev1.Pod) bool) *corev1.Pod {
	c.t.Helper()
	var last *corev1.Pod
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		p, err := c.client.CoreV1().Pods(namespace).Get(c.t.Context(), name, metav1.GetOptions{})
		if err == nil && wanted(p) {
			return p
		}
		if err == nil {
			last = p
		}
		time.Sleep(5 * time.Millisecond)
	}
	text, _ := json.MarshalIndent(last.Status, "", " ")
	c.t.Fatalf("pod %s did not become %s; at last:\n%s\nlog:\n%s", name, what, text, c.output(name))
	return nil
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func unready(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && !ready(p) }

func succeeded(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded }

func (c *cluster) waitGone(name string, uid types.UID) {
	c.t.Helper()
	for range 4000 {
		p, err := c.client.CoreV1().Pods(namespace).Get(c.t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && p.UID != uid {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	c.t.Fatalf("pod %s is not gone", name)
}

func (c *cluster) delete(name string) {
	c.t.Helper()
	if err := c.client.CoreV1().Pods(namespace).Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) output(pod string) string {
	data, _ := os.ReadFile(LogPath(c.dir, namespace, pod, "main"))
	return string(data)
}

// run executes a shell script in a running pod.
func (c *cluster) run(pod, script string) (string, error) {
	c.t.Helper()
	p, ok := c.Pod(namespace, pod)
	if !ok || p.Process == nil {
		c.t.Fatalf("pod %s does not run", pod)
	}
	var out bytes.Buffer
	err := p.Process.Exec(c.t.Context(), container.ExecSpec{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	return out.String(), err
}

func (c *cluster) mustRun(pod, script string) string {
	c.t.Helper()
	out, err := c.run(pod, script)
	if err != nil {
		c.t.Fatalf("%s in pod %s: %v\n%s", script, pod, err, out)
	}
	return out
}

func onNode(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: name} }
}

// onNode runs a program in a node's network namespace.
func (c *cluster) onNode(node string, args ...string) string {
	c.t.Helper()
	var out []byte
	err := c.machines[node].Netns.Do(func() (err error) {
		out, err = exec.Command(args[0], args[1:]...).CombinedOutput()
		return err
	})
	if err != nil {
		c.t.Fatalf("%v on %s: %v\n%s", args, node, err, out)
	}
	return string(out)
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("did not happen: %s", what)
}
