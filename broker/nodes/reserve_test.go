package nodes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// ipam is the real IPAM plugin of Calico, as kubelet's runtime calls it on a node.
type ipam struct {
	t       *testing.T
	plugin  string
	kubecfg string
}

func newIPAM(t *testing.T, cfg *rest.Config) *ipam {
	t.Helper()
	paths, err := components.Ensure(t.Context(), os.Stderr)
	if err != nil {
		t.Fatalf("Calico's IPAM plugin: %v", err)
	}
	dir := t.TempDir()
	plugin := filepath.Join(dir, "calico-ipam") // it is the name that says what it does
	testkit.Must(t, os.Symlink(paths.CalicoCNI, plugin))
	return &ipam{t: t, plugin: plugin, kubecfg: kubetest.Kubeconfig(t, cfg)}
}

// call is one of the CNI; the result is the pod's address, for ADD.
func (i *ipam) call(ctx context.Context, command, node, pod string) (netip.Addr, error) {
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "0.3.1", "name": "k8s-pod-network", "type": "calico", "datastore_type": "kubernetes", "nodename": node,
		"log_level": "error", "ipam": map[string]any{"type": "calico-ipam"},
		"kubernetes": map[string]any{"kubeconfig": i.kubecfg},
	})
	if err != nil {
		return netip.Addr{}, err
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, i.plugin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(conf), &out, &errs
	cmd.Env = []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + pod, "CNI_NETNS=/var/run/netns/none-" +
			pod, "CNI_IFNAME=eth0", "CNI_PATH=" + filepath.Dir(i.plugin),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod, "PATH=" + os.Getenv("PATH"),
	}
	if err := cmd.Run(); err != nil {
		return netip.Addr{}, fmt.Errorf("%s of %s on %s: %w: %s %s", command, pod, node, err, out.String(), errs.String())
	}
	if command != "ADD" {
		return netip.Addr{}, nil
	}
	var result struct {
		IPs []struct{ Address string }
	}
	if err := json.Unmarshal(out.Bytes(), &result); err != nil || len(result.IPs) != 1 {
		return netip.Addr{}, fmt.Errorf("ADD of %s: %q: %w", pod, out.String(), err)
	}
	prefix, err := netip.ParsePrefix(result.IPs[0].Address)
	return prefix.Addr(), err
}

