//go:build linux

package kubelet

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kube-semaphore/semaphore/internal/kube/kubetest"
	"github.com/kube-semaphore/semaphore/testbed/container"
	"github.com/kube-semaphore/semaphore/testbed/netns"
	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	authenticationv1 "k8s.io/api/authentication/v1"
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
	os.Exit(m.Run())
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

// TestKubelet has one cluster for all that pods do; its parts leave no pods behind.
func TestKubelet(t *testing.T) {
	c := startCluster(t)
	parts := []struct {
		name string
		test func(*cluster)
	}{
		{"network", testNetwork}, {"filesystem", testFilesystem}, {"environment", testEnvironment},
		{"volumes", testVolumes}, {"tokens", testTokens}, {"probes", testProbes}, {"restarts", testRestarts},
		{"init containers", testInit}, {"completion", testCompletion}, {"deletion", testDeletion},
		{"addresses", testAddresses}, {"scheduling", testScheduling}, {"host network", testHostNetwork},
		{"errors", testErrors}, {"writes", testWrites}, {"speed", testSpeed},
	}
	for _, part := range parts {
		ok := t.Run(part.name, func(t *testing.T) {
			sub := *c
			sub.t = t
			part.test(&sub)
			zero := int64(0)
			pods, err := c.client.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pods.Items {
				if err := c.client.CoreV1().Pods(namespace).Delete(context.Background(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil && !apierrors.IsNotFound(err) {
					t.Error(err)
				}
			}
			for range 1000 {
				if len(c.allWorkers()) == 0 {
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
			t.Errorf("%d pods stay on their nodes", len(c.allWorkers()))
		})
		if !ok && testing.Verbose() {
			t.Logf("%s failed", part.name)
		}
	}
	// What still runs when the kubelet stops is removed too; startCluster looks.
	c.server("last", nil)
	c.wait("last", "ready", ready)
}

func testNetwork(c *cluster) {
	c.server("a", onNode("n1"))
	c.server("b", onNode("n2"))
	c.server("same", onNode("n1"))
	a, b, same := c.wait("a", "ready", ready), c.wait("b", "ready", ready), c.wait("same", "ready", ready)
	if a.Status.HostIP != "172.18.1.11" || b.Status.HostIP != "172.18.1.12" || a.Status.PodIPs[0].IP != a.Status.PodIP ||
		!strings.HasPrefix(a.Status.PodIP, "10.1.1.") || !strings.HasPrefix(b.Status.PodIP, "10.1.2.") {
		c.t.Errorf("addresses: %+v, %+v", a.Status, b.Status)
	}
	for _, to := range []*corev1.Pod{b, same, a} {
		want := to.Name + " sees " + a.Status.PodIP
		if to == a {
			want = "a sees " + a.Status.PodIP
		}
		if got := c.mustRun("a", "curl -sS -m 5 http://"+to.Status.PodIP+":8080/"); got != want {
			c.t.Errorf("a to %s: %q, want %q", to.Name, got, want)
		}
	}
	want := "default via 169.254.1.1 dev eth0 \n169.254.1.1 dev eth0 scope link \n"
	if got := c.mustRun("a", "ip -4 route"); got != want {
		c.t.Errorf("routes in pod: %q", got)
	}
	if got := c.mustRun("a", "ip -4 -o addr show dev eth0"); !strings.Contains(got, a.Status.PodIP+"/32") {
		c.t.Errorf("addresses in pod: %q", got)
	}
	host := c.onNode("n1", "ip", "-o", "route")
	if want := a.Status.PodIP + " dev " + VethName(namespace, "a") + " scope link"; !strings.Contains(host, want) {
		c.t.Errorf("routes of node lack %q:\n%s", want, host)
	}
	// From the node itself, as probes and kube-proxy's host traffic go.
	if got := c.onNode("n1", "curl", "-sS", "-m", "5", "http://"+a.Status.PodIP+":8080/"); got != "a sees 172.18.1.11" {
		c.t.Errorf("from the node: %q", got)
	}
	p, ok := c.Pod(namespace, "a")
	if !ok || p.IP.String() != a.Status.PodIP || p.Netns.Name() != netnsName(c.config.NetnsPrefix, namespace, "a") || p.Containers["main"] != p.Process {
		c.t.Errorf("Pod = %+v, %v", p, ok)
	}
	if pid, err := LookupPID(c.dir, namespace, "a", ""); err != nil || pid != p.Process.PID() {
		c.t.Errorf("LookupPID = %d, %v, want %d", pid, err, p.Process.PID())
	}
	if _, err := LookupPID(c.dir, namespace, "none", "main"); !errors.Is(err, fs.ErrNotExist) {
		c.t.Errorf("LookupPID of no pod: %v", err)
	}
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

func testFilesystem(c *cluster) {
	c.pod("fs", "", func(p *corev1.Pod) {
		onNode("n1")(p)
		p.Spec.Containers[0].Args = []string{`
cat /etc/hostname /etc/resolv.conf; grep fs /etc/hosts; id
curl --version | head -c 5; echo; wg --version | head -c 5; echo; command -v server || echo no server
for d in / /etc /usr/bin /tmp /run /scratch; do touch $d/x 2>/dev/null && echo $d writable || echo $d read-only; done
stat -c %F /dev/net/tun; readlink /var/run; hostname; grep CapEff /proc/self/status; ls /etc/ssl/certs | grep -c . | grep -qv '^0$' && echo certs`}
		charDevice := corev1.HostPathCharDev
		yes := true
		p.Spec.Volumes = []corev1.Volume{
			{Name: "tun", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev/net/tun", Type: &charDevice}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "tun", MountPath: "/dev/net/tun"}, {Name: "scratch", MountPath: "/scratch"}}
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
			ReadOnlyRootFilesystem: &yes,
			Capabilities:           &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
		}
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
	})
	p := c.wait("fs", "done", succeeded)
	want := `fs
search shop.svc.cluster.local svc.cluster.local cluster.local
nameserver 10.101.0.10
options ndots:5
` + p.Status.PodIP + `	fs
uid=0(root) gid=0(root) groups=0(root)
curl 
wireg
no server
/ read-only
/etc read-only
/usr/bin read-only
/tmp read-only
/run read-only
/scratch writable
character special file
/run
fs
CapEff:	0000000000001000
certs
`
	if diff := cmp.Diff(want, c.output("fs")); diff != "" {
		c.t.Error(diff)
	}

	c.server("user", func(p *corev1.Pod) {
		number := func(n int64) *int64 { return &n }
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: number(65532), RunAsGroup: number(65532), FSGroup: number(77)}
		p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}
	})
	c.wait("user", "ready", ready)
	if got := c.mustRun("user", "id -u; id -G; touch /scratch/x; stat -c '%u %g' /scratch/x; ls -l /usr/local/bin/server | wc -l"); got != "65532\n65532 77\n65532 77\n1\n" {
		c.t.Errorf("as another user: %q", got)
	}
}

func testEnvironment(c *cluster) {
	ctx := c.t.Context()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	service, err := c.client.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = c.client.CoreV1().Services(namespace).Delete(ctx, "web", metav1.DeleteOptions{}) }()
	waitFor(c.t, "the service in the kubelet's cache", func() bool {
		_, err := c.services.Services(namespace).Get("web")
		return err == nil
	})
	c.pod("env", `echo $POD_IP $NODE $WEB_SERVICE_HOST $KUBERNETES_SERVICE_HOST $(GREETING) $FROM_ENV; pwd`, func(p *corev1.Pod) {
		field := func(path string) *corev1.EnvVarSource {
			return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
		}
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].WorkingDir = "/some/where"
		p.Spec.Containers[0].Env = []corev1.EnvVar{
			{Name: "POD_IP", ValueFrom: field("status.podIP")}, {Name: "NODE", ValueFrom: field("spec.nodeName")},
			{Name: "GREETING", Value: "hello"}, {Name: "FROM_ENV", Value: "$(GREETING)!"},
		}
	})
	p := c.wait("env", "done", succeeded)
	want := fmt.Sprintf("%s %s %s 10.101.0.1 hello hello!\n/some/where\n", p.Status.PodIP, p.Spec.NodeName, service.Spec.ClusterIP)
	if got := c.output("env"); got != want {
		c.t.Errorf("output %q, want %q", got, want)
	}
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

func testVolumes(c *cluster) {
	ctx := c.t.Context()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "config"}, Data: map[string]string{"a": "1", "b": "2"}}
	if _, err := c.client.CoreV1().ConfigMaps(namespace).Create(ctx, cm, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	node := c.machines["n1"]
	if err := os.MkdirAll(filepath.Join(node.Root, "var/lib"), 0o755); err != nil {
		c.t.Fatal(err)
	}
	c.server("vol", func(p *corev1.Pod) {
		onNode("n1")(p)
		p.Labels = map[string]string{"app": "vol"}
		create, yes, mode := corev1.HostPathDirectoryOrCreate, true, int32(0o400)
		object := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
		p.Spec.Volumes = []corev1.Volume{
			{Name: "cm", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object("config")}}},
			{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "late", DefaultMode: &mode}}},
			{Name: "none", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object("none"), Optional: &yes}}},
			{Name: "state", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/state", Type: &create}}},
			{Name: "mixed", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: object("config"), Items: []corev1.KeyToPath{{Key: "a", Path: "sub/first"}}}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
					{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}},
			}}}},
		}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
			{Name: "cm", MountPath: "/cm"}, {Name: "secret", MountPath: "/secret"}, {Name: "none", MountPath: "/none"},
			{Name: "state", MountPath: "/var/lib/state"}, {Name: "mixed", MountPath: "/mixed"},
			{Name: "cm", MountPath: "/etc/one", SubPath: "b"},
		}
	})
	// It waits for the secret, and says so.
	time.Sleep(300 * time.Millisecond)
	if p := c.wait("vol", "pending", func(p *corev1.Pod) bool { return p.Status.PodIP != "" }); p.Status.Phase != corev1.PodPending {
		c.t.Errorf("phase %s without its secret", p.Status.Phase)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Data: map[string][]byte{"k": []byte("hidden")}}
	if _, err := c.client.CoreV1().Secrets(namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.wait("vol", "ready", ready)
	got := c.mustRun("vol", `cd /; cat cm/a cm/b etc/one mixed/sub/first secret/k; echo; cat mixed/labels; ls /cm /none; stat -Lc %a secret/k cm/a; echo kept >/var/lib/state/f; touch /cm/x 2>&1 | grep -o 'Read-only.*'`)
	want := "12" + "2" + "1" + "hidden\napp=\"vol\"\n/cm:\na\nb\n\n/none:\n400\n644\nRead-only file system\n"
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Error(diff)
	}
	if data, err := os.ReadFile(filepath.Join(node.Root, "var/lib/state/f")); err != nil || string(data) != "kept\n" {
		c.t.Errorf("file on the node: %q, %v", data, err)
	}

	cm.Data = map[string]string{"a": "new", "c": "3"}
	started := time.Now()
	if _, err := c.client.CoreV1().ConfigMaps(namespace).Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	waitFor(c.t, "the change in the volume", func() bool { out, _ := c.run("vol", "cat /cm/a"); return out == "new" })
	c.t.Logf("change of a ConfigMap seen in the pod after %s", time.Since(started))
	if got := c.mustRun("vol", "ls /cm; cat /mixed/sub/first /etc/one"); got != "a\nc\nnew2" {
		c.t.Errorf("after the change: %q", got)
	}
	patch := []byte(`{"metadata":{"labels":{"app":"renamed"}}}`)
	if _, err := c.client.CoreV1().Pods(namespace).Patch(ctx, "vol", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
	waitFor(c.t, "the new label in the volume", func() bool {
		out, _ := c.run("vol", "cat /mixed/labels")
		return out == "app=\"renamed\"\n"
	})
}

