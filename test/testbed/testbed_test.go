package testbed

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/test/testbed/cgroup"
	"github.com/kube-semaphore/semaphore/test/testbed/echo"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testbed/spawn"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// childTestbed is the argument with which the test binary starts a testbed and waits until it is killed.
const childTestbed = "child-testbed"

// TestMain gives the test binary two more roles: the programs of the image "testbed", and a process that owns a
// testbed.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		switch os.Args[1] {
		case "echo":
			if err := echo.Serve(ctx, ":8080", 0); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case "sleep":
			<-ctx.Done()
			os.Exit(0)
		case childTestbed:
			tb, err := Up(ctx, Options{Clusters: []ClusterSpec{{Name: "c1", Nodes: 1}}, Programs: programs(),
				Progress: os.Stderr})
			if err != nil {
				fmt.Println("failed", err)
				os.Exit(1)
			}
			c := tb.Cluster("c1")
			if err := errors.Join(c.ApplyYAML(ctx, workload), c.WaitForDeployment(ctx, "shop", "echo", patience)); err != nil {
				fmt.Println("failed", err)
				os.Exit(1)
			}
			fmt.Println("up", tb.ID)
			select {}
		}
	}
	goleak.VerifyTestMain(m)
}

// programs returns the programs of the image "testbed". The product's programs are not needed.
func programs() map[string]string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return map[string]string{"testbed": self}
}

func needRoot(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: brings up clusters")
	}
	testkit.NeedsRoot(t, "it makes network namespaces")
}

// bringUp creates a testbed and removes it at the end of the test.
func bringUp(t *testing.T, clusters ...ClusterSpec) *Testbed {
	t.Helper()
	ctx, stop := signal.NotifyContext(context.WithoutCancel(t.Context()), os.Interrupt, syscall.SIGTERM)
	t.Cleanup(stop)
	tb, err := Up(ctx, Options{Clusters: clusters, Programs: programs(), Progress: t.Output()})
	testkit.Must(t, err)
	t.Cleanup(func() {
		if err := tb.Down(); err != nil {
			t.Error(err)
		}
	})
	return tb
}

const workload = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: echo, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      containers:
        - name: echo
          image: testbed.local/testbed:1
          command: [testbed, echo]
          env:
            - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, timeoutSeconds: 10,
            failureThreshold: 10}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: shop}
spec:
  selector: {app: echo}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client}}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: 'testbed.local/testbed:1', command: [testbed, sleep]}]
---
apiVersion: v1
kind: Pod
metadata: {name: stranger, namespace: shop, labels: {app: stranger}}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 1
  containers: [{name: stranger, image: 'testbed.local/testbed:1', command: [testbed, sleep]}]
`

// policy admits client to echo. Felix always admits the probes from the pod's own node.
const policy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: echo, namespace: shop}
spec:
  podSelector: {matchLabels: {app: echo}}
  ingress:
    - from:
        - podSelector: {matchLabels: {app: client}}
`

