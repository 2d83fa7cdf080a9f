package testbed

import (
	"context"
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
	tb := testkit.Value(Up(ctx, options))(t)
	t.Cleanup(func() {
		before := remember(t, tb.ID)
		testkit.NoError(t, tb.Down())
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
