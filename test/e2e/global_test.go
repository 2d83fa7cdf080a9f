package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

const (
	webEverywhere = "web.shop.svc.cluster.global"
	// globalTimes are short, as a test waits for them, and long enough for a stream that was cut for five seconds to be
	// heard again before, on a busy machine.
	globalTimes = "settle: 3s, silentAfter: 30s"
	silentAfter = 30 * time.Second
	// session is the maximum age of a WireGuard session, for which a node may keep one with nodes that are gone.
	session = 180 * time.Second
	// proxySync bounds the time in which kube-proxy applies a change that it has seen: its minSyncPeriod plus the update.
	proxySync = 2 * time.Second
)

// web is the part of a cluster in the global service web: two pods, whose names identify the cluster.
func web(name string) string {
	return echoes{name: name, app: "web", replicas: 2, grace: lingeringGrace, lifecycle: lingering}.yaml() + `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, labels: {mirror.semaphore.uw.io/global-service: "true"}}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
`
}

// global tests a service of both clusters: c1 has pods near, and c2 has pods far. It checks which of them answer c1's
// client.
func (b *servicesBed) global(ctx context.Context, t *testing.T) {
	client := b.clients[b.c1]
	must(t, until(ctx, settle, func() error {
		_, err := client.ask(ctx, "http://"+webEverywhere+"/")
		return err
	}))
	must(t, b.c1.ApplyYAML(ctx, stats("near")))
	must(t, b.c2.ApplyYAML(ctx, stats("far")))
	l := client.load(ctx, t, "http://"+webEverywhere+"/")
	answers(ctx, t, l, settle, "near", "far")
	t.Run("local first", func(t *testing.T) { b.localFirst(ctx, t, l) })
	t.Run("drain", func(t *testing.T) { b.drain(ctx, t, l) })
	t.Run("cut off", func(t *testing.T) { b.cutOff(ctx, t, l) })
}

// answers waits until the answers come from pods of exactly these deployments. It asserts that no request has failed
// since the load began or since the last reset: a change of the answering pods loses no request.
func answers(ctx context.Context, t *testing.T, l *load, within time.Duration, who ...string) {
	t.Helper()
	const enough = 40 // by chance one of four pods answers none of 40 once in 100,000
	began := time.Now()
	must(t, until(ctx, within, func() error {
		l.recount()
		for deadline := time.Now().Add(10 * time.Second); l.seen(anyone) < enough; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) || ctx.Err() != nil {
				break
			}
		}
		if got := l.by(); !slices.Equal(got, slices.Sorted(slices.Values(who))) {
			return fmt.Errorf("%v answered, not %v; %s", got, who, l)
		}
		return nil
	}))
	if failed := l.failures(); len(failed) > 0 {
		t.Errorf("until %v answered alone, requests were lost: %s", who, l)
	}
	l.reset()
	t.Logf("%v answer after %s", who, time.Since(began).Round(100*time.Millisecond))
}

func anyone(string) bool { return true }

// by returns the Deployments whose pods have answered, sorted.
func (l *load) by() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	who := map[string]bool{}
	for pod := range l.answered {
		parts := strings.Split(pod, "-") // NAME-HASH-RANDOM
		who[strings.Join(parts[:max(1, len(parts)-2)], "-")] = true
	}
	return slices.Sorted(maps.Keys(who))
}

