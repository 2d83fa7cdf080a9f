package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testbed/capture"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
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
	*documentsBed
	router *testbed.Router
	wire   *wire
	// here is a pod of c1, forwarded and calls are pods of n1 and n2 of c2.
	here, forwarded, calls *testbed.Pod
}

// rules are those of a router that translates so: what comes from outside, and what leaves. Nothing else comes in.
func rules(in, out string) string {
	return fmt.Sprintf(`table ip nat {
	chain in { type nat hook prerouting priority dstnat;
		iifname != %[1]s accept
		%[3]s
	}
	chain out { type nat hook postrouting priority srcnat;
		oifname != %[1]s accept
		%[4]s
	}
}
table ip filter {
	chain forward { type filter hook forward priority filter; policy drop;
		ct state established,related accept
		ct status dnat accept
		iifname %[2]s accept
	}
}`, testbed.RouterOutside, testbed.RouterInside, in, out)
}

// toBroker forwards the port of c2's broker.
func (b *natBed) toBroker() string {
	return fmt.Sprintf("tcp dport %d dnat to %s\n", FederationNodePort, b.c2.Nodes[0].IP)
}

// masquerade is what the router does while its address is that one.
func (b *natBed) masquerade(as netip.Addr) string {
	return rules(b.toBroker()+fmt.Sprintf("udp dport %d dnat to %s:%d", natPort, b.c2.Nodes[0].IP, natListens),
		"snat to "+as.String())
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
	testkit.Value(c.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
}

func newNATBed(ctx context.Context, t *testing.T) *natBed {
	t.Helper()
	options := testbed.Options{Clusters: []testbed.ClusterSpec{{Name: "c1", Nodes: 1}, {Name: "c2", Nodes: 2}}}
	if tier.All() {
		options.IPFamilies = testbed.FamiliesDual // for the last step
	}
	s := clusters(ctx, t, options)
	b := &natBed{documentsBed: &documentsBed{Scenario: s, repo: s.in.repo, dir: t.TempDir()}}
	b.state = testkit.Value(testbed.Find(s.tb.ID))(t)
	b.router = testkit.Value(s.tb.Route(ctx, s.c2))(t)
	must(t, b.router.Rules(ctx, b.masquerade(testbed.RouterAddress)))
	must(t, b.router.ForgetAfter(natForgets))
	b.captures(t)
	annotate(ctx, t, s.c2, "n1", naming.ReachableAtAnnotation("c1"), fmt.Sprintf("%s:%d", testbed.RouterAddress, natPort))
	annotate(ctx, t, s.c2, "n2", naming.ReachableAt, naming.Nowhere)
	s.in.withoutStandbys()
	s.in.Broker = "nodeEndpoints: [Annotation, InternalIP, ExternalIP]"
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
	must(t, s.applyWorkloads(ctx))
	offerByLabel(ctx, t, s)
	must(t, s.in.Install(ctx, s.progress))
	must(t, s.c1.ApplyYAML(ctx, podOn("here", "n1")))
	must(t, s.c2.ApplyYAML(ctx, podOn("forwarded", "n1")+"---\n"+podOn("calls", "n2")))
	ready(ctx, t, s.c1, "pod/here")
	ready(ctx, t, s.c2, "pod/forwarded", "pod/calls")
	b.here = podOf(ctx, t, s.c1, "here")
	b.forwarded, b.calls = podOf(ctx, t, s.c2, "forwarded"), podOf(ctx, t, s.c2, "calls")
	for _, p := range []*testbed.Pod{b.here, b.forwarded, b.calls} {
		udpEcho(t, p)
	}
	return b
}

// TestBehindNAT: all of c2 is behind one address. Pods reach pods both ways, Services and sets work with the pods' own
// addresses, and nothing is in the clear: not from the first packet on, not while the router forgets, and not when it
// has another address.
func TestBehindNAT(t *testing.T) {
	ctx := needsBed(t)
	b := newNATBed(ctx, t)
	for _, step := range []struct {
		name string
		run  func(context.Context, *testing.T)
		// instead is what make test has in place of a step of make test-all.
		instead string
	}{
		{"pods reach pods both ways", b.bothWays, ""},
		{"Services and sets", b.servicesAndSets, ""},
		{"the router forgets what is idle", b.idle, "the router restarts, and forgets all"},
		{"the router restarts", b.restarts, ""},
		{"the router has another address", b.moves, ""},
		{"two nodes that call", b.apart, ""},
		{"a node that is called loses its sessions", b.loses, "TestUnheardPeer (agent/paths)"},
		{"a machine behind the same router", b.neighbour, "nothing: the other steps have WireGuard's sessions"},
		{"symmetric NAT", b.symmetric, "the router restarts, and has another address"},
		{"1:1 NAT", b.oneToOne, "broker/nodes"},
		{"ExternalIPs beside InternalIPs that nothing reaches", b.external, "TestCandidatesOfANode (agent), broker/nodes"},
		{"large packets are dropped in silence", b.narrow, "TestNarrowPath (agent/paths)"},
		{"IPv6", b.overIPv6, "TestDualStack"},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			if step.instead != "" {
				tier.OnlyAll(t, step.instead)
			}
			step.run(ctx, t)
		}) {
			return
		}
	}
	b.wire.noneClear(t, 1) // on the router
}

