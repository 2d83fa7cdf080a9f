package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

const (
	// agentLabel lets a test say when a node's agent starts.
	agentLabel = "agent-wanted"
	// apart is the time between the start of two agents. BIRD distributes routes to the whole mesh meanwhile.
	apart = 5 * time.Second
	// taintKey is the taint with which a node registers, so that no pods run before its agent.
	taintKey = "semaphore.uw.io/agent-not-ready"
)

// nodesBed is cluster c1 with two nodes, joined later by a third, and c2 with one. The nodes announce their pod blocks
// to each other by BGP, also between the clusters. So the network forwards clear packets between pods, and only
// semaphore can stop them.
type nodesBed struct {
	*documentsBed
	remote *testbed.Pod // in c2
}

// TestNodes covers nodes with Calico's IPAM and BGP: enabling encryption under traffic, nodes that join and reboot, and
// reachability.
func TestNodes(t *testing.T) {
	ctx := needsBed(t)
	s := clusters(ctx, t, testbed.Options{Clusters: []testbed.ClusterSpec{{Name: "c1", Nodes: 2}, {Name: "c2", Nodes: 1}}})
	s.in.withoutStandbys()
	s.in.Features = []string{"services", "policy"}
	s.in.AgentNodes = agentLabel
	state := testkit.Value(testbed.Find(s.tb.ID))(t)
	b := &nodesBed{documentsBed: &documentsBed{Scenario: s, state: state, repo: s.in.repo, dir: s.in.dir}}
	b.peerByBGP(ctx, t)
	must(t, s.in.Install(ctx, s.progress))
	must(t, b.c2.ApplyYAML(ctx, shopNamespace+offeredEcho))
	must(t, b.c2.ApplyYAML(ctx, podOn("client", "n1")))
	must(t, b.c1.ApplyYAML(ctx, shopNamespace+podOn("one", "n1")+"---\n"+podOn("two", "n2")))
	ready(ctx, t, b.c2, "deployment/echo", "pod/client")
	ready(ctx, t, b.c1, "pod/one", "pod/two")
	b.remote = podOf(ctx, t, b.c2, "client")
	udpEcho(t, b.remote)
	for _, step := range []struct {
		name string
		run  func(context.Context, *testing.T)
		// instead is what make test has in place of the step; it has the steps without.
		instead string
	}{
		{"turning encryption on", b.turnOn, ""},
		// This step restarts the broker. The devices of nodes get addresses two minutes later, which "from the nodes
		// themselves" needs. The steps in between take that long.
		{"network policies", func(ctx context.Context, t *testing.T) { networkPolicies(ctx, t, b.Scenario, b.remote) },
			"TestFeatures: policies by set"},
		{"a node joins", b.join, ""},
		{"a node reboots", b.reboot, ""},
		{"several blocks", b.blocks, "agent/plan and broker/mesh: prefixes of peers"},
		{"an address inside a remote's subnet", b.addressInside, "agent TestAddressInsideARemotesSubnet"},
		{"a new key waits for the remote", b.rotationWaits, "agent TestRotationWaitsForTheRemote"},
		{"from the nodes themselves", b.fromNodes, "the step in which a node joins, for one node"},
		{"turning encryption off", b.turnOff, "agent: cleanup and modes"},
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
}

// podOn returns a pod that is bound to a node.
func podOn(name, node string, annotations ...string) string {
	return strings.Replace(workload(name, "app: "+name, annotations...), "spec:\n", "spec:\n  nodeName: "+node+"\n", 1)
}

// peerByBGP makes the nodes of each cluster announce their blocks to the nodes of the other, as through a common
// router.
func (b *nodesBed) peerByBGP(ctx context.Context, t *testing.T) {
	t.Helper()
	peer := func(name, ip string) string {
		return fmt.Sprintf("apiVersion: crd.projectcalico.org/v1\nkind: BGPPeer\nmetadata: {name: %s}\n"+
			"spec: {peerIP: %s, asNumber: 64512}\n---\n", name, ip)
	}
	must(t, b.c1.ApplyYAML(ctx, peer("c2-n1", "172.18.2.11")))
	must(t, b.c2.ApplyYAML(ctx, peer("c1-n1", "172.18.1.11")+peer("c1-n2", "172.18.1.12")+peer("c1-n3", "172.18.1.13")))
}

// wantAgent sets whether a node should have an agent.
func (b *nodesBed) wantAgent(ctx context.Context, t *testing.T, c *testbed.Cluster, node string, want bool) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"%t"}}}`, agentLabel, want)
	_, err := c.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// agent waits until a node has a ready agent, or none.
func (b *nodesBed) agent(ctx context.Context, t *testing.T, c *testbed.Cluster, node string, want bool) {
	t.Helper()
	must(t, until(ctx, settle, func() error {
		list, err := c.Client.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/component=agent", FieldSelector: "spec.nodeName=" + node,
		})
		if err != nil {
			return err
		}
		n := 0
		for _, p := range list.Items {
			for _, condition := range p.Status.Conditions {
				if want && condition.Type == corev1.PodReady && condition.Status != corev1.ConditionTrue {
					return fmt.Errorf("agent %s is not ready: %s", p.Name, condition.Message)
				}
			}
			n++
		}
		if want != (n == 1) {
			return fmt.Errorf("%s of %s has %d agents", node, c.Name, n)
		}
		return nil
	}))
}

func pause(ctx context.Context, t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
}

// The steps of docs/turning-on-encryption.md describe these configuration changes in words.
func init() {
	encryption := func(mode string) func(context.Context, *testing.T, *documentsBed, *testbed.Cluster) {
		return func(_ context.Context, t *testing.T, b *documentsBed, c *testbed.Cluster) {
			t.Helper()
			b.in.Features, b.in.Encryption = nil, mode
			b.in.Broker, b.in.Components = "reserveTunnelAddresses: true", []string{"tunnel-addresses"}
			must(t, b.in.writeOverlay(c))
		}
	}
	changes["encryption: permissive"] = encryption("permissive")
	changes["encryption: strict"] = encryption("strict")
	changes["encryption: permissive again"] = encryption("permissive")
	changes["encryption: clear"] = encryption("clear")
}

// turnOn follows docs/turning-on-encryption.md step by step, while requests and packets go both ways.
func (b *nodesBed) turnOn(ctx context.Context, t *testing.T) {
	one, two := podOf(ctx, t, b.c1, "one"), podOf(ctx, t, b.c1, "two")
	for _, p := range []*testbed.Pod{one, two} {
		udpEcho(t, p)
		reaches(ctx, t, p, b.remote)
	}
	asks := newClient(ctx, t, b.c1, "two")
	must(t, until(ctx, settle, func() error {
		_, err := asks.ask(ctx, "http://"+echoInC2+"/")
		return err
	}))
	before := b.listen(t)
	requests := asks.load(ctx, t, "http://"+echoInC2+"/")
	all := []*pings{startPings(t, one, b.remote), startPings(t, two, b.remote), startPings(t, b.remote, one),
		startPings(t, b.remote, two)}
	pause(ctx, t, time.Second)
	if _, clear := before.stop(t); len(clear) == 0 {
		t.Fatal("no packet is in the clear before there is encryption: nothing is to be seen here")
	}

	run := func(change string) {
		t.Helper()
		for _, c := range b.tb.Clusters() {
			b.runAfter(ctx, t, c, "docs/turning-on-encryption.md", change)
		}
	}
	run("encryption: permissive")
	// Agents start one after the other, with seconds between them.
	for _, n := range []struct {
		c    *testbed.Cluster
		node string
	}{{b.c2, "n1"}, {b.c1, "n1"}, {b.c1, "n2"}} {
		b.wantAgent(ctx, t, n.c, n.node, true)
		b.agent(ctx, t, n.c, n.node, true)
		pause(ctx, t, apart)
	}
	for _, c := range b.tb.Clusters() {
		must(t, until(ctx, delivered, func() error { return b.nobodyWaits(ctx, c) }))
	}
	// All traffic uses the tunnels now. The counters of clear packets and a capture confirm it.
	passed := b.clearPassed(ctx, t)
	for _, direction := range []string{"out", "in"} {
		for _, device := range []string{"wireguard.c1", "wireguard.c2"} {
			if passed[device+" "+direction] == 0 {
				t.Errorf("nothing is counted that passed in the clear %s at %s, where clear traffic was: %v", direction,
					device, passed)
			}
		}
	}
	quiet := b.listen(t)
	pause(ctx, t, apart)
	encrypted, clear := quiet.stop(t)
	if len(clear) > 0 || encrypted < 100 {
		t.Errorf("%d packets are in the clear between nodes that do not wait, the first %q; %d of WireGuard", len(clear),
			clear[:min(3, len(clear))], encrypted)
	}
	for what, now := range b.clearPassed(ctx, t) {
		if now != passed[what] {
			t.Errorf("%s: %d packets passed in the clear in %s, want 0", what, now-passed[what], apart)
		}
	}
	run("encryption: strict")
	for _, c := range b.tb.Clusters() {
		must(t, until(ctx, settle, func() error { return b.strict(ctx, c) }))
	}
	pause(ctx, t, time.Second)
	for _, p := range all {
		p.noneLost(t)
		p.end()
	}
	t.Log(requests.stop())
	if failed := requests.failures(); len(failed) > 0 {
		t.Errorf("%d requests failed, want 0", len(failed))
	}
}

// runAfter runs the commands of a document that follow a change, for one cluster, until the next change.
func (b *nodesBed) runAfter(ctx context.Context, t *testing.T, c *testbed.Cluster, file, change string) {
	t.Helper()
	found, ran := false, b.ran
	for _, one := range readBlocks(t, b.repo, file) {
		if found = found && one.word != "after" || one.word == "after" && one.rest == change; found {
			b.block(ctx, t, c, one)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	if b.ran == ran {
		t.Fatalf("%s has no commands after %q", file, change)
	}
}

// turnOff follows the reverse of docs/turning-on-encryption.md, step by step and cluster by cluster, while requests and
// packets go both ways. In the end nothing of encryption is left in the clusters.
func (b *nodesBed) turnOff(ctx context.Context, t *testing.T) {
	must(t, os.CopyFS(filepath.Join(b.dir, "deploy"), os.DirFS(filepath.Join(b.repo, "deploy"))))
	ours := []*testbed.Pod{podOf(ctx, t, b.c1, "one"), podOf(ctx, t, b.c1, "two")}
	var all []*pings
	for _, p := range ours {
		udpEcho(t, p) // the one of turnOn has ended
		all = append(all, startPings(t, p, b.remote), startPings(t, b.remote, p))
	}
	asks := newClient(ctx, t, b.c1, "two")
	requests := asks.load(ctx, t, "http://"+echoInC2+"/")
	none := func(when string) {
		t.Helper()
		for _, p := range all {
			p.noneLost(t)
		}
		if failed := requests.failures(); len(failed) > 0 {
			t.Errorf("%d requests failed, want 0", len(failed))
		}
		if t.Failed() {
			t.Fatalf("after: %s", when)
		}
	}
	const document = "docs/turning-on-encryption.md"
	for _, c := range b.tb.Clusters() {
		b.runAfter(ctx, t, c, document, "encryption: permissive again")
	}
	// The agents' configuration file must say permissive too. The kubelet delivers it within two minutes.
	for _, c := range b.tb.Clusters() {
		must(t, until(ctx, delivered, func() error { return b.nobodyWaits(ctx, c) }))
	}
	encrypted := b.listen(t)
	pause(ctx, t, apart)
	encrypted.noneClear(t, 100)
	none("permissive again")
	// One cluster sends clear packets while the other still encrypts.
	for _, c := range b.tb.Clusters() {
		b.runAfter(ctx, t, c, document, "encryption: clear")
		must(t, until(ctx, settle, func() error { return b.sendsInTheClear(ctx, c) }))
		pause(ctx, t, apart)
		none("clear in " + c.Name)
	}
	plain := b.listen(t)
	pause(ctx, t, apart)
	if n, clear := plain.stop(t); n > len(clear)/10 || len(clear) < 100 {
		t.Errorf("both are clear: %d packets are in the clear, %d of WireGuard", len(clear), n)
	}
	for _, c := range b.tb.Clusters() {
		for _, one := range readBlocks(t, b.repo, "docs/removal.md") {
			if one.word == "file" && strings.Contains(one.rest, "cleanup-nodes") {
				b.block(ctx, t, c, one)
			}
		}
		b.runAfter(ctx, t, c, "docs/removal.md", "features without encryption")
		none("encryption is removed from " + c.Name)
		for _, n := range c.Nodes {
			links := testkit.Value(n.Exec(ctx, "ip", "-br", "link"))(t)
			tables := testkit.Value(n.Exec(ctx, "nft", "list", "tables"))(t)
			if strings.Contains(links, "wireguard.") || strings.Contains(tables, "semaphore") {
				t.Errorf("%s of %s has of semaphore:\n%s\n%s", n.Name, c.Name, links, tables)
			}
		}
	}
	pause(ctx, t, apart)
	none("the end")
	for _, p := range all {
		p.end()
	}
	t.Log(requests.stop())
}

// sendsInTheClear returns nil if no node of a cluster sends through a tunnel.
func (b *nodesBed) sendsInTheClear(ctx context.Context, c *testbed.Cluster) error {
	for _, n := range c.Nodes {
		routes, err := n.Exec(ctx, "ip", "route", "show", "table", "7394")
		if err != nil {
			return err
		}
		if strings.Contains(routes, "dev wireguard.") {
			return fmt.Errorf("%s of %s has the routes\n%s", n.Name, c.Name, routes)
		}
	}
	return nil
}

// nobodyWaits returns nil if the broker reports that every node sends through the tunnel to every node of the
// permissive remote.
func (b *nodesBed) nobodyWaits(ctx context.Context, c *testbed.Cluster) error {
	row, err := b.permissiveRow(ctx, c)
	if err != nil {
		return err
	}
	if row == nil || row[len(row)-1] != "0" {
		return fmt.Errorf("%s: nodes wait: %q", c.Name, row)
	}
	return nil
}

// permissiveRow returns the row of the only permissive remote in the broker's status, or nil.
func (b *nodesBed) permissiveRow(ctx context.Context, c *testbed.Cluster) ([]string, error) {
	p, err := leader(ctx, c, "broker")
	if err != nil {
		return nil, err
	}
	// The status has the row also if the command exits with an error because something is not well.
	status, err := c.ExecPod(ctx, Namespace, p.Name, "semaphorectl", "status")
	if _, table, ok := strings.Cut(status, "PERMISSIVE TO"); ok {
		return strings.Fields(strings.Split(table, "\n")[1]), nil
	}
	return nil, err
}

// strict returns nil if no node of a cluster passes clear packets.
func (b *nodesBed) strict(ctx context.Context, c *testbed.Cluster) error {
	for _, n := range c.Nodes {
		rules, err := n.Exec(ctx, "nft", "list", "table", "inet", "semaphore")
		if err != nil {
			return err
		}
		if !strings.Contains(rules, "drop") {
			return fmt.Errorf("%s of %s drops nothing:\n%s", n.Name, c.Name, rules)
		}
		// The routes are those of whole subnets, and no longer of single peers.
		routes, err := n.Exec(ctx, "ip", "route", "show", "table", "7394")
		if err != nil {
			return err
		}
		if other := b.other(c).PodCIDR.String(); !strings.HasPrefix(routes, other+" dev wireguard.") ||
			len(strings.Split(strings.TrimSpace(routes), "\n")) != 2 {
			return fmt.Errorf("%s of %s has the routes\n%s", n.Name, c.Name, routes)
		}
	}
	return nil
}

func (b *nodesBed) other(c *testbed.Cluster) *testbed.Cluster {
	if c == b.c1 {
		return b.c2
	}
	return b.c1
}

var clearPassedLine = regexp.MustCompile(`(?m)^semaphore_agent_clear_passed_packets_total\{(.*)\} (\S+)$`)

// clearPassed returns the agents' counters of passed clear packets, by device and direction.
func (b *nodesBed) clearPassed(ctx context.Context, t *testing.T) map[string]uint64 {
	t.Helper()
	sums := map[string]uint64{}
	for _, c := range b.tb.Clusters() {
		for _, n := range c.Nodes {
			text := testkit.Value(n.Exec(ctx, "curl", "-sS", "--max-time", "30", "http://127.0.0.1:7773/metrics"))(t)
			for _, found := range clearPassedLine.FindAllStringSubmatch(text, -1) {
				value := testkit.Value(strconv.ParseFloat(found[2], 64))(t)
				device := regexp.MustCompile(`device="([^"]*)"`).FindStringSubmatch(found[1])
				direction := regexp.MustCompile(`direction="([^"]*)"`).FindStringSubmatch(found[1])
				sums[device[1]+" "+direction[1]] += uint64(value)
			}
		}
	}
	return sums
}

