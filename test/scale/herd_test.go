package scale

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// few is the number of agents beside which the others are measured, and peers that of the remote's nodes.
const few, peers = 500, 200

// herd is a hub with many agents, and a remote with nodes.
type herd struct {
	*hub
	clients []*client
	player  *player
	// ports counts the changes of a node.
	ports int
}

// attachTo has so many agents attached in all, and waits until all are current.
func (h *herd) attachTo(ctx context.Context, n int, running *sync.WaitGroup) {
	h.b.Helper()
	first := len(h.clients)
	h.clients = append(h.clients, make([]*client, n-first)...)
	var g errgroup.Group
	g.SetLimit(16)
	for i := first; i < n; i++ {
		g.Go(func() (err error) {
			h.clients[i], err = h.client(ctx, i)
			return err
		})
	}
	must(h.b, g.Wait())
	for _, c := range h.clients[first:] {
		running.Go(func() { h.attach(ctx, c) })
	}
	h.await("all agents are current", func(c *client) bool { return c.current && len(c.addresses) == peers })
	testkit.Eventually(h.b, 5*time.Minute, "all keys are on the nodes", func() error {
		list, err := h.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range list.Items {
			if n.Annotations["c2.wireguard.semaphore.uw.io/pubKey"] == "" {
				return fmt.Errorf("%s has none", n.Name)
			}
		}
		return nil
	})
}

// await waits until all agents satisfy f, and returns when each last heard of something.
func (h *herd) await(what string, f func(*client) bool) (at []time.Time) {
	h.b.Helper()
	testkit.Eventually(h.b, 5*time.Minute, what, func() error {
		at = at[:0]
		for _, c := range h.clients {
			c.mu.Lock()
			ok := f(c)
			at = append(at, c.at)
			c.mu.Unlock()
			if !ok {
				return fmt.Errorf("not %s", c.node)
			}
		}
		return nil
	})
	return at
}

// change moves a node of the remote, and returns how long it took to each agent, and the processor time of the broker.
func (h *herd) change() (times []time.Duration, spent time.Duration) {
	h.b.Helper()
	before := testkit.Value(h.broker.cpu())(h.b)
	h.ports++
	address := fmt.Sprintf("172.16.0.1:%d", 52000+h.ports)
	began := time.Now()
	h.player.put(catalog.Key{Kind: semaphorev1.Kind_KIND_NODE, Name: "node-0"}, &semaphorev1.Object{
		Spec: &semaphorev1.Object_Node{Node: &semaphorev1.Node{PodCidrs: []string{h.player.address(0) + "/24"},
			Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: publicKey(h.player.name, 0), Address: address}}}})
	for _, at := range h.await("the change is there", func(c *client) bool { return c.addresses["node-0"] == address }) {
		times = append(times, at.Sub(began))
	}
	after := testkit.Value(h.broker.cpu())(h.b)
	return times, after - before
}

// changes returns the median over agents and changes, that of the last agent, and the broker's processor time for each
// agent.
func (h *herd) changes() (median, last, each time.Duration) {
	h.b.Helper()
	const n = 10
	var all, lasts []time.Duration
	for range n {
		times, spent := h.change()
		all, lasts, each = append(all, times...), append(lasts, slices.Max(times)), each+spent
	}
	slices.Sort(lasts)
	median, _ = figure.Quantiles(all)
	return median, lasts[n/2], each / time.Duration(n*len(h.clients))
}

