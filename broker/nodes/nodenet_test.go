package nodes

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/podcidr"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// calls are the nodes whose networks were said to differ.
type calls struct {
	mu    sync.Mutex
	nodes []string
}

func (c *calls) changed(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes = append(c.nodes, node)
}

func (c *calls) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes = nil
}

func informers() apply.InformerOptions {
	metrics := apply.NewMetrics(prometheus.NewRegistry())
	return apply.Options{Metrics: metrics, Log: slog.New(slog.DiscardHandler)}.Informers()
}

func start(t *testing.T, cfg *rest.Config, from config.AllowedIPs) (*Networks, *calls) {
	c := &calls{}
	n := NewNetworks(NetworksOptions{
		From: from, Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/48")},
		Affinities: kube.NewBlockAffinities(cfg), Changed: c.changed, Informers: informers(),
		Log: slog.New(slog.DiscardHandler),
	})
	testkit.Run(t, n.Run)
	return n, c
}

func node(name string, podCIDRs ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs}}
}

func eventually(t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, what, testkit.State(ok))
}

// TestOwnAddressesOfBothFamilies: a node that has an address of each family among its blocks needs none for devices.
func TestOwnAddressesOfBothFamilies(t *testing.T) {
	n := NewNetworks(NetworksOptions{From: config.CalicoBlocks, Changed: func(string) {},
		Log: slog.New(slog.DiscardHandler)})
	n.synced = true
	n.reserved = &reservations{ready: map[string][]netip.Addr{"n1": {netip.MustParseAddr("10.1.1.9"),
		netip.MustParseAddr("fd00:1::9")}}}
	n.PutNode(node("n1"), []netip.Addr{netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("fd00:1::1")})
	for _, block := range []string{"10.1.1.0/26", "fd00:1::/122"} {
		n.change(func(t *podcidr.Table) []string {
			return affected(t.PutBlock(&kube.BlockAffinity{ObjectMeta: metav1.ObjectMeta{Name: block},
				Spec: kube.BlockAffinitySpec{Node: "n1", CIDR: block, State: "confirmed"}}))
		})
	}
	if got := n.Network("n1"); len(got.GetPodPrefixes()) != 2 || len(got.GetTunnelAddresses()) > 0 {
		t.Errorf("%v", got)
	}
}

// TestNetworks: the pod prefixes of nodes, in each group that clusters serve block affinities in: from before there is
// Calico until blocks move.
func TestNetworks(t *testing.T) {
	for _, gv := range []schema.GroupVersion{kubetest.CalicoCRD, {Group: "projectcalico.org", Version: "v3"}} {
		t.Run(gv.String(), func(t *testing.T) { testNetworks(t, gv) })
	}
}

