package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/operator"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// brokerConfig returns the configuration of c1's broker with remotes c2 and c3.
func brokerConfig(t *testing.T, c clusters) *config.Broker {
	t.Helper()
	return parseConfig(t, c, `
  - name: c2
    podSubnets: [10.2.0.0/16]
    nodeSubnets: [172.16.0.0/12]
    wireguard: {listenPort: 51822}
  - name: c3
    podSubnets: [10.3.0.0/16]
    nodeSubnets: [172.16.0.0/12]
    wireguard: {listenPort: 51823}
`)
}

func parseConfig(t *testing.T, c clusters, remotes string) *config.Broker {
	t.Helper()
	cfg := testkit.Value(described.Broker([]byte(fmt.Sprintf(`
cluster: c1
localSubnets: [10.1.0.0/16, 10.101.0.0/16, 172.18.1.0/24]
manageIPPools: true
leaderElection: {enabled: false}
tls:
  certFile: %[1]s/c1/broker/tls.crt
  keyFile: %[1]s/c1/broker/tls.key
  bundleDir: %[1]s/bundles
listen:
  federation: %[2]s
  peering: %[3]s
  http: %[4]s
  debugSocket: %[1]s/broker.sock
remotes:%[5]s`, c.Dir, loopback.Address(t), loopback.Address(t), loopback.Address(t), remotes))))(t)
	return cfg
}

// patience is the timeout of everything that has no bound of its own, for a busy machine. lifetime is the lifetime of a
// test's stream.
const (
	patience = 3 * time.Minute
	lifetime = 30 * time.Minute
)

// eventually waits for a condition. f also returns what it saw last.
func eventually(t *testing.T, what string, f func() (bool, string)) {
	t.Helper()
	testkit.Eventually(t, patience, what, testkit.State(f))
}

// anyHas reports whether one of several texts has all words.
func anyHas(texts []string, words ...string) bool {
	return slices.ContainsFunc(texts, func(text string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
	})
}

// world is a cluster c1 with a real apiserver, and brokers in it.
type world struct {
	t        *testing.T
	clusters clusters
	cfg      *config.Broker
	rest     *rest.Config
	admin    kubernetes.Interface
	calico   *kube.CalicoClient
	agent    string // a token of an agent on node n1
	node     *corev1.Node
}

func newWorld(t *testing.T) *world { return newWorldAt(t, kubetest.Start(t)) }

// newWorldAt is newWorld with an existing apiserver.
func newWorldAt(t *testing.T, cfg *rest.Config) *world {
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets", "ippools")
	w := &world{t: t, clusters: newClusters(t, "c1", "c2", "c3"), rest: cfg, admin: kubernetes.NewForConfigOrDie(cfg)}
	w.cfg = brokerConfig(t, w.clusters)
	w.cfg.Kube.KubeConfigPath = kubetest.Kubeconfig(t, cfg)

	w.calico = testkit.Value(kube.Calico(cfg))(t)
	kubetest.Namespace(t, w.admin, "semaphore")
	w.node, w.agent = kubetest.Agent(t, w.admin, "n1", "172.18.1.11", w.cfg.Agents.Audience)
	return w
}

// start runs a broker until stop is called or the test ends, and waits until it is ready.
func (w *world) start(cfg *config.Broker) (stop func()) {
	w.t.Helper()
	stop, done := w.launch(cfg)
	eventually(w.t, "ready", func() (bool, string) {
		select {
		case err := <-done:
			w.t.Fatalf("the broker ended with %v", err)
		default:
		}
		return get("http://" + cfg.Listen.HTTP + "/readyz")
	})
	return stop
}

