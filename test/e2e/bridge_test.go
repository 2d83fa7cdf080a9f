package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// TestBridge checks that only policy needs Calico. Encryption and services work between clusters with the reference
// plugin bridge, host-local addresses and static routes.
func TestBridge(t *testing.T) {
	tier.OnlyAll(t, "TestFeatures, on Calico; TestCalico (internal/kube)")
	ctx := needsBed(t)
	s := clusters(ctx, t, testbed.Options{CNI: testbed.CNIBridge,
		Clusters: []testbed.ClusterSpec{{Name: "c1", Nodes: 2}, {Name: "c2", Nodes: 1}}})
	if out, err := s.c1.Kubectl(ctx, nil, "get", "customresourcedefinitions", "-o", "name"); err != nil || out != "" {
		t.Errorf("there is something of Calico: %q, %v", out, err)
	}
	s.in.Features, s.in.NoCalico = []string{"encryption", "services"}, true
	s.in.withOwnNames()
	must(t, s.in.Install(ctx, s.progress))
	must(t, s.applyWorkloads(ctx))
	offerByLabel(ctx, t, s)
	for _, step := range []Step{{"by name", byName}, {"encrypted", encrypted}, {"scaled", scaled}} {
		if !t.Run(step.Name, func(t *testing.T) {
			evidence, _, err := s.Run(ctx, step)
			must(t, err)
			t.Log(evidence)
		}) {
			return
		}
	}
	b := &documentsBed{Scenario: s, repo: s.in.repo, dir: t.TempDir()}
	b.state = testkit.Value(testbed.Find(s.tb.ID))(t)
	t.Run("status", func(t *testing.T) {
		must(t, until(ctx, settle, func() error {
			_, err := b.commands(ctx, "semaphorectl status --context c1 --context c2", 0)
			return err
		}))
	})
	t.Run("bundle", func(t *testing.T) {
		testkit.Value(b.commands(ctx, "semaphorectl bundle --context c1 --context c2", 0))(t)
	})
	t.Run("traffic", func(t *testing.T) {
		found := b.verifies(ctx, t, 0)
		for _, way := range []string{"c1 c2", "c2 c1"} {
			for _, name := range directed {
				want := "passed"
				if name == "policy" {
					want = "unchecked"
				}
				if c := found[way+" "+name]; c.Result != want {
					t.Errorf("%s %s: %+v", way, name, c)
				}
			}
			if c := found[way+" policy"]; !strings.Contains(c.Detail, "has no Calico") {
				t.Errorf("%+v", c)
			}
		}
	})
	// The bridge has an address from the node's podCIDR. The routes use it as their source address.
	t.Run("from the node itself", func(t *testing.T) {
		echo := testkit.Value(pods(ctx, s.c2, "shop", "app=echo"))(t)
		for _, n := range s.c1.Nodes {
			out := testkit.Value(n.Exec(ctx, "curl", "-sS", "--max-time", "3", "http://"+echo[0].Status.PodIP+":8080/"))(t)
			if !strings.Contains(out, echo[0].Name) {
				t.Errorf("%s: %s", n.Name, out)
			}
		}
	})
	t.Run("a node reboots", func(t *testing.T) { s.rebootsBridge(ctx, t) })
	t.Run("a new node", func(t *testing.T) { s.joinsBridge(ctx, t) })
	t.Run("removal", func(t *testing.T) {
		g, gctx := errgroup.WithContext(ctx)
		for _, c := range s.tb.Clusters() {
			g.Go(func() error { return s.in.remove(gctx, c) })
		}
		must(t, g.Wait())
		for _, c := range s.tb.Clusters() {
			for _, n := range c.Nodes {
				left := testkit.Value(n.Exec(ctx, "sh", "-c", "ip -o link; ip rule; nft list tables"))(t)
				if strings.Contains(left, "wireguard.") || strings.Contains(left, "lookup 7394") ||
					strings.Contains(left, "semaphore") {
					t.Errorf("%s/%s has:\n%s", c.Name, n.Name, left)
				}
			}
		}
	})
}

// rebootsBridge checks that a pod is reachable again after its node lost power, from another node of its cluster and
// from the other cluster.
func (s *Scenario) rebootsBridge(ctx context.Context, t *testing.T) {
	t.Helper()
	server := strings.Replace(workload("stays", "app: stays"), "sleep", "echo", 1)
	must(t, s.c1.ApplyYAML(ctx, strings.Replace(server, "spec:\n", "spec:\n  nodeName: n2\n", 1)+"---\n"+
		podOn("beside", "n1")))
	ready(ctx, t, s.c1, "pod/stays", "pod/beside")
	must(t, s.c1.Node("n2").Reboot(ctx))
	echo := testkit.Value(pods(ctx, s.c2, "shop", "app=echo"))(t)
	for _, from := range []struct {
		c   *testbed.Cluster
		pod string
	}{{s.c1, "beside"}, {s.c2, echo[0].Name}} {
		must(t, until(ctx, settle, func() error {
			stays, err := pod(ctx, s.c1, "shop", "app=stays")
			if err != nil {
				return err
			}
			_, err = from.c.ExecPod(ctx, "shop", from.pod, "curl", "-sS", "--max-time", "3",
				fmt.Sprintf("http://%s:8080/", stays.Status.PodIP))
			return err
		}))
	}
}

// joinsBridge checks that the pods of a node that joins c2 are reachable. No configuration names the node's podCIDR.
func (s *Scenario) joinsBridge(ctx context.Context, t *testing.T) {
	t.Helper()
	n := testkit.Value(s.c2.AddNode(ctx))(t)
	server := strings.Replace(workload("late", "app: late"), "sleep", "echo", 1)
	must(t, s.c2.ApplyYAML(ctx, strings.Replace(server, "spec:\n", "spec:\n  nodeName: "+n.Name+"\n", 1)))
	ready(ctx, t, s.c2, "pod/late")
	late := testkit.Value(pod(ctx, s.c2, "shop", "app=late"))(t)
	if ip := netip.MustParseAddr(late.Status.PodIP); !n.PodCIDR.Contains(ip) {
		t.Errorf("its pod has %s, the node %s", ip, n.PodCIDR)
	}
	client := testkit.Value(pod(ctx, s.c1, "shop", "app=client"))(t)
	must(t, until(ctx, settle, func() error {
		_, err := s.c1.ExecPod(ctx, "shop", client.Name, "curl", "-sS", "--max-time", "3",
			fmt.Sprintf("http://%s:8080/", late.Status.PodIP))
		return err
	}))
}

// offerByLabel offers echo of c2 under mirroredURL.
func offerByLabel(ctx context.Context, t *testing.T, s *Scenario) {
	t.Helper()
	testkit.Value(s.c2.Kubectl(ctx, nil, "-n", "shop", "label", "service", "echo",
		"mirror.semaphore.uw.io/mirror-service=true"))(t)
}
