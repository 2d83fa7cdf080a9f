package broker

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/nodes"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/internal/config"
	semdebug "github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// benchAgents is the number of streams.
const benchAgents = 1000

// reviewTakes is the measured time of a TokenReview on a quiet machine. A pod's get takes half of it.
const reviewTakes = 1200 * time.Microsecond

// knownNodes has every node.
type knownNodes struct{}

func (knownNodes) UID(name string) (types.UID, bool)                       { return types.UID(name + "-uid"), true }
func (knownNodes) Synced() bool                                            { return true }
func (knownNodes) Report(string, types.UID, map[string]nodes.Tunnel, bool) {}

// reviewing returns a client of a fake apiserver that accepts node names as tokens and takes as long as a real one.
func reviewing(b testing.TB) kubernetes.Interface {
	agents := "semaphore"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/semaphore/pods/"); ok {
			time.Sleep(reviewTakes / 2)
			pod := corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
				ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-uid")}}
			pod.Spec.NodeName, pod.Spec.ServiceAccountName = name, "semaphore-agent"
			_ = json.NewEncoder(w).Encode(pod)
			return
		}
		time.Sleep(reviewTakes)
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		node := review.Spec.Token
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: review.Spec.Audiences,
			User: authenticationv1.UserInfo{
				Username: "system:serviceaccount:" + agents + ":semaphore-agent",
				Extra: map[string]authenticationv1.ExtraValue{
					"authentication.kubernetes.io/pod-name": {node}, "authentication.kubernetes.io/pod-uid": {node + "-uid"},
					"authentication.kubernetes.io/node-name": {node}, "authentication.kubernetes.io/node-uid": {node + "-uid"},
				},
			}}
		_ = json.NewEncoder(w).Encode(review)
	}))
	b.Cleanup(s.Close)
	return kubernetes.NewForConfigOrDie(&rest.Config{Host: s.URL, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
}

// files are the certificates of a cluster, and its bundle.
type files struct {
	trust.Dir
	bundle string
}

func newFiles(b testing.TB) files {
	dir := trust.New(b, "c1")
	return files{dir, filepath.Join(dir.Bundles(), "c1.pem")}
}

func (f files) client() *tls.Config { return trust.ClientTLS(f.bundle, identity.Broker("c1")) }

func (f files) source(b testing.TB) *identity.Source { return f.Source(b, "c1", "broker") }

// counting counts the bytes written to its connections, including TLS.
type counting struct {
	net.Listener
	sent atomic.Int64
}

type countingConn struct {
	net.Conn
	sent *atomic.Int64
}

func (l *counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return countingConn{c, &l.sent}, nil
}

func (c countingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// peeringBroker is the peering part of a broker behind a broker's listener.
type peeringBroker struct {
	state    *peering.State
	server   *peering.Server
	registry *prometheus.Registry
	listener *counting
	// acks counts the received Applied messages. acked receives a value each time that acks reaches wanted.
	acks, wanted atomic.Int64
	acked        chan struct{}
}

func (p *peeringBroker) count(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	return handler(srv, &acknowledged{stream, p})
}

type acknowledged struct {
	grpc.ServerStream
	p *peeringBroker
}

func (a *acknowledged) RecvMsg(m any) error {
	err := a.ServerStream.RecvMsg(m)
	if r, ok := m.(*semaphorev1.AttachRequest); ok && err == nil && r.GetApplied() != nil {
		if a.p.acks.Add(1) == a.p.wanted.Load() {
			a.p.acked <- struct{}{}
		}
	}
	return err
}

func startPeering(b testing.TB, f files, kube kubernetes.Interface) *peeringBroker {
	b.Helper()
	p := &peeringBroker{acked: make(chan struct{}, 1), state: peering.NewState(), registry: prometheus.NewRegistry()}
	p.server = peering.New(peering.Options{
		Network: func(string) *semaphorev1.NodeNetwork { return nil }, PodsKnown: func() bool { return true },
		Cluster: "c1", Remotes: []config.Remote{{Name: "c2"}},
		Agents: config.Agents{Namespace: "semaphore", ServiceAccount: "semaphore-agent", Audience: "broker.c1"},
		Kube:   kube, Nodes: knownNodes{}, Reports: knownNodes{}, State: p.state, Metrics: peering.NewMetrics(p.registry),
		Recorder: semdebug.NewRecorder("broker", "c1", ""), Log: slog.New(slog.DiscardHandler),
	})
	// This is servers.peering with one more interceptor.
	g := newServers(prometheus.NewRegistry(),
		slog.New(slog.DiscardHandler)).new(credentials.NewTLS(f.source(b).ServerOnlyTLS()), alive, p.server.Authenticate,
		append(peering.ServerOptions(), grpc.ChainStreamInterceptor(p.count))...)
	semaphorev1.RegisterPeeringServiceServer(g, p.server)
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(b)
	p.listener = &counting{Listener: l}
	testkit.Run(b, func(ctx context.Context) error {
		context.AfterFunc(ctx, g.Stop)
		return g.Serve(p.listener)
	})
	return p
}

func (p *peeringBroker) address() string { return p.listener.Addr().String() }

// value returns the value of a broker metric without labels.
func (p *peeringBroker) value(b testing.TB, name string) float64 {
	b.Helper()
	sum, found := testkit.Metric(b, p.registry, name)
	if !found {
		b.Fatalf("no metric %s", name)
	}
	return sum
}

// benchNode is the node of the one peer.
const benchNode = "ip-172-18-0-0.eu-west-1.compute.internal"

func benchMesh(port uint16) mesh.Changes {
	return mesh.Changes{
		Device: &semaphorev1.Device{Cluster: "c2", ListenPort: 51820, Mtu: 1420, PodSubnets: []string{"10.0.0.0/8"}},
		Peers: map[string]*semaphorev1.Peer{benchNode: {
			Key: &semaphorev1.PeerKey{Cluster: "c2", Node: benchNode},
			Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: make([]byte, 32),
				Address: fmt.Sprintf("172.18.0.0:%d", port)},
			AllowedIps: []string{"10.0.0.0/24"},
		}},
	}
}

// benchUntil waits for what a benchmark must come to.
func benchUntil(b testing.TB, what string, ok func() bool) {
	b.Helper()
	for start := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(start) > 2*time.Minute {
			b.Fatalf("not within two minutes: %s", what)
		}
	}
}

