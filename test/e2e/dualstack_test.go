package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// servicesOfBothFamilies is echo of c2, and a Service of three protocols for a pod in which this process answers.
var servicesOfBothFamilies = echoes{name: "echo"}.yaml() + `
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: shop, labels: {mirror.semaphore.uw.io/mirror-service: "true"}}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: echo}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {name: protocols, namespace: shop, labels: {mirror.semaphore.uw.io/mirror-service: "true"}}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: answers}
  ports:
    - {name: udp, port: 7007, protocol: UDP}
    - {name: sctp, port: 7009, protocol: SCTP}
---
`

// TestDualStack covers dual-stack clusters with host-local IPAM, and nftables if kube-proxy supports it: pods, Services
// of three protocols and nodes reach each other over both families, through tunnels.
func TestDualStack(t *testing.T) {
	ctx := needsBed(t)
	options := testbed.Options{
		IPAM: testbed.IPAMHostLocal, IPFamilies: testbed.FamiliesDual,
		Clusters: []testbed.ClusterSpec{{Name: "c1", Nodes: 2}, {Name: "c2", Nodes: 1}},
	}
	for _, m := range testbed.KubeProxyModes() {
		if m.Mode == "nftables" && m.Err == nil {
			options.KubeProxyMode = m.Mode
		}
	}
	s := clusters(ctx, t, options)
	s.in.withoutStandbys()
	must(t, s.in.Install(ctx, s.progress))
	must(t, s.c2.ApplyYAML(ctx, shopNamespace+servicesOfBothFamilies+workload("answers", "app: answers")))
	must(t, s.c1.ApplyYAML(ctx, shopNamespace+podOn("client", "n1")+"---\n"+podOn("neighbour", "n2")))
	ready(ctx, t, s.c2, "deployment/echo", "pod/answers")
	ready(ctx, t, s.c1, "pod/client", "pod/neighbour")
	ours, theirs := podOf(ctx, t, s.c1, "client"), podOf(ctx, t, s.c2, "answers")
	if len(ours.IPs) != 2 || len(theirs.IPs) != 2 {
		t.Fatalf("pods have the addresses %v and %v, not one of each family", ours.IPs, theirs.IPs)
	}
	for _, p := range []*testbed.Pod{ours, theirs} {
		udpEcho(t, p)
		sctpServer(t, p)
	}
	t.Run("within a cluster", func(t *testing.T) {
		neighbour := podOf(ctx, t, s.c1, "neighbour")
		udpEcho(t, neighbour)
		reaches(ctx, t, ours, neighbour)
		for _, p := range []*testbed.Pod{ours, neighbour, theirs} {
			blocks := testkit.Value(p.Node.PodBlocks(ctx))(t)
			if len(blocks) != 2 || blocks[0] != p.Node.PodCIDR {
				t.Errorf("the node of %s has the podCIDRs %v; the first is to be %s", p.Name, blocks, p.Node.PodCIDR)
			}
			for _, ip := range p.IPs {
				if !slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(ip) }) {
					t.Errorf("%s of pod %s is not of %v", ip, p.Name, blocks)
				}
			}
		}
	})
	wire := s.listen(t)
	t.Run("from pod to pod", func(t *testing.T) {
		reaches(ctx, t, ours, theirs)
		for _, way := range [][2]*testbed.Pod{{ours, theirs}, {theirs, ours}} {
			for _, ip := range way[1].IPs {
				must(t, until(ctx, settle, func() error { return associates(t, way[0], ip) }))
				// The payload fills the tunnel's MTU: 1500 less 80 for WireGuard, less the IPv6 and UDP headers.
				must(t, until(ctx, settle, func() error {
					return exchange(way[0].Netns, netip.AddrPortFrom(ip, udpPort), 1500-80-48)
				}))
			}
		}
	})
	t.Run("by Services", func(t *testing.T) {
		for _, ip := range s.mirrorAddresses(ctx, t, "protocols") {
			must(t, until(ctx, settle, func() error { return exchange(ours.Netns, netip.AddrPortFrom(ip, udpPort), 100) }))
			must(t, until(ctx, settle, func() error { return associates(t, ours, ip) }))
		}
		asks := &client{name: "c1/client", http: httpFrom(ours.Netns)}
		for _, ip := range s.mirrorAddresses(ctx, t, "echo") {
			must(t, until(ctx, settle, func() error {
				a, err := asks.ask(ctx, "http://"+netip.AddrPortFrom(ip, 80).String()+"/")
				if from, _ := netip.ParseAddrPort(a.Client); err == nil && !slices.Contains(ours.IPs, from.Addr()) {
					t.Errorf("%s was asked by %s, not by the pod's own %v", ip, a.Client, ours.IPs)
				}
				return err
			}))
		}
	})
	t.Run("from the nodes themselves", func(t *testing.T) { fromNodes(ctx, t, s, s.c1.Nodes, settle) })
	t.Run("policies", func(t *testing.T) { policiesOfBothFamilies(ctx, t, s, ours, theirs) })
	wire.noneClear(t, 20)
	t.Run("tunnels over IPv6", func(t *testing.T) { s.overIPv6(ctx, t, ours, theirs) })
}

