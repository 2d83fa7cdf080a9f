package peering

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/nodes"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// knownNodes are the live nodes, and what was reported of them.
type knownNodes struct {
	mu      sync.Mutex
	uids    map[string]types.UID
	synced  bool
	network *semaphorev1.NodeNetwork
	reports []string
}

func (n *knownNodes) UID(name string) (types.UID, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	uid, ok := n.uids[name]
	return uid, ok
}

func (n *knownNodes) Network(string) *semaphorev1.NodeNetwork {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.network
}

func (n *knownNodes) setNetwork(prefixes ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.network = &semaphorev1.NodeNetwork{PodPrefixes: prefixes}
}

func (n *knownNodes) Synced() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.synced
}

func (n *knownNodes) Report(node string, uid types.UID, tunnels map[string]nodes.Tunnel, guarded bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for cluster, t := range tunnels {
		n.reports = append(n.reports, fmt.Sprint(node, " ", uid, " ", cluster, " ", t.ListenPort, " ", t.PublicKey[0]))
	}
	if guarded {
		n.reports = append(n.reports, fmt.Sprint(node, " ", uid, " guarded"))
	}
}

func (n *knownNodes) reported() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.reports, "; ")
}

// bench is a server on loopback, and a cluster whose tokens it takes.
type bench struct {
	t      *testing.T
	admin  kubernetes.Interface
	rest   *rest.Config
	nodes  *knownNodes
	state  *State
	server *Server
	conn   *grpc.ClientConn
}

var agents = config.Agents{Namespace: "semaphore", ServiceAccount: "semaphore-agent", Audience: "semaphore-broker.c1"}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, rest: kubetest.Start(t), nodes: &knownNodes{uids: map[string]types.UID{}, synced: true},
		state: NewState()}
	b.admin = kubernetes.NewForConfigOrDie(b.rest)
	kubetest.NoLeaks(t, b.rest)
	kubetest.Namespace(t, b.admin, "semaphore")
	for _, name := range []string{"semaphore-agent", "other"} {
		kubetest.Create(t, b.admin.CoreV1().ServiceAccounts("semaphore"),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	client := b.start(b.admin)
	client.watchPods(t)
	b.server, b.conn = client.server, client.conn
	return b
}

type running struct {
	server *Server
	conn   *grpc.ClientConn
	pods   *apply.Watched[*corev1.Pod]
}

// watchPods watches the agents' pods until the test ends, and returns when they are known.
func (r running) watchPods(t *testing.T) {
	t.Helper()
	testkit.Run(t, r.pods.Run)
	testkit.Eventually(t, time.Minute, "the pods are known", testkit.True(r.pods.Synced))
}

// start serves, asking kube who agents are; none is admitted before watchPods. TLS is left out: the federation tests
// have it.
func (b *bench) start(kube kubernetes.Interface) running {
	b.t.Helper()
	var s *Server
	options := apply.Options{Metrics: apply.NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler)}
	pods := apply.NewPods(b.admin, "semaphore", "semaphore-agent", func(uid types.UID) { s.PodDeleted(uid) },
		options.Informers())
	s = New(Options{
		Cluster: "c1", Remotes: []config.Remote{{Name: "c2"}, {Name: "c3"}}, Agents: agents, Kube: kube, Nodes: b.nodes,
		PodsKnown: pods.Synced, Network: b.nodes.Network, Reports: b.nodes, State: b.state,
		Metrics:  NewMetrics(prometheus.NewRegistry()),
		Recorder: debug.NewRecorder("broker", "c1", ""), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	return running{s, serve(b.t, s)(), pods}
}

func (b *bench) node(name string) *corev1.Node {
	b.t.Helper()
	n := kubetest.Create(b.t, b.admin.CoreV1().Nodes(),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	b.nodes.mu.Lock()
	b.nodes.uids[name] = n.UID
	b.nodes.mu.Unlock()
	return n
}

func (b *bench) pod(name, node, account string) *corev1.Pod {
	b.t.Helper()
	return kubetest.Create(b.t, b.admin.CoreV1().Pods("semaphore"), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: account,
			Containers: []corev1.Container{{Name: "agent", Image: "semaphore"}}},
	})
}

// token is one of account, for audience (none for the apiserver's own), bound to pod (nil for nothing).
func (b *bench) token(account, audience string, pod *corev1.Pod) string {
	b.t.Helper()
	spec := authenticationv1.TokenRequestSpec{}
	if audience != "" {
		spec.Audiences = []string{audience}
	}
	if pod != nil {
		spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name,
			UID: pod.UID}
	}
	out := testkit.Value(b.admin.CoreV1().ServiceAccounts("semaphore").CreateToken(b.t.Context(), account,
		&authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{}))(b.t)
	return out.Status.Token
}