func testTokens(c *cluster) {
	p := c.server("token", func(p *corev1.Pod) {
		seconds := int64(600)
		p.Spec.Volumes = []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: "semaphore-broker", ExpirationSeconds: &seconds, Path: "token"}}}}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "token", MountPath: "/var/run/secrets/tokens"}}
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: ptr(int64(65532))}
	})
	c.wait("token", "ready", ready)
	out := c.mustRun("token", "cat /var/run/secrets/tokens/token; echo; stat -Lc '%a %u' /var/run/secrets/tokens/token")
	text, mode, _ := strings.Cut(out, "\n")
	if mode != "600 65532\n" {
		c.t.Errorf("mode and owner of the token: %q", mode)
	}
	review, err := c.client.AuthenticationV1().TokenReviews().Create(c.t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: text, Audiences: []string{"semaphore-broker"}}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	extra := review.Status.User.Extra
	node, err := c.client.CoreV1().Nodes().Get(c.t.Context(), c.wait("token", "ready", ready).Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	if !review.Status.Authenticated || extra["authentication.kubernetes.io/pod-uid"][0] != string(p.UID) ||
		extra["authentication.kubernetes.io/node-name"][0] != node.Name || extra["authentication.kubernetes.io/node-uid"][0] != string(node.UID) {
		c.t.Errorf("review: %+v", review.Status)
	}
	var claims struct{ Exp, Iat int64 }
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(text, ".")[1])
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(payload, &claims); err != nil || claims.Exp-claims.Iat != 600 {
		c.t.Errorf("life of the token: %+v, %v", claims, err)
	}
}