// captures begins to capture what passes the router.
func (b *natBed) captures(t *testing.T) {
	t.Helper()
	c := testkit.Value(capture.Start(b.router.Netns, ""))(t)
	t.Cleanup(func() { _, _ = c.Stop() })
	b.wire = &wire{b.Scenario, c}
}

func (b *natBed) bothWays(ctx context.Context, t *testing.T) {
	reaches(ctx, t, b.here, b.forwarded)
	reaches(ctx, t, b.here, b.calls)
	for node, want := range map[string]string{"n1": "172.18.9.1:17775,172.18.2.11:51820", "n2": naming.Nowhere} {
		n := testkit.Value(b.c2.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}))(t)
		if got := n.Annotations[naming.CandidatesAnnotation("c1")]; got != want {
			t.Errorf("candidates of %s: %q, want %q", node, got, want)
		}
	}
}

func (b *natBed) servicesAndSets(ctx context.Context, t *testing.T) {
	for _, step := range []func(context.Context, *Scenario) (string, error){byName, admitted} {
		evidence := testkit.Value(step(ctx, b.Scenario))(t)
		t.Log(evidence)
	}
}

// reachableAt sets where both nodes of c2 are reached, empty for the addresses of their status, and waits until that is
// published.
func (b *natBed) reachableAt(ctx context.Context, t *testing.T, at, published [2]string) {
	t.Helper()
	annotate(ctx, t, b.c2, "n1", naming.ReachableAtAnnotation("c1"), "")
	for i, node := range b.c2.Nodes {
		annotate(ctx, t, b.c2, node.Name, naming.ReachableAt, at[i])
		must(t, until(ctx, settle, func() error {
			n, err := b.c2.Client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
			if got := n.Annotations[naming.CandidatesAnnotation("c1")]; err == nil && got != published[i] {
				err = fmt.Errorf("candidates of %s: %q, want %q", node.Name, got, published[i])
			}
			return err
		}))
	}
}

// sessions waits until a node's peers are where they are to be, by what "wg show" says of them.
func sessions(ctx context.Context, t *testing.T, n *testbed.Node, device string, fits func(peers string) bool) {
	t.Helper()
	must(t, until(ctx, settle, func() error {
		peers, err := n.Exec(ctx, "wg", "show", device, "endpoints")
		if err == nil && !fits(peers) {
			err = fmt.Errorf("peers of %s: %s", n.Name, peers)
		}
		return err
	}))
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
	b.says(ctx, t, "calls")
	annotate(ctx, t, b.c1, "n1", naming.ReachableAt, "")
	began := time.Now()
	must(t, until(ctx, settle, func() error {
		// WireGuard starts a new session 15 s after data that nothing answered.
		if err := exchange(b.calls.Netns, addrPort(b.here), 100); err != nil {
			return err
		}
		return exchange(b.here.Netns, addrPort(b.calls), 100)
	}))
	t.Logf("traffic flows %s after it is reached again", time.Since(began).Round(100*time.Millisecond))
	b.says(ctx, t)
}

