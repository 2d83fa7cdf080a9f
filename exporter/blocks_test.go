package exporter

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	for s.engine.Queue().Turn(s.engine.Take) {
	}
}

// peers are the peers that c2's agents receive. It implements tunnels.Peers.
type peers struct {
	mu      sync.Mutex
	allowed map[string]string
}

func (p *peers) Update(_ string, c mesh.Changes, _ map[string]time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for node, peer := range c.Peers {
		if p.allowed[node] = strings.Join(peer.GetAllowedIps(), " "); peer == nil {
			delete(p.allowed, node)
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