func testProbes(c *cluster) {
	probe := func(h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, FailureThreshold: 1}
	}
	http := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(8080)}}
	}
	c.server("probed", func(p *corev1.Pod) {
		p.Spec.Containers[0].StartupProbe = probe(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}})
		p.Spec.Containers[0].ReadinessProbe = probe(http("/ready"))
		p.Spec.Containers[0].LivenessProbe = probe(http("/healthy"))
	})
	for name, h := range map[string]corev1.ProbeHandler{
		"grpc": {GRPC: &corev1.GRPCAction{Port: 9090}},
		"exec": {Exec: &corev1.ExecAction{Command: []string{"test", "!", "-e", "/tmp/unready"}}},
		"tcp":  {TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")}},
	} {
		c.server(name, func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe = probe(h) })
	}
	c.server("never", func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = probe(http("/ready?/x"))
		p.Spec.Containers[0].ReadinessProbe.HTTPGet.Port = intstr.FromInt32(1)
	})
	p := c.wait("probed", "ready", ready)
	c.wait("grpc", "ready", ready)
	c.wait("exec", "ready", ready)
	c.wait("tcp", "ready", ready)
	c.wait("never", "running", unready)

	c.mustRun("probed", "touch /tmp/unready")
	c.mustRun("exec", "touch /tmp/unready")
	c.wait("probed", "unready", unready)
	c.wait("exec", "unready", unready)
	c.mustRun("probed", "rm /tmp/unready")
	c.wait("probed", "ready again", ready)
	c.mustRun("probed", "touch /tmp/sick")
	restarted := c.wait("probed", "restarted", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 && ready(p) })
	if restarted.Status.PodIP != p.Status.PodIP {
		c.t.Errorf("pod IP changed from %s to %s by a restart", p.Status.PodIP, restarted.Status.PodIP)
	}
	if last := restarted.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 0 {
		c.t.Errorf("last state after TERM: %+v", last)
	}
	if ready(c.wait("never", "running", unready)) {
		c.t.Error("a pod whose probe fails is ready")
	}
}

