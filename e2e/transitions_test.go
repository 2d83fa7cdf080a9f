package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// One policy for all transitions: only the set web.
const onlyWeb = `
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: only-web, namespace: shop}
spec:
  selector: app == 'db'
  types: [Ingress]
  ingress:
    - action: Allow
      source: {selector: semaphore.uw.systems/name == 'web', namespaceSelector: global()}
`

// transitions changes pods of c2 in each way that changes a set. Each time a packet that must pass passes, one that
// must not does not, and how long it took from the change, as answered by c2's apiserver, until the ipset in the kernel
// of c1's node had followed is told: the window in which a permission is stale.
func (b *policyBed) transitions(ctx context.Context, t *testing.T) {
	if err := b.c1.ApplyYAML(ctx, stored(t, onlyWeb)); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	stopped := func(name string) {
		t.Helper()
		must(until(ctx, settle, func() error { return b.isStopped(ctx, name) }))
	}
	passes := func(name string) {
		t.Helper()
		must(until(ctx, settle, func() error { return b.asks(ctx, name) }))
	}
	stopped("stranger")
	passes("web")
	relabel := func(name, set string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, setLabel, set)
		_, err := b.c2.Client.CoreV1().Pods("shop").Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		must(err)
	}
	address := func(name string) string { return b.pod(ctx, t, b.c2, name).Status.PodIP }

	// A label is put on, changed, and taken off.
	stranger := address("stranger")
	relabel("stranger", `"web"`)
	t.Logf("label put on: in the ipset after %s", b.followed(ctx, t, stranger, true))
	passes("stranger")
	relabel("stranger", `"admin"`)
	t.Logf("label changed to that of another set: out after %s", b.followed(ctx, t, stranger, false))
	stopped("stranger")
	relabel("stranger", `"web"`)
	t.Logf("label changed back: in after %s", b.followed(ctx, t, stranger, true))
	passes("stranger")
	relabel("stranger", "null")
	t.Logf("label taken off: out after %s", b.followed(ctx, t, stranger, false))
	stopped("stranger")

	// A pod that ends is out at its phase, though the object and its address are there still.
	must(b.c2.ApplyYAML(ctx, strings.Replace(workload("batch", setLabel+": web"), "spec:\n", "spec:\n  restartPolicy: Never\n", 1)))
	_, err := b.c2.Kubectl(ctx, nil, "-n", "shop", "wait", "--for=condition=Ready", "pod/batch", "--timeout=60s")
	must(err)
	batch := address("batch")
	b.followed(ctx, t, batch, true)
	passes("batch")
	must(b.c2.KillPod(ctx, "shop", "batch"))
	t.Logf("process ended: out after %s, the kubelet's telling of phase Failed in it", b.followed(ctx, t, batch, false))
	if ended, err := b.c2.Client.CoreV1().Pods("shop").Get(ctx, "batch", metav1.GetOptions{}); err != nil || ended.Status.Phase != corev1.PodFailed || ended.Status.PodIP != batch {
		t.Fatalf("pod batch is to be there still, Failed with its address %s: %v, %v", batch, ended.Status, err)
	}

	// Its address goes to a pod without a label, and then to one of the set.
	_, err = b.c2.Kubectl(ctx, nil, "-n", "shop", "delete", "pod", "batch", "--wait")
	must(err)
	heir := func(name, label string) {
		t.Helper()
		must(b.c2.ApplyYAML(ctx, workload(name, label, fmt.Sprintf("cni.projectcalico.org/ipAddrs: '[%q]'", batch))))
		_, err := b.c2.Kubectl(ctx, nil, "-n", "shop", "wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s")
		must(err)
		if got := address(name); got != batch {
			t.Fatalf("%s has %s, not %s", name, got, batch)
		}
	}
	heir("heir", "app: heir")
	stopped("heir")
	_, err = b.c2.Kubectl(ctx, nil, "-n", "shop", "delete", "pod", "heir", "--wait")
	must(err)
	heir("web-heir", setLabel+": web")
	t.Logf("address reused by a pod of the set: in the ipset %s after the pod was ready", b.followed(ctx, t, batch, true))
	passes("web-heir")

	// Reuse inside the set: the address never leaves it. The pod goes, and the next one of the set has its address.
	_, err = b.c2.Kubectl(ctx, nil, "-n", "shop", "delete", "pod", "web-heir", "--wait")
	must(err)
	t.Logf("pod deleted: out %s after it had gone", b.followed(ctx, t, batch, false))
	heir("web-next", setLabel+": web")
	passes("web-next")

	// A pod of the host network has the node's address, which no set has.
	must(b.c2.ApplyYAML(ctx, strings.Replace(workload("host", setLabel+": web"), "spec:\n", "spec:\n  hostNetwork: true\n", 1)))
	_, err = b.c2.Kubectl(ctx, nil, "-n", "shop", "wait", "--for=condition=Ready", "pod/host", "--timeout=60s")
	must(err)
	relabel("stranger", `"web"`) // told after it, and seen here before the look below
	b.followed(ctx, t, stranger, true)
	if node := b.c2.Nodes[0].IP.String(); b.inKernel(ctx, t, node) {
		t.Errorf("the address %s of the node is in an ipset", node)
	}
	passes("web")
}

// followed waits until an address is, or is not, in an ipset of c1's node, and returns how long that took.
func (b *policyBed) followed(ctx context.Context, t *testing.T, address string, in bool) time.Duration {
	t.Helper()
	started := time.Now()
	for b.inKernel(ctx, t, address) != in {
		if time.Since(started) > settle {
			sets, _ := b.ctl(ctx, b.c1, "broker", "policy", "--pods")
			t.Fatalf("%s in an ipset is %t after %s\n%s", address, !in, settle, sets)
		}
		select {
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	return time.Since(started).Round(time.Millisecond)
}

// inKernel looks into the ipsets of c1's node for one that holds an address by itself: Felix has no others with those of c2
// but for network sets.
func (b *policyBed) inKernel(ctx context.Context, t *testing.T, address string) bool {
	t.Helper()
	cmd := exec.CommandContext(ctx, "ipset", "list", "-output", "save")
	var out strings.Builder
	cmd.Stdout = &out
	if err := b.c1.Nodes[0].Netns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("ipset list: %v", err)
	}
	for line := range strings.Lines(out.String()) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "add" && (f[2] == address || f[2] == address+"/32") {
			return true
		}
	}
	return false
}