// launch is start without waiting for readiness. done receives the error of a broker that exits by itself.
func (w *world) launch(cfg *config.Broker) (stop func(), done chan error) {
	ctx, cancel := context.WithCancel(context.Background())
	done = make(chan error, 1)
	if len(cfg.Remotes) > 0 {
		cfg = kubetest.Described(w.t, w.rest, cfg)
	}
	go func() {
		done <- runAs(ctx, cfg, func(p *process) {
			p.storeEvery = time.Second
			if p.front != nil {
				p.front.Farewell = patience // an apiserver that gets no CPU time may take more than a second
			}
		})
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, context.Canceled) {
				w.t.Errorf("the broker ended with %v", err)
			}
		case <-time.After(patience):
			w.t.Error("the broker does not end")
		}
	}
	w.t.Cleanup(stop)
	return stop, done
}

// event waits for an Event of a reason whose note has all words.
func (w *world) event(t *testing.T, reason string, words ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("an Event %s with %q", reason, words), func() (bool, string) {
		all, err := w.admin.EventsV1().Events("semaphore").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		var notes, others []string
		for _, e := range all.Items {
			if e.Reason == reason {
				notes = append(notes, e.Note)
			}
			others = append(others, e.Reason+" "+e.Note)
		}
		return anyHas(notes, words...), strings.Join(others, "\n")
	})
}

// problem waits until a problem in the status has all words.
func (w *world) problem(t *testing.T, words ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the status says %q", words), func() (bool, string) {
		all := w.status(w.cfg).GetProblems()
		return anyHas(all, words...), strings.Join(all, "\n")
	})
}

// socket connects to a broker on its socket.
func (w *world) socket(cfg *config.Broker) *grpc.ClientConn {
	w.t.Helper()
	conn := testkit.Value(grpc.NewClient("unix://"+cfg.Listen.DebugSocket,
		grpc.WithTransportCredentials(insecure.NewCredentials())))(w.t)
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

func get(url string) (bool, string) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return false, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode == http.StatusOK, string(body)
}

func (w *world) exporter(cluster string) *players.Exporter {
	w.t.Helper()
	return players.Publish(w.t, w.clusters.dial(w.t, cluster, "exporter", w.cfg.Listen.Federation, identity.Broker("c1")))
}

// written returns semaphore's objects in the cluster with their versions, so that any write shows.
func (w *world) written() map[string]string {
	w.t.Helper()
	ctx, owned := w.t.Context(), metav1.ListOptions{LabelSelector: writes.Owned}
	out := map[string]string{}
	add := func(kind string, o metav1.Object, content string) {
		out[kind+" "+o.GetName()] = o.GetResourceVersion() + " " + content
	}
	services := testkit.Value(w.admin.CoreV1().Services("").List(ctx, owned))(w.t)
	for _, s := range services.Items {
		if isBarrier(s.Name) {
			continue
		}
		var ports []string
		for _, p := range s.Spec.Ports {
			ports = append(ports, fmt.Sprint(p.Port))
		}
		add("service", &s, strings.Join(ports, ","))
	}
	endpointSlices := testkit.Value(w.admin.DiscoveryV1().EndpointSlices("").List(ctx, owned))(w.t)
	for _, s := range endpointSlices.Items {
		if isBarrier(s.Labels[discoveryv1.LabelServiceName]) {
			continue
		}
		var addresses []string
		for _, e := range s.Endpoints {
			addresses = append(addresses, e.Addresses...)
		}
		out["slice of "+s.Labels[discoveryv1.LabelServiceName]] = s.ResourceVersion + " " + strings.Join(addresses, ",")
	}
	sets := testkit.Value(cache.ToListerWatcherWithContext(w.calico.GlobalNetworkSets().ListWatch(writes.Owned)).
		ListWithContext(ctx, metav1.ListOptions{}))(w.t)
	for _, s := range sets.(*calicov3.GlobalNetworkSetList).Items {
		add("set", &s, strings.Join(s.Spec.Nets, ","))
	}
	pools := testkit.Value(cache.ToListerWatcherWithContext(w.calico.IPPools().ListWatch(writes.Owned)).
		ListWithContext(ctx, metav1.ListOptions{}))(w.t)
	for _, p := range pools.(*calicov3.IPPoolList).Items {
		add("pool", &p, fmt.Sprint(p.Spec.CIDR, " disabled ", p.Spec.Disabled))
	}
	return out
}