func testRestarts(c *cluster) {
	c.server("crash", nil)
	c.wait("crash", "ready", ready)
	first, _ := c.Pod(namespace, "crash")
	release := c.Hold(namespace, "cra")
	if err := first.Process.Signal(syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
	p := c.wait("crash", "unready", unready)
	s := p.Status.ContainerStatuses[0]
	if s.State.Waiting == nil || s.State.Waiting.Reason != "CrashLoopBackOff" || s.LastTerminationState.Terminated.ExitCode != 137 || s.Ready || *s.Started {
		c.t.Errorf("status of a killed container: %+v", s)
	}
	time.Sleep(1500 * time.Millisecond) // longer than the first backoff
	if held, ok := c.Pod(namespace, "crash"); !ok || held.Process != nil {
		c.t.Error("a held container was restarted")
	}
	release()
	p = c.wait("crash", "ready", ready)
	if s := p.Status.ContainerStatuses[0]; s.RestartCount != 1 || s.State.Running == nil || s.ContainerID == "" {
		c.t.Errorf("status after the restart: %+v", s)
	}
	if again, _ := c.Pod(namespace, "crash"); again.IP != first.IP || again.Process == first.Process {
		c.t.Errorf("pod after the restart: %+v", again)
	}
}

func testInit(c *cluster) {
	c.pod("init", "cat /work/log; exec sleep 300", func(p *corev1.Pod) {
		volume := []corev1.VolumeMount{{Name: "work", MountPath: "/work"}}
		p.Spec.Volumes = []corev1.Volume{{Name: "work", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		p.Spec.Containers[0].VolumeMounts = volume
		p.Spec.InitContainers = []corev1.Container{
			{Name: "one", Image: "tools", Args: []string{"echo one >>/work/log"}, VolumeMounts: volume},
			{Name: "two", Image: "tools", Args: []string{"[ -e /work/tried ] || { touch /work/tried; exit 5; }; echo two >>/work/log"}, VolumeMounts: volume},
		}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: "second", Image: "tools", Args: []string{"exec sleep 300"},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"ip", "link", "show", "eth0"}}}},
		})
	})
	c.wait("init", "initializing again", func(p *corev1.Pod) bool {
		return len(p.Status.InitContainerStatuses) == 2 && p.Status.InitContainerStatuses[1].LastTerminationState.Terminated != nil &&
			p.Status.Phase == corev1.PodPending
	})
	p := c.wait("init", "ready", ready)
	if got := c.output("init"); got != "one\ntwo\n" {
		c.t.Errorf("init containers wrote %q", got)
	}
	if s := p.Status.InitContainerStatuses; !s[0].Ready || s[0].RestartCount != 0 || s[1].RestartCount != 1 || s[1].State.Terminated == nil {
		c.t.Errorf("init status: %+v", s)
	}
	pod, _ := c.Pod(namespace, "init")
	if len(pod.Containers) != 2 {
		c.t.Errorf("containers: %v", pod.Containers)
	}
	if _, err := LookupPID(c.dir, namespace, "init", ""); err == nil || !strings.Contains(err.Error(), "second") {
		c.t.Errorf("LookupPID without a container name: %v", err)
	}
}