// localFirst checks that with the own cluster preferred, the pods of the other one are used while the own has none, and
// that no request is lost.
func (b *servicesBed) localFirst(ctx context.Context, t *testing.T, l *load) {
	label := func(value string) {
		t.Helper()
		testkit.Value(b.c1.Kubectl(ctx, nil, "-n", "shop", "label", "service", "web", naming.LabelRouting+value))(t)
	}
	scale := func(replicas int) {
		t.Helper()
		_, err := b.c1.Kubectl(ctx, nil, "-n", "shop", "scale", "deployment/near", fmt.Sprint("--replicas=", replicas))
		must(t, err)
	}
	l.reset()
	label("=local-first")
	must(t, until(ctx, settle, func() error { return b.inUse(ctx, "c2", false) }))
	if failed := l.failures(); len(failed) > 0 {
		t.Errorf("while the preference took hold: %s", l)
	}
	answers(ctx, t, l, settle, "near")
	l.reset()
	scale(0)
	must(t, until(ctx, settle, func() error {
		left, err := b.c1.Client.CoreV1().Pods("shop").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d pods are there still", len(left.Items))
		}
		return err
	}))
	if failed := l.failures(); len(failed) > 0 {
		t.Errorf("while the own pods went: %s", l)
	}
	answers(ctx, t, l, settle, "far")
	l.reset()
	scale(2)
	ready(ctx, t, b.c1, "deployment/near")
	must(t, until(ctx, settle, func() error { return b.inUse(ctx, "c2", false) }))
	if failed := l.failures(); len(failed) > 0 {
		t.Errorf("while the own pods came back: %s", l)
	}
	answers(ctx, t, l, settle, "near")
	label("-")
	answers(ctx, t, l, settle, "near", "far")
}

// inUse returns nil if all endpoints of a cluster in c1's global service are used, or all unused, as wanted.
func (b *servicesBed) inUse(ctx context.Context, cluster string, want bool) error {
	all, err := b.c1.Client.DiscoveryV1().EndpointSlices(Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "kubernetes.io/service-name=gl-shop-73736d-web," + naming.LabelSourceCluster + "=" + cluster,
	})
	if err != nil {
		return err
	}
	n := 0
	for _, s := range all.Items {
		for _, e := range s.Endpoints {
			if n++; ptr.Deref(e.Conditions.Ready, true) != want {
				return fmt.Errorf("endpoint %s of %s is ready=%t", e.Addresses[0], cluster, !want)
			}
		}
	}
	if n == 0 {
		return fmt.Errorf("%s has no endpoints", cluster)
	}
	return nil
}

// drain checks that endpoints that an operator has drained stay unused under another leader, until the operator ends
// the drain.
func (b *servicesBed) drain(ctx context.Context, t *testing.T, l *load) {
	ctl := func(args ...string) string {
		t.Helper()
		return testkit.Value(b.ctl(ctx, b.c1, "broker", args...))(t)
	}
	datagrams := b.newFlow(ctx, t, "far")
	t.Log(ctl("drain", "cluster", "c2", "--by", "e2e"))
	answers(ctx, t, l, settle, "near")
	datagrams.moves(ctx, t, "near")
	must(t, until(ctx, settle, func() error {
		if _, err := b.clients[b.c1].ask(ctx, "http://"+echoInC2+"/"); err == nil {
			return errors.New("a mirror of the cluster that is drained answers")
		}
		return nil
	}))
	before := testkit.Value(awaitLeader(ctx, b.c1, "broker"))(t)
	l.reset()
	testkit.Value(b.c1.Kubectl(ctx, nil, "-n", Namespace, "delete", "pod", before.Name, "--wait"))(t)
	must(t, until(ctx, settle, func() error {
		now, err := leader(ctx, b.c1, "broker")
		if err != nil {
			return err
		}
		if now.Name == before.Name {
			return fmt.Errorf("%s leads still", now.Name)
		}
		return b.attached(ctx, b.c1)
	}))
	if got := l.by(); !slices.Equal(got, []string{"near"}) || len(l.failures()) > 0 {
		t.Errorf("with another broker %v answered; %s", got, l)
	}
	if list := ctl("get", "drains"); !strings.Contains(list, "c2") || !strings.Contains(list, "e2e") {
		t.Errorf("the list of drains:\n%s", list)
	}
	ctl("undrain", "cluster", "c2")
	answers(ctx, t, l, settle, "near", "far")
	must(t, until(ctx, settle, func() error {
		_, err := b.clients[b.c1].ask(ctx, "http://"+echoInC2+"/")
		return err
	}))
}