// says waits until status, check --pre and explain name the node of c1 and those of these pods of c2 as a pair of which
// none reaches the other, and no other pair. The path to all other pods works.
func (b *natBed) says(ctx context.Context, t *testing.T, apart ...string) {
	t.Helper()
	const says = "both have no address at which the other could reach it"
	nodes, began := map[string]string{"forwarded": "n1", "calls": "n2"}, time.Now()
	must(t, until(ctx, settle, func() error {
		// Its exit code reports the problem, so the error has the text.
		_, err := b.ctl(ctx, b.c1, "broker", "status")
		status := fmt.Sprint(err)
		checked := testkit.Value(b.commands(ctx, "semaphorectl check --pre --context c1,c2", 0, 1, 2))(t)
		for pod, node := range nodes {
			is := slices.Contains(apart, pod)
			if strings.Contains(status, "node c2/"+node+" and this cluster's node n1 "+says) != is {
				return fmt.Errorf("apart from %s: %t, and the status of the broker says: %s", node, is, status)
			}
			out, err := b.commands(ctx, "semaphorectl explain -o json --context c1,c2 c1/shop/here c2/shop/"+pod, 0, 2)
			must(t, err)
			var e explained
			must(t, json.Unmarshal([]byte(out[:strings.LastIndex(out, "}")+1]), &e))
			if e.Reaches == is || strings.Contains(e.Verdict, says) != is || is && !strings.Contains(e.Verdict,
				"node n1 of c1 and node "+node+" of c2 "+says) && !strings.Contains(e.Verdict, "n1 has not heard node "+node) {
				return fmt.Errorf("apart from %s: %t, and explain says: %s", node, is, e.Verdict)
			}
		}
		if strings.Contains(checked, "n1 of c1 and ") != (len(apart) > 0) {
			return fmt.Errorf("apart from %v, and check --pre says: %s", apart, checked)
		}
		return nil
	}))
	t.Logf("status, check --pre and explain name %d pairs after %s", len(apart), time.Since(began).Round(time.Second))
}

// loses: the node of c1 loses its sessions, as in a reboot, and nobody sends anything. n2 of c2, which alone can begin
// another, has one again after a keepalive, two looks of its agent, the 15 s of WireGuard and the time in which the
// device is made again.
func (b *natBed) loses(ctx context.Context, t *testing.T) {
	n1, n2 := b.c1.Nodes[0], b.c2.Nodes[1]
	_, err := n2.Exec(ctx, "ip", "link", "delete", "wireguard.c1") // WireGuard replaces a session after two minutes
	must(t, err)
	must(t, until(ctx, settle, func() error { return exchange(b.calls.Netns, addrPort(b.here), 100) }))
	key := testkit.Value(n2.Exec(ctx, "wg", "show", "wireguard.c1", "public-key"))(t)
	testkit.Value(n1.Exec(ctx, "ip", "link", "delete", "wireguard.c2"))(t)
	lost := time.Now()
	must(t, until(ctx, natKeepalive+10*time.Second+16*time.Second+20*time.Second, func() error {
		all, err := n1.Exec(ctx, "wg", "show", "wireguard.c2", "latest-handshakes")
		for _, line := range strings.Split(all, "\n") {
			if of, at, ok := strings.Cut(line, "\t"); ok && of == strings.TrimSpace(key) && at != "0" {
				return nil
			}
		}
		return fmt.Errorf("n2 has no session with it: %q, %w", all, err)
	}))
	t.Logf("n2 has a session again after %s without a packet of a pod", time.Since(lost).Round(100*time.Millisecond))
}