func testCompletion(c *cluster) {
	job := func(policy corev1.RestartPolicy) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.RestartPolicy = policy }
	}
	c.pod("ok", "exit 0", job(corev1.RestartPolicyOnFailure))
	c.pod("bad", "exit 3", job(corev1.RestartPolicyNever))
	ok := c.wait("ok", "done", succeeded)
	bad := c.wait("bad", "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if s := bad.Status.ContainerStatuses[0].State.Terminated; s == nil || s.ExitCode != 3 || s.Reason != "Error" {
		c.t.Errorf("status of a failed container: %+v", s)
	}
	if ready(ok) || ok.Status.PodIP == "" {
		c.t.Errorf("status of a finished pod: %+v", ok.Status)
	}
	// The pod object stays, its network does not.
	waitFor(c.t, "the end of a finished pod's network", func() bool { _, running := c.Pod(namespace, "ok"); return !running })
	c.delete("ok")
	c.waitGone("ok", ok.UID)
}

func testDeletion(c *cluster) {
	p := c.server("deleted", nil)
	c.wait("deleted", "ready", ready)
	pod, _ := c.Pod(namespace, "deleted")
	started := time.Now()
	c.delete("deleted")
	c.waitGone("deleted", p.UID)
	c.t.Logf("deletion took %s", time.Since(started))
	if got := c.output("deleted"); got != "serving\nterminated\n" {
		c.t.Errorf("output %q", got)
	}
	if _, err := netns.Open(pod.Netns.Name()); err == nil {
		c.t.Error("the namespace of a deleted pod is there")
	}
	if strings.Contains(c.onNode(pod.Node, "ip", "-o", "link"), VethName(namespace, "deleted")) {
		c.t.Error("the veth of a deleted pod is there")
	}

	// preStop comes first; a shell that is pid 1 ignores TERM, so it is killed after its grace of 2 s.
	p = c.pod("stubborn", "sleep 300; true", func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
			Command: []string{"sh", "-c", "echo stopping >/proc/1/fd/1"}}}}
	})
	c.wait("stubborn", "ready", ready)
	started = time.Now()
	c.delete("stubborn")
	c.waitGone("stubborn", p.UID)
	if took := time.Since(started); took < 1900*time.Millisecond || took > 4*time.Second {
		c.t.Errorf("deletion with a grace period of 2 s took %s", took)
	}
	if got := c.output("stubborn"); got != "stopping\n" {
		c.t.Errorf("preStop wrote %q", got)
	}

	// A forced deletion removes the object at once, and the process with it.
	p = c.pod("forced", "sleep 300; true", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr(int64(300)) })
	c.wait("forced", "ready", ready)
	pod, _ = c.Pod(namespace, "forced")
	c.delete("forced")
	time.Sleep(100 * time.Millisecond)
	zero := int64(0)
	if err := c.client.CoreV1().Pods(namespace).Delete(c.t.Context(), "forced", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		c.t.Fatal(err)
	}
	select {
	case <-pod.Process.Done():
	case <-time.After(5 * time.Second):
		c.t.Error("the process outlived its pod")
	}
	// The same name again, while the old pod is being removed.
	c.server("forced", nil)
	if again := c.wait("forced", "ready", ready); again.UID == p.UID {
		c.t.Error("the old pod is there")
	}

	// Before it ever ran.
	p = c.server("early", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "none" })
	c.wait("early", "waiting", func(p *corev1.Pod) bool { return p.Status.PodIP != "" })
	c.delete("early")
	c.waitGone("early", p.UID)
}

