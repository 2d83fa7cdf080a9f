package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testbed/capture"
)

const (
	// natKeepalive is the keepalive of a node that calls: what a NAT has forgotten works again after it.
	natKeepalive = 25 * time.Second
	// natForgets is after how many seconds without a packet the router forgets a connection.
	natForgets = 30
	// natPort is the port of the router that leads to n1 of c2, and natListens the one of c2's devices to c1.
	natPort, natListens = 17775, 51820
)

// natBed is c2 behind a router that has one address for all of its nodes. n1 is reached by a forwarded port, n2 by
// nothing.
type natBed struct {
	*Scenario
	router *testbed.Router
	wire   *wire
	// here is a pod of c1, forwarded and calls are pods of n1 and n2 of c2.
	here, forwarded, calls *testbed.Pod
}

// masquerade is what the router does while its address is that one.
func (b *natBed) masquerade(as netip.Addr) string {
	to := b.c2.Nodes[0].IP
	return fmt.Sprintf(`table ip nat {
	chain in { type nat hook prerouting priority dstnat;
		iifname %[1]s udp dport %[5]d dnat to %[3]s:%[6]d
		iifname %[1]s tcp dport %[7]d dnat to %[3]s
	}
	chain out { type nat hook postrouting priority srcnat; oifname %[1]s snat to %[4]s; }
}
table ip filter {
	chain forward { type filter hook forward priority filter; policy drop;
		ct state established,related accept
		ct status dnat accept
		iifname %[2]s accept
	}
}`, testbed.RouterOutside, testbed.RouterInside, to, as, natPort, natListens, FederationNodePort)
}

// annotate sets an annotation of a node; an empty value removes it.
func annotate(ctx context.Context, t *testing.T, c *testbed.Cluster, node, key, value string) {
	t.Helper()
	var to any = value
	if value == "" {
		to = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: to}}})
	must(t, err)
	_, err = c.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
}

// TestBehindNAT: all of c2 is behind one address. Pods reach pods both ways, Services and sets work with the pods' own
// addresses, and nothing is in the clear: not from the first packet on, not while the router forgets, and not when it
// has another address.
func TestBehindNAT(t *testing.T) {
	ctx := needsBed(t)
	s := clusters(ctx, t, testbed.Options{Clusters: []testbed.ClusterSpec{{Name: "c1", Nodes: 1}, {Name: "c2", Nodes: 2}}})
	b := &natBed{Scenario: s}
	var err error
	b.router, err = s.tb.Route(ctx, s.c2)
	must(t, err)
	must(t, b.router.Rules(ctx, b.masquerade(testbed.RouterAddress)))
	must(t, b.router.ForgetAfter(natForgets))
	b.captures(t)
	annotate(ctx, t, s.c2, "n1", naming.ReachableAtAnnotation("c1"), fmt.Sprintf("%s:%d", testbed.RouterAddress, natPort))
	annotate(ctx, t, s.c2, "n2", naming.ReachableAt, naming.Nowhere)
	s.in.Broker = "nodeEndpoints: [Annotation, InternalIP]"
	s.in.BrokerAddress = func(_, to *testbed.Cluster) string {
		if to == s.c2 {
			return fmt.Sprintf("%s:%d", testbed.RouterAddress, FederationNodePort)
		}
		return fmt.Sprintf("%s:%d", to.Nodes[0].IP, FederationNodePort)
	}
	s.in.NodeSubnets = func(of *testbed.Cluster) string {
		if of == s.c2 {
			return testbed.RouterSubnet.String()
		}
		return ""
	}
	must(t, s.Prepare(ctx))
	must(t, s.c1.ApplyYAML(ctx, podOn("here", "n1")))
	must(t, s.c2.ApplyYAML(ctx, podOn("forwarded", "n1")+"---\n"+podOn("calls", "n2")))
	ready(ctx, t, s.c1, "pod/here")
	ready(ctx, t, s.c2, "pod/forwarded", "pod/calls")
	b.here = podOf(ctx, t, s.c1, "here")
	b.forwarded, b.calls = podOf(ctx, t, s.c2, "forwarded"), podOf(ctx, t, s.c2, "calls")
	for _, p := range []*testbed.Pod{b.here, b.forwarded, b.calls} {
		udpEcho(t, p)
	}
	for _, step := range []struct {
		name string
		run  func(context.Context, *testing.T)
	}{
		{"pods reach pods both ways", b.bothWays},
		{"Services and sets", b.servicesAndSets},
		{"the router forgets what is idle", b.idle},
		{"the router restarts", b.restarts},
		{"the router has another address", b.moves},
		{"two nodes that call", b.apart},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(ctx, t) }) {
			return
		}
	}
	encrypted, clear := b.wire.stop(t)
	if len(clear) > 0 || encrypted == 0 {
		t.Errorf("on the router: %d packets in the clear, the first %s; %d encrypted ones", len(clear),
			clear[:min(1, len(clear))], encrypted)
	}
}