// contents returns the objects of written without their versions.
func contents(written map[string]string) string {
	var lines []string
	for what, text := range written {
		_, content, _ := strings.Cut(text, " ")
		lines = append(lines, what+": "+content)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (w *world) becomes(what, want string) {
	w.t.Helper()
	want = strings.TrimSpace(want)
	eventually(w.t, what, func() (bool, string) {
		got := contents(w.written())
		return got == want, "\n" + got + "\nwanted:\n" + want
	})
}

// agentStream is an agent attached to a broker.
type agentStream struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[semaphorev1.AttachRequest, semaphorev1.AttachResponse]
	cancel context.CancelFunc
	// state is what it received: devices and peers, one line each.
	state    map[string]string
	clusters []string
	revision uint64
	attached *semaphorev1.Attached
}

func (w *world) attach(resumeEpoch string, resumeRevision uint64) *agentStream {
	w.t.Helper()
	conn := testkit.Value(grpc.NewClient("passthrough:///"+w.cfg.Listen.Peering,
		grpc.WithTransportCredentials(credentials.NewTLS(
			trust.ClientTLS(filepath.Join(w.clusters.Bundles(), "c1.pem"), identity.Broker("c1"))))))(w.t)
	w.t.Cleanup(func() { conn.Close() })
	a := &agentStream{t: w.t, state: map[string]string{}}
	var m *semaphorev1.AttachResponse
	testkit.Eventually(w.t, patience, "the agent is admitted", func() error {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), "authorization",
			"Bearer "+w.agent), lifetime)
		stream, err := semaphorev1.NewPeeringServiceClient(conn).Attach(ctx)
		if err == nil {
			// The first Recv returns an error of Send.
			_ = stream.Send(players.AgentHello(&semaphorev1.AgentHello{SoftwareVersion: "test", ResumeEpoch: resumeEpoch,
				ResumeRevision: resumeRevision}))
			m, err = stream.Recv()
		}
		if err != nil {
			cancel()
			// If the apiserver does not review the token in time, because it gets no CPU time, the agent tries again.
			if status.Code(err) != codes.Unavailable {
				w.t.Fatal(err)
			}
			return err
		}
		w.t.Cleanup(cancel)
		a.stream, a.cancel = stream, cancel
		return nil
	})
	if a.attached = m.GetAttached(); a.attached.GetNode() != "n1" || a.attached.GetCluster() != "c1" {
		w.t.Fatalf("first message %v", m)
	}
	return a
}

func (a *agentStream) report(devices ...*semaphorev1.DeviceReport) {
	a.t.Helper()
	testkit.Must(a.t, a.stream.Send(players.Report(devices...)))
}

// until receives messages until the state and the synced clusters are as wanted. A state that does not come ends the
// stream, so that the test says what came instead.
func (a *agentStream) until(what, want string, clusters ...string) {
	a.t.Helper()
	defer time.AfterFunc(patience, a.cancel).Stop()
	want = strings.TrimSpace(want)
	for {
		var lines []string
		for k, v := range a.state {
			lines = append(lines, k+": "+v)
		}
		slices.Sort(lines)
		if got := strings.Join(lines, "\n"); got == want && slices.Equal(a.clusters, clusters) {
			return
		} else if m, err := a.stream.Recv(); err != nil {
			a.t.Fatalf("%s: %v; received so far:\n%s\nsynced %v", what, err, got, a.clusters)
		} else {
			a.take(m)
		}
	}
}

// applied says that the node is as the messages say.
func (a *agentStream) applied() {
	a.t.Helper()
	testkit.Must(a.t, a.stream.Send(players.Applied(a.revision)))
}

