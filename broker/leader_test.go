package broker

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/conns"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// status asks a broker on its socket.
func (w *world) status(cfg *config.Broker) *semaphorev1.GetStatusResponse {
	w.t.Helper()
	conn := w.socket(cfg)
	defer conn.Close()
	return testkit.Value(semaphorev1.NewDebugServiceClient(conn).GetStatus(w.t.Context(), &semaphorev1.GetStatusRequest{},
		grpc.WaitForReady(true)))(w.t)
}

// ofPod configures a broker as in a pod with its own address, whose Services lead to the leader. The apiserver accepts
// no loopback address in a slice, so the address is added to this package's network namespace.
func ofPod(t *testing.T, cfg *config.Broker, name, address string) {
	t.Helper()
	lo := testkit.Value(netlink.LinkByName("lo"))(t)
	ip := netip.MustParseAddr(address)
	addr := &netlink.Addr{IPNet: netlink.NewIPNet(ip.AsSlice())}
	testkit.Must(t, netlink.AddrAdd(lo, addr))
	t.Cleanup(func() { _ = netlink.AddrDel(lo, addr) })
	_, port, _ := net.SplitHostPort(cfg.Listen.Federation)
	cfg.Listen.Federation = net.JoinHostPort(address, port)
	cfg.Pod = config.Pod{Namespace: "semaphore", Name: name, Node: "n1", UID: types.UID(name), IPs: []netip.Addr{ip}}
}

// leadsTo returns the endpoints of the broker's Services: pods and federation ports, by Service.
func (w *world) leadsTo() string {
	w.t.Helper()
	all := testkit.Value(w.admin.DiscoveryV1().EndpointSlices("semaphore").List(w.t.Context(),
		metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + leader.ManagedBy}))(w.t)
	var lines []string
	for _, s := range all.Items {
		line := s.Labels[discoveryv1.LabelServiceName] + ":"
		for _, e := range s.Endpoints {
			for _, p := range s.Ports {
				if *p.Name == federationPort {
					line += fmt.Sprintf(" %s %s", e.TargetRef.Name, net.JoinHostPort(e.Addresses[0], fmt.Sprint(*p.Port)))
				}
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(slices.Sorted(slices.Values(lines)), "; ")
}

// callsReach checks that the Services lead to the leader as soon as it is ready, and to nobody while there is no
// leader. Changes by others are restored.
func (w *world) callsReach(cfg *config.Broker, within time.Duration) {
	w.t.Helper()
	want := fmt.Sprintf("semaphore-broker-federation: %[1]s %[2]s; semaphore-broker: %[1]s %[2]s", cfg.Pod.Name,
		cfg.Listen.Federation)
	want = strings.Join(slices.Sorted(slices.Values(strings.Split(want, "; "))), "; ")
	kubetest.Promptly(w.t, w.admin, within, "calls lead to "+want, testkit.State(func() (bool, string) {
		got := w.leadsTo()
		return got == want, got
	}))
}

// TestDeposedBroker checks that a broker exits when another replica holds its Lease, and removes its address from the
// Services' slices. By then, none of its clients can write anything else, and all of them can read.
func TestDeposedBroker(t *testing.T) {
	must := testkit.Must
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	ctx := t.Context()
	w.cfg.LeaderElection.Enabled = true
	w.cfg.LeaderElection.Duration.Duration = 45 * time.Second // an apiserver that gets no CPU time must not end it
	w.cfg.LeaderElection.Renew = 500 * time.Millisecond
	ofPod(t, w.cfg, "first", "192.0.2.1")
	source, err := identity.Open(ctx, w.cfg.TLS, identity.Broker(w.cfg.Cluster))
	must(t, err)
	defer source.Close()
	p, err := newProcess(ctx, kubetest.Described(t, w.rest, w.cfg), source)
	must(t, err)
	p.front.Farewell = patience // an apiserver that gets no CPU time may take more than a second
	ended := make(chan error, 1)
	go func() { ended <- p.run(ctx) }()
	eventually(t, "calls reach it", func() (bool, string) {
		got := w.leadsTo()
		return strings.Count(got, "first") == 2, got
	})
	_, err = w.admin.CoordinationV1().Leases("semaphore").Patch(ctx, w.cfg.LeaderElection.Lease, types.MergePatchType,
		[]byte(`{"spec":{"holderIdentity":"second_1"}}`), metav1.PatchOptions{})
	must(t, err)
	select {
	case err := <-ended:
		if !errors.Is(err, leader.ErrDeposed) {
			t.Errorf("it ended with %v, want one of its Lease", err)
		}
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
	if got, want := w.leadsTo(), "semaphore-broker-federation:; semaphore-broker:"; got != want {
		t.Errorf("calls lead to %q, want %q", got, want)
	}
	later, err := kubernetes.NewForConfig(p.rest)
	must(t, err)
	for name, client := range map[string]kubernetes.Interface{"client": p.client, "unlimited": p.unlimited,
		"later": later} {
		api := client.CoreV1().ConfigMaps("semaphore")
		_, err := api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "late-"}},
			metav1.CreateOptions{})
		if !errors.Is(err, leader.ErrDeposed) {
			t.Errorf("%s: a write ends with %v", name, err)
		}
		_, err = api.List(ctx, metav1.ListOptions{})
		must(t, err)
	}
}