type call = grpc.BidiStreamingClient[semaphorev1.AttachRequest, semaphorev1.AttachResponse]

// attach opens a stream with a token and says hello.
func attach(t *testing.T, conn *grpc.ClientConn, token string) call {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	stream := testkit.Value(semaphorev1.NewPeeringServiceClient(conn).Attach(ctx))(t)
	// An error here is returned by the first Recv.
	_ = stream.Send(hello(&semaphorev1.AgentHello{}))
	return stream
}

func end(stream call) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

func TestAdmission(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	n1 := b.node("n1")
	b.node("n2")
	pod := b.pod("agent-n1", "n1", "semaphore-agent")
	good := b.token("semaphore-agent", agents.Audience, pod)

	t.Run("an agent", func(t *testing.T) {
		stream := attach(t, b.conn, good)
		m := testkit.Value(stream.Recv())(t)
		if a := m.GetAttached(); a.GetNode() != "n1" || a.GetCluster() != "c1" || a.GetEpoch() == "" {
			t.Errorf("%v", m)
		}
	})
	t.Run("the network of its node, and its changes", func(t *testing.T) {
		b.nodes.setNetwork("10.1.7.0/24", "fd00:1:7::/64")
		stream := attach(t, b.conn, good)
		next := func() *semaphorev1.AttachResponse {
			t.Helper()
			for {
				m := testkit.Value(stream.Recv())(t)
				if m.GetGuard() == nil {
					return m
				}
			}
		}
		if m := next(); m.GetAttached() == nil {
			t.Errorf("not attached: %v", m)
		}
		if m := next(); !slices.Equal(m.GetNodeNetwork().GetPodPrefixes(), []string{"10.1.7.0/24", "fd00:1:7::/64"}) {
			t.Errorf("before any change, not the network: %v", m)
		}
		if m := next(); m.GetSynced() == nil {
			t.Errorf("not the end mark: %v", m)
		}
		b.nodes.setNetwork("10.1.7.0/24", "fd00:1:7::/64")
		b.server.NetworkChanged("n1") // it has not
		b.nodes.setNetwork("10.1.8.0/26")
		b.server.NetworkChanged("n1")
		if m := next(); !slices.Equal(m.GetNodeNetwork().GetPodPrefixes(), []string{"10.1.8.0/26"}) {
			t.Errorf("after a change: %v", m)
		}
		b.nodes.setNetwork()
		b.server.NetworkChanged("n1")
		if m := next(); m.GetNodeNetwork() == nil || m.GetNodeNetwork().GetPodPrefixes() != nil {
			t.Errorf("without any: %v", m)
		}
	})
	refused := func(name, token string, code codes.Code, word string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			t.Helper()
			err := end(attach(t, b.conn, token))
			// An apiserver that gets no processor does not review tokens in time.
			for tries := 0; tries < 10 && status.Code(err) == codes.Unavailable; tries++ {
				time.Sleep(time.Second)
				err = end(attach(t, b.conn, token))
			}
			if status.Code(err) != code || !strings.Contains(err.Error(), word) {
				t.Errorf("%v; want %s and %q", err, code, word)
			}
		})
	}
	refused("no token", "", codes.Unauthenticated, "no bearer token")
	refused("nonsense", "nonsense", codes.Unauthenticated, "audience")
	refused("too long", strings.Repeat("x", maxToken+1), codes.Unauthenticated, "too long")
	refused("a broker of another cluster's audience", b.token("semaphore-agent", "semaphore-broker.c2", pod),
		codes.Unauthenticated, "audience")
	refused("the apiserver's own audience", b.token("semaphore-agent", "", pod), codes.Unauthenticated, "audience")
	refused("another account", b.token("other", agents.Audience, b.pod("other", "n1", "other")), codes.PermissionDenied,
		"semaphore:other")
	refused("bound to no pod", b.token("semaphore-agent", agents.Audience, nil), codes.PermissionDenied, "pod-name")
	refused("a pod on no node", b.token("semaphore-agent", agents.Audience, b.pod("nowhere", "", "semaphore-agent")),
		codes.PermissionDenied, "node-name")

	t.Run("one stream a node", func(t *testing.T) {
		older := attach(t, b.conn, good)
		testkit.Value(older.Recv())(t)
		newer := attach(t, b.conn,
			b.token("semaphore-agent", agents.Audience, b.pod("agent-n1-anew", "n1", "semaphore-agent")))
		testkit.Value(newer.Recv())(t)
		if err := end(older); status.Code(err) != codes.Aborted {
			t.Errorf("the older one ended with %v", err)
		}
		if s := b.server.Status(nil, expected); len(s) != 1 || !s[0].Attached {
			t.Errorf("status %v", s)
		}
	})
	t.Run("nodes not known yet", func(t *testing.T) {
		b.nodes.mu.Lock()
		b.nodes.synced = false
		b.nodes.mu.Unlock()
		if err := end(attach(t, b.conn, good)); status.Code(err) != codes.Unavailable {
			t.Errorf("%v", err)
		}
		b.nodes.mu.Lock()
		b.nodes.synced = true
		b.nodes.mu.Unlock()
	})
	t.Run("no right to review", func(t *testing.T) {
		cfg := rest.CopyConfig(b.rest)
		cfg.Impersonate.UserName = "nobody"
		weak := b.start(kubernetes.NewForConfigOrDie(cfg))
		weak.watchPods(t)
		if err := end(attach(t, weak.conn, good)); status.Code(err) != codes.Unavailable {
			t.Errorf("%v", err)
		}
	})
	t.Run("the node is deleted under a stream", func(t *testing.T) {
		stream := attach(t, b.conn, good)
		testkit.Value(stream.Recv())(t)
		b.server.NodeDeleted(n1.UID)
		if err := end(stream); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v", err)
		}
	})
	// F12: the token stays authenticated after this; see research on bound tokens.
	testkit.Must(t, b.admin.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}))
	b.node("n1")
	refused("the node was made again under its name", good, codes.PermissionDenied, "does not exist")
	t.Run("the pod ends", func(t *testing.T) {
		pod := b.pod("ends", "n2", "semaphore-agent")
		token := b.token("semaphore-agent", agents.Audience, pod)
		pod.Status.Phase = corev1.PodFailed
		kubetest.UpdateStatus(t, b.admin.CoreV1().Pods("semaphore"), pod)
		if err := end(attach(t, b.conn, token)); status.Code(err) != codes.PermissionDenied ||
			!strings.Contains(err.Error(), "ends") {
			t.Errorf("%v", err)
		}
	})
	t.Run("the pod is deleted under a stream", func(t *testing.T) {
		pod := b.pod("deleted", "n2", "semaphore-agent")
		token := b.token("semaphore-agent", agents.Audience, pod)
		fresh := b.start(b.admin)
		_, err := attach(t, fresh.conn, token).Recv()
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "agents' pods") {
			t.Fatalf("before the pods are known: %v", err)
		}
		fresh.watchPods(t)
		stream := attach(t, fresh.conn, token)
		testkit.Value(stream.Recv())(t)
		testkit.Must(t, b.admin.CoreV1().Pods("semaphore").Delete(ctx, "deleted",
			metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		ended := make(chan error, 1)
		go func() { ended <- end(stream) }()
		select {
		case err := <-ended:
			if status.Code(err) != codes.PermissionDenied {
				t.Errorf("after the pod's end: %v", err)
			}
		case <-time.After(reviewInterval / 2):
			t.Fatal("the stream has not ended before its token is reviewed again")
		}
		if err := end(attach(t, fresh.conn, token)); status.Code(err) != codes.PermissionDenied &&
			status.Code(err) != codes.Unauthenticated {
			t.Errorf("another stream of it: %v", err)
		}
	})
	t.Run("the pod is gone, and the review still remembers it", func(t *testing.T) {
		pod := b.pod("gone", "n2", "semaphore-agent")
		token := b.token("semaphore-agent", agents.Audience, pod)
		testkit.Value(attach(t, b.conn, token).Recv())(t)
		testkit.Must(t, b.admin.CoreV1().Pods("semaphore").Delete(ctx, "gone",
			metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		if err := end(attach(t, b.conn, token)); status.Code(err) != codes.PermissionDenied &&
			status.Code(err) != codes.Unauthenticated {
			t.Errorf("%v", err)
		}
	})
}

func TestReports(t *testing.T) {
	b := newBench(t)
	n1 := b.node("n1")
	token := b.token("semaphore-agent", agents.Audience, b.pod("agent-n1", "n1", "semaphore-agent"))
	key := make([]byte, 32)
	key[0] = 7
	report := players.Report
	t.Run("keys of configured remotes", func(t *testing.T) {
		stream := attach(t, b.conn, token)
		first := report(
			&semaphorev1.DeviceReport{Cluster: "c2", Interface: "wireguard.c2", PublicKey: key, ListenPort: 51820,
				Problem: strings.Repeat("x", 2000)},
			&semaphorev1.DeviceReport{Cluster: "c3", ListenPort: 51821}, // no key yet
			&semaphorev1.DeviceReport{Cluster: "c9", PublicKey: key, ListenPort: 51829},
		)
		first.GetReport().Problems = append(slices.Repeat([]string{"nothing is forwarded"}, maxProblems), "one too many")
		first.GetReport().ClearPackets = 12
		testkit.Must(t, stream.Send(first))
		want := fmt.Sprintf("n1 %s c2 51820 7", n1.UID)
		for {
			m := testkit.Value(stream.Recv())(t)
			if all := m.GetChanges().GetChanges(); len(all) > 0 {
				if len(all) != 1 || all[0].GetDeleteDevice() != "c9" {
					t.Errorf("sent %v", all)
				}
				break
			}
		}
		if got := b.nodes.reported(); got != want {
			t.Errorf("reported %q, want %q", got, want)
		}
		s := b.server.Status([]string{"n1", "n2"}, expected)
		if len(s) != 2 || !s[0].Attached || s[0].Devices != 3 || s[0].ClearPackets != 12 || s[1].Attached {
			t.Errorf("status %v", s)
		}
		problems := s[0].GetProblems()
		if len(problems) != maxProblems+1 || problems[0] != "nothing is forwarded" || len(problems[maxProblems]) > 600 {
			t.Errorf("problems %q", problems)
		}
	})
	t.Run("one that makes no sense", func(t *testing.T) {
		stream := attach(t, b.conn, token)
		testkit.Must(t, stream.Send(report(slices.Repeat([]*semaphorev1.DeviceReport{{}}, maxDevices+1)...)))
		if err := end(stream); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v", err)
		}
	})
}