func testNetworks(t *testing.T, gv schema.GroupVersion) {
	cfg := kubetest.Start(t)
	kubetest.NoLeaks(t, cfg)
	n, c := start(t, cfg, config.AutoAllowedIPs)
	n.PutNode(node("n1", "10.1.1.0/24", "fd00:1:0:1::/64"), nil)
	n.PutNode(node("n2", "10.1.2.0/24"), nil)
	has := func(node, want string) {
		t.Helper()
		eventually(t, "the network of "+node, func() (bool, string) {
			is := n.Network(node)
			got := strings.Join(is.GetPodPrefixes(), " ")
			return is != nil && got == want, fmt.Sprintf("%q, not %q; problems %q", got, want, n.Problems())
		})
	}
	// A cluster without Calico's types is known to have no blocks.
	has("n1", "10.1.1.0/24 fd00:1:0:1::/64")
	has("n2", "10.1.2.0/24")
	heard := func(when string) {
		t.Helper()
		eventually(t, when+", who asks for n1 and n2 hears of them", func() (bool, string) {
			c.mu.Lock()
			defer c.mu.Unlock()
			all := strings.Join(c.nodes, " ")
			return strings.Contains(all, "n1") && strings.Contains(all, "n2"), all
		})
	}
	heard("at first")

	kubetest.InstallCalicoType(t, cfg, gv, "blockaffinities", func(spec *apiextensions.JSONSchemaProps) {
		if gv != kubetest.CalicoCRD {
			spec.Properties["deleted"] = apiextensions.JSONSchemaProps{Type: "boolean"}
		}
	})
	affinities := dynamic.NewForConfigOrDie(cfg).Resource(gv.WithResource("blockaffinities"))
	affinity := func(node, block string) *unstructured.Unstructured {
		deleted := any(false)
		if gv == kubetest.CalicoCRD {
			deleted = "false"
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": gv.String(), "kind": "BlockAffinity",
			"metadata": map[string]any{"name": node + "-" + strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(block)},
			"spec":     map[string]any{"node": node, "cidr": block, "state": "confirmed", "deleted": deleted},
		}}
	}
	create := func(node, block string) {
		t.Helper()
		kubetest.CreateObject(t, affinities, affinity(node, block))
	}
	create("n1", "10.1.200.64/26")
	has("n1", "10.1.200.64/26")
	has("n2", "10.1.2.0/24") // host-local still, as far as can be seen
	create("n1", "10.1.2.0/26")
	create("n1", "fd00:1::40/122")
	has("n1", "10.1.2.0/26 10.1.200.64/26 fd00:1::40/122")
	has("n2", "")
	create("n2", "10.1.201.0/26")
	has("n2", "10.1.201.0/26")
	c.forget()
	testkit.Must(t, affinities.Delete(t.Context(), affinity("n1", "10.1.200.64/26").GetName(),
		metav1.DeleteOptions{}))
	create("n2", "10.1.200.64/26")
	has("n1", "10.1.2.0/26 fd00:1::40/122")
	has("n2", "10.1.200.64/26 10.1.201.0/26")
	heard("after the move of a block")
	n.DeleteNode("n1")
	if got := n.Network("n1"); got != nil {
		t.Errorf("a node that is gone has %v", got)
	}
}

// TestNetworksNotKnown: without the right to read blocks nothing is known of any node, and it is said why; with
// nodePodCIDRs nothing is read.
func TestNetworksNotKnown(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.NoLeaks(t, cfg)
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "blockaffinities")
	limited := rest.CopyConfig(cfg)
	limited.Impersonate.UserName, limited.Impersonate.Groups = "nobody", []string{"system:authenticated"}
	n, _ := start(t, limited, config.AutoAllowedIPs)
	n.PutNode(node("n1", "10.1.1.0/24"), nil)
	eventually(t, "it is said why", func() (bool, string) {
		p := strings.Join(n.Problems(), "\n")
		return strings.Contains(p, `"nobody" cannot list resource "blockaffinities"`), p
	})
	if got := n.Network("n1"); got != nil {
		t.Errorf("known of n1, without its blocks: %v", got)
	}
	n, _ = start(t, limited, config.NodePodCIDRs)
	n.PutNode(node("n1", "10.1.1.0/24"), nil)
	if got := n.Network("n1").GetPodPrefixes(); len(got) != 1 || got[0] != "10.1.1.0/24" || len(n.Problems()) != 0 {
		t.Errorf("by its podCIDRs alone, known of n1: %v, problems %q", got, n.Problems())
	}
}

// With podCIDRs the first address of each is for the node's devices, also where Calico's annotation says that the node
// has it: Calico writes that without IP-in-IP too.
func TestAddressesOfPodCIDRs(t *testing.T) {
	own := netip.MustParseAddr("10.1.1.1")
	for name, has := range map[string][]netip.Addr{"without an annotation": nil, "with one": {own}} {
		t.Run(name, func(t *testing.T) {
			n := NewNetworks(NetworksOptions{
				From:    config.NodePodCIDRs,
				Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/48")},
				Changed: func(string) {}, Log: slog.New(slog.DiscardHandler),
			})
			n.PutNode(node("n1", "10.1.1.0/24", "fd00:1:0:1::/64"), has)
			if got := n.Network("n1").GetTunnelAddresses(); !slices.Equal(got, []string{"10.1.1.1", "fd00:1:0:1::1"}) {
				t.Errorf("addresses for devices: %v", got)
			}
		})
	}
}