// peerStates returns the peer states in the metrics of the agent on c1's node.
func (b *servicesBed) peerStates(ctx context.Context) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:7773/metrics", nil)
	if err != nil {
		return "", err
	}
	response, err := httpFrom(b.c1.Nodes[0].Netns).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	var states []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "semaphore_agent_peers{") {
			states = append(states, line)
		}
	}
	return strings.Join(states, ""), err
}

// heard returns nil if c1's broker has received something from c2's exporter within a time.
func (b *servicesBed) heard(ctx context.Context, within time.Duration) error {
	text, err := b.ctl(ctx, b.c1, "broker", "status", "-o", "json")
	if text == "" {
		return err
	}
	var status struct {
		Links []struct {
			Cluster   string
			Connected bool
			LastHeard time.Time `json:"last_heard"`
		}
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return err
	}
	for _, l := range status.Links {
		if ago := time.Since(l.LastHeard); l.Cluster == "c2" && (!l.Connected || ago > within) {
			return fmt.Errorf("c2 was heard %s ago, connected %t", ago, l.Connected)
		}
	}
	return nil
}

// flapping cuts the stream of c2's exporter repeatedly, each time for less than silentAfter but for more in total,
// while at first no node has a session with one of c2: agents begin one once the exporter is silent for 7 s. No
// endpoint may become unused, and nothing may be written.
func (b *servicesBed) flapping(ctx context.Context, t *testing.T) {
	const (
		times = 7
		cut   = 5 * time.Second
		// beat is the time before a cut within which the exporter was last received.
		beat = 3 * time.Second
	)
	must(t, until(ctx, settle, func() error { return b.inUse(ctx, "c2", true) }))
	if states := testkit.Value(b.peerStates(ctx))(t); !strings.Contains(states, `state="idle"} 1`) ||
		strings.Contains(states, `state="talking"} 1`) {
		t.Errorf("the tunnel is not idle:\n%s", states)
	}
	slices := testkit.Value(b.c1.Client.DiscoveryV1().EndpointSlices(Namespace).Watch(ctx,
		metav1.ListOptions{LabelSelector: naming.LabelSourceCluster + "=c2"}))(t)
	var mu sync.Mutex
	var written []string
	known := map[string]string{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range slices.ResultChan() {
			s, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok || event.Type == "BOOKMARK" {
				continue
			}
			mu.Lock()
			if was, ok := known[s.Name]; ok && was != s.ResourceVersion {
				written = append(written, fmt.Sprint(event.Type, " ", s.Name, " ", s.Endpoints))
			}
			known[s.Name] = s.ResourceVersion
			mu.Unlock()
		}
	}()
	rule := []string{"PREROUTING", "-s", b.c2.NodeSubnet.String(), "-p", "tcp", "--dport", fmt.Sprint(FederationNodePort),
		"-j", "DROP"}
	node := b.c1.Nodes[0].Netns
	for cuts, tries := 0, 0; cuts < times; tries++ {
		if tries > 2*times {
			t.Fatalf("only %d of %d cuts were shorter than %s", cuts, tries, silentAfter)
		}
		began := time.Now()
		must(t, iptables(node, append([]string{"-I"}, rule...)...))
		select {
		case <-time.After(cut):
		case <-ctx.Done():
		}
		must(t, iptables(node, append([]string{"-D"}, rule...)...))
		must(t, until(ctx, settle, func() error { return b.heard(ctx, beat) }))
		if silent := time.Since(began) + beat; silent > silentAfter {
			// On a busy machine the stream may recover too late. The broker may then consider c2 gone.
			t.Logf("a cut lasted %s", silent)
			must(t, until(ctx, settle, func() error { return b.inUse(ctx, "c2", true) }))
			pause(ctx, t, beat)
			mu.Lock()
			written = nil
			mu.Unlock()
			continue
		}
		cuts++
	}
	slices.Stop()
	<-done
	if len(known) == 0 {
		t.Error("c1 has no slices of c2")
	}
	if len(written) > 0 {
		t.Errorf("written while the stream came and went: %q", written)
	}
}

