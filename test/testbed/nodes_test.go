package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/test/testbed/cgroup"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// daemonSet runs an echo pod on each node, and has a Service for them.
const daemonSet = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: echo, namespace: shop}
spec:
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      terminationGracePeriodSeconds: 1
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
  ipFamilyPolicy: PreferDualStack
  selector: {app: echo}
  ports: [{port: 80, targetPort: 8080}]
`

// upWith creates a testbed of one cluster and removes it at the end of the test. It then checks that nothing is left.
func upWith(t *testing.T, options Options) *Cluster {
	t.Helper()
	needRoot(t)
	ctx, stop := signal.NotifyContext(context.WithoutCancel(t.Context()), syscall.SIGINT, syscall.SIGTERM)
	t.Cleanup(stop)
	options.Programs, options.Progress = programs(), t.Output()
	if options.Clusters == nil {
		options.Clusters = []ClusterSpec{{Name: "c1", Nodes: 2}}
	}
	tb, err := Up(ctx, options)
	testkit.Must(t, err)
	t.Cleanup(func() {
		before := remember(t, tb.ID)
		if err := tb.Down(); err != nil {
			t.Error(err)
		}
		nothingLeft(t, tb.ID, before)
	})
	return tb.Clusters()[0]
}

// allReachAll waits until each node has a ready pod and each of these pods reaches every other by every address. It
// ignores the pod of a removed node, which the pod garbage collector deletes.
func allReachAll(ctx context.Context, t *testing.T, c *Cluster) {
	t.Helper()
	err := WaitFor(ctx, patience, "every pod to reach every other", func(ctx context.Context) error {
		list, err := c.Client.CoreV1().Pods("shop").List(ctx, metav1.ListOptions{LabelSelector: "app=echo"})
		if err != nil {
			return err
		}
		list.Items = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return c.Node(p.Spec.NodeName) == nil })
		if len(list.Items) != len(c.Nodes) {
			return fmt.Errorf("%d pods on %d nodes", len(list.Items), len(c.Nodes))
		}
		for i := range list.Items {
			from, err := c.running(&list.Items[i])
			if err != nil {
				return err
			}
			for _, to := range list.Items {
				for _, ip := range to.Status.PodIPs {
					url := "http://" + hostPort(netip.MustParseAddr(ip.IP), 8080) + "/"
					out, err := from.Exec(ctx, "curl", "-sS", "--max-time", "10", url)
					if err != nil {
						return err
					}
					if !strings.Contains(out, `"node":"`+to.Spec.NodeName+`"`) {
						return fmt.Errorf("%s answers %s, it is on %s", url, out, to.Spec.NodeName)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, c.Diagnose(context.WithoutCancel(ctx), "shop"))
	}
}

// TestNodes: nodes lose their power and boot again, join and leave, and their daemons die, and pods do what they do on
// any node.
func TestNodes(t *testing.T) {
	tier.OnlyAll(t, "e2e TestNodes joins and reboots nodes")
	c := upWith(t, Options{})
	ctx := t.Context()
	testkit.Must(t, c.ApplyYAML(ctx, daemonSet))
	allReachAll(ctx, t, c)
	n1 := c.Node("n1")
	pod := func(node string) *Pod {
		t.Helper()
		list, err := c.Client.CoreV1().Pods("shop").List(ctx,
			metav1.ListOptions{LabelSelector: "app=echo", FieldSelector: "spec.nodeName=" + node})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("pods of %s: %d, %v", node, len(list.Items), err)
		}
		p, err := c.running(&list.Items[0])
		testkit.Must(t, err)
		return p
	}
	// This step is first because the pod garbage collector is slow: the last step waits for it.
	t.Run("a node joins and leaves", func(t *testing.T) {
		n3, err := c.AddNode(ctx)
		testkit.Must(t, err)
		if n3.Name != "n3" || c.Node("n3") != n3 {
			t.Errorf("the new node is %s, among %v", n3.Name, c.Nodes)
		}
		allReachAll(ctx, t, c)
		testkit.Must(t, c.RemoveNode(ctx, n3))
		list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 2 || len(c.Nodes) != 2 {
			t.Errorf("nodes: %d objects, %d nodes, %v", len(list.Items), len(c.Nodes), err)
		}
	})
	t.Run("containers outlive kubelet and containerd", func(t *testing.T) {
		before := pod("n1")
		for _, name := range []string{"kubelet/n1", "containerd/n1"} {
			testkit.Must(t, c.Process(name).Kill())
		}
		if out, err := before.Exec(ctx, "curl", "-sS", "--max-time", "10", "http://127.0.0.1:8080/"); err != nil {
			t.Errorf("while both are down: %q, %v", out, err)
		}
		testkit.Must(t, WaitFor(ctx, patience, "kubelet and containerd", func(ctx context.Context) error {
			return errors.Join(serves(ctx, n1.Path(containerdSocket)), get(ctx, n1.Netns, "http://127.0.0.1:10248/healthz"))
		}))
		allReachAll(ctx, t, c)
		if after := pod("n1"); after.Container.ID != before.Container.ID || after.Container.PID != before.Container.PID {
			t.Errorf("the container was %+v, is %+v", before.Container, after.Container)
		}
	})
	t.Run("a node reboots", func(t *testing.T) {
		before := pod("n1")
		if _, err := n1.Exec(ctx, "sh", "-c",
			"echo x > /run/mark; echo x > /var/lib/mark; echo x > /etc/mark; "+
				"ip link add left type veth peer name right"); err != nil {
			t.Fatal(err)
		}
		testkit.Must(t, n1.PowerOff())
		if pids, err := c.tb.cgroups.Processes(n1.cgroup()); err != nil || len(pids) > 0 {
			t.Errorf("processes of a node without power: %v, %v", pids, err)
		}
		if _, err := n1.Exec(ctx, "true"); err == nil || !strings.Contains(err.Error(), "without power") {
			t.Errorf("a command on a node without power: %v", err)
		}
		testkit.Must(t, n1.Boot(ctx))
		out, err := n1.Exec(ctx, "sh", "-c", "ls /run/mark /var/lib/mark /etc/mark 2>/dev/null; ip -br link")
		if err != nil || !strings.HasPrefix(out, "/etc/mark\n/var/lib/mark\n") &&
			!strings.HasPrefix(out, "/var/lib/mark\n/etc/mark\n") ||
			strings.Contains(out, "left") {
			t.Errorf("files and links after the boot: %q, %v; want those of the disk alone", out, err)
		}
		allReachAll(ctx, t, c)
		if after := pod("n1"); after.UID != before.UID || after.Container.ID == before.Container.ID {
			t.Errorf("the pod was %s with container %s, is %s with %s: want the same pod, with a new container",
				before.UID, before.Container.ID, after.UID, after.Container.ID)
		}
	})
	t.Run("the scheduler's and the apiserver's ways of emptying a node", func(t *testing.T) {
		if out, err := c.Kubectl(ctx, nil, "-n", "kube-system", "rollout", "status", "deployment/coredns",
			"--timeout=3m"); err != nil {
			t.Fatal(err, out)
		}
		if out, err := c.Kubectl(ctx, nil, "drain", "n1", "--ignore-daemonsets", "--delete-emptydir-data",
			"--timeout=3m"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		list, err := c.Client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"})
		if err != nil || len(list.Items) > 0 {
			t.Errorf("pods on a drained node: %d, %v", len(list.Items), err)
		}
	})
	t.Run("the pod collector's way of emptying a node that was removed", func(t *testing.T) {
		// kube-controller-manager checks every 20 s and deletes a pod that it found at least 40 s before, so it takes up
		// to 80 s (pkg/controller/podgc: gcCheckPeriod, quarantineTime).
		if err := WaitFor(ctx, patience, "the removed node's pod to go", func(ctx context.Context) error {
			list, err := c.Client.CoreV1().Pods("shop").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n3"})
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("%d are there", len(list.Items))
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
}

// TestUnified: nodes that know control groups of version 2 alone run pods.
func TestUnified(t *testing.T) {
	tier.OnlyAll(t, "every bed, on this machine's control groups")
	mount := unifiedMount(t)
	c := upWith(t, Options{CgroupMount: mount, Clusters: []ClusterSpec{{Name: "c1", Nodes: 1}}})
	ctx := t.Context()
	testkit.Must(t, c.ApplyYAML(ctx, daemonSet))
	allReachAll(ctx, t, c)
	out, err := c.Node("n1").Exec(ctx, "stat", "-f", "-c", "%T", "/sys/fs/cgroup")
	if err != nil || out != "cgroup2fs\n" {
		t.Errorf("the node's control groups are %q, %v", out, err)
	}
}

// unifiedMount returns the mount point of a cgroup v2 hierarchy in which containers can run, or skips the test.
func unifiedMount(t *testing.T) string {
	t.Helper()
	needRoot(t)
	reason := "this machine has no unified hierarchy of control groups"
	for _, mount := range []string{cgroup.Mount, cgroup.Mount + "/unified"} {
		h, err := cgroup.Find(mount)
		if err != nil || !h.Unified {
			continue
		}
		if err := h.Check(); err != nil {
			reason = err.Error()
			continue
		}
		return mount
	}
	tier.NotTested(t, "%s", reason)
	t.SkipNow()
	return ""
}