// One of two brokers works. When it stops, the other one continues, and no existing object is written again.
func TestTwoBrokers(t *testing.T) {
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	host := testkit.Value(os.Hostname())(t)
	w.cfg.LeaderElection.Enabled = true
	// The second leads because the first releases the Lease; its expiry would take longer than the test. The Lease is so
	// long that the first does not lose it while the apiserver gets no CPU time, and a standby looks often.
	w.cfg.LeaderElection.Duration.Duration, w.cfg.LeaderElection.Renew = 45*time.Second, 500*time.Millisecond
	other := *w.cfg
	other.Listen.Federation, other.Listen.Peering, other.Listen.HTTP = loopback.Address(t), loopback.Address(t),
		loopback.Address(t)
	other.Listen.DebugSocket += "2"

	ofPod(t, w.cfg, "first", "192.0.2.1")
	ofPod(t, &other, "second", "192.0.2.2")
	stop := w.start(w.cfg)
	w.callsReach(w.cfg, time.Second)
	stopOther, _ := w.launch(&other)
	eventually(t, "the second can take over", func() (bool, string) {
		ok, text := get("http://" + other.Listen.HTTP + "/readyz")
		return ok && strings.TrimSpace(text) == "ok: standby: "+host+" leads", text
	})
	_, page := get("http://" + other.Listen.HTTP + "/readyz?verbose")
	_, metrics := get("http://" + other.Listen.HTTP + "/metrics")
	if err := testkit.SameCodes(page, metrics, w.status(&other).GetFindings()); err != nil {
		t.Error(err)
	}
	w.healsItsSlices()
	if ok, text := get("http://" + other.Listen.HTTP + "/healthz"); !ok {
		t.Errorf("a standby is not alive: %s", text)
	}
	if s := w.status(&other); !s.GetStandby() || s.GetReady() || s.GetLeader() != host ||
		len(s.GetLinks())+len(s.GetProblems()) > 0 {
		t.Errorf("status of the standby: %v", s)
	}
	if s := w.status(w.cfg); s.GetStandby() || !s.GetReady() || s.GetLeader() != host || len(s.GetLinks()) != 2 {
		t.Errorf("status of the leader: %v", s)
	}
	for cfg, want := range map[*config.Broker]string{w.cfg: "\nsemaphore_leader 1\n", &other: "\nsemaphore_leader 0\n"} {
		if _, text := get("http://" + cfg.Listen.HTTP + "/metrics"); !strings.Contains(text, want) {
			t.Errorf("no metric %q", want)
		}
	}
	for _, address := range []string{other.Listen.Federation, other.Listen.Peering} {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			t.Errorf("the standby listens on %s", address)
		}
	}

	export := []*semaphorev1.Object{
		players.Node("n1", 21, "10.2.1.0/24"), players.Service("shop", "echo", 80),
		players.Slice("shop", "echo-x", "echo", "10.2.1.5"),
		players.Member("shop", "echo-0", "u1", "echo", "10.2.1.5"),
	}
	w.exporter("c2").SendAll("c2", "e1", export...)
	w.becomes("everything of c2", `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
pool semaphore-c3-10-3-0-0-16: 10.3.0.0/16 disabled true
service c2-shop-73736d-echo: 80
set c2-shop-echo: 10.2.1.5/32
slice of c2-shop-73736d-echo: 10.2.1.5`)
	before := w.written()

	// semaphorectl in the standby's container reaches the leader.
	toLeader := other
	toLeader.Listen.DebugSocket = conns.ToLeader(other.Listen.DebugSocket)
	if s := w.status(&toLeader); s.GetStandby() || len(s.GetLinks()) != 2 {
		t.Errorf("status of the leader, asked at the standby: %v", s)
	}

	began := time.Now()
	stop()
	if got := w.leadsTo(); strings.Contains(got, "first") {
		t.Errorf("the first has ended, and calls lead to %s", got)
	}
	w.callsReach(&other, 5*time.Second)
	t.Logf("calls reached the second %s after the first was asked to stop", time.Since(began))
	w.cfg = &other
	e := w.exporter("c2")
	e.SendAll("c2", "e1", export...)
	w.settles(t, e, 101, "10.2.255.1")
	if after := w.written(); !maps.Equal(before, after) {
		t.Errorf("written again:\n%v\nbefore:\n%v", after, before)
	}
	stopOther()
}