// captures begins to capture what passes the router.
func (b *natBed) captures(t *testing.T) {
	t.Helper()
	c, err := capture.Start(b.router.Netns, "")
	must(t, err)
	t.Cleanup(func() { _, _ = c.Stop() })
	b.wire = &wire{b.Scenario, c}
}

func (b *natBed) bothWays(ctx context.Context, t *testing.T) {
	reaches(ctx, t, b.here, b.forwarded)
	reaches(ctx, t, b.here, b.calls)
	for node, want := range map[string]string{"n1": "172.18.9.1:17775,172.18.2.11:51820", "n2": naming.Nowhere} {
		n, err := b.c2.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		must(t, err)
		if got := n.Annotations[naming.CandidatesAnnotation("c1")]; got != want {
			t.Errorf("candidates of %s: %q, want %q", node, got, want)
		}
	}
}

func (b *natBed) servicesAndSets(ctx context.Context, t *testing.T) {
	for _, step := range []func(context.Context, *Scenario) (string, error){byName, admitted} {
		evidence, err := step(ctx, b.Scenario)
		must(t, err)
		t.Log(evidence)
	}
}

// within fails the test unless the pod of c1 reaches that of the node that calls within a time.
func (b *natBed) within(ctx context.Context, t *testing.T, after string, bound time.Duration) {
	t.Helper()
	began := time.Now()
	must(t, until(ctx, bound, func() error { return exchange(b.here.Netns, addrPort(b.calls), 100) }))
	t.Logf("%s: traffic to the node that calls flows after %s", after, time.Since(began).Round(100*time.Millisecond))
	must(t, until(ctx, bound, func() error { return exchange(b.calls.Netns, addrPort(b.here), 100) }))
	must(t, until(ctx, bound, func() error { return exchange(b.here.Netns, addrPort(b.forwarded), 100) }))
}

// idle waits until the router would have forgotten the connection of a node without a keepalive.
func (b *natBed) idle(ctx context.Context, t *testing.T) {
	select {
	case <-ctx.Done():
	case <-time.After((natForgets + 5) * time.Second):
	}
	must(t, exchange(b.here.Netns, addrPort(b.calls), 100))
}

func (b *natBed) restarts(ctx context.Context, t *testing.T) {
	must(t, b.router.Forget(ctx))
	b.within(ctx, t, "the router forgot all connections", natKeepalive+time.Second)
}

func (b *natBed) moves(ctx context.Context, t *testing.T) {
	must(t, b.router.Rules(ctx, b.masquerade(testbed.AnotherRouterAddress)))
	must(t, b.router.Forget(ctx))
	b.within(ctx, t, "the router has another address", natKeepalive+time.Second)
}

// apart: no tunnel leads from the node of c1 to n2 of c2 once nothing reaches either. It is said, and ends.
func (b *natBed) apart(ctx context.Context, t *testing.T) {
	annotate(ctx, t, b.c1, "n1", naming.ReachableAt, naming.Nowhere)
	const says = "both have no address at which the other could reach it"
	began := time.Now()
	must(t, until(ctx, settle, func() error {
		// Its exit code reports the problem, so the error has the text.
		if _, err := b.ctl(ctx, b.c1, "broker", "status"); err == nil || !strings.Contains(err.Error(), "c2/n2") ||
			!strings.Contains(err.Error(), says) {
			return fmt.Errorf("the status of the broker does not say it: %v", err)
		}
		return nil
	}))
	t.Logf("the status of the broker says it after %s", time.Since(began).Round(100*time.Millisecond))
	annotate(ctx, t, b.c1, "n1", naming.ReachableAt, "")
	began = time.Now()
	must(t, until(ctx, settle, func() error {
		if _, err := b.ctl(ctx, b.c1, "broker", "status"); err != nil && strings.Contains(err.Error(), says) {
			return fmt.Errorf("the status of the broker still says it: %w", err)
		}
		// WireGuard starts a new session 15 s after data that nothing answered; after keepalives alone, after two minutes.
		if err := exchange(b.calls.Netns, addrPort(b.here), 100); err != nil {
			return err
		}
		return exchange(b.here.Netns, addrPort(b.calls), 100)
	}))
	t.Logf("traffic flows %s after it is reached again", time.Since(began).Round(100*time.Millisecond))
}
