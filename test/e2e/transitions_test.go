package e2e

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// onlyWeb is the policy of all transitions: it admits only the set web.
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

// transitions changes pods of c2 in each way that changes a set. Each time a packet that must pass passes, and one that
// must not is stopped. It logs the time from the change, as c2's apiserver acknowledged it, until the ipset in the
// kernel of c1's node has followed: the window in which a permission is stale.
func (b *policyBed) transitions(ctx context.Context, t *testing.T) {
	must(t, b.c1.ApplyYAML(ctx, onlyWeb))
	must := func(err error) {
		t.Helper()
		must(t, err)
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
		_, err := b.c2.Client.CoreV1().Pods("shop").Patch(ctx, name, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{})
		must(err)
	}
	address := func(name string) string { return b.pod(ctx, t, b.c2, name).Status.PodIP }

	// A label is added, changed and removed.
	stranger := address("stranger")
	relabel("stranger", `"web"`)
	t.Logf("label put on: in the ipset after %s", b.followed(ctx, t, stranger, true))
	passes("stranger")
	// A pod that moves keeps its place in the set it leaves until it is in the other, so that a policy that selects both
	// never stops it.
	history := b.follow(ctx, t, stranger)
	relabel("stranger", `"admin"`)
	must(until(ctx, settle, func() error { return history.ends("admin") }))
	if got := history.stop(); got != "web → admin+web → admin" {
		t.Errorf("a pod that moves was in the sets %q", got)
	}
	t.Logf("label changed to that of another set: out of the kernel %s after the object", b.leftInTime(ctx, t, stranger))
	stopped("stranger")
	relabel("stranger", `"web"`)
	t.Logf("label changed back: in after %s", b.followed(ctx, t, stranger, true))
	passes("stranger")
	relabel("stranger", "null")
	t.Logf("label taken off: out after %s", b.leftInTime(ctx, t, stranger))
	stopped("stranger")

	// A pod that completes leaves the set by its phase, although the object and its address still exist.
	must(b.c2.ApplyYAML(ctx, strings.Replace(workload("batch", setLabel+": web"), "spec:\n",
		"spec:\n  restartPolicy: Never\n", 1)))
	_, err := b.c2.Kubectl(ctx, nil, "-n", "shop", "wait", "--for=condition=Ready", "pod/batch", "--timeout=300s")
	must(err)
	batch := address("batch")
	b.followed(ctx, t, batch, true)
	passes("batch")
	failed := b.phase(ctx, t, "batch", corev1.PodFailed)
	must(b.c2.KillPod(ctx, "shop", "batch"))
	failed()
	t.Logf("process ended: out %s after c2's apiserver had phase Failed", b.leftInTime(ctx, t, batch))
	if ended, err := b.c2.Client.CoreV1().Pods("shop").Get(ctx, "batch", metav1.GetOptions{}); err != nil ||
		ended.Status.Phase != corev1.PodFailed || ended.Status.PodIP != batch {
		t.Fatalf("pod batch is to be there still, Failed with its address %s: %v, %v", batch, ended.Status, err)
	}

	// Its address goes to a pod without a label, and then to one in the set.
	heir := func(name, label string) {
		t.Helper()
		must(b.c2.ApplyYAML(ctx, workload(name, label, fmt.Sprintf("cni.projectcalico.org/ipAddrs: '[%q]'", batch))))
		_, err := b.c2.Kubectl(ctx, nil, "-n", "shop", "wait", "--for=condition=Ready", "pod/"+name, "--timeout=300s")
		must(err)
		if got := address(name); got != batch {
			t.Fatalf("%s has %s, not %s", name, got, batch)
		}
	}
	remove := func(name string) {
		t.Helper()
		_, err := b.c2.Kubectl(ctx, nil, "-n", "shop", "delete", "pod", name, "--wait")
		must(err)
	}
	remove("batch")
	heir("heir", "app: heir")
	stopped("heir")
	remove("heir")
	heir("web-heir", setLabel+": web")
	t.Logf("address reused by a pod of the set: in the ipset %s after the pod was ready", b.followed(ctx, t, batch, true))
	passes("web-heir")

	// The address moves from set to set: it is in the new one and never in both, and the packet is stopped.
	history = b.follow(ctx, t, batch)
	remove("web-heir")
	t.Logf("pod deleted: out %s after it had gone", b.leftInTime(ctx, t, batch))
	heir("admin-heir", setLabel+": admin")
	must(until(ctx, settle, func() error { return history.ends("admin") }))
	stopped("admin-heir")
	remove("admin-heir")
	must(until(ctx, settle, func() error { return history.ends("") }))
	heir("web-next", setLabel+": web")
	must(until(ctx, settle, func() error { return history.ends("web") }))
	passes("web-next")
	if got := history.stop(); got != "web →  → admin →  → web" {
		t.Errorf("the address was in the sets %q", got)
	}

	// The address is reused inside the set while the remote is cut off. It stays, because the set has it again afterwards.
	history = b.follow(ctx, t, batch)
	heard := b.silence(ctx, t)
	remove("web-next")
	heir("web-last", setLabel+": web")
	passes("web-last")
	heard()
	relabel("stranger", `"web"`) // this change arrives after the others
	b.followed(ctx, t, stranger, true)
	if got := history.stop(); got != "web" {
		t.Errorf("an address that is reused inside the set was in the sets %q", got)
	}
	sets, err := b.ctl(ctx, b.c1, "broker", "get", "sets", "--ip", batch, "--pods")
	if must(err); !strings.Contains(sets, "web-last") || strings.Contains(sets, "web-next") {
		t.Errorf("the broker says of the address:\n%s", sets)
	}
	relabel("stranger", "null")
	b.leftInTime(ctx, t, stranger)

	// A host network pod has the node's addresses, which are in no set. None of its packets pass with the policy, and all
	// pass without it.
	must(b.c2.ApplyYAML(ctx, strings.Replace(workload("host", setLabel+": web"), "spec:\n",
		"spec:\n  hostNetwork: true\n", 1)))
	_, err = b.c2.Kubectl(ctx, nil, "-n", "shop", "wait", "--for=condition=Ready", "pod/host", "--timeout=300s")
	must(err)
	relabel("stranger", `"web"`) // the broker receives this after the host network pod
	b.followed(ctx, t, stranger, true)
	if node := b.c2.Nodes[0].IP.String(); !b.inKernel(ctx, t, stranger) || b.inKernel(ctx, t, node) {
		t.Errorf("the address %s of the node is in an ipset, or %s is in none", node, stranger)
	}
	_, err = b.c1.Kubectl(ctx, strings.NewReader(onlyWeb), "delete", "-f", "-")
	must(err)
	passes("host")
	must(b.c1.ApplyYAML(ctx, onlyWeb))
	stopped("host")
	passes("stranger")
}