// healsItsSlices changes and deletes the leader's slices and checks that they are restored.
func (w *world) healsItsSlices() {
	w.t.Helper()
	api := w.admin.DiscoveryV1().EndpointSlices("semaphore")
	for what, harm := range map[string]func() error{
		"deleted": func() error {
			return api.Delete(w.t.Context(), "semaphore-broker-leader-ipv4", metav1.DeleteOptions{})
		},
		"changed": func() error {
			_, err := api.Patch(w.t.Context(), "semaphore-broker-federation-leader-ipv4", types.MergePatchType,
				[]byte(`{"endpoints":[]}`), metav1.PatchOptions{})
			return err
		},
	} {
		testkit.Must(w.t, harm())
		w.callsReach(w.cfg, 5*time.Second)
		w.t.Logf("%s: put back", what)
	}
}

// retained waits until c2's RemoteCluster, the metric and the findings count so many retained objects.
func (w *world) retained(what string, healthy metav1.ConditionStatus, want int) {
	w.t.Helper()
	api := dynamic.NewForConfigOrDie(w.rest).Resource(v1alpha1.RemoteClusters)
	eventually(w.t, what, func() (bool, string) {
		var o v1alpha1.RemoteCluster
		u := testkit.Value(api.Get(w.t.Context(), "c2", metav1.GetOptions{}))(w.t)
		testkit.Must(w.t, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o))
		_, metrics := get("http://" + w.cfg.Listen.HTTP + "/metrics")
		got := []int{int(o.Status.Retained), int(testkit.Scraped(w.t, metrics, "semaphore_broker_retained", `"c2"`)), 0}
		for _, f := range w.status(w.cfg).GetFindings() {
			if f.GetCode() == string(finding.Retained) {
				got[2] += int(f.GetCount())
			}
		}
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionHealthy)
		return c != nil && c.Status == healthy && slices.Equal(got, []int{want, want, want}), fmt.Sprint(c, got)
	})
}

// release releases objects of c2, and returns how many by kind.
func (w *world) release(kinds ...semaphorev1.Kind) (objects []uint64) {
	w.t.Helper()
	for _, of := range testkit.Value(semaphorev1.NewControlServiceClient(w.socket(w.cfg)).ReleaseBrake(w.t.Context(),
		&semaphorev1.ReleaseBrakeRequest{Cluster: "c2", Kinds: kinds}))(w.t).GetReleased() {
		objects = append(objects, of.GetObjects())
	}
	return objects
}