func testAddresses(c *cluster) {
	at := func(ip string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{AddressAnnotation: ip} }
	}
	first := c.server("first", at("10.1.2.77"))
	if p := c.wait("first", "ready", ready); p.Status.PodIP != "10.1.2.77" || p.Spec.NodeName != "n2" {
		c.t.Errorf("pod IP %s on %s", p.Status.PodIP, p.Spec.NodeName)
	}
	c.server("second", at("10.1.2.77"))
	time.Sleep(300 * time.Millisecond)
	if p := c.wait("second", "bound", func(p *corev1.Pod) bool { return p.Spec.NodeName == "n2" }); p.Status.PodIP != "" {
		c.t.Errorf("pod IP %s is used twice", p.Status.PodIP)
	}
	started := time.Now()
	c.delete("first")
	c.wait("second", "ready", ready)
	c.t.Logf("the address passed on after %s", time.Since(started))
	c.waitGone("first", first.UID)

	// By chance an address is not used again at once.
	c.server("x", onNode("n1"))
	x := c.wait("x", "ready", ready)
	c.delete("x")
	c.waitGone("x", x.UID)
	c.server("y", onNode("n1"))
	if y := c.wait("y", "ready", ready); y.Status.PodIP == x.Status.PodIP {
		c.t.Errorf("%s was used again at once", x.Status.PodIP)
	}
}

func testScheduling(c *cluster) {
	on := map[string]int{}
	for i := range 6 {
		c.pod(fmt.Sprintf("spread-%d", i), "exec sleep 300", nil)
	}
	for i := range 6 {
		on[c.wait(fmt.Sprintf("spread-%d", i), "running", ready).Spec.NodeName]++
	}
	if on["n1"] != 3 || on["n2"] != 3 {
		c.t.Errorf("pods by node: %v", on)
	}
	c.pod("nowhere", "exec sleep 300", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "fast"} })
	c.wait("nowhere", "unschedulable", func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "n2: labels do not match nodeSelector")
		})
	})
	patch := []byte(`{"metadata":{"labels":{"disk":"fast"}}}`)
	if _, err := c.client.CoreV1().Nodes().Patch(c.t.Context(), "n2", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
	if p := c.wait("nowhere", "running", ready); p.Spec.NodeName != "n2" {
		c.t.Errorf("on %s", p.Spec.NodeName)
	}
	// A pod of a node that is not ours stays alone.
	c.pod("foreign", "exec sleep 300", func(p *corev1.Pod) { p.Spec.NodeName = "kwok-1" })
	time.Sleep(100 * time.Millisecond)
	if p := c.wait("foreign", "there", func(*corev1.Pod) bool { return true }); p.Status.PodIP != "" || p.Status.StartTime != nil {
		c.t.Errorf("status of a pod of another's node: %+v", p.Status)
	}
}