func (a *agentStream) take(m *semaphorev1.AttachResponse) {
	if s := m.GetSynced(); s != nil {
		a.clusters = s.GetClusters()
	}
	for _, c := range m.GetChanges().GetChanges() {
		if c.GetRevision() < a.revision {
			a.t.Errorf("revision %d after %d", c.GetRevision(), a.revision)
		}
		a.revision = c.GetRevision()
		switch x := c.GetChange().(type) {
		case *semaphorev1.PeeringChange_Device:
			a.state["device "+x.Device.Cluster] = fmt.Sprint(x.Device.ListenPort, " ", x.Device.PodSubnets)
		case *semaphorev1.PeeringChange_DeleteDevice:
			a.state["device "+x.DeleteDevice] = "to go"
		case *semaphorev1.PeeringChange_Peer:
			if a.state["device "+x.Peer.Key.Cluster] == "" {
				a.t.Errorf("peer %v before its device", x.Peer.Key)
			}
			a.state["peer "+x.Peer.Key.Cluster+"/"+x.Peer.Key.Node] = fmt.Sprint(x.Peer.Wireguard.Address, " ",
				x.Peer.AllowedIps)
		case *semaphorev1.PeeringChange_DeletePeer:
			delete(a.state, "peer "+x.DeletePeer.Cluster+"/"+x.DeletePeer.Node)
		}
	}
}