// TestReserved: with Calico's real IPAM at work on two nodes, an address that a node's devices may have is never a
// pod's: over many pods that come and go at once, until no address is left; and when the block leaves the node, or its
// host has an address of its own, the node is to have another or none, and the old one is free again.
func TestReserved(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Calico's IPAM plugin, which -short leaves out")
	}
	cfg := kubetest.Start(t)
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "ippools", "ipamblocks", "blockaffinities", "ipamhandles",
		"ipamconfigs", "ipreservations", "clusterinformations")
	client := kubernetes.NewForConfigOrDie(cfg)
	for _, name := range []string{"n1", "n2"} {
		kubetest.Create(t, client.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	calico := testkit.Value(kube.CalicoIn(cfg, kubetest.CalicoCRD))(t)
	// Four blocks of 16.
	testkit.Value(calico.IPPools().Create(t.Context(), &calicov3.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec: calicov3.IPPoolSpec{CIDR: "10.1.0.0/26", BlockSize: 28, NodeSelector: "all()", IPIPMode: calicov3.IPIPModeNever,
			VXLANMode:   calicov3.VXLANModeNever,
			AllowedUses: []calicov3.IPPoolAllowedUse{calicov3.IPPoolAllowedUseWorkload, calicov3.IPPoolAllowedUseTunnel}},
	}))(t)
	plugin := newIPAM(t, cfg)

	var knows atomic.Bool
	knows.Store(true)
	n := NewNetworks(NetworksOptions{
		From: config.AutoAllowedIPs, Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
		Affinities: kube.NewBlockAffinities(cfg), Informers: informers(),
		Changed: func(string) {}, Reserve: cfg, NodesKnown: func() bool { return true },
		Knows: func(string) bool { return knows.Load() },
		Log:   slog.New(slog.DiscardHandler),
	})
	// The longest time of this plugin here is far less than the 90 s that it may.
	n.reserved.timing = timing{quarantine: 10 * time.Second, retire: time.Second, verify: time.Hour,
		pass: 50 * time.Millisecond}
	testkit.Run(t, n.Run)
	n.PutNode(node("n1"), nil)
	n.PutNode(node("n2"), nil)

	// given is whatever an agent ever received as its own, held what pods have now.
	var mu sync.Mutex
	held := map[netip.Addr]string{}
	given := func(node string) (netip.Addr, bool) {
		for _, text := range n.Network(node).GetTunnelAddresses() {
			return netip.MustParseAddr(text), true
		}
		return netip.Addr{}, false
	}
	never := func() {
		t.Helper()
		for _, node := range []string{"n1", "n2"} {
			if addr, ok := given(node); ok && held[addr] != "" {
				t.Errorf("%s is the address of the devices of %s, and of the pod %s", addr, node, held[addr])
			}
		}
	}
	added, full := 0, 0
	churn := func(worker int, until func() bool) {
		node := []string{"n1", "n2"}[worker%2]
		var mine []string
		for i := 0; !until() && t.Context().Err() == nil; i++ {
			pod := fmt.Sprintf("w%d-%d", worker, i)
			addr, err := plugin.call(t.Context(), "ADD", node, pod)
			mu.Lock()
			if err == nil {
				added++
				if held[addr] != "" {
					t.Errorf("%s is given to %s and %s", addr, held[addr], pod)
				}
				held[addr] = pod
				mine = append(mine, pod)
				never()
			} else if full++; !strings.Contains(err.Error(), "no more free addresses") &&
				!strings.Contains(err.Error(), "failed to request IPv4 addresses") &&
				!strings.Contains(err.Error(), "Assigned 0 out of 1 requested") {
				t.Errorf("%v", err)
			}
			mu.Unlock()
			if len(mine) > 6 || err != nil && len(mine) > 0 {
				gone := mine[0]
				mine = mine[1:]
				mu.Lock()
				for addr, pod := range held {
					if pod == gone {
						delete(held, addr)
					}
				}
				mu.Unlock()
				if _, err := plugin.call(t.Context(), "DEL", node, gone); err != nil {
					t.Errorf("%v", err)
				}
			}
		}
	}
	var wg sync.WaitGroup
	var stop atomic.Bool
	for worker := range 4 {
		wg.Go(func() { churn(worker, stop.Load) })
	}
	eventually(t, "both nodes have an address for their devices", func() (bool, string) {
		mu.Lock()
		never()
		mu.Unlock()
		_, one := given("n1")
		_, two := given("n2")
		return one && two, fmt.Sprint(n.Network("n1"), n.Network("n2"), n.Problems())
	})
	first, _ := given("n1")
	time.Sleep(5 * time.Second) // pods go on to come and go
	stop.Store(true)
	wg.Wait()
	// And until there is nothing left to be had.
	for i := 0; ; i++ {
		addr, err := plugin.call(t.Context(), "ADD", []string{"n1", "n2"}[i%2], fmt.Sprint("last-", i))
		if err != nil {
			break
		}
		mu.Lock()
		held[addr] = fmt.Sprint("last-", i)
		never()
		mu.Unlock()
	}
	if again, _ := given("n1"); again != first || len(held) < 60 || len(held) > 62 {
		t.Errorf("n1 has %s after %s, and of 64 addresses pods have %d: all but the two for devices, and those of pods "+
			"whose ADD failed, are to be had", again, first, len(held))
	}
	t.Logf("%d pods were added while addresses were reserved and %d refused for want of an address; at last %d have one",
		added, full, len(held))

	// The host of n1 gets an address of its own: ours is released, but not while the agent may not know it.
	knows.Store(false)
	own := slices.SortedFunc(func(yield func(netip.Addr) bool) {
		for addr := range held {
			if func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.table.Contains("n1", addr) }() && !yield(addr) {
				return
			}
		}
	}, netip.Addr.Compare)[0]
	n.PutNode(node("n1"), []netip.Addr{own})
	eventually(t, "n1 is to use none", func() (bool, string) { addr, ok := given("n1"); return !ok, addr.String() })
	time.Sleep(2 * time.Second)
	if addr, err := plugin.call(t.Context(), "ADD", "n1", "early"); err == nil {
		t.Errorf("the agent of n1 has not heard yet that it is to use %s no more, and a pod gets %s", first, addr)
	}
	knows.Store(true)
	eventually(t, "a pod gets what was released", func() (bool, string) {
		addr, err := plugin.call(t.Context(), "ADD", "n1", "late")
		return err == nil && addr == first, fmt.Sprint(addr, err)
	})
}