// leftInTime waits until an address is in no ipset of c1's node, and returns the time. It fails the test if a later
// change of the same set has been carried out in the kernel before: once c2's apiserver has acknowledged what ends the
// permission, the pod marker joins the set web, and leaves it when it is in an ipset. Felix writes one batch of changes
// after the other, and in a batch one ipset after the other (felix/ipsets, tryUpdates): with two policies that select
// the set, a look when the marker has come may see a batch half done. When the marker has left all ipsets, the batch in
// which it came is complete.
func (b *policyBed) leftInTime(ctx context.Context, t *testing.T, address string) time.Duration {
	t.Helper()
	began := time.Now()
	label := func(set string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, setLabel, set)
		testkit.Value(b.c2.Client.CoreV1().Pods("shop").Patch(ctx, marker, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{}))(t)
	}
	late := b.pod(ctx, t, b.c2, marker).Status.PodIP
	label(`"web"`)
	in, took := true, time.Duration(0)
	look := func(members map[string]bool) {
		if in && !members[address] {
			took = time.Since(began).Round(time.Millisecond)
		}
		in = members[address]
	}
	b.kernelUntil(ctx, t, late+" in an ipset", func(members map[string]bool) bool {
		look(members)
		return members[late]
	})
	label("null")
	b.kernelUntil(ctx, t, late+" in no ipset", func(members map[string]bool) bool {
		look(members)
		return !members[late]
	})
	if in {
		t.Errorf("%s is permitted although a later change of the set is complete in the kernel", address)
		b.followed(ctx, t, address, false)
	}
	return took
}

// phase watches a pod of c2. The returned function waits until the pod has a phase.
func (b *policyBed) phase(ctx context.Context, t *testing.T, name string, phase corev1.PodPhase) (reached func()) {
	t.Helper()
	w, err := b.c2.Client.CoreV1().Pods("shop").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	must(t, err)
	return func() {
		t.Helper()
		defer w.Stop()
		late := time.After(settle)
		for {
			select {
			case event, open := <-w.ResultChan():
				if !open {
					t.Fatalf("the watch of pod %s has ended", name)
				}
				if p, ok := event.Object.(*corev1.Pod); ok && p.Status.Phase == phase {
					return
				}
			case <-late:
				t.Fatalf("pod %s is not %s after %s", name, phase, settle)
			}
		}
	}
}

