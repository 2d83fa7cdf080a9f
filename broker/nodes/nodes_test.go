package nodes

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/applytest"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// counted is a client whose requests are counted.
func counted(cfg *rest.Config) (kubernetes.Interface, *kubetest.Requests) {
	r := &kubetest.Requests{}
	cfg = kube.Protobuf(cfg)
	cfg.Wrap(r.Wrap)
	return kubernetes.NewForConfigOrDie(cfg), r
}

// TestNodeAnnotations has agents report, on a real apiserver.
func TestNodeAnnotations(t *testing.T) {
	cfg := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(cfg)
	ctx, api := t.Context(), admin.CoreV1().Nodes()
	make := func(name, ips string) *corev1.Node {
		n := kubetest.Create(t, api, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"someone": "else"}},
			Spec:       corev1.NodeSpec{PodCIDR: "10.1.1.0/24", PodCIDRs: []string{"10.1.1.0/24", "fd01:1::/64"}},
		})
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
		for _, ip := range strings.Fields(ips) {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
		}
		return kubetest.UpdateStatus(t, api, n)
	}
	n1, n6, lost := make("n1", "10.99.0.1 172.18.1.11"), make("n6", "fd18:1::16"), make("lost", "")
	client, requests := counted(cfg)
	var mu sync.Mutex
	var gone []types.UID
	opts, _ := applytest.Options()
	podCIDRs := map[string][]string{}
	o := New(client, []config.EndpointKind{config.InternalIP}, nil, []netip.Prefix{netip.MustParsePrefix("172.18.1.0/24")},
		func(node *corev1.Node, _ bool) { mu.Lock(); podCIDRs[node.Name] = node.Spec.PodCIDRs; mu.Unlock() }, nil,
		func(uid types.UID) { mu.Lock(); gone = append(gone, uid); mu.Unlock() }, opts)
	testkit.Run(t, o.Run)
	applytest.Eventually(t, "synced", func() (bool, string) { return o.Synced(), "" })
	if uid, ok := o.UID("n1"); !ok || uid != n1.UID {
		t.Errorf("UID of n1: %s %v", uid, ok)
	}
	applytest.Eventually(t, "pod CIDRs of n1", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return slices.Equal(podCIDRs["n1"], []string{"10.1.1.0/24", "fd01:1::/64"}), fmt.Sprint(podCIDRs)
	})
	requests.Take()
	tunnels := map[string]Tunnel{"c2": {PublicKey: [32]byte{1}, ListenPort: 51820},
		"c3": {PublicKey: [32]byte{2}, ListenPort: 51821}}
	o.Report("n1", n1.UID, tunnels, false)
	o.Report("n6", n6.UID, tunnels, false)
	o.Report("lost", lost.UID, tunnels, false)
	o.Report("unknown", "x", tunnels, false)
	annotations := func(name string) map[string]string {
		n := kubetest.Get(t, api, name)
		return n.Annotations
	}
	applytest.Eventually(t, "annotated", func() (bool, string) {
		a, b := annotations("n1"), annotations("n6")
		return a["c2.wireguard.semaphore.uw.io/pubKey"] == "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=" &&
			a["c2.wireguard.semaphore.uw.io/endpoint"] == "172.18.1.11:51820" &&
			a["c3.wireguard.semaphore.uw.io/endpoint"] == "172.18.1.11:51821" &&
			a["someone"] == "else" && b["c2.wireguard.semaphore.uw.io/endpoint"] == "[fd18:1::16]:51820", fmt.Sprint(a, b)
	})
	applytest.Eventually(t, "a node without address is reported", func() (bool, string) {
		p := finding.Texts(o.Findings())
		return len(p) == 1 && strings.Contains(p[0], "InternalIP"), fmt.Sprint(p)
	})
	if got := requests.Take(); len(got) != 2 {
		t.Errorf("requests %v: one patch a node", got)
	}
	t.Run("the same report again", func(t *testing.T) {
		o.Report("n1", n1.UID, tunnels, false)
		time.Sleep(100 * time.Millisecond)
		if got := requests.Take(); len(got) > 0 {
			t.Errorf("requests %v", got)
		}
	})
	t.Run("a device fewer leaves its annotations", func(t *testing.T) {
		o.Report("n1", n1.UID, map[string]Tunnel{"c2": {PublicKey: [32]byte{9}, ListenPort: 51820}}, false)
		applytest.Eventually(t, "the key is new", func() (bool, string) {
			a := annotations("n1")
			return strings.HasPrefix(a["c2.wireguard.semaphore.uw.io/pubKey"], "CQ"), fmt.Sprint(a)
		})
		if annotations("n1")["c3.wireguard.semaphore.uw.io/endpoint"] == "" {
			t.Error("removed what nobody asked to remove")
		}
	})
	t.Run("edited by hand", func(t *testing.T) {
		testkit.Value(api.Patch(ctx, "n1", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"c2.wireguard.semaphore.uw.io/endpoint":"192.0.2.1:1"}}}`),
			metav1.PatchOptions{}))(t)
		applytest.Eventually(t, "repaired", func() (bool, string) {
			a := annotations("n1")
			return a["c2.wireguard.semaphore.uw.io/endpoint"] == "172.18.1.11:51820", fmt.Sprint(a)
		})
	})
	t.Run("our taint goes once the node is guarded, and no other", func(t *testing.T) {
		taint := `{"spec":{"taints":[{"key":"example.org/own","effect":"NoSchedule","value":"x"},
			{"key":"semaphore.uw.io/agent-not-ready","effect":"NoSchedule"},
			{"key":"startup-taint.cluster-autoscaler.kubernetes.io/semaphore-agent-not-ready","effect":"NoSchedule"},
			{"key":"semaphore.uw.io/agent-not-ready","effect":"NoExecute"}]}}`
		for _, name := range []string{"n1", "lost"} {
			testkit.Value(api.Patch(ctx, name, types.MergePatchType, []byte(taint), metav1.PatchOptions{}))(t)
		}
		time.Sleep(200 * time.Millisecond)
		taints := func(name string) (keys []string) {
			n := kubetest.Get(t, api, name)
			for _, t := range n.Spec.Taints {
				keys = append(keys, t.Key)
			}
			return keys
		}
		if got := taints("n1"); len(got) != 4 {
			t.Fatalf("before the agent has said that the node is guarded: %q", got)
		}
		fewer := map[string]Tunnel{"c2": {PublicKey: [32]byte{9}, ListenPort: 51820}}
		o.Report("n1", "another", fewer, true)
		o.Report("n1", n1.UID, fewer, true)
		o.Report("lost", lost.UID, tunnels, true) // which cannot be annotated
		o.Report("unknown", "x", nil, true)
		for _, name := range []string{"n1", "lost"} {
			applytest.Eventually(t, name, func() (bool, string) {
				got := taints(name)
				return slices.Equal(got, []string{"example.org/own"}), fmt.Sprint(got)
			})
		}
		testkit.Value(api.Patch(ctx, "n1", types.MergePatchType, []byte(taint), metav1.PatchOptions{}))(t)
		applytest.Eventually(t, "tainted again", func() (bool, string) {
			got := taints("n1")
			return len(got) == 1,
				fmt.Sprint(got)
		})
	})
	t.Run("created again under its name", func(t *testing.T) {
		testkit.Must(t, api.Delete(ctx, "n1", metav1.DeleteOptions{}))
		anew := make("n1", "172.18.1.11")
		applytest.Eventually(t, "seen", func() (bool, string) { uid, _ := o.UID("n1"); return uid == anew.UID, string(uid) })
		o.Report("n1", n1.UID, tunnels, false) // of the agent of the old one
		time.Sleep(200 * time.Millisecond)
		if a := annotations("n1"); a["c2.wireguard.semaphore.uw.io/pubKey"] != "" {
			t.Errorf("annotated for an agent of a node that no longer exists: %v", a)
		}
		mu.Lock()
		defer mu.Unlock()
		if !slices.Contains(gone, n1.UID) {
			t.Errorf("gone: %v", gone)
		}
	})
}

// TestStaleWriter: a broker that was stopped when it led, and continues after another has taken over, writes nothing on
// a node of what it saw before.
func TestStaleWriter(t *testing.T) {
	admin := kubernetes.NewForConfigOrDie(kubetest.Start(t))
	ctx, api := t.Context(), admin.CoreV1().Nodes()
	node := kubetest.Create(t, api, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.18.1.11"}}
	node = kubetest.UpdateStatus(t, api, node)
	opts, registry := applytest.Options()
	n := New(admin, []config.EndpointKind{config.InternalIP}, nil, nil, nil, nil, nil, opts)
	n.saw(nil, reduceNode(node), false)
	n.Report("n1", node.UID, map[string]Tunnel{"c2": {PublicKey: [32]byte{1}, ListenPort: 51820}}, false)

	theirs := node.DeepCopy()
	theirs.Annotations = map[string]string{naming.PubKeyAnnotation("c2"): "the successor's",
		naming.EndpointAnnotation("c2"): "172.18.1.11:51999"}
	theirs = kubetest.Update(t, api, theirs)
	if err := n.reconcile(context.WithoutCancel(ctx), "n1"); err != nil {
		t.Error(err)
	}
	got := kubetest.Get(t, api, "n1")
	if got.ResourceVersion != theirs.ResourceVersion {
		t.Errorf("the node was written: %v", got.Annotations)
	}
	if n, _ := testkit.Metric(t, registry, "semaphore_broker_writes_total", "node", "conflict"); n != 1 {
		t.Errorf("%v conflicts counted, want 1", n)
	}
}