// overIPv6 switches the tunnels between the nodes from IPv4 to IPv6. Pods still reach each other over both families.
func (s *Scenario) overIPv6(ctx context.Context, t *testing.T, ours, theirs *testbed.Pod) {
	s.in.TunnelsOverIPv6 = true
	for _, c := range s.tb.Clusters() {
		must(t, s.in.writeOverlay(c))
		_, err := c.Kubectl(ctx, nil, "apply", "-f", filepath.Join(s.in.overlay(c.Name), "remotes.yaml"))
		must(t, err)
	}
	// Check both directions together: WireGuard sends to the source of the last packet, so a node that still uses its
	// peer's IPv4 address moves the other end back to IPv4. Without a packet after that, the other end stays there.
	must(t, until(ctx, settle, func() error {
		if err := exchange(ours.Netns, netip.AddrPortFrom(theirs.IPs[0], udpPort), 100); err != nil {
			return err
		}
		for _, way := range [][2]*testbed.Cluster{{s.c1, s.c2}, {s.c2, s.c1}} {
			n := way[0].Nodes[0]
			peers, err := n.Exec(ctx, "wg", "show", "wireguard."+way[1].Name, "endpoints")
			if err != nil {
				return err
			}
			if want := "[" + way[1].Nodes[0].IP6.String() + "]:"; !strings.Contains(peers, want) {
				return fmt.Errorf("%s of %s does not have its peer at %s: %q", n.Name, way[0].Name, want, peers)
			}
		}
		return nil
	}))
	wire := s.listen(t)
	for range 20 {
		reaches(ctx, t, ours, theirs)
	}
	for _, way := range [][2]*testbed.Pod{{ours, theirs}, {theirs, ours}} {
		for _, ip := range way[1].IPs {
			must(t, until(ctx, settle, func() error {
				return exchange(way[0].Netns, netip.AddrPortFrom(ip, udpPort), 1500-80-48)
			}))
		}
	}
	frames := testkit.Value(payloads(wire.c))(t)
	over4, bare := s.sort(frames)
	if over6 := overIPv6(frames); over6 < 160 || over4 > 0 || bare > 0 {
		t.Errorf("%d packets of WireGuard over IPv6, %d over IPv4, %d packets between pods in the clear; want 160, 0, 0",
			over6, over4, bare)
	}
}

// clientFromWeb admits only pods of c2's set web to c1's pod client.
const clientFromWeb = `
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: client-from-web, namespace: shop}
spec:
  selector: app == 'client'
  types: [Ingress]
  ingress:
    - action: Allow
      source: {selector: semaphore.uw.systems/name == 'web', namespaceSelector: global()}
`

// policiesOfBothFamilies checks that a pod with the label of a set passes with both addresses, and without the label
// with none.
func policiesOfBothFamilies(ctx context.Context, t *testing.T, s *Scenario, ours, theirs *testbed.Pod) {
	must(t, s.c1.StartCalicoAPIServer(ctx))
	must(t, s.c1.ApplyYAML(ctx, clientFromWeb))
	passes := func(ip netip.Addr) error { return exchange(theirs.Netns, netip.AddrPortFrom(ip, udpPort), 100) }
	stopped := func(within time.Duration) {
		t.Helper()
		must(t, until(ctx, within, func() error {
			for _, ip := range ours.IPs {
				if passes(ip) == nil {
					return fmt.Errorf("a packet to %s passed", ip)
				}
			}
			return nil
		}))
	}
	stopped(settle)
	label := func(value string) {
		t.Helper()
		testkit.Value(s.c2.Kubectl(ctx, nil, "-n", "shop", "label", "pod", theirs.Name, setLabel+value))(t)
	}
	label("=web")
	for _, ip := range ours.IPs {
		must(t, until(ctx, settle, func() error { return passes(ip) }))
	}
	label("-")
	stopped(settle)
	_, err := s.c1.Kubectl(ctx, nil, "-n", "shop", "delete", "networkpolicies.projectcalico.org", "client-from-web")
	must(t, err)
	for _, ip := range ours.IPs {
		must(t, until(ctx, settle, func() error { return passes(ip) }))
	}
}

// mirrorAddresses returns the two ClusterIPs of the mirror of a c2 Service in c1.
func (s *Scenario) mirrorAddresses(ctx context.Context, t *testing.T, name string) (addresses []netip.Addr) {
	t.Helper()
	must(t, until(ctx, settle, func() error {
		all, err := s.c1.Client.CoreV1().Services(Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all.Items, func(m corev1.Service) bool { return strings.Contains(m.Name, name) })
		if i < 0 {
			return fmt.Errorf("c1 has no mirror of %s", name)
		}
		addresses = nil
		for _, text := range all.Items[i].Spec.ClusterIPs {
			ip, err := netip.ParseAddr(text)
			if err != nil {
				return err
			}
			addresses = append(addresses, ip)
		}
		return nil
	}))
	if len(addresses) != 2 {
		t.Errorf("the mirror of %s has the addresses %v, not one of each family", name, addresses)
	}
	return addresses
}