// silence cuts the stream of c2's exporter and returns when the exporter has closed it. After heard is called, the
// exporter sends all changes at once; before the close, TCP would deliver each change separately.
func (b *policyBed) silence(ctx context.Context, t *testing.T) (heard func()) {
	t.Helper()
	rule := []string{"PREROUTING", "-s", b.c2.NodeSubnet.String(), "-p", "tcp", "--dport", fmt.Sprint(FederationNodePort),
		"-j", "DROP"}
	node := b.c1.Nodes[0].Netns
	must(t, iptables(node, append([]string{"-I"}, rule...)...))
	must(t, b.exporterIsCutOff(ctx, b.c2, "c1"))
	return func() { must(t, iptables(node, append([]string{"-D"}, rule...)...)) }
}

// memberships records in which sets of c1 an address is over time.
type memberships struct {
	stopped func()

	mu      sync.Mutex
	sets    map[string]string // by object
	history []string
}

// follow watches the sets of c1 and records in which of them an address is.
func (b *policyBed) follow(ctx context.Context, t *testing.T, address string) *memberships {
	t.Helper()
	resource := schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: "globalnetworksets"}
	sets := b.c1.Dynamic.Resource(resource)
	list := testkit.Value(sets.List(ctx, metav1.ListOptions{}))(t)
	m := &memberships{sets: map[string]string{}}
	for _, o := range list.Items {
		m.note(&o, address, false)
	}
	m.now()
	w := testkit.Value(sets.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			if o, ok := event.Object.(*unstructured.Unstructured); ok {
				m.note(o, address, event.Type == watch.Deleted)
				m.now()
			}
		}
	}()
	m.stopped = func() { w.Stop(); <-done }
	return m
}

func (m *memberships) note(o *unstructured.Unstructured, address string, gone bool) {
	nets, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "nets")
	m.mu.Lock()
	defer m.mu.Unlock()
	if gone || !slices.Contains(nets, address+"/32") {
		delete(m.sets, o.GetName())
		return
	}
	m.sets[o.GetName()] = strings.TrimPrefix(o.GetName(), "c2-shop-")
}

func (m *memberships) now() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := strings.Join(slices.Sorted(maps.Values(m.sets)), "+")
	if len(m.history) == 0 || m.history[len(m.history)-1] != now {
		m.history = append(m.history, now)
	}
}

// ends returns nil if the address is in exactly these sets now.
func (m *memberships) ends(sets string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if got := m.history[len(m.history)-1]; got != sets {
		return fmt.Errorf("the address is in the sets %q, want %q: %q", got, sets, m.history)
	}
	return nil
}

// stop ends the watch and returns the sets in order.
func (m *memberships) stop() string {
	m.stopped()
	return strings.Join(m.history, " → ")
}

// followed waits until an address is, or is not, in an ipset of c1's node, and returns the time.
func (b *policyBed) followed(ctx context.Context, t *testing.T, address string, in bool) time.Duration {
	t.Helper()
	started := time.Now()
	what := fmt.Sprintf("%s in an ipset: %t", address, in)
	b.kernelUntil(ctx, t, what, func(members map[string]bool) bool { return members[address] == in })
	return time.Since(started).Round(time.Millisecond)
}

// kernelUntil reads the ipsets of c1's node until their members are as wanted.
func (b *policyBed) kernelUntil(ctx context.Context, t *testing.T, what string, wanted func(map[string]bool) bool) {
	t.Helper()
	started := time.Now()
	for !wanted(b.members(ctx, t)) {
		if time.Since(started) > settle {
			sets, _ := b.ctl(ctx, b.c1, "broker", "get", "sets", "--pods")
			t.Fatalf("not within %s: %s\n%s", settle, what, sets)
		}
		select {
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// inKernel reports whether an ipset of c1's node has an address as a single member.
func (b *policyBed) inKernel(ctx context.Context, t *testing.T, address string) bool {
	t.Helper()
	return b.members(ctx, t)[address]
}

// members are the single addresses in the ipsets of c1's node. Felix has ipsets with c2's addresses only for network
// sets.
func (b *policyBed) members(ctx context.Context, t *testing.T) map[string]bool {
	t.Helper()
	cmd := exec.CommandContext(ctx, "ipset", "list", "-output", "save")
	var out strings.Builder
	cmd.Stdout = &out
	must(t, b.c1.Nodes[0].Netns.Do(cmd.Start))
	if err := cmd.Wait(); err != nil {
		t.Fatalf("ipset list: %v", err)
	}
	members := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "add" {
			members[strings.TrimSuffix(f[2], "/32")] = true
		}
	}
	return members
}