// TestBroker covers the whole broker: streams in, objects and streams out, and what stays when everything else ends.
func TestBroker(t *testing.T) {
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	stop := w.start(w.cfg)
	pools := `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
pool semaphore-c3-10-3-0-0-16: 10.3.0.0/16 disabled true`
	w.becomes("pools, by the configuration alone", pools)

	agent := w.attach("", 0)
	agent.until("nothing is known of any remote yet", "")
	export := []*semaphorev1.Object{
		players.Node("n1", 21, "10.2.1.0/24"), players.Node("n2", 22, "10.2.2.0/24"),
		players.Service("shop", "echo", 80), players.Slice("shop", "echo-x", "echo", "10.2.1.5", "10.2.2.5"),
		players.Service("shop", "old", 80), players.Slice("shop", "old-x", "old", "10.2.1.6"),
		players.Member("shop", "echo-0", "u1", "echo", "10.2.1.5"), players.Member("shop", "echo-1", "u2", "echo",
			"10.2.2.5"),
	}
	e := w.exporter("c2")
	e.Greet(players.Hello("c2", "e1", 100, players.AllKinds...))
	e.Send(players.Snapshot(semaphorev1.Kind_KIND_NODE, 100, export[:2]...)...)
	agent.until("c2's mesh", `
device c2: 51822 [10.2.0.0/16]
peer c2/n1: 172.18.2.21:51820 [10.2.1.0/24]
peer c2/n2: 172.18.2.22:51820 [10.2.2.0/24]`, "c2")
	e.Send(players.Snapshot(semaphorev1.Kind_KIND_SERVICE, 100, export[2], export[4])...)
	e.Send(players.Snapshot(semaphorev1.Kind_KIND_ENDPOINT_SLICE, 100, export[3], export[5])...)
	e.Send(players.Snapshot(semaphorev1.Kind_KIND_SET_MEMBER, 100, export[6:]...)...)
	e.Acked(100)
	whole := pools + `
service c2-shop-73736d-echo: 80
service c2-shop-73736d-old: 80
set c2-shop-echo: 10.2.1.5/32,10.2.2.5/32
slice of c2-shop-73736d-echo: 10.2.1.5,10.2.2.5
slice of c2-shop-73736d-old: 10.2.1.6`
	w.becomes("everything of c2", whole)

	t.Run("annotations", func(t *testing.T) {
		key := bytes.Repeat([]byte{5}, 32)
		agent.report(&semaphorev1.DeviceReport{Cluster: "c2", Interface: "wireguard.c2", PublicKey: key, ListenPort: 51822,
			Problem: "none really"},
			&semaphorev1.DeviceReport{Cluster: "c3", Interface: "wireguard.c3"}) // its key is not durable yet
		eventually(t, "on the node", func() (bool, string) {
			n, err := w.admin.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			return err == nil && len(n.Annotations) == 2 &&
					n.Annotations[naming.EndpointAnnotation("c2")] == "172.18.1.11:51822" &&
					n.Annotations[naming.PubKeyAnnotation("c2")] == "BQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU=",
				fmt.Sprint(n.Annotations, err)
		})
	})
	t.Run("changes", func(t *testing.T) {
		e.Send(players.Upserts(101, players.Node("n3", 23, "10.2.3.0/24"),
			players.Slice("shop", "echo-x", "echo", "10.2.1.5", "10.2.3.5"),
			players.Member("shop", "echo-2", "u3", "echo", "10.2.3.5")))
		e.Send(players.Deletion(104, players.Node("n2", 22)),
			players.Deletion(105, players.Member("shop", "echo-1", "u2", "echo")))
		e.Acked(105)
		whole = strings.ReplaceAll(strings.ReplaceAll(whole, "10.2.1.5,10.2.2.5", "10.2.1.5,10.2.3.5"), "10.2.2.5/32",
			"10.2.3.5/32")
		w.becomes("the new state", whole)
		agent.until("a peer more, one fewer", `
device c2: 51822 [10.2.0.0/16]
peer c2/n1: 172.18.2.21:51820 [10.2.1.0/24]
peer c2/n3: 172.18.2.23:51820 [10.2.3.0/24]`, "c2")
	})
	t.Run("an agent that comes back", func(t *testing.T) {
		epoch, revision := agent.attached.GetEpoch(), agent.revision
		again := w.attach(epoch, revision)
		if !again.attached.GetResumed() {
			t.Error("not resumed")
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for err := error(nil); err == nil; { // what was on its way comes first
				_, err = agent.stream.Recv()
			}
		}()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("the older stream of the node is still open")
		}
		e.Send(players.Upserts(106, players.Node("n4", 24, "10.2.4.0/24")))
		e.Acked(106)
		again.state["device c2"] = "as before"
		again.until("only what is new", `
device c2: as before
peer c2/n4: 172.18.2.24:51820 [10.2.4.0/24]`, "c2")
		agent = again
	})
	t.Run("a device that no remote has", func(t *testing.T) {
		agent.report(&semaphorev1.DeviceReport{Cluster: "gone", Interface: "wireguard.gone"})
		agent.until("it is sent the removal", `
device c2: as before
device gone: to go
peer c2/n4: 172.18.2.24:51820 [10.2.4.0/24]`, "c2")
	})
	t.Run("status and metrics", func(t *testing.T) {
		d := semaphorev1.NewDebugServiceClient(w.clusters.dial(t, "c1", "semaphorectl", w.cfg.Listen.Federation,
			identity.Broker("c1")))
		st := testkit.Value(d.GetStatus(t.Context(), &semaphorev1.GetStatusRequest{}))(t)
		if !st.Ready || len(st.Links) != 2 || !st.Links[0].Connected || st.Links[1].Connected || len(st.Nodes) != 1 ||
			!st.Nodes[0].Attached {
			t.Errorf("status %v", st)
		}
		// Objects of the first snapshots are not changes. Later objects are.
		for _, k := range st.Links[0].Kinds {
			changed := k.Kind == semaphorev1.Kind_KIND_ENDPOINT_SLICE || k.Kind == semaphorev1.Kind_KIND_SET_MEMBER
			if (k.MedianPropagation != nil) != changed || changed &&
				(k.HighPropagation.AsDuration() <= 0 || k.LastPropagation.AsDuration() > patience) {
				t.Errorf("the times of %v", k)
			}
		}
		var body string
		// A watch counts the present objects.
		eventually(t, "the Services are present", func() (bool, string) {
			_, body = get("http://" + w.cfg.Listen.HTTP + "/metrics")
			return strings.Contains(body, `semaphore_broker_objects_present{kind="service"} 2`), body
		})
		if heard := `semaphore_broker_kind_last_heard_timestamp_seconds{cluster="c2",kind="node"} `; !strings.Contains(body,
			heard) {
			t.Errorf("no line begins with %s", heard)
		}
		for _, line := range []string{
			`semaphore_broker_connected{cluster="c2"} 1`, `semaphore_broker_connected{cluster="c3"} 0`,
			`semaphore_broker_objects{cluster="c2",kind="node"} 3`,
			`semaphore_broker_snapshot_complete{cluster="c2",kind="service"} 1`,
			`semaphore_broker_snapshot_complete{cluster="c3",kind="service"} 0`, `semaphore_broker_agents_attached 1`,
			`semaphore_broker_objects_desired{kind="service"} 2`, `semaphore_broker_objects_present{kind="service"} 2`,
			`semaphore_broker_writes_total{kind="globalnetworkset",op="create",result="ok"} 1`,
			`semaphore_broker_propagation_seconds_count{cluster="c2",kind="endpointslice"} 1`,
		} {
			if !strings.Contains(body, line+"\n") {
				t.Errorf("no line %s", line)
			}
		}
	})

	// A pod of a new node is used once the agents have applied its peer.
	ready := func() (all []bool) {
		for _, s := range w.slicesOf(t, "c2-shop-73736d-echo") {
			for _, e := range s.Endpoints {
				all = append(all, ptr.Deref(e.Conditions.Ready, true))
			}
		}
		return all
	}
	if got := ready(); !slices.Equal(got, []bool{true, false}) {
		t.Errorf("before the agent applied the peer of node n3: ready %v", got)
	}
	agent.applied()
	eventually(t, "the pod of the new node is used", func() (bool, string) {
		return slices.Equal(ready(), []bool{true, true}), fmt.Sprint(ready())
	})

	// The rest of the test is about what stays.
	e.Cancel()
	eventually(t, "c2 is seen to be gone", func() (bool, string) {
		_, body := get("http://" + w.cfg.Listen.HTTP + "/metrics")
		return strings.Contains(body, `semaphore_broker_connected{cluster="c2"} 0`), ""
	})
	before := w.written()
	same := func(t *testing.T, what string) {
		t.Helper()
		time.Sleep(500 * time.Millisecond)
		if now := w.written(); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("%s: something was written:\n%v\nwas\n%v", what, now, before)
		}
	}
	same(t, "the exporter is gone")
	agent.cancel()
	stop()
	same(t, "the broker is gone")
	stop = w.start(w.cfg)
	same(t, "the broker is back and knows nothing")
	agent = w.attach(agent.attached.GetEpoch(), agent.revision)
	if agent.attached.GetResumed() {
		t.Error("resumed in another epoch")
	}
	agent.until("nothing is spoken of", "")

	// Half of the export is sent and then the stream ends. Nothing may be removed.
	now := []*semaphorev1.Object{
		players.Node("n1", 21, "10.2.1.0/24"), players.Node("n3", 23, "10.2.3.0/24"),
		players.Service("shop", "echo", 80), players.Slice("shop", "echo-x", "echo", "10.2.1.5", "10.2.3.5"),
		players.Member("shop", "echo-0", "u1", "echo", "10.2.1.5"), players.Member("shop", "echo-2", "u3", "echo",
			"10.2.3.5"),
	}
	half := w.exporter("c2")
	half.Greet(players.Hello("c2", "e2", 100, players.AllKinds...))
	half.Send(players.Begin(players.AllKinds[0], 100))
	half.Cancel()
	same(t, "a snapshot that did not end")

	w.exporter("c2").SendAll("c2", "e3", now...)
	whole = strings.ReplaceAll(strings.ReplaceAll(whole, "service c2-shop-73736d-old: 80\n", ""),
		"\nslice of c2-shop-73736d-old: 10.2.1.6", "")
	w.becomes("what the complete snapshot lacks has gone", whole)
	for what, version := range w.written() {
		if before[what] != version {
			t.Errorf("%s was written: %q, was %q", what, version, before[what])
		}
	}
	agent.until("c2's mesh", `
device c2: 51822 [10.2.0.0/16]
peer c2/n1: 172.18.2.21:51820 [10.2.1.0/24]
peer c2/n3: 172.18.2.23:51820 [10.2.3.0/24]`, "c2")
	agent.cancel()
	stop()

	t.Run("a remote taken out of the configuration", func(t *testing.T) {
		cfg := parseConfig(t, w.clusters, `
  - name: c3
    podSubnets: [10.3.0.0/16]
    nodeSubnets: [172.16.0.0/12]
`)
		cfg.Kube.KubeConfigPath = w.cfg.Kube.KubeConfigPath
		defer w.start(cfg)()
		w.becomes("its objects go", `pool semaphore-c3-10-3-0-0-16: 10.3.0.0/16 disabled true`)
	})
	t.Run("cleanup", func(t *testing.T) {
		stop := w.start(w.cfg)
		e := w.exporter("c2")
		e.SendAll("c2", "e4", now...)
		w.becomes("all is there again", whole)
		eventually(t, "the peers are stored for the next broker", func() (bool, string) {
			_, err := w.admin.CoreV1().ConfigMaps("semaphore").Get(t.Context(), "semaphore-peers-0", metav1.GetOptions{})
			return err == nil, fmt.Sprint(err)
		})
		stop()
		foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "mine", Namespace: "semaphore"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}}
		kubetest.Create(t, w.admin.CoreV1().Services("semaphore"), foreign)
		// Beside a Service of a user: a slice under its own name, and its own one.
		ours, users := map[string]string{naming.LabelManagedBy: naming.ManagedByBroker, naming.LabelOwnName: "failover",
			discoveryv1.LabelServiceName: "echo"}, map[string]string{discoveryv1.LabelServiceName: "echo"}
		beside := w.admin.DiscoveryV1().EndpointSlices("default")
		for name, labels := range map[string]map[string]string{"gl-default-73736d-echo-c2-1": ours, "echo-x7k2": users} {
			kubetest.Create(t, beside, &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
				Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.2.9.9"}}}})
		}
		// In the namespace of the mirrors such a slice has the labels of both.
		own := maps.Clone(ours)
		own[discoveryv1.LabelServiceName] = "own"
		kubetest.Create(t, w.admin.DiscoveryV1().EndpointSlices("semaphore"), &discoveryv1.EndpointSlice{
			AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{Name: "own", Labels: own},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.2.9.8"}}}})
		var out strings.Builder
		if err := operator.Run(t.Context(), w.cfg, operator.Options{DryRun: true}, &out); err != nil ||
			!strings.Contains(out.String(), "9 to remove") {
			t.Errorf("dry run: %v\n%s", err, out.String())
		}
		w.becomes("a dry run removes nothing", whole+"\nslice of echo: 10.2.9.9\nslice of own: 10.2.9.8")
		out.Reset()
		if err := operator.Run(t.Context(), w.cfg, operator.Options{}, &out); err != nil ||
			!strings.Contains(out.String(), "removed annotations") {
			t.Errorf("%v\n%s", err, out.String())
		}
		w.becomes("nothing is left", "")
		n, err := w.admin.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil || len(n.Annotations) != 0 {
			t.Errorf("node: %v %v", n.Annotations, err)
		}
		if _, err := w.admin.CoreV1().Services("semaphore").Get(t.Context(), "mine", metav1.GetOptions{}); err != nil {
			t.Errorf("someone else's service: %v", err)
		}
		left, err := beside.List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=echo"})
		if err != nil || len(left.Items) != 1 || left.Items[0].Name != "echo-x7k2" {
			t.Errorf("beside the Service of a user: %v, %v", left, err)
		}
		out.Reset()
		if err := operator.Run(t.Context(), w.cfg, operator.Options{}, &out); err != nil || out.String() != "0 removed\n" {
			t.Errorf("again: %v\n%s", err, out.String())
		}
	})
	if _, err := os.Stat(w.cfg.Listen.DebugSocket); err == nil {
		t.Log("the debug socket is left, as gRPC leaves it to the next start")
	}
}