// cutOff cuts c2 off in two steps: first the stream of its exporter, which changes nothing, and then its tunnels.
func (b *servicesBed) cutOff(ctx context.Context, t *testing.T, l *load) {
	node := func(c *testbed.Cluster) *netns.Namespace { return c.Nodes[0].Netns }
	stream := []string{"PREROUTING", "-s", b.c2.NodeSubnet.String(), "-p", "tcp", "--dport",
		fmt.Sprint(FederationNodePort), "-j", "DROP"}
	tunnel := func(from *testbed.Cluster) []string {
		return []string{"PREROUTING", "-s", from.NodeSubnet.String(), "-p", "udp", "-j", "DROP"}
	}
	standing := func() string {
		all := testkit.Value(b.c1.Client.DiscoveryV1().EndpointSlices(Namespace).List(ctx,
			metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=c2-shop-73736d-echo"}))(t)
		var out []string
		for _, s := range all.Items {
			out = append(out, s.Name+" "+s.ResourceVersion)
		}
		slices.Sort(out)
		return strings.Join(out, ", ")
	}
	mirror := standing()
	datagrams := b.newFlow(ctx, t, "far")

	l.reset()
	must(t, iptables(node(b.c1), append([]string{"-I"}, stream...)...))
	select {
	case <-time.After(silentAfter + 10*time.Second):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	if got := l.by(); !slices.Equal(got, []string{"far", "near"}) || len(l.failures()) > 0 {
		t.Errorf("without the stream alone %v answered; %s", got, l)
	}
	must(t, b.inUse(ctx, "c2", true))

	cut := time.Now()
	must(t, iptables(node(b.c1), append([]string{"-I"}, tunnel(b.c2)...)...))
	must(t, iptables(node(b.c2), append([]string{"-I"}, tunnel(b.c1)...)...))
	must(t, until(ctx, session+settle, func() error { return b.inUse(ctx, "c2", false) }))
	t.Logf("c2 is not used %s after the last packet from it; until then %s",
		time.Since(cut).Round(100*time.Millisecond), l)
	datagrams.moves(ctx, t, "near")
	// Requests to c2 that wait for an answer may time out, and kube-proxy sends new ones there until it has applied the
	// change.
	must(t, until(ctx, settle, func() error {
		l.reset()
		pause(ctx, t, patience+proxySync)
		if failed := l.failures(); len(failed) > 0 {
			return fmt.Errorf("requests are lost still: %s", l)
		}
		return nil
	}))
	answers(ctx, t, l, settle, "near")
	if status, err := b.ctl(ctx, b.c1, "broker", "status"); !strings.Contains(status+fmt.Sprint(err),
		"cluster c2 is gone since") {
		t.Errorf("the status does not have it: %v\n%s", err, status)
	}
	if now := standing(); now != mirror {
		t.Errorf("the mirror was written to: %s, was %s", now, mirror)
	}

	must(t, iptables(node(b.c2), append([]string{"-D"}, tunnel(b.c1)...)...))
	must(t, iptables(node(b.c1), append([]string{"-D"}, tunnel(b.c2)...)...))
	must(t, iptables(node(b.c1), append([]string{"-D"}, stream...)...))
	answers(ctx, t, l, settle, "near", "far")
}

// iptables changes the raw table, the first one that packets traverse, in a namespace of the testbed.
func iptables(ns *netns.Namespace, args ...string) error {
	return testkit.CommandIn(ns, "iptables", append([]string{"-w", "5", "-t", "raw"}, args...)...)
}