// chatter runs a pod on each node of c1 that sends to a pod of c2 from its start.
const chatter = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: chatter, namespace: shop}
spec:
  selector: {matchLabels: {app: chatter}}
  template:
    metadata: {labels: {app: chatter}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: testbed.local/testbed:1
          command: [sh, -c,
            "while true; do curl -s -o /dev/null --max-time 1 http://%s:8080/ && echo reached; sleep 0.1; done"]
`

// chatterOn returns the chatter pod on a node, if it runs.
func (b *nodesBed) chatterOn(ctx context.Context, node string) (*testbed.Pod, error) {
	list, err := b.c1.Client.CoreV1().Pods("shop").List(ctx,
		metav1.ListOptions{LabelSelector: "app=chatter", FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	if len(list.Items) != 1 {
		return nil, fmt.Errorf("%d pods of chatter are on %s", len(list.Items), node)
	}
	return b.c1.Pod(ctx, "shop", list.Items[0].Name)
}

// startupTaint returns the kubelet flag that docs/encryption.md prints.
func startupTaint(t *testing.T) string {
	t.Helper()
	text := testkit.Value(os.ReadFile("../../docs/encryption.md"))(t)
	found := regexp.MustCompile(`(?m)^kubelet (--register-with-taints=` + taintKey +
		`\S+)$`).FindStringSubmatch(string(text))
	if found == nil {
		t.Fatal("docs/encryption.md does not say how a node is registered with the taint")
	}
	return found[1]
}

func (b *nodesBed) tainted(ctx context.Context, node string) (bool, error) {
	object, err := b.c1.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	for _, taint := range object.Spec.Taints {
		if taint.Key == taintKey {
			return true, nil
		}
	}
	return false, nil
}

// join checks a node that joins with the start-up taint. No clear packet leaves it before its agent has installed the
// guard, although the network would forward it. Then its taint is removed, and it reaches the remote. Its agent starts
// after all nodes of the mesh have each other's routes.
func (b *nodesBed) join(ctx context.Context, t *testing.T) {
	echo := testkit.Value(pods(ctx, b.c2, "shop", "app=echo"))(t)
	must(t, b.c1.ApplyYAML(ctx, fmt.Sprintf(chatter, echo[0].Status.PodIP)))
	wire := b.listen(t)
	n3 := testkit.Value(b.c1.AddNode(ctx, startupTaint(t)))(t)
	pause(ctx, t, apart)
	if tainted, err := b.tainted(ctx, n3.Name); err != nil || !tainted {
		t.Errorf("the node that has just joined, without an agent, has its taint: %t, %v", tainted, err)
	}
	b.learnt(ctx, t, n3)
	freed := b.taken(ctx, t, n3)
	b.wantAgent(ctx, t, b.c1, n3.Name, true)
	freed()
	began := time.Now()
	must(t, until(ctx, settle, func() error {
		tainted, err := b.tainted(ctx, n3.Name)
		if err == nil && tainted {
			err = fmt.Errorf("%s has its taint", n3.Name)
		}
		return err
	}))
	t.Logf("the taint was removed %s after the route could be made", time.Since(began).Round(time.Millisecond))
	b.reachesAgain(ctx, t, n3)
	wire.noneClear(t, 1)
	b.agent(ctx, t, b.c1, n3.Name, true)
}

// taken adds a route of another program where the agent needs its own, so that the agent cannot add it. The returned
// function is called when the agent is wanted: it checks that the agent publishes its key and reports the problem, and
// then removes the route.
func (b *nodesBed) taken(ctx context.Context, t *testing.T, n *testbed.Node) func() {
	t.Helper()
	foreign := strings.Fields(b.c2.PodCIDR.String() + " via 172.18.2.11 table 7394 proto static")
	testkit.Value(n.Exec(ctx, append([]string{"ip", "route", "add"}, foreign...)...))(t)
	return func() {
		t.Helper()
		must(t, until(ctx, settle, func() error {
			node, err := b.c1.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			key, err := n.Exec(ctx, "wg", "show", "wireguard.c2", "public-key")
			if err != nil {
				return err
			}
			if got := node.Annotations["c2.wireguard.semaphore.uw.io/pubKey"]; got != strings.TrimSpace(key) {
				return fmt.Errorf("the published key of %s is %q; its device has %q", n.Name, got, strings.TrimSpace(key))
			}
			return b.statusNames(ctx, "another program has a route there")
		}))
		left, err := n.Exec(ctx, append([]string{"ip", "route", "show"}, foreign...)...)
		if must(t, err); left == "" {
			t.Error("the agent has replaced another program's route")
		}
		testkit.Value(n.Exec(ctx, append([]string{"ip", "route", "del"}, foreign...)...))(t)
	}
}

// statusNames checks that c1's status has a text.
func (b *nodesBed) statusNames(ctx context.Context, what string) error {
	status, err := b.ctl(ctx, b.c1, "broker", "status")
	if err != nil {
		status = err.Error() // it exits 1 while there is a problem, and prints the same
	}
	if !strings.Contains(status, what) {
		return fmt.Errorf("the status does not name %q:\n%s", what, status)
	}
	return nil
}

// learnt checks that a node has BGP routes to the other cluster's pods, so that clear packets would reach them.
func (b *nodesBed) learnt(ctx context.Context, t *testing.T, n *testbed.Node) {
	t.Helper()
	must(t, until(ctx, settle, func() error {
		routes, err := n.Exec(ctx, "ip", "route", "show", "root", b.c2.PodCIDR.String(), "proto", "bird")
		if err == nil && !strings.Contains(routes, "via 172.18.2.11") {
			err = fmt.Errorf("%s has not learnt of c2's pods by BGP: %q", n.Name, routes)
		}
		return err
	}))
}

// reachesAgain waits until the chatter pod of a node runs, and checks that it and c2 reach each other.
func (b *nodesBed) reachesAgain(ctx context.Context, t *testing.T, n *testbed.Node) {
	t.Helper()
	var pod *testbed.Pod
	must(t, until(ctx, settle, func() (err error) {
		pod, err = b.chatterOn(ctx, n.Name)
		return err
	}))
	udpEcho(t, pod)
	reaches(ctx, t, pod, b.remote)
	// No other node has announced itself as the next hop to c2.
	routes, err := n.Exec(ctx, "ip", "route", "show", "exact", b.c2.PodCIDR.String())
	if must(t, err); routes != "" {
		t.Errorf("%s has routes to c2 that a node has exported: %q", n.Name, routes)
	}
}

// reboot checks a reboot of a node that knows the remote, with the boot guard unit. Its pods run long before its agent,
// and their packets are dropped. When the agent runs, they pass.
func (b *nodesBed) reboot(ctx context.Context, t *testing.T) {
	n3 := b.c1.Node("n3")
	if n3 == nil {
		t.Fatal("c1 has no node n3")
	}
	n3.BootCommands = [][]string{b.guardCommand(t)}
	b.wantAgent(ctx, t, b.c1, n3.Name, false)
	b.agent(ctx, t, b.c1, n3.Name, false)
	wire := b.listen(t)
	must(t, n3.Reboot(ctx))
	if tainted, err := b.tainted(ctx, n3.Name); err != nil || tainted {
		t.Errorf("a node that reboots has its taint: %t, %v", tainted, err)
	}
	b.learnt(ctx, t, n3)
	var pod *testbed.Pod
	must(t, until(ctx, settle, func() (err error) {
		pod, err = b.chatterOn(ctx, n3.Name)
		return err
	}))
	if err := exchange(pod.Netns, netip.AddrPortFrom(b.remote.IP, udpPort), 100); err == nil {
		t.Error("a pod reaches the remote from a node without an agent")
	}
	pause(ctx, t, apart)
	b.wantAgent(ctx, t, b.c1, n3.Name, true)
	b.reachesAgain(ctx, t, n3)
	wire.noneClear(t, 1)
	b.agent(ctx, t, b.c1, n3.Name, true)
}

// guardCommand returns the command of the unit in deploy/boot-guard, with another path of the program, because /usr
// belongs to the machine here.
func (b *nodesBed) guardCommand(t *testing.T) []string {
	t.Helper()
	unit := testkit.Value(os.ReadFile("../../deploy/boot-guard/semaphore-guard.service"))(t)
	found := regexp.MustCompile(`(?m)^ExecStart=(\S*/semaphore-agent) (.*)$`).FindStringSubmatch(string(unit))
	if found == nil {
		t.Fatal("the unit starts no semaphore-agent")
	}
	data := testkit.Value(os.ReadFile(filepath.Join(b.repo, "bin", "semaphore-agent")))(t)
	program := filepath.Join(b.tb.Dir(), "semaphore-agent")
	must(t, os.WriteFile(program, data, 0o755))
	return append([]string{program}, strings.Fields(found[2])...)
}

// blocks checks that pods with addresses from additional IPAM blocks reach the other cluster and are reachable.
func (b *nodesBed) blocks(ctx context.Context, t *testing.T) {
	var objects []string
	for i, ip := range []string{"10.2.200.5", "10.2.201.70"} {
		objects = append(objects,
			podOn(fmt.Sprintf("block-%d", i), "n1", fmt.Sprintf("cni.projectcalico.org/ipAddrs: '[%q]'", ip)))
	}
	must(t, b.c2.ApplyYAML(ctx, strings.Join(objects, "---\n")))
	ready(ctx, t, b.c2, "pod/block-0", "pod/block-1")
	blocks, err := b.c2.Node("n1").PodBlocks(ctx)
	if must(t, err); len(blocks) < 3 {
		t.Fatalf("the node has the blocks %v: too few to see anything", blocks)
	}
	t.Logf("c2's node has the blocks %v", blocks)
	three := testkit.Value(b.chatterOn(ctx, "n3"))(t)
	ours := []*testbed.Pod{podOf(ctx, t, b.c1, "one"), podOf(ctx, t, b.c1, "two"), three}
	for _, from := range ours {
		udpEcho(t, from)
	}
	for i := range objects {
		pod := podOf(ctx, t, b.c2, fmt.Sprintf("block-%d", i))
		udpEcho(t, pod)
		for _, from := range ours {
			reaches(ctx, t, from, pod)
		}
	}
}

// addressInside checks a node that gets a network inside the remote's pod subnet, as by `docker network create`. The
// tunnel, its route and its guard stay: no packet is lost, and none leaves in the clear. The status names the
// interface.
func (b *nodesBed) addressInside(ctx context.Context, t *testing.T) {
	one := podOf(ctx, t, b.c1, "one")
	b.addressed(ctx, t, one.Node)
	udpEcho(t, one)
	both := []*pings{startPings(t, one, b.remote), startPings(t, b.remote, one)}
	pause(ctx, t, time.Second)
	subnet := b.c2.PodCIDR
	before := b.encryptedState(ctx, t, one.Node)
	wire := b.listen(t)
	at := subnet.Addr().As4()
	at[2], at[3] = 77, 1
	for _, args := range []string{"link add docker9 type bridge",
		fmt.Sprintf("addr add %s/24 dev docker9", netip.AddrFrom4(at)), "link set docker9 up"} {
		testkit.Value(one.Node.Exec(ctx, append([]string{"ip"}, strings.Fields(args)...)...))(t)
	}
	must(t, until(ctx, settle, func() error { return b.statusNames(ctx, "docker9") }))
	pause(ctx, t, apart)
	if after := b.encryptedState(ctx, t, one.Node); after != before {
		t.Errorf("routes and guard:\n%s\nbefore there was an address in the remote's subnet:\n%s", after, before)
	}
	testkit.Value(one.Node.Exec(ctx, "ip", "link", "del", "docker9"))(t)
	must(t, until(ctx, settle, func() error { return b.attached(ctx, b.c1) }))
	for _, p := range both {
		p.noneLost(t)
		p.end()
	}
	wire.noneClear(t, 100)
}

var counters = regexp.MustCompile(`packets \d+ bytes \d+`)

// encryptedState returns a node's routes into the device, and its guard without counters.
func (b *nodesBed) encryptedState(ctx context.Context, t *testing.T, n *testbed.Node) string {
	t.Helper()
	routes := testkit.Value(n.Exec(ctx, "ip", "route", "show", "table", "7394"))(t)
	rules := testkit.Value(n.Exec(ctx, "nft", "list", "table", "inet", "semaphore"))(t)
	return routes + counters.ReplaceAllString(rules, "")
}

// addressed waits until the node's devices have an address, which the routes use as their source. They get it 2 minutes
// after the broker's start. This wait keeps that route change out of the following step.
func (b *nodesBed) addressed(ctx context.Context, t *testing.T, n *testbed.Node) {
	t.Helper()
	must(t, until(ctx, 2*time.Minute+settle, func() error {
		routes, err := n.Exec(ctx, "ip", "route", "show", "table", "7394")
		if err == nil && !strings.Contains(routes, " src ") {
			err = fmt.Errorf("no route of %s has a source:\n%s", n.Name, routes)
		}
		return err
	}))
}

// rotationWaits checks that nodes get no new key while the remote's broker and exporter are down, because the remote's
// nodes would accept no packet with it. They get it when the remote is back. No packet is lost at any time.
func (b *nodesBed) rotationWaits(ctx context.Context, t *testing.T) {
	one := podOf(ctx, t, b.c1, "one")
	udpEcho(t, one)
	both := []*pings{startPings(t, one, b.remote), startPings(t, b.remote, one)}
	key := func() string {
		key := testkit.Value(one.Node.Exec(ctx, "wg", "show", "wireguard.c2", "public-key"))(t)
		return strings.TrimSpace(key)
	}
	scale := func(replicas string) {
		testkit.Value(b.c2.Kubectl(ctx, nil, "-n", Namespace, "scale", "--replicas="+replicas, "deployment/semaphore-broker",
			"deployment/semaphore-exporter"))(t)
	}
	old := key()
	scale("0")
	must(t, b.exporterIsCutOff(ctx, b.c1, "c2"))
	pause(ctx, t, apart) // docs/encryption.md: the broker detects it within a second, if it gets CPU time
	if _, err := b.ctl(ctx, b.c1, "broker", "rotate-key", "--all"); err == nil ||
		!strings.Contains(err.Error(), "would not receive a new key") {
		t.Errorf("rotate-key while c2 is down: %v", err)
	}
	pause(ctx, t, apart)
	if key() != old {
		t.Error("the node has a new key although its remote is down")
	}
	scale("2")
	must(t, b.in.WaitReady(ctx, b.c2))
	// c2's broker acknowledges a key, so its agents must be attached to learn it.
	must(t, until(ctx, settle, func() error { return b.attached(ctx, b.c2) }))
	must(t, until(ctx, settle, func() error {
		_, err := b.ctl(ctx, b.c1, "broker", "rotate-key", "--all")
		return err
	}))
	must(t, until(ctx, settle, func() error {
		if key() == old {
			return fmt.Errorf("the node has its old key")
		}
		return nil
	}))
	must(t, until(ctx, settle, func() error { return b.attached(ctx, b.c1) }))
	pause(ctx, t, apart)
	for _, p := range both {
		p.noneLost(t)
		p.end()
	}
}

// fromNodes checks that packets with a node's address and packets that kube-proxy masquerades reach the remote's pods
// through Services: from host network pods by ClusterIP, and from outside clients by a NodePort of any node.
func (b *nodesBed) fromNodes(ctx context.Context, t *testing.T) {
	// The devices of the node that joined get their address 2 minutes after its first block.
	fromNodes(ctx, t, b.Scenario, b.c1.Nodes, 2*time.Minute+settle)
}

// fromNodes works with both IPAMs. It waits until the nodes' devices have addresses.
func fromNodes(ctx context.Context, t *testing.T, s *Scenario, nodes []*testbed.Node, within time.Duration) {
	t.Helper()
	began := time.Now()
	for _, n := range nodes {
		must(t, s.c1.ApplyYAML(ctx, hostPod("host-"+n.Name, n.Name)))
	}
	mirror := testkit.Value(s.c1.Client.CoreV1().Services(Namespace).List(ctx, metav1.ListOptions{}))(t)
	var clusterIPs []string
	for _, service := range mirror.Items {
		if strings.Contains(service.Name, "echo") {
			clusterIPs = service.Spec.ClusterIPs
		}
	}
	families := 1
	if s.c1.PodCIDR6.IsValid() {
		families = 2
	}
	if len(clusterIPs) != families {
		t.Fatalf("the mirror of echo has the addresses %v", clusterIPs)
	}
	nodePort(ctx, t, s)
	defer func() {
		if t.Failed() {
			t.Log(networkOf(context.WithoutCancel(ctx), nodes))
		}
	}()
	for _, n := range nodes {
		ready(ctx, t, s.c1, "pod/host-"+n.Name)
		for _, ip := range clusterIPs {
			url := "http://" + net.JoinHostPort(ip, "80") + "/"
			must(t, until(ctx, within, func() error {
				_, err := s.c1.ExecPod(ctx, "shop", "host-"+n.Name, "curl", "-sSf", "--max-time", "2", url)
				return err
			}))
		}
		outside := []netip.Addr{n.IP}
		if n.IP6.IsValid() {
			outside = append(outside, n.IP6)
		}
		for _, ip := range outside {
			c := &client{name: "outside", http: httpFrom(s.tb.Fabric())}
			must(t, until(ctx, settle, func() error {
				_, err := c.ask(ctx, "http://"+netip.AddrPortFrom(ip, echoNodePort).String()+"/")
				return err
			}))
		}
	}
	t.Logf("all nodes reached the remote's pods by %v and the NodePort after %s", clusterIPs,
		time.Since(began).Round(time.Millisecond))
}

// echoNodePort is the NodePort in c1 of echo in c2.
const echoNodePort = 30080

// nodePort creates a NodePort Service in c1 for the pods of c2's echo.
func nodePort(ctx context.Context, t *testing.T, s *Scenario) {
	t.Helper()
	objects := []string{fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: echo-of-c2, namespace: shop}\n"+
		"spec: {type: NodePort, ipFamilyPolicy: PreferDualStack, ports: [{name: http, port: 80, nodePort: %d}]}\n",
		echoNodePort)}
	echoes := testkit.Value(pods(ctx, s.c2, "shop", "app=echo"))(t)
	for i, family := range []string{"IPv4", "IPv6"} {
		var endpoints []string
		for _, p := range echoes {
			if i < len(p.Status.PodIPs) {
				endpoints = append(endpoints, fmt.Sprintf("{addresses: [%q]}", p.Status.PodIPs[i].IP))
			}
		}
		if len(endpoints) > 0 {
			objects = append(objects, fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
				"metadata: {name: echo-of-c2-%s, namespace: shop, labels: {kubernetes.io/service-name: echo-of-c2}}\n"+
				"addressType: %s\nports: [{name: http, port: 8080, protocol: TCP}]\nendpoints: [%s]\n",
				strings.ToLower(family), family, strings.Join(endpoints, ", ")))
		}
	}
	must(t, s.c1.ApplyYAML(ctx, strings.Join(objects, "---\n")))
}

// httpFrom returns a client in a network namespace for literal addresses, with a connection per request.
func httpFrom(ns *netns.Namespace) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: ns.DialContext, DisableKeepAlives: true}}
}

// networkOf returns the addresses, rules, routes and devices of nodes.
func networkOf(ctx context.Context, nodes []*testbed.Node) string {
	var out strings.Builder
	for _, n := range nodes {
		for _, command := range []string{
			"ip -br address", "ip rule", "ip route show table all", "ip -6 route show table 7394",
			"nft list table inet semaphore",
			"nft list table ip kube-proxy", "sysctl -a --pattern rp_filter",
		} {
			text, err := n.Exec(ctx, strings.Fields(command)...)
			fmt.Fprintf(&out, "== %s: %s: %v\n%s", n.Name, command, err, text)
		}
	}
	return out.String()
}