func testHostNetwork(c *cluster) {
	c.server("host", func(p *corev1.Pod) {
		onNode("n1")(p)
		p.Spec.HostNetwork = true
	})
	p := c.wait("host", "ready", ready)
	if p.Status.PodIP != "172.18.1.11" || p.Status.HostIP != "172.18.1.11" {
		c.t.Errorf("addresses of a host network pod: %+v", p.Status)
	}
	if got := c.mustRun("host", "hostname; cat /etc/resolv.conf; ip -o -4 addr show dev eth0"); !strings.HasPrefix(got, "n1\n") || strings.Contains(got, "10.101.0.10") || !strings.Contains(got, "172.18.1.11/16") {
		c.t.Errorf("in the pod: %q", got)
	}
	pod, _ := c.Pod(namespace, "host")
	if pod.Netns != c.machines["n1"].Netns {
		c.t.Error("not in the node's namespace")
	}
	c.delete("host")
	c.waitGone("host", p.UID)
	if _, err := netns.Open(c.machines["n1"].Netns.Name()); err != nil {
		c.t.Errorf("the node's namespace was removed with the pod: %v", err)
	}
}

func testErrors(c *cluster) {
	reason := func(want, text string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
				p.Status.ContainerStatuses[0].State.Waiting.Reason == want &&
				strings.Contains(p.Status.ContainerStatuses[0].State.Waiting.Message, text)
		}
	}
	c.server("image", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.example/nginx:1" })
	c.server("program", func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"/no/such/program"} })
	c.server("key", func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "X", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "late"}, Key: "k"}}}}
	})
	always := corev1.ContainerRestartPolicyAlways
	c.server("sidecar", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "s", Image: "tools", RestartPolicy: &always}}
	})
	c.server("hostpath", func(p *corev1.Pod) {
		directory := corev1.HostPathDirectory
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/none", Type: &directory}}}}
	})
	c.wait("image", "waiting", reason("ErrImagePull", `"nginx", only server, tools`))
	c.wait("program", "waiting", reason("RunContainerError", "/no/such/program"))
	c.wait("key", "waiting", reason("CreateContainerConfigError", `env X: configmaps "late" not found`))
	c.wait("sidecar", "failed", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodFailed && strings.Contains(p.Status.Message, "sidecar")
	})
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Data: map[string]string{"k": "v"}}
	if _, err := c.client.CoreV1().ConfigMaps(namespace).Create(c.t.Context(), cm, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.wait("key", "ready when the key is there", ready)
	waitFor(c.t, "an event about the hostPath", func() bool {
		events, err := c.client.CoreV1().Events(namespace).List(c.t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "hostpath" && strings.Contains(e.Message, "volume v: hostPath /none on node")
		})
	})
}

// testWrites counts the changes of a pod object: one each for binding, address, running, ready, and none after that.
func testWrites(c *cluster) {
	w, err := c.client.CoreV1().Pods(namespace).Watch(c.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=quiet"})
	if err != nil {
		c.t.Fatal(err)
	}
	defer w.Stop()
	var changes atomic.Int32
	var seen []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok {
				changes.Add(1)
				seen = append(seen, fmt.Sprintf("%s node=%q ip=%s phase=%s ready=%v", e.Type, p.Spec.NodeName, p.Status.PodIP, p.Status.Phase, ready(p)))
			}
		}
	}()
	c.server("quiet", nil)
	c.wait("quiet", "ready", ready)
	time.Sleep(2 * time.Second)
	w.Stop()
	<-done
	if n := changes.Load(); n > 5 {
		c.t.Errorf("%d changes of a pod that just starts:\n%s", n, strings.Join(seen, "\n"))
	}
}

func testSpeed(c *cluster) {
	started := time.Now()
	c.server("single", nil)
	c.wait("single", "ready", ready)
	single := time.Since(started)
	const many = 20
	started = time.Now()
	for i := range many {
		c.server(fmt.Sprintf("many-%d", i), nil)
	}
	for i := range many {
		c.wait(fmt.Sprintf("many-%d", i), "ready", ready)
	}
	all := time.Since(started)
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		c.t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		c.t.Fatal(err)
	}
	cpu := func(r syscall.Rusage) time.Duration { return time.Duration(r.Utime.Nano() + r.Stime.Nano()) }
	c.t.Logf("ready after creation: one pod %s, %d pods %s; then idle: %s of CPU in 2 s", single, many, all, cpu(after)-cpu(before))
}