// BenchmarkAgents measures 5,000 agents at one broker, beside 500: a restart, one change to all, the memory, and what
// happens to them, and to new agents, while a client opens all connections that the broker has for those that prove
// nothing. The agents only attach. SCALE_AGENTS has another number.
func BenchmarkAgents(b *testing.B) {
	h := &herd{hub: newHub(b)}
	kubetest.Create(b, h.kube.CoreV1().ServiceAccounts(mirrors),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-agent"}})
	h.remote("c2", 0)
	h.start("encryption")
	h.player = h.play("c2", 0, content{nodes: peers})
	stop := h.player.publish()
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer func() { cancel(); running.Wait(); stop() }()
	h.attachTo(ctx, few, &running)
	few50, fewLast, fewEach := h.changes()
	before := testkit.Value(h.broker.usage())(b)
	h.attachTo(ctx, variable(b, "SCALE_AGENTS", 5000), &running)
	after := testkit.Value(h.broker.usage())(b)
	more := float64(len(h.clients) - few)
	for range b.N {
		p50, last, each := h.changes()
		seconds := func(d time.Duration) float64 { return d.Seconds() }
		figure.Report(b, "change-p50-ms", 1000*seconds(p50)).Floor(1000 * seconds(few50) * float64(len(h.clients)) / few)
		figure.Report(b, "change-last-ms", 1000*seconds(last)).Floor(1000 * seconds(fewLast) * float64(len(h.clients)) / few)
		figure.Report(b, "change-CPU-us/agent", 1e6*seconds(each)).Floor(1e6 * seconds(fewEach)).AtMostTimesFloor(1.5)
		figure.Report(b, "heap-KiB/agent", (after.heap-before.heap)*1024/more).AtMost(40)
		figure.Report(b, "resident-KiB/agent", (after.resident-before.resident)*1024/more).AtMost(160)
		h.restart()
		h.crowd(func() { h.attachTo(ctx, len(h.clients)+10, &running) })
	}
	figure.WithoutTime(b)
}

// restart kills the broker, and reports what it costs until all agents are current again.
func (h *herd) restart() {
	h.b.Helper()
	received := func() (sum int) {
		for _, c := range h.clients {
			c.mu.Lock()
			sum += c.changes
			c.mu.Unlock()
		}
		return sum
	}
	had := received()
	h.broker.Kill(h.b)
	h.await("all agents are cut off", func(c *client) bool { return !c.current })
	began := time.Now()
	h.broker.run()
	at := h.await("all agents are current again", func(c *client) bool { return c.current && c.at.After(began) })
	spent := testkit.Value(h.broker.cpu())(h.b)
	figure.Report(h.b, "restart-s", slices.MaxFunc(at, time.Time.Compare).Sub(began).Seconds())
	// As F34 bounds it: thirty seconds for a thousand.
	figure.Report(h.b, "restart-CPU-ms/agent", 1000*spent.Seconds()/float64(len(h.clients))).AtMost(30)
	figure.Report(h.b, "restart-changes", float64(received()-had)).AtMost(0)
	figure.Report(h.b, "restart-writes", h.broker.metric("semaphore_broker_writes_total", "")).AtMost(0)
}

// crowd opens connections that prove nothing until the broker closes some of them, and reports what a change takes.
// Agents that join then attach beside them.
func (h *herd) crowd(join func()) {
	h.b.Helper()
	refused := func() float64 {
		return h.broker.metric("semaphore_broker_connections_refused_total", `"peering"`)
	}
	before := refused()
	var crowd []net.Conn
	defer func() {
		for _, c := range crowd {
			c.Close()
		}
	}()
	for len(crowd) < 8_192+100 {
		c := testkit.Value(net.Dial("tcp", h.peering))(h.b)
		crowd = append(crowd, c)
	}
	testkit.Eventually(h.b, time.Minute, "some are closed", func() error {
		if n := refused() - before; n < 100 {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
	join()
	times, _ := h.change()
	figure.Report(h.b, "crowded-descriptors", h.broker.metric("process_open_fds", ""))
	figure.Report(h.b, "crowded-change-last-ms", 1000*slices.Max(times).Seconds())
	lost := 0
	for _, c := range h.clients {
		c.mu.Lock()
		if !c.current {
			lost++
		}
		c.mu.Unlock()
	}
	figure.Report(h.b, "crowded-agents-lost", float64(lost)).AtMost(0)
}