// measure records the time and the CPU time of a benchmark's rounds. On a busy machine the CPU time says more.
type measure struct {
	start time.Time
	busy  time.Duration
	took  []time.Duration
	used  time.Duration
}

func (m *measure) begin() { m.start, m.busy = time.Now(), testkit.ProcessorTime() }

func (m *measure) end() {
	m.took = append(m.took, time.Since(m.start))
	m.used += testkit.ProcessorTime() - m.busy
}

func (m *measure) median() time.Duration {
	slices.Sort(m.took)
	return m.took[len(m.took)/2]
}

func (m *measure) milliseconds() float64 { return float64(m.median().Microseconds()) / 1000 }

// processor returns the CPU time of a round in milliseconds.
func (m *measure) processor() float64 {
	return float64(m.used.Microseconds()) / 1000 / float64(len(m.took))
}

// maxOfBare bounds the time and CPU time of a change to all agents, relative to the same bytes on as many bare gRPC
// streams.
const maxOfBare = 1.5

// maxOfFanOut bounds the bytes of a change to one agent, including TLS.
const maxOfFanOut = 160

// BenchmarkFanOut measures one change to 1,000 agents over TLS, from the broker's state until the last has acknowledged
// it. In turns it sends the same bytes to as many bare gRPC streams, which is the floor. The agents of each have a
// separate process and do as little as possible. cpu-ms is the CPU time of the broker's process.
func BenchmarkFanOut(b *testing.B) {
	f, kube := newFiles(b), reviewing(b)
	p := startPeering(b, f, kube)
	p.state.Update("c2", benchMesh(1), nil)
	stop := startAgents(b, p.address(), f.bundle)
	defer stop()
	// of the peer, and of the end mark
	benchUntil(b, "all agents are synced", func() bool { return p.acks.Load() >= 2*benchAgents })
	benchUntil(b, "all agents have acknowledged", func() bool { return p.value(b, "semaphore_broker_agents_behind") == 0 })
	payload := testkit.Value(proto.Marshal(
		&semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Changes{Changes: &semaphorev1.PeeringChanges{
			Changes: []*semaphorev1.PeeringChange{{Revision: 7,
				Change: &semaphorev1.PeeringChange_Peer{Peer: benchMesh(1).Peers[benchNode]}}},
		}}},
	))(b)
	streams := startBare(b, f, payload)
	encoded := p.value(b, "semaphore_broker_peering_encodings_total")
	sent := p.listener.sent.Load()
	port, n := uint16(1), 0
	var agents, bare measure
	for b.Loop() {
		port++
		n++
		p.acks.Store(0)
		p.wanted.Store(benchAgents)
		agents.begin()
		p.state.Update("c2", benchMesh(port), nil)
		<-p.acked
		agents.end()
		bare.begin()
		streams.change()
		bare.end()
	}
	figure.Report(b, "median-ms", agents.milliseconds()).Floor(bare.milliseconds()).AtMostTimesFloor(maxOfBare)
	figure.Report(b, "broker-cpu-ms", agents.processor()).Floor(bare.processor()).AtMostTimesFloor(maxOfBare)
	figure.Report(b, "bytes/agent",
		float64(p.listener.sent.Load()-sent)/float64(n*benchAgents)).Floor(float64(len(payload))).AtMost(maxOfFanOut)
	figure.Report(b, "encodings",
		(p.value(b, "semaphore_broker_peering_encodings_total")-encoded)/float64(n)).Floor(1).AtMost(1)
	figure.WithoutTime(b) // of both kinds together
}