// sends makes all pods send to each other until stop, so that the capture sees what leaves in the clear.
func (b *natBed) sends(t *testing.T) (stop func()) {
	t.Helper()
	var all sync.WaitGroup
	done := make(chan struct{})
	for _, pair := range [][2]*testbed.Pod{{b.here, b.forwarded}, {b.here, b.calls}, {b.forwarded, b.here},
		{b.calls, b.here}} {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					_ = exchange(pair[0].Netns, addrPort(pair[1]), 100) // a second without an answer
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		close(done)
		all.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// neighbour: a machine with the same public address as a node that calls repeats what that node has sent, from a port
// of its own. No packet moves the node's session there, or ends it.
func (b *natBed) neighbour(ctx context.Context, t *testing.T) {
	attacker, err := b.router.Neighbour(ctx)
	must(t, err)
	seen := testkit.Value(capture.Start(b.router.Netns, testbed.RouterInside))(t)
	n2 := b.c2.Nodes[1]
	_, err = n2.Exec(ctx, "ip", "link", "delete", "wireguard.c1") // so that it begins a handshake
	must(t, err)
	must(t, until(ctx, settle, func() error { return exchange(b.calls.Netns, addrPort(b.here), 100) }))
	must(t, exchange(b.here.Netns, addrPort(b.calls), 100))
	frames := testkit.Value(payloads(seen))(t)
	endpoints := func() string {
		return testkit.Value(b.c1.Nodes[0].Exec(ctx, "wg", "show", "wireguard.c2", "endpoints"))(t)
	}
	before, repeated := endpoints(), map[byte]int{}
	var socket net.PacketConn
	inside(t, attacker, func() (err error) {
		socket, err = net.ListenPacket("udp4", ":0")
		return err
	})
	defer socket.Close()
	for range 3 {
		for _, f := range frames {
			source, to, protocol, ok := addressesOf(f)
			if !ok || source != n2.IP || to != b.c1.Nodes[0].IP || protocol != unix.IPPROTO_UDP {
				continue
			}
			const ethernet, ipv4, udp = 14, 20, 8
			header := f[ethernet+ipv4:]
			port := int(binary.BigEndian.Uint16(header[2:]))
			testkit.Value(socket.WriteTo(header[udp:], &net.UDPAddr{IP: to.AsSlice(), Port: port}))(t)
			repeated[header[udp]]++
		}
		must(t, exchange(b.here.Netns, addrPort(b.calls), 100))
	}
	const initiation, data = 1, 4
	if repeated[initiation] == 0 || repeated[data] == 0 {
		t.Errorf("by type of message, %v were repeated", repeated)
	}
	if after := endpoints(); after != before {
		t.Errorf("the peers are at\n%s\nand were at\n%s", after, before)
	}
}

// symmetric: the router sends each flow with another port, and forwards none, so both nodes call.
func (b *natBed) symmetric(ctx context.Context, t *testing.T) {
	b.reachableAt(ctx, t, [2]string{naming.Nowhere, naming.Nowhere}, [2]string{naming.Nowhere, naming.Nowhere})
	must(t, b.router.Rules(ctx, rules(b.toBroker(), fmt.Sprintf(
		"meta l4proto udp snat to %[1]s:20000-29999 fully-random\nsnat to %[1]s", testbed.RouterAddress))))
	must(t, b.router.Forget(ctx))
	b.within(ctx, t, "each flow has a port of its own", natKeepalive+time.Second)
	peers := testkit.Value(b.c1.Nodes[0].Exec(ctx, "wg", "show", "wireguard.c2", "endpoints"))(t)
	if at := testbed.RouterAddress.String() + ":2"; strings.Count(peers, at) != 2 {
		t.Errorf("not both peers are at %s…: %s", at, peers)
	}
	b.restarts(ctx, t)
	annotate(ctx, t, b.c1, "n1", naming.ReachableAt, naming.Nowhere)
	b.says(ctx, t, "forwarded", "calls")
	annotate(ctx, t, b.c1, "n1", naming.ReachableAt, "")
	b.within(ctx, t, "the node of c1 is reached again", settle)
	b.says(ctx, t)
}

// translated are the rules for an address of the router for each node.
func (b *natBed) translated() string {
	one, two := b.c2.Nodes[0].IP, b.c2.Nodes[1].IP
	at, other := testbed.RouterAddress, testbed.AnotherRouterAddress
	return rules(fmt.Sprintf("ip daddr %s dnat to %s\nip daddr %s dnat to %s", at, one, other, two),
		fmt.Sprintf("ip saddr %s snat to %s\nsnat to %s", two, other, at))
}

// oneToOne: each node has an address of the router, where it is reached without having called.
func (b *natBed) oneToOne(ctx context.Context, t *testing.T) {
	at, other := testbed.RouterAddress, testbed.AnotherRouterAddress
	stop := b.sends(t)
	must(t, b.router.Rules(ctx, b.translated()))
	must(t, b.router.Forget(ctx))
	b.reachableAt(ctx, t, [2]string{at.String(), other.String()}, [2]string{
		fmt.Sprintf("%s:%d,%s:%[2]d", at, natListens, b.c2.Nodes[0].IP),
		fmt.Sprintf("%s:%d,%s:%[2]d", other, natListens, b.c2.Nodes[1].IP)})
	b.atBoth(ctx, t)
	must(t, until(ctx, settle, func() error {
		keepalives, err := b.c2.Nodes[1].Exec(ctx, "wg", "show", "wireguard.c1", "persistent-keepalive")
		if err == nil && !strings.Contains(keepalives, "off") {
			err = fmt.Errorf("a node that is reached sends keepalives: %s", keepalives)
		}
		return err
	}))
	stop()
	must(t, b.router.Forget(ctx))
	must(t, exchange(b.here.Netns, addrPort(b.calls), 100)) // it was not called first
	b.says(ctx, t)
}

// atBoth waits until c1 sends to an address of the router for each node.
func (b *natBed) atBoth(ctx context.Context, t *testing.T) {
	t.Helper()
	sessions(ctx, t, b.c1.Nodes[0], "wireguard.c2", func(peers string) bool {
		return strings.Contains(peers, fmt.Sprintf("%s:%d", testbed.RouterAddress, natListens)) &&
			strings.Contains(peers, fmt.Sprintf("%s:%d", testbed.AnotherRouterAddress, natListens))
	})
}

// narrow: the router drops packets of more than 1,400 bytes, and says so to nobody. Both ends find it out.
func (b *natBed) narrow(ctx context.Context, t *testing.T) {
	const carries = 1400
	must(t, b.router.Rules(ctx, b.translated()+fmt.Sprintf(`
table ip narrow {
	chain large { type filter hook forward priority raw; meta l4proto udp meta length > %d drop; }
}`, carries)))
	for _, c := range b.tb.Clusters() { // agents that start measure at once
		testkit.Value(c.Kubectl(ctx, nil, "-n", Namespace, "delete", "pods", "-l", "app.kubernetes.io/component=agent"))(t)
	}
	for _, end := range []struct {
		n      *testbed.Node
		device string
	}{{b.c1.Nodes[0], "wireguard.c2"}, {b.c2.Nodes[0], "wireguard.c1"}, {b.c2.Nodes[1], "wireguard.c1"}} {
		must(t, until(ctx, settle, func() error {
			for _, to := range []*testbed.Pod{b.forwarded, b.calls} { // only paths with a session are measured
				if err := exchange(b.here.Netns, addrPort(to), 100); err != nil {
					return err
				}
			}
			link, err := end.n.Exec(ctx, "ip", "link", "show", end.device)
			if want := fmt.Sprintf(" mtu %d ", carries-60); err == nil && !strings.Contains(link, want) {
				err = fmt.Errorf("%s of %s has not%s: %s", end.device, end.n.Name, want, link)
			}
			return err
		}))
	}
	for _, to := range []*testbed.Pod{b.forwarded, b.calls} {
		must(t, until(ctx, settle, func() error { return exchange(b.here.Netns, addrPort(to), carries) }))
	}
}

// external: both nodes have an ExternalIP, and nothing answers at their InternalIPs, which come first.
func (b *natBed) external(ctx context.Context, t *testing.T) {
	one, two := b.c2.Nodes[0].IP, b.c2.Nodes[1].IP
	b.sends(t)
	// The kubelet puts its own list in place ten seconds after a change: the apiserver adds the address again.
	must(t, b.c2.ApplyYAML(ctx, fmt.Sprintf(externalIPs, testbed.RouterAddress, testbed.AnotherRouterAddress)))
	for i, at := range []netip.Addr{testbed.RouterAddress, testbed.AnotherRouterAddress} {
		testkit.Value(b.c2.Kubectl(ctx, nil, "patch", "node", b.c2.Nodes[i].Name, "--subresource=status", "--type=json", "-p",
			fmt.Sprintf(`[{"op":"add","path":"/status/addresses/-","value":{"type":"ExternalIP","address":%q}}]`, at)))(t)
	}
	testkit.Value(b.c1.Kubectl(ctx, nil, "patch", "remotecluster", "c2", "--type=merge", "-p",
		fmt.Sprintf(`{"spec":{"nodeSubnets":[%q,%q]}}`, testbed.RouterSubnet, b.c2.NodeSubnet)))(t)
	b.reachableAt(ctx, t, [2]string{}, [2]string{
		fmt.Sprintf("%s:%d,%s:%[2]d", one, natListens, testbed.RouterAddress),
		fmt.Sprintf("%s:%d,%s:%[2]d", two, natListens, testbed.AnotherRouterAddress)})
	// A session that works would be left as it is.
	testkit.Value(b.c1.Kubectl(ctx, nil, "-n", Namespace, "delete", "pods", "-l", "app.kubernetes.io/component=agent"))(t)
	b.within(ctx, t, "an agent begins with the InternalIPs", settle)
	b.atBoth(ctx, t)
	b.says(ctx, t)
}

// externalIPs is a policy by which the nodes n1 and n2 have these addresses, too.
const externalIPs = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: external-ips}
spec:
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [nodes/status]}]
  matchConditions:
    - {name: none, expression: '!object.status.addresses.exists(a, a.type == "ExternalIP")'}
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: >-
          [JSONPatch{op: "add", path: "/status/addresses/-", value: Object.status.addresses{
          type: "ExternalIP", address: object.metadata.name == "n1" ? "%s" : "%s"}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: external-ips}
spec: {policyName: external-ips}
`

// overIPv6: IPv6 is public, and nothing comes in by IPv4 but to the broker. The tunnels are IPv6, and carry both.
func (b *natBed) overIPv6(ctx context.Context, t *testing.T) {
	must(t, b.router.Rules(ctx, rules(b.toBroker(), "snat to "+testbed.RouterAddress.String())))
	must(t, b.router.Forget(ctx))
	b.in.TunnelsOverIPv6, b.in.NodeSubnets = true, func(of *testbed.Cluster) string { return nodeSubnet6(of).String() }
	for _, c := range b.tb.Clusters() {
		must(t, b.in.Apply(ctx, c))
		must(t, b.in.WaitReady(ctx, c))
	}
	for _, end := range []struct {
		n      *testbed.Node
		device string
		peers  []*testbed.Node
	}{{b.c1.Nodes[0], "wireguard.c2", b.c2.Nodes}, {b.c2.Nodes[0], "wireguard.c1", b.c1.Nodes}} {
		sessions(ctx, t, end.n, end.device, func(peers string) bool {
			return !slices.ContainsFunc(end.peers, func(n *testbed.Node) bool {
				return !strings.Contains(peers, "["+n.IP6.String()+"]:")
			})
		})
	}
	reaches(ctx, t, b.here, b.forwarded)
	reaches(ctx, t, b.here, b.calls)
	b.says(ctx, t)
}
