package broker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/stored"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// operator returns the client of a broker's ControlService on its socket.
func (w *world) operator(cfg *config.Broker) semaphorev1.ControlServiceClient {
	w.t.Helper()
	return semaphorev1.NewControlServiceClient(w.socket(cfg))
}

// endpoints returns the endpoints of semaphore's slices by Service, cluster and address: + if used, - if unused, ? if
// neither.
func (w *world) endpoints() string {
	w.t.Helper()
	all := testkit.Value(w.admin.DiscoveryV1().EndpointSlices("semaphore").List(w.t.Context(),
		metav1.ListOptions{LabelSelector: writes.Owned}))(w.t)
	var out []string
	for _, s := range all.Items {
		if isBarrier(s.Labels[discoveryv1.LabelServiceName]) {
			continue
		}
		for _, e := range s.Endpoints {
			sign := "?"
			if ptr.Deref(e.Conditions.Ready, true) {
				sign = "+"
			} else if unused := strings.Split(s.Annotations[naming.AnnotationUnusedEndpoints], ","); slices.Contains(unused,
				e.Addresses[0]) && !ptr.Deref(e.Conditions.Serving, true) {
				sign = "-"
			}
			out = append(out, fmt.Sprint(s.Labels[discoveryv1.LabelServiceName], " ", s.Labels[naming.LabelSourceCluster], " ",
				e.Addresses[0], sign))
		}
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), "\n")
}

func (w *world) has(what, want string) {
	w.t.Helper()
	want = strings.TrimSpace(want)
	eventually(w.t, what, func() (bool, string) {
		got := w.endpoints()
		return got == want, "\n" + got + "\nwanted:\n" + want
	})
}

// unwritten fails the test if a Service or slice has been written since before.
func (w *world) unwritten(before map[string]string) {
	w.t.Helper()
	for what, is := range w.written() {
		if !strings.HasPrefix(what, "pool ") && before[what] != is {
			w.t.Errorf("written again: %s: %s, was %s", what, is, before[what])
		}
	}
}

func globalObject(ns, name string, port int32) *semaphorev1.Object {
	o := players.Service(ns, name, port)
	o.GetService().Mirror, o.GetService().Global = false, true
	return o
}

func node(cluster, name string) *semaphorev1.DrainTarget {
	return &semaphorev1.DrainTarget{Cluster: cluster, Node: name}
}