// TestR24ReleaseAndSuccession: c2 and c3 export no nodes, Services and sets under the second leader, and c3 had none.
// Those of c2 stay until the operator releases them. Until then RemoteCluster, metric and finding count them all, also
// those that this leader knows only from the cluster's objects. After that nothing of them is left: no Service, no set,
// no peer at agents, no stored one. Nothing waits for either remote and nothing is reported, and so it is under the
// third leader.
func TestR24ReleaseAndSuccession(t *testing.T) {
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	exported := semaphorev1.Kind_KIND_ENDPOINT_SLICE
	lead := func() (*agentStream, func()) {
		stop := w.start(w.cfg)
		agent := w.attach("", 0)
		return agent, func() { agent.cancel(); stop() }
	}
	lacking := func(epoch string) {
		for _, cluster := range []string{"c2", "c3"} {
			e := w.exporter(cluster)
			e.Greet(players.Hello(cluster, epoch, 1, exported))
			e.Send(players.Snapshot(exported, 1)...)
			e.Acked(1)
		}
	}
	stored := func(what, cluster string, is func(peers []byte) bool) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			all := testkit.Value(w.admin.CoreV1().ConfigMaps("semaphore").List(t.Context(), metav1.ListOptions{}))(t)
			for _, m := range all.Items {
				if peers := m.BinaryData[cluster]; peers != nil {
					return is(peers), fmt.Sprint(len(peers), " bytes")
				}
			}
			return false, "none"
		})
	}
	global := players.Service("shop", "echo", 80)
	global.GetService().Mirror, global.GetService().Global = false, true

	agent, stop := lead()
	w.exporter("c3").SendAll("c3", "e1")
	w.exporter("c2").SendAll("c2", "e1", players.Node("n1", 21, "10.2.1.0/24"), global, players.Service("shop", "old", 80),
		players.Member("shop", "p", "u", "web", "10.2.1.5"))
	none, pools := "device c2: 51822 [10.2.0.0/16]\ndevice c3: 51823 [10.3.0.0/16]", `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
pool semaphore-c3-10-3-0-0-16: 10.3.0.0/16 disabled true`
	const ofC2 = "\nservice c2-shop-73736d-old: 80\nservice gl-shop-73736d-echo: 80\nset c2-shop-web: 10.2.1.5/32"
	agent.until("c2's node", none+"\npeer c2/n1: 172.18.2.21:51820 [10.2.1.0/24]", "c2", "c3")
	w.becomes("c2's Services", pools+ofC2)
	var first []byte
	stored("the peer is stored", "c2", func(peers []byte) bool { first = peers; return true })
	stored("c3 is known", "c3", func([]byte) bool { return true })
	stop()

	agent, stop = lead()
	lacking("e2")
	agent.until("c3 has none", "device c3: 51823 [10.3.0.0/16]", "c3")
	const until = "`semaphorectl release c2` (its exporter no longer exports this kind)"
	w.problem(t, until, "cluster c2 has withdrawn node n1")
	w.problem(t, until, "2 of the 2 objects (services)")
	w.retained("node, Services and set", metav1.ConditionFalse, 4)
	w.becomes("retained", pools+ofC2)
	if got := w.release(semaphorev1.Kind_KIND_NODE); !slices.Equal(got, []uint64{1}) {
		t.Errorf("released nodes: %v", got)
	}
	w.retained("Services and set", metav1.ConditionFalse, 3)
	if got := w.release(); !slices.Equal(got, []uint64{2, 1}) {
		t.Errorf("released %v", got)
	}
	settled := func(which string) {
		t.Helper()
		w.retained(which+": nothing is retained", metav1.ConditionTrue, 0)
		w.becomes(which+": no Service is left", pools)
		agent.until(which+": no peer is left", none, "c2", "c3")
		stored(which+": no peer is stored", "c2", func(peers []byte) bool { return len(peers) < len(first) })
		for _, problem := range w.status(w.cfg).GetProblems() {
			if strings.Contains(problem, "retain") {
				t.Errorf("%s: %s", which, problem)
			}
		}
	}
	settled("released")
	stop()

	agent, stop = lead()
	defer stop()
	lacking("e3")
	settled("the third leader")
}
