package exporter

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// sink passes changes to an engine immediately.
type sink struct{ engine *mesh.Engine }

// Take implements federation.Sink.
func (s sink) Take(cluster string, r replica.Result) {
	s.engine.Queue().Push(cluster, r)
	for s.engine.Queue().Turn(time.Now, s.engine.Take) {
	}
}

// peers are the peers that c2's agents receive. It implements tunnels.Peers.
type peers struct {
	mu      sync.Mutex
	allowed map[string]string
	twice   string
}

func (p *peers) Update(_ string, c mesh.Changes, _ map[string]time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for node, peer := range c.Peers {
		if p.allowed[node] = strings.Join(peer.GetAllowedIps(), " "); peer == nil {
			delete(p.allowed, node)
		}
	}
	of := map[string]string{}
	for node, allowed := range p.allowed {
		for _, ip := range strings.Fields(allowed) {
			if other := of[ip]; other != "" {
				p.twice = fmt.Sprintf("%s has %s, and so has %s", node, ip, other)
			}
			of[ip] = node
		}
	}
}

func (p *peers) Remove(string) {}

func (p *peers) are() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for node, allowed := range p.allowed {
		out = append(out, node+": "+allowed)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// TestCalicoBlocks checks that the IPAM blocks of c1's nodes become the allowed IPs of their peers in c2, and that no
// agent of c2 has a block at two peers while it moves.
func TestCalicoBlocks(t *testing.T) {
	api := kubetest.Start(t)
	kubetest.InstallCalico(t, api, kubetest.CalicoCRD, "blockaffinities")
	admin := kubernetes.NewForConfigOrDie(api)
	affinities := dynamic.NewForConfigOrDie(api).Resource(kubetest.CalicoCRD.WithResource("blockaffinities"))
	for i, name := range []string{"n1", "n2"} {
		newNode(t, admin, name, i+1, fmt.Sprintf("10.1.%d.0/24", i+200)) // Calico's IPAM ignores the CIDR
	}
	affinity := func(node, block string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": kubetest.CalicoCRD.String(), "kind": "BlockAffinity",
			"metadata": map[string]any{"name": node + "-" + strings.NewReplacer(".", "-", "/", "-").Replace(block)},
			"spec":     map[string]any{"node": node, "cidr": block, "state": "confirmed", "deleted": "false"},
		}}
	}
	create := func(node, block string) {
		t.Helper()
		kubetest.CreateObject(t, affinities, affinity(node, block))
	}
	create("n1", "10.1.2.0/26")
	create("n2", "10.1.3.0/26")
	for i := range 40 { // more than podCIDRs that a node can have
		create("n2", fmt.Sprintf("10.1.%d.64/26", 10+i))
	}
	trust := trust.New(t, "c1", "c2")
	cfg := brokerOf(t, "c2\nfeatures: [encryption]")
	c2 := &peers{allowed: map[string]string{}}
	start(t, api, trust, serveSink(t, trust, "c2", sink{mesh.NewEngine(cfg, c2, logged(t))}, nil),
		"features: [encryption]\nallowedIPs: calicoBlocks")
	within(t, "agents know the blocks", func() bool {
		are := c2.are()
		return strings.HasPrefix(are, "n1: 10.1.2.0/26, n2: 10.1.10.64/26 10.1.11.64/26 ") ||
			strings.HasPrefix(are, "n1: 10.1.2.0/26, n2: 10.1.3.0/26 10.1.10.64/26 ")
	})
	for _, to := range []string{"n2", "n1", "n2"} {
		from := map[string]string{"n1": "n2", "n2": "n1"}[to]
		must(t, affinities.Delete(t.Context(), affinity(from, "10.1.2.0/26").GetName(), metav1.DeleteOptions{}))
		create(to, "10.1.2.0/26")
		within(t, "the block has moved to "+to, func() bool {
			n1 := strings.HasPrefix(c2.are(), "n1: 10.1.2.0/26")
			return n1 == (to == "n1") && strings.Contains(c2.are(), "10.1.2.0/26")
		})
	}
	if c2.twice != "" {
		t.Error(c2.twice)
	}
}

// TestR12AKubeletTakesNoPodCIDR checks a kubelet that registers its Node with the pod CIDR of an older node, under a
// name that sorts first. Its own credential permits that. Neither this exporter nor the next one exports the CIDR for
// it.
func TestR12AKubeletTakesNoPodCIDR(t *testing.T) {
	api := kubetest.Start(t)
	kubelet := rest.CopyConfig(api)
	kubelet.Impersonate = rest.ImpersonationConfig{UserName: "system:node:a", Groups: []string{"system:nodes"}}
	victim := newNode(t, kubernetes.NewForConfigOrDie(api), "n", 1, "10.1.2.0/24")
	trust := trust.New(t, "c1", "c2")
	cfg := brokerOf(t, "c2\nfeatures: [encryption]")
	for _, round := range []string{"the exporter that saw it", "an exporter that starts later"} {
		c2 := &peers{allowed: map[string]string{}}
		e := start(t, api, trust, serveSink(t, trust, "c2", sink{mesh.NewEngine(cfg, c2, logged(t))}, nil),
			"features: [encryption]\nallowedIPs: nodePodCIDRs")
		within(t, "agents know the node", func() bool { return strings.Contains(c2.are(), "n: 10.1.2.0/24") })
		if round == "the exporter that saw it" {
			within(t, "a second has passed, which is as exact as the times of creation are",
				func() bool { return time.Since(victim.CreationTimestamp.Time) > time.Second })
			newNode(t, kubernetes.NewForConfigOrDie(kubelet), "a", 2, "10.1.2.0/24")
		}
		within(t, round+" names both", func() bool {
			return strings.Contains(fmt.Sprint(e.status()),
				"node a: spec.podCIDRs: 10.1.2.0/24 overlaps that of node n and is not exported")
		})
		if are := c2.are(); are != "n: 10.1.2.0/24" {
			t.Errorf("by %s, the peers are %q", round, are)
		}
		e.stop()
	}
}

// logged accepts warnings.
func logged(t *testing.T) problem.Warn {
	return func(_, _ string, reason finding.Code, note string) bool {
		t.Logf("%s: %s", reason, note)
		return true
	}
}