func TestDrainRPC(t *testing.T) {
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	stop := w.start(w.cfg)
	export := []*semaphorev1.Object{
		players.Node("m1", 21, "10.2.1.0/24"), players.Node("m2", 22, "10.2.2.0/24"),
		players.Service("shop", "echo", 80), players.Slice("shop", "echo-x", "echo", "10.2.1.5", "10.2.2.5"),
	}
	e := w.exporter("c2")
	e.SendAll("c2", "e1", export...)
	const all = "c2-shop-73736d-echo c2 10.2.1.5+\nc2-shop-73736d-echo c2 10.2.2.5+"
	w.has("all is in use", all)
	operator := w.operator(w.cfg)
	ctx := t.Context()

	for _, c := range []struct {
		name string
		req  *semaphorev1.DrainRequest
		code codes.Code
		says string
	}{
		{"nothing", &semaphorev1.DrainRequest{}, codes.InvalidArgument, "name what to drain"},
		{"another cluster", &semaphorev1.DrainRequest{Target: &semaphorev1.DrainTarget{Cluster: "c9"}}, codes.NotFound,
			"neither this cluster nor a configured remote"},
		{"a node nobody knows", &semaphorev1.DrainRequest{Target: node("c2", "m9")}, codes.FailedPrecondition,
			"are not known here: give them"},
		{"an own node without subnets", &semaphorev1.DrainRequest{Target: node("c1", "n1")}, codes.FailedPrecondition,
			"are not known here: give them"},
		{"no subnet", &semaphorev1.DrainRequest{Target: node("c2", "m9"), Prefixes: []string{"10.2.1.1/24"}},
			codes.InvalidArgument, "prefixes[0]: 10.2.1.1/24 has bits set"},
		{"subnets of a cluster", &semaphorev1.DrainRequest{Target: &semaphorev1.DrainTarget{Cluster: "c2"},
			Prefixes: []string{"10.2.1.0/24"}}, codes.InvalidArgument, "only a node has them"},
		{"no time", &semaphorev1.DrainRequest{Target: &semaphorev1.DrainTarget{Cluster: "c2"},
			Lasts: durationpb.New(time.Millisecond)}, codes.InvalidArgument, "lasts: 1ms"},
		{"long", &semaphorev1.DrainRequest{Target: &semaphorev1.DrainTarget{Cluster: "c2"}, By: strings.Repeat("x", 1000)},
			codes.InvalidArgument, "by: 1000 bytes"},
	} {
		if _, err := operator.Drain(ctx, c.req); status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %v, %q", c.name, err, c.code, c.says)
		}
	}
	if _, err := operator.Undrain(ctx,
		&semaphorev1.UndrainRequest{Target: &semaphorev1.DrainTarget{Cluster: "c2"}}); status.Code(err) != codes.NotFound {
		t.Errorf("undrained what was not drained: %v", err)
	}

	dry, err := operator.Drain(ctx, &semaphorev1.DrainRequest{Target: node("c2", "m1"), DryRun: true})
	if err != nil || dry.Drain.Endpoints != 1 || dry.Drain.Services != 1 ||
		fmt.Sprint(dry.Drain.Prefixes) != "[10.2.1.0/24]" || len(dry.Warnings) != 0 {
		t.Errorf("%v, %v", dry, err)
	}
	if got := w.status(w.cfg).GetDrains(); len(got) != 0 || w.endpoints() != all {
		t.Errorf("a dry run drains: %v, %s", got, w.endpoints())
	}
	testkit.Value(operator.Drain(ctx, &semaphorev1.DrainRequest{Target: node("c2", "m1"), By: "ops",
		Lasts: durationpb.New(time.Hour)}))(t)
	w.has("one is not used", "c2-shop-73736d-echo c2 10.2.1.5-\nc2-shop-73736d-echo c2 10.2.2.5+")
	held := w.status(w.cfg).GetDrains()
	if len(held) != 1 || held[0].Endpoints != 1 || held[0].Services != 1 || held[0].By != "ops" ||
		held[0].Until.AsTime().Sub(held[0].Since.AsTime()) != time.Hour {
		t.Errorf("%v", held)
	}
	// The node gets another pod CIDR.
	e.Send(players.Upserts(101, players.Node("m1", 21, "10.2.1.0/24", "10.2.2.0/26")))
	w.has("what it has now is drained too", "c2-shop-73736d-echo c2 10.2.1.5-\nc2-shop-73736d-echo c2 10.2.2.5-")
	e.Send(players.Upserts(102, players.Node("m1", 21, "10.2.1.0/24")))
	w.has("and what it has no more is not", "c2-shop-73736d-echo c2 10.2.1.5-\nc2-shop-73736d-echo c2 10.2.2.5+")
	rest, err := operator.Drain(ctx,
		&semaphorev1.DrainRequest{Target: &semaphorev1.DrainTarget{Namespace: "shop", Service: "echo"}})
	if err != nil || rest.Drain.Endpoints != 1 ||
		fmt.Sprint(rest.Warnings) != "[no ready endpoint is left to: c2-shop-73736d-echo]" {
		t.Errorf("%v, %v", rest, err)
	}
	const none = "c2-shop-73736d-echo c2 10.2.1.5-\nc2-shop-73736d-echo c2 10.2.2.5-"
	w.has("none is used", none)
	unknown, err := operator.Drain(ctx,
		&semaphorev1.DrainRequest{Target: &semaphorev1.DrainTarget{Cluster: "c3", Namespace: "shop", Service: "echo"},
			DryRun: true})
	if err != nil || fmt.Sprint(unknown.Warnings) != "[no service here has endpoints of service c3:shop/echo]" {
		t.Errorf("%v, %v", unknown, err)
	}

	// The remote disconnects and another broker starts. Nothing is written, and the operator can end the drain.
	e.Cancel()
	stop()
	before := w.written()
	stop = w.start(w.cfg)
	operator = w.operator(w.cfg)
	other := w.exporter("c3")
	other.SendAll("c3", "e1")
	w.settles(t, other, 101, "10.3.255.1")
	other.Cancel()
	if got := w.endpoints(); got != none {
		t.Errorf("after a restart:\n%s", got)
	}
	w.unwritten(before)
	if _, err := operator.Undrain(ctx,
		&semaphorev1.UndrainRequest{Target: &semaphorev1.DrainTarget{Namespace: "shop", Service: "echo"}}); err != nil {
		t.Error(err)
	}
	w.has("one is back, of a cluster that is not heard",
		"c2-shop-73736d-echo c2 10.2.1.5-\nc2-shop-73736d-echo c2 10.2.2.5+")
	// A user edits the ConfigMap.
	testkit.Value(w.admin.CoreV1().ConfigMaps("semaphore").Patch(ctx, stored.DrainsName, types.MergePatchType,
		[]byte(`{"data":{"node.c2.m1":null}}`), metav1.PatchOptions{}))(t)
	w.has("all are back", all)
	testkit.Value(w.admin.CoreV1().ConfigMaps("semaphore").Patch(ctx, stored.DrainsName, types.MergePatchType,
		[]byte(`{"data":{"mine":"clutser: c2"}}`), metav1.PatchOptions{}))(t)
	const unreadable = "drain mine of ConfigMap semaphore/semaphore-drains is not active: "
	w.problem(t, unreadable)
	w.event(t, "DrainUnreadable", unreadable)
	stop()
}