// TestTwoClusters checks that the basic functions of Kubernetes work in both clusters of a testbed, that the clusters
// are isolated from each other, and that Down leaves nothing.
func TestTwoClusters(t *testing.T) {
	tier.OnlyAll(t, "the tests of e2e use all of it")
	needRoot(t)
	tb := bringUp(t)
	ctx := t.Context()
	var wg sync.WaitGroup
	for _, c := range tb.Clusters() {
		wg.Go(func() {
			if err := c.ApplyYAML(ctx, workload); err != nil {
				t.Error(err)
				return
			}
			for _, args := range [][]string{
				{"rollout", "status", "deployment/echo", "--timeout=3m"},
				{"wait", "--for=condition=Ready", "pod/client", "pod/stranger", "--timeout=3m"},
			} {
				if out, err := c.Kubectl(ctx, nil, append([]string{"-n", "shop"}, args...)...); err != nil {
					t.Errorf("%v\n%s\n%s", err, out, c.Diagnose(context.WithoutCancel(ctx), "shop"))
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	c1, c2 := tb.Cluster("c1"), tb.Cluster("c2")
	t.Run("names of Services resolve in pods", func(t *testing.T) {
		service, err := c1.Client.CoreV1().Services("shop").Get(ctx, "echo", metav1.GetOptions{})
		testkit.Must(t, err)
		for _, name := range []string{"echo", "echo.shop", "echo.shop.svc.cluster.local"} {
			out, err := c1.ExecPod(ctx, "shop", "client", "getent", "ahostsv4", name)
			if err != nil || !strings.HasPrefix(out, service.Spec.ClusterIP+" ") {
				t.Errorf("%s is %q, %v; want %s", name, out, err, service.Spec.ClusterIP)
			}
		}
	})
	t.Run("a Service leads to pods of both nodes, which see the client's own IP", func(t *testing.T) {
		client := getPod(ctx, t, c1, "client")
		nodes := map[string]bool{}
		// Ready pods are not in the nodes' rules yet: kube-proxy batches changes for a second.
		err := WaitFor(ctx, patience, "answers from both nodes", func(ctx context.Context) error {
			if err := tryFetch(ctx, c1, "client", "http://echo/"); err != nil {
				return err
			}
			answer := fetch(ctx, t, c1, "client", "http://echo/")
			if host, _, _ := strings.Cut(answer.Client, ":"); host != client.Status.PodIP {
				t.Fatalf("echo saw %s, the client is %s", answer.Client, client.Status.PodIP)
			}
			if nodes[answer.Node] = true; len(nodes) < 2 {
				return fmt.Errorf("all came from %s", answer.Node)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("pods reach each other across nodes, and no pod of another cluster", func(t *testing.T) {
		far := echoOn(ctx, t, c1, "n2")
		if a := fetch(ctx, t, c1, "client", "http://"+far.Status.PodIP+":8080/"); a.Pod != far.Name {
			t.Errorf("%s answered, not %s", a.Pod, far.Name)
		}
		other := echoOn(ctx, t, c2, "n1")
		if err := tryFetch(ctx, c1, "client", "http://"+other.Status.PodIP+":8080/"); err == nil {
			t.Error("a pod of c2 is reached from c1, with nothing that connects the clusters")
		}
	})
	t.Run("Felix enforces a NetworkPolicy", func(t *testing.T) {
		fetch(ctx, t, c1, "stranger", "http://echo/")
		testkit.Must(t, c1.ApplyYAML(ctx, policy))
		err := WaitFor(ctx, patience, "the policy to be enforced", func(ctx context.Context) error {
			if err := tryFetch(ctx, c1, "stranger", "http://echo/"); err == nil {
				return errors.New("stranger is let through")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		fetch(ctx, t, c1, "client", "http://echo/")
		if err := tryFetch(ctx, c1, "stranger", "http://echo/"); err == nil {
			t.Error("stranger is let through again")
		}
	})
	t.Run("a Deployment rolls out", func(t *testing.T) {
		for _, args := range [][]string{
			{"set", "env", "deployment/echo", "VERSION=2"},
			{"rollout", "status", "deployment/echo", "--timeout=3m"},
		} {
			if out, err := c2.Kubectl(ctx, nil, append([]string{"-n", "shop"}, args...)...); err != nil {
				t.Fatalf("%v\n%s\n%s", err, out, c2.Diagnose(context.WithoutCancel(ctx), "shop"))
			}
		}
		// As in any cluster, a new connection is lost if kube-proxy still sends it to a pod that has ended.
		if err := WaitFor(ctx, patience, "an answer of the new pods", func(ctx context.Context) error {
			return tryFetch(ctx, c2, "client", "http://echo/")
		}); err != nil {
			t.Error(err)
		}
	})
	t.Run("CoreDNS takes further server blocks", func(t *testing.T) {
		block := "example.test:53 {\n  hosts {\n    192.0.2.1 www.example.test\n  }\n}\n"
		testkit.Must(t, c1.AppendCorefile(ctx, block))
		resolve := func(ctx context.Context) error {
			out, err := c1.ExecPod(ctx, "shop", "client", "getent", "ahostsv4", "www.example.test")
			if err == nil && !strings.HasPrefix(out, "192.0.2.1 ") {
				err = fmt.Errorf("www.example.test is %q", out)
			}
			return err
		}
		testkit.Must(t, WaitFor(ctx, patience, "the name to resolve", resolve))
		testkit.Must(t, c1.AppendCorefile(ctx, ""))
		if err := WaitFor(ctx, patience, "the block to go", func(ctx context.Context) error {
			if resolve(ctx) == nil {
				return errors.New("the name still resolves")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	t.Run("components that are killed come back", func(t *testing.T) {
		for _, name := range []string{"kube-apiserver", "kube-scheduler", "calico-node/n1", "kube-proxy/n2", "kubelet/n1",
			"containerd/n1"} {
			testkit.Must(t, c2.Process(name).Kill())
		}
		testkit.Must(t, WaitFor(ctx, patience, "c2 to recover", func(ctx context.Context) error {
			if _, err := c2.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil {
				return err
			}
			if c2.Process("kube-scheduler").PID() == 0 {
				return errors.New("kube-scheduler does not run")
			}
			return errors.Join(
				get(ctx, c2.Node("n1").Netns, fmt.Sprintf("http://127.0.0.1:%d/readiness", felixHealthPort)),
				get(ctx, c2.Node("n1").Netns, "http://127.0.0.1:10248/healthz"),
				serves(ctx, c2.Node("n1").Path(containerdSocket)),
				get(ctx, c2.Node("n2").Netns, fmt.Sprintf("http://127.0.0.1:%d/healthz", proxyHealthPort)))
		}))
		manager := c2.Process("kube-controller-manager")
		if err := manager.Stop(); err != nil || manager.PID() != 0 {
			t.Errorf("stopped: %v, pid %d", err, manager.PID())
		}
		manager.Start()
		if err := WaitFor(ctx, patience, "the controller manager", func(context.Context) error {
			if manager.PID() == 0 {
				return errors.New("it does not run")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	t.Run("a command on a node is in its namespaces", func(t *testing.T) {
		n := c1.Node("n2")
		out, err := n.Exec(ctx, "sh", "-c",
			"hostname; ip -o -4 address show eth0; iptables --version; echo x > /run/mark; echo x > /etc/mark")
		testkit.Must(t, err)
		for _, want := range []string{"c1-n2\n", "172.18.1.12/16", "(legacy)"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is not in %q", want, out)
			}
		}
		for _, file := range []string{"/run/mark", "/etc/mark"} {
			if _, err := os.Stat(n.Path(file)); err != nil {
				t.Errorf("the node's %s: %v", file, err)
			}
			if _, err := os.Stat(file); err == nil {
				t.Errorf("the node's %s is the machine's", file)
			}
			if _, err := c1.Node("n1").Exec(ctx, "ls", file); err == nil || !strings.Contains(err.Error(), "No such file") {
				t.Errorf("%s of n2, seen from n1: %v", file, err)
			}
		}
	})
	t.Run("ip-netns knows a node's own namespace there", func(t *testing.T) {
		n := c1.Node("n1")
		first, err := n.PID()
		testkit.Must(t, err)
		out, err := n.Exec(ctx, "ip", "netns", "pids", n.Netns.Name())
		if err != nil || !slices.Contains(strings.Fields(out), "1") {
			t.Errorf("processes: %q, %v; the first one, %d outside, is not among them", out, err, first)
		}
	})
	t.Run("kubectl execs, logs and forwards ports through the real kubelet", func(t *testing.T) {
		for _, c := range []struct {
			args []string
			want string
		}{
			{[]string{"exec", "client", "--", "cat", "/etc/hostname"}, "client\n"},
			{[]string{"exec", "client", "--", "sh", "-c", "cat /var/run/secrets/kubernetes.io/serviceaccount/namespace"},
				"shop"},
			{[]string{"logs", "deployment/echo"}, ""},
		} {
			out, err := c1.Kubectl(ctx, nil, append([]string{"-n", "shop"}, c.args...)...)
			if err != nil || !strings.Contains(out, c.want) {
				t.Errorf("kubectl %s: %q, %v; want %q", strings.Join(c.args, " "), out, err, c.want)
			}
		}
		forward := kubectl(ctx, c1.tb.paths.Kubectl, c1.Kubeconfig, "-n", "shop", "port-forward", "deployment/echo",
			"18080:8080")
		var said testkit.Buffer
		forward.Stdout, forward.Stderr = &said, &said
		testkit.Must(t, tb.Fabric().Do(forward.Start))
		defer func() {
			_ = forward.Cancel()
			_ = forward.Wait()
		}()
		if err := WaitFor(ctx, patience, "the forwarded port", func(ctx context.Context) error {
			return get(ctx, tb.Fabric(), "http://127.0.0.1:18080/healthz")
		}); err != nil {
			t.Errorf("%v; kubectl says %q", err, said.String())
		}
	})
	t.Run("limits, pull policies and PodSecurity are enforced", func(t *testing.T) {
		out, err := c1.Kubectl(ctx, strings.NewReader(`
apiVersion: v1
kind: Pod
metadata: {name: greedy, namespace: shop}
spec:
  restartPolicy: Never
  containers:
    - name: greedy
      image: testbed.local/testbed:1
      command: [sh, -c, "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}"]
      resources: {limits: {memory: 32Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: unknown, namespace: shop}
spec:
  containers: [{name: unknown, image: "testbed.local/unknown:1", imagePullPolicy: Never}]
---
apiVersion: v1
kind: Namespace
metadata: {name: guarded, labels: {pod-security.kubernetes.io/enforce: restricted}}
`), "apply", "-f", "-")
		if err != nil {
			t.Fatal(err, out)
		}
		if _, err := c1.Kubectl(ctx, nil, "-n", "guarded", "run", "root", "--image", Image); err == nil ||
			!strings.Contains(err.Error(), "violates PodSecurity") {
			t.Errorf("a pod that runs as root where that is not allowed: %v", err)
		}
		for pod, want := range map[string]string{"greedy": "OOMKilled", "unknown": "ErrImageNeverPull"} {
			if err := WaitFor(ctx, patience, "pod "+pod, func(ctx context.Context) error {
				for _, s := range getPod(ctx, t, c1, pod).Status.ContainerStatuses {
					if s.State.Terminated != nil && s.State.Terminated.Reason == want || s.State.Waiting != nil &&
						s.State.Waiting.Reason == want {
						return nil
					}
				}
				return fmt.Errorf("it is %+v", getPod(ctx, t, c1, pod).Status.ContainerStatuses)
			}); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("Calico gives addresses of its own blocks, strictly", func(t *testing.T) {
		for _, n := range c1.Nodes {
			blocks, err := n.PodBlocks(ctx)
			if err != nil || len(blocks) == 0 {
				t.Fatalf("blocks of %s: %v, %v", n.Name, blocks, err)
			}
			ip := netip.MustParseAddr(echoOn(ctx, t, c1, n.Name).Status.PodIP)
			if !slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(ip) }) {
				t.Errorf("%s is in none of the blocks of %s: %v", ip, n.Name, blocks)
			}
		}
		out, err := c1.Kubectl(ctx, nil, "get", "ipamconfigs.crd.projectcalico.org", "default", "-o",
			"jsonpath={.spec.strictAffinity}")
		if err != nil || out != "true" {
			t.Errorf("strict affinity: %q, %v", out, err)
		}
		routes, err := c1.Node("n1").Exec(ctx, "ip", "route", "show", "proto", "bird")
		if err != nil || !strings.Contains(routes, "via 172.18.1.12 dev eth0") {
			t.Errorf("routes of BIRD on n1: %q, %v", routes, err)
		}
	})
	t.Run("other processes find it", func(t *testing.T) {
		state, err := Find(tb.ID)
		testkit.Must(t, err)
		cluster, err := state.Cluster("c2")
		testkit.Must(t, err)
		node, err := cluster.Node("n1")
		testkit.Must(t, err)
		var name strings.Builder
		if err := node.Join(ctx, spawn.JoinSpec{Args: []string{"hostname"}, Stdout: &name}); err != nil ||
			name.String() != "c2-n1\n" {
			t.Errorf("host name of n1: %q, %v", &name, err)
		}
		if _, err := cluster.Node("n3"); err == nil || !strings.Contains(err.Error(), "n1, n2") {
			t.Errorf("n3: %v", err)
		}
		shell, startShell, err := state.ShellCommand(ctx, "sh", "-c",
			"kubectl config get-contexts -o name && kubectl --context c2 get node n2 -o name")
		testkit.Must(t, err)
		var said strings.Builder
		shell.Stdout, shell.Stderr = &said, t.Output()
		if err := errors.Join(startShell(), shell.Wait()); err != nil || said.String() != "c1\nc2\nnode/n2\n" {
			t.Errorf("plain kubectl in testbed shell: %q, %v", &said, err)
		}
		cmd, start, err := state.KubectlCommand(ctx, "c2", "get", "node", "n2", "-o", "name")
		testkit.Must(t, err)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, t.Output()
		if err := errors.Join(start(), cmd.Wait()); err != nil || out.String() != "node/n2\n" {
			t.Errorf("kubectl: %q, %v", out.String(), err)
		}
	})
	before := remember(t, tb.ID)
	began := time.Now()
	if err := tb.Down(); err != nil {
		t.Error(err)
	}
	t.Logf("taken down in %s, with %d processes", time.Since(began).Round(time.Millisecond), len(before))
	nothingLeft(t, tb.ID, before)
	if err := tb.Down(); err != nil {
		t.Errorf("down again: %v", err)
	}
}

// TestSideBySide runs two testbeds with the same addresses at once and kills the owner of one. Sweep must remove the
// remains of that one without touching the other.
func TestSideBySide(t *testing.T) {
	tier.OnlyAll(t, "TestUpInterrupted; TestProcessesEndWithTheirOwner (test/testbed/spawn)")
	needRoot(t)
	self, err := os.Executable()
	testkit.Must(t, err)
	child := exec.CommandContext(t.Context(), self, childTestbed)
	child.Stderr = t.Output()
	out, err := child.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, child.Start())
	tb := bringUp(t, ClusterSpec{Name: "c1", Nodes: 1})
	line, err := bufio.NewReader(out).ReadString('\n')
	id, ok := strings.CutPrefix(strings.TrimSpace(line), "up ")
	if err != nil || !ok {
		t.Fatalf("the child says %q, %v", line, err)
	}
	t.Cleanup(func() { _ = child.Process.Kill() })
	var ids []string
	states, err := List()
	testkit.Must(t, err)
	for _, s := range states {
		ids = append(ids, s.ID)
	}
	if !slices.Contains(ids, id) || !slices.Contains(ids, tb.ID) {
		t.Errorf("testbeds that are up: %v; %s and %s are not both among them", ids, id, tb.ID)
	}
	if swept, err := Sweep(); err != nil || slices.Contains(swept, id) || slices.Contains(swept, tb.ID) {
		t.Errorf("sweeping while both are up: removed %v, %v", swept, err)
	}

	before := remember(t, id)
	if len(before) < 15 {
		t.Errorf("only %d processes are in the control groups of %s", len(before), id)
	}
	// The workload's pods have shims, and their own mounts.
	for _, program := range []string{"containerd-shim-runc-v2", "testbed\x00echo"} {
		if !slices.ContainsFunc(before, func(p process) bool {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
			return strings.Contains(string(command), program)
		}) {
			t.Errorf("no process of %s is %q", id, program)
		}
	}
	testkit.Must(t, child.Process.Kill())
	killed := time.Now()
	_ = child.Wait() // killed
	// No process of a testbed outlives its owner.
	if err := WaitFor(t.Context(), 3*time.Minute, "all processes of "+id+" to end", func(context.Context) error {
		if pids, err := hierarchies(t).Processes(cgroupName(id)); err != nil || len(pids) > 0 {
			return fmt.Errorf("%v, %w", pids, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	t.Logf("%d processes ended within %s", len(before), time.Since(killed).Round(time.Millisecond))
	swept, err := Sweep()
	if err != nil || !slices.Contains(swept, id) {
		t.Errorf("sweeping after one was killed: removed %v, %v", swept, err)
	}
	nothingLeft(t, id, before)

	c := tb.Cluster("c1")
	if slices.Contains(swept, tb.ID) {
		t.Fatalf("the testbed that is up was swept")
	}
	testkit.Must(t, c.ApplyYAML(t.Context(), workload))
	if err := c.WaitForDeployment(t.Context(), "shop", "echo", patience); err != nil {
		t.Errorf("the testbed that was not killed: %v\n%s", err, c.Diagnose(t.Context(), "shop"))
	}
}

// TestUpFails checks that Up removes what it has created and returns the output of the failed component.
func TestUpFails(t *testing.T) {
	tier.OnlyAll(t, "TestUpInterrupted")
	needRoot(t)
	for component, flag := range map[string]string{"kube-scheduler": "--nonsense-1", "kubelet": "--nonsense-2"} {
		_, err := Up(t.Context(), Options{
			ID: "willfail", Clusters: []ClusterSpec{{Name: "c1", Nodes: 1}}, Programs: programs(), Progress: t.Output(),
			Flags: map[string][]string{component: {flag}},
		})
		if err == nil || !strings.Contains(err.Error(), component) || !strings.Contains(err.Error(), "unknown flag: "+flag) {
			t.Errorf("error: %v", err)
		}
		nothingLeft(t, "willfail", nil)
	}
}

// TestModesTheKernelLacks checks that Up refuses an unsupported mode of kube-proxy before it starts anything.
func TestModesTheKernelLacks(t *testing.T) {
	needRoot(t)
	for _, m := range KubeProxyModes() {
		t.Logf("kube-proxy mode %s: %v", m.Mode, m.Err)
		if m.Err == nil {
			continue
		}
		_, err := Up(t.Context(), Options{ID: "cannot", Programs: programs(), KubeProxyMode: m.Mode})
		// An error after the testbed has begun names it: "testbed cannot: ".
		if err == nil || !strings.HasPrefix(err.Error(), "testbed: ") ||
			!strings.Contains(err.Error(), "kube-proxy mode "+m.Mode) {
			t.Errorf("mode %s: %v", m.Mode, err)
		}
		nothingLeft(t, "cannot", nil)
	}
}

// TestUpInterrupted checks that the end of the context stops Up and that nothing is left.
func TestUpInterrupted(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := Up(ctx, Options{ID: "stopped", Clusters: []ClusterSpec{{Name: "c1"}}, Programs: programs()})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error: %v", err)
	}
	nothingLeft(t, "stopped", nil)
}

// process identifies a process by its PID and its start time in clock ticks.
type process struct {
	pid   int
	start string
}

func hierarchies(t *testing.T) *cgroup.Hierarchies {
	t.Helper()
	h, err := cgroup.Find(cgroup.Mount)
	testkit.Must(t, err)
	return h
}

// remember lists the processes of a testbed, including those in pods.
func remember(t *testing.T, id string) []process {
	t.Helper()
	pids, err := hierarchies(t).Processes(cgroupName(id))
	if err != nil || len(pids) == 0 {
		t.Fatalf("processes of %s: %v, %v", id, pids, err)
	}
	var all []process
	for _, pid := range pids {
		if start, ok := startOf(pid); ok {
			all = append(all, process{pid, start})
		}
	}
	return all
}

// startOf returns the start time of a process: field 22 of /proc/PID/stat. Zombies count as ended, and so do processes
// that are exiting (PF_EXITING in field 9), which have left their control group and execute nothing.
func startOf(pid int) (string, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	const exiting = 0x4
	flags, _ := strconv.ParseUint(fields[6], 10, 32)
	return fields[19], fields[0] != "Z" && flags&exiting == 0
}

func nothingLeft(t *testing.T, id string, processes []process) {
	t.Helper()
	if names, err := netns.List(namespacePrefix(id)); err != nil || len(names) > 0 {
		t.Errorf("namespaces are left: %v, %v", names, err)
	}
	if groups, err := hierarchies(t).List("sb-"); err != nil || slices.Contains(groups, cgroupName(id)) {
		t.Errorf("control groups are left: %v, %v", groups, err)
	}
	dir := filepath.Join(Directory, id)
	if mounts, err := mountsBelow(dir); err != nil || len(mounts) > 0 {
		t.Errorf("mounts are left: %v, %v", mounts, err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
	for _, p := range processes {
		if start, ok := startOf(p.pid); ok && start == p.start {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
			t.Errorf("process %d is left: %q", p.pid, command)
		}
	}
	// Also find processes outside the control groups: they have the testbed's directory in their arguments or mounts.
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	testkit.Must(t, err)
	for _, e := range entries {
		if data, err := os.ReadFile(e); err == nil && strings.Contains(string(data), dir+"/") {
			t.Errorf("%s: %q is left", e, data)
		}
		if data, err := os.ReadFile(filepath.Join(filepath.Dir(e), "mountinfo")); err == nil &&
			strings.Contains(string(data), dir+"/") {
			t.Errorf("%s has mounts of the testbed", filepath.Dir(e))
		}
	}
}

func getPod(ctx context.Context, t *testing.T, c *Cluster, name string) *corev1.Pod {
	t.Helper()
	pod, err := c.Client.CoreV1().Pods("shop").Get(ctx, name, metav1.GetOptions{})
	testkit.Must(t, err)
	return pod
}

// echoOn returns a pod of echo on a node.
func echoOn(ctx context.Context, t *testing.T, c *Cluster, node string) *corev1.Pod {
	t.Helper()
	pods, err := c.Client.CoreV1().Pods("shop").List(ctx, metav1.ListOptions{LabelSelector: "app=echo"})
	testkit.Must(t, err)
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName == node {
			return &pods.Items[i]
		}
	}
	t.Fatalf("no pod of echo is on %s", node)
	return nil
}

func fetch(ctx context.Context, t *testing.T, c *Cluster, pod, url string) echo.Answer {
	t.Helper()
	out, err := c.ExecPod(ctx, "shop", pod, "curl", "-sS", "--max-time", "20", url)
	testkit.Must(t, err)
	var answer echo.Answer
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatalf("%s answers %q: %v", url, out, err)
	}
	return answer
}

func tryFetch(ctx context.Context, c *Cluster, pod, url string) error {
	_, err := c.ExecPod(ctx, "shop", pod, "curl", "-sS", "--max-time", "3", url)
	return err
}