// While the drains are unknown, the broker writes nothing of services, because that would use drained endpoints.
// Everything else works.
func TestDrainsFirst(t *testing.T) {
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	all := func(resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: resources, Verbs: []string{"*"}}
	}
	kept := all("configmaps")
	kept.ResourceNames = []string{"semaphore-broker-remotes"}
	kubetest.Allow(t, w.admin, "broker", all("endpointslices", "nodes", "pods", "events", "tokenreviews",
		"globalnetworksets", "ippools", "remoteclusters", "remoteclusters/status", "customresourcedefinitions"), kept,
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create"}})
	limited := rest.CopyConfig(w.rest)
	limited.Impersonate.UserName = "broker"
	limited.Impersonate.Groups = []string{"system:authenticated"} // the group that may discover the API
	w.cfg.Kube.KubeConfigPath = kubetest.Kubeconfig(t, limited)
	stop, _ := w.launch(w.cfg)
	eventually(t, "it is reported what is missing", func() (bool, string) {
		_, text := get("http://" + w.cfg.Listen.HTTP + "/readyz")
		return strings.Contains(text, "drains: those of the cluster are not known yet"), text
	})
	eventually(t, "/readyz, metrics and status have the same codes", func() (bool, string) {
		ok, page := get("http://" + w.cfg.Listen.HTTP + "/readyz?verbose")
		_, metrics := get("http://" + w.cfg.Listen.HTTP + "/metrics")
		err := testkit.SameCodes(page, metrics, w.status(w.cfg).GetFindings())
		return !ok && err == nil && strings.HasPrefix(page, "DrainsFailed, NotReady: "), fmt.Sprint(err, page)
	})
	e := w.exporter("c2")
	e.SendAll("c2", "e1", players.Service("shop", "echo", 80), players.Slice("shop", "echo-x", "echo", "10.2.1.5"),
		players.Member("shop", "echo-0", "u1", "echo", "10.2.1.5"))
	const others = "pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true\npool semaphore-c3-10-3-0-0-16: " +
		"10.3.0.0/16 disabled true\nset c2-shop-echo: 10.2.1.5/32"
	w.becomes("sets are written", others)
	if p := w.status(w.cfg).GetProblems(); !anyHas(p,
		"drains are not known, and until they are no service is written: ", "forbidden") {
		t.Errorf("%q", p)
	}
	// Objects after the Service are written, and the Service is not.
	e.Send(players.Upserts(101, players.Member("shop", "barrier", "u2", "barrier", "10.2.1.6")))
	w.becomes("and no service", others[:strings.Index(others, "\nset")]+"\nset c2-shop-barrier: 10.2.1.6/32\n"+
		others[strings.Index(others, "set c2-shop-echo"):])
	e.Send(players.Deletion(102, players.Member("shop", "barrier", "u2", "barrier", "10.2.1.6")))
	w.becomes("and no service", others)
	kubetest.Allow(t, w.admin, "broker", all("configmaps"))
	eventually(t, "a list that is refused makes the broker not ready", func() (bool, string) {
		_, page := get("http://" + w.cfg.Listen.HTTP + "/readyz?verbose")
		return strings.HasPrefix(page, "NotReady, WatchFailed: ") && anyHas(w.status(w.cfg).GetProblems(),
			"services: the watch fails: ", "forbidden"), page
	})
	kubetest.Allow(t, w.admin, "broker", all("services"))
	// An informer retries after an error within half a minute.
	for range 400 {
		if ok, _ := get("http://" + w.cfg.Listen.HTTP + "/readyz"); ok {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.becomes("all", strings.Replace(others, "\nset", "\nservice c2-shop-73736d-echo: 80\nset",
		1)+"\nslice of c2-shop-73736d-echo: 10.2.1.5")
	stop()
}

// talking returns an agent's report of its device to c2, with one peer that is idle or talks.
func talking(peers uint32) *semaphorev1.DeviceReport {
	return &semaphorev1.DeviceReport{Cluster: "c2", Interface: "wireguard.c2", PublicKey: slices.Repeat([]byte{7}, 32),
		ListenPort: 51822, Peers: 1, PeersTalking: peers, PeersIdle: 1 - peers}
}

// inVain returns the report of an agent whose peer did not answer when it was probed.
func inVain() *semaphorev1.DeviceReport {
	d := talking(0)
	d.PeersUnanswered = 1
	return d
}

// Global services with other endpoints leave out a cluster whose exporter is silent and whose nodes do not answer. Idle
// tunnels are no sign: the broker has agents try, as long as the exporter is silent. Mirrors do not leave it out. A
// restarted broker keeps that state, and either sign of life ends it.
func TestGoneRemote(t *testing.T) {
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	w.cfg.GlobalServices.SilentAfter.Duration = 2 * time.Second
	stop := w.start(w.cfg)
	mirrored := players.Service("shop", "echo", 80)
	mirrored.GetService().Global = true
	c2 := w.exporter("c2")
	c2.SendAll("c2", "e1", players.Node("m1", 21, "10.2.1.0/24"), mirrored,
		players.Slice("shop", "echo-x", "echo", "10.2.1.5"))
	c3 := w.exporter("c3")
	c3.SendAll("c3", "e1", globalObject("shop", "echo", 80), players.Slice("shop", "echo-x", "echo", "10.3.1.5"))
	const here = "c2-shop-73736d-echo c2 10.2.1.5+\ngl-shop-73736d-echo c2 10.2.1.5+\ngl-shop-73736d-echo c3 10.3.1.5+"
	const gone = "c2-shop-73736d-echo c2 10.2.1.5+\ngl-shop-73736d-echo c2 10.2.1.5-\ngl-shop-73736d-echo c3 10.3.1.5+"
	w.has("both are in use", here)
	agent := w.attach("", 0)
	agent.report(talking(1))
	eventually(t, "the agent has reported", func() (bool, string) {
		s := w.status(w.cfg).GetTunnels()
		return len(s) > 0 && s[0].GetNodesTalking() == 1, fmt.Sprint(s)
	})

	// Only the stream ends.
	c2.Cancel()
	time.Sleep(4 * time.Second)
	if got := w.endpoints(); got != here {
		t.Errorf("with a silent exporter:\n%s", got)
	}
	agent.report(talking(0))
	for order := (*semaphorev1.ProbePeers)(nil); order == nil; { // which the broker sends after 7 s of silence
		m := testkit.Value(agent.stream.Recv())(t)
		order = m.GetProbePeers()
		if order != nil && !slices.Contains(order.GetClusters(), "c2") {
			t.Errorf("agents are to probe %v", order)
		}
	}
	if got := w.endpoints(); got != here {
		t.Errorf("with a silent exporter, and idle tunnels that nobody tried:\n%s", got)
	}
	agent.report(inVain())
	w.has("no sign of it is left", gone)
	if p := w.status(w.cfg).GetProblems(); !anyHas(p, "cluster c2 is gone since ") {
		t.Errorf("%q", p)
	}
	if _, text := get("http://" + w.cfg.Listen.HTTP + "/metrics"); !strings.Contains(text,
		"\nsemaphore_broker_cluster_gone{cluster=\"c2\"} 1\n") {
		t.Error("no metric")
	}

	// The Service names it for the next leader, which writes what this one has not.
	eventually(t, "the Service names it", func() (bool, string) {
		services := testkit.Value(w.admin.CoreV1().Services("").List(t.Context(),
			metav1.ListOptions{FieldSelector: "metadata.name=gl-shop-73736d-echo"}))(t).Items
		return len(services) == 1 && services[0].Annotations[naming.AnnotationGoneClusters] == "c2", fmt.Sprint(services)
	})
	before := w.written()
	c3.Cancel()
	stop()
	stop = w.start(w.cfg)
	c3 = w.exporter("c3")
	c3.SendAll("c3", "e1", globalObject("shop", "echo", 80), players.Slice("shop", "echo-x", "echo", "10.3.1.5"))
	for range 60 { // before, and after it could be known
		if got := w.endpoints(); got != gone {
			t.Fatalf("after a restart:\n%s", got)
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.unwritten(before)
	agent = w.attach("", 0)
	agent.report(inVain())
	w.problem(t, "cluster c2 is gone since ") // to the new one, too
	agent.report(talking(1))
	w.has("a tunnel is back", here)
	stop()
}
