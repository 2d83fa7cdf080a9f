package broker

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/operator"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// clusters are the certificates of clusters that trust each other.
type clusters struct{ trust.Dir }

func newClusters(t *testing.T, names ...string) clusters {
	t.Helper()
	return clusters{trust.New(t, names...)}
}

// dial connects a part of a cluster to the broker at address, whose identity must be server.
func (c clusters) dial(t *testing.T, cluster, part, address string, server spiffeid.ID) *grpc.ClientConn {
	t.Helper()
	conn := testkit.Value(grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(c.Source(t, cluster, part).ClientTLS(server))),
		grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name), grpc.MaxCallSendMsgSize(64<<20))))(t)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// took is a Sink that records.
type took struct {
	mu  sync.Mutex
	all []string
}

func (s *took) Take(cluster string, r replica.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Hello != nil {
		s.all = append(s.all, cluster+" hello")
	}
	for _, c := range r.Changes {
		sign := "~"
		if c.Old == nil {
			sign = "+"
		} else if c.New == nil {
			sign = "-"
		}
		s.all = append(s.all, cluster+" "+sign+c.Key.String())
	}
}

func (s *took) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := strings.Join(s.all, ", ")
	s.all = nil
	return out
}

// listener is the federation listener of c1, with remotes c2 and c3.
type listener struct {
	t         *testing.T
	clusters  clusters
	address   string
	server    *federation.Server
	sink      *took
	operators *operator.Server
	registry  *prometheus.Registry
}

// serve runs a listener until the test ends. change may change the configuration.
func serve(t *testing.T, change ...func(*config.Broker)) *listener {
	t.Helper()
	c := newClusters(t, "c1", "c2", "c3", "c9")
	cfg := brokerConfig(t, c)
	for _, do := range change {
		do(cfg)
	}
	registry := prometheus.NewRegistry()
	recorder := debug.NewRecorder("broker", "c1", "")
	l := &listener{t: t, clusters: c, address: loopback.Address(t), sink: &took{}, operators: operator.New(quiet()),
		registry: registry}
	l.server = federation.New(federation.Options{Cluster: "c1", Local: cfg.LocalPrefixes, Brake: cfg.Brake,
		Metrics: federation.NewMetrics(registry), Recorder: recorder, Log: quiet()})
	l.server.Begin(cfg.Remotes, cfg.Own(), federation.Engines{Sink: l.sink})
	s := newServers(registry, quiet()).federation(l.address, c.Source(t, "c1", "broker"), l.server,
		debug.NewServer(recorder, func() *semaphorev1.GetStatusResponse {
			return &semaphorev1.GetStatusResponse{Links: l.server.Status()}
		}, debug.Answers{}), l.operators)
	up := make(chan struct{})
	stop := testkit.Run(t, func(ctx context.Context) error { return s.serve(ctx, func() { close(up) }) })
	<-up
	t.Cleanup(func() {
		stop()
		testkit.Value(registry.Gather())(t)
	})
	return l
}

// dial connects a part of a cluster to the listener.
func (l *listener) dial(cluster, part string) *grpc.ClientConn {
	l.t.Helper()
	return l.clusters.dial(l.t, cluster, part, l.address, identity.Broker("c1"))
}

// exporter opens a stream of a cluster on a connection of its own.
func (l *listener) exporter(cluster string) *players.Exporter {
	l.t.Helper()
	return players.Publish(l.t, l.dial(cluster, "exporter"))
}

// refused returns the error of a caller that gets no stream, or whose stream ends immediately.
func refused(t *testing.T, conn *grpc.ClientConn) error {
	t.Helper()
	stream, err := semaphorev1.NewFederationServiceClient(conn).Publish(t.Context())
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

func TestFederation(t *testing.T) {
	kubetest.NoLeaks(t)
	l := serve(t)
	server, sink := l.server, l.sink
	kind := semaphorev1.Kind_KIND_NODE

	t.Run("snapshot, changes, refusal", func(t *testing.T) {
		e := players.Publish(t, l.dial("c2", "exporter"))
		if w := e.Greet(players.Hello("c2", "e1", 3, kind)); w.GetCluster() != "c1" || w.GetProtocolVersion() != 1 {
			t.Fatalf("welcome %v", w)
		}
		e.Send(players.Snapshot(kind, 3, players.Node("n1", 1, "10.2.1.0/24"), players.Node("n2", 2, "10.9.0.0/24"))...)
		refused := e.Acked(3)
		if len(refused) != 1 || refused[0].GetCode() != "CIDROutsidePodSubnets" || refused[0].GetKey().GetName() != "n2" {
			t.Errorf("refused %v", refused)
		}
		e.Send(players.Upserts(4, players.Node("n3", 3, "10.2.3.0/24")))
		e.Acked(4)
		if got := sink.take(); got != "c2 hello, c2 +node n1, c2 +node n2, c2 +node n3" {
			t.Errorf("took %s", got)
		}
		st := server.Status()
		if st[0].Cluster != "c2" || !st[0].Connected || st[0].LastHeard == nil || st[0].Kinds[0].Objects != 3 ||
			st[0].Kinds[0].Refused != 1 || !st[0].Kinds[0].Complete || st[0].SoftwareVersion != "test" {
			t.Errorf("status %v", st[0])
		}
		if st[1].Cluster != "c3" || st[1].Connected {
			t.Errorf("status %v", st[1])
		}
		e.Cancel()
		eventually(t, "seen to be gone", func() (bool, string) {
			s := server.Status()[0]
			return !s.Connected &&
				s.LastError != "", s.String()
		})
		if s := server.Status()[0]; s.Kinds[0].Objects != 3 || !s.Kinds[0].Complete {
			t.Errorf("what it exported went with it: %v", s)
		}
	})
	t.Run("resumes where it was", func(t *testing.T) {
		e := players.Publish(t, l.dial("c2", "exporter"))
		if w := e.Greet(players.Hello("c2", "e1", 4, kind)); w.GetResumeEpoch() != "e1" || w.GetResumeRevision() != 4 {
			t.Fatalf("welcome %v", w)
		}
		e.Send(players.Deletion(5, players.Node("n3", 3)))
		e.Acked(5)
		if got := sink.take(); got != "c2 hello, c2 -node n3" {
			t.Errorf("took %s", got)
		}
	})
	t.Run("the newest stream is heard", func(t *testing.T) {
		conn := l.dial("c2", "exporter")
		older := players.Publish(t, conn)
		older.Greet(players.Hello("c2", "e2", 1, kind))
		newer := players.Publish(t, conn)
		newer.Greet(players.Hello("c2", "e3", 1, kind))
		if err := older.Err(); status.Code(err) != codes.Aborted {
			t.Errorf("the older one ended with %v", err)
		}
		newer.Send(players.Snapshot(kind, 1, players.Node("n1", 1, "10.2.1.0/24"))...)
		newer.Acked(1)
		if s := server.Status()[0]; !s.Connected {
			t.Errorf("status %v", s)
		}
	})
	t.Run("who may not", func(t *testing.T) {
		for _, c := range []struct{ cluster, part string }{
			{"c9", "exporter"}, // trusted roots, no configured remote
			{"c2", "broker"},
			{"c2", "semaphorectl"},
			{"c1", "exporter"},
		} {
			if err := refused(t, l.dial(c.cluster, c.part)); status.Code(err) != codes.Unavailable {
				t.Errorf("spiffe://%s/%s: %v, want the handshake to fail", c.cluster, c.part, err)
			}
		}
		if err := refused(t, l.dial("c1", "semaphorectl")); status.Code(err) != codes.PermissionDenied {
			t.Errorf("an operator publishes: %v", err)
		}
		_, err := semaphorev1.NewDebugServiceClient(l.dial("c2", "exporter")).GetStatus(t.Context(),
			&semaphorev1.GetStatusRequest{})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("a remote looks into the broker: %v", err)
		}
		st, err := semaphorev1.NewDebugServiceClient(l.dial("c1", "semaphorectl")).GetStatus(t.Context(),
			&semaphorev1.GetStatusRequest{})
		if err != nil || st.GetPart() != "broker" || len(st.GetLinks()) != 2 {
			t.Errorf("the own operator: %v, %v", st, err)
		}
	})
	t.Run("order", func(t *testing.T) {
		e := players.Publish(t, l.dial("c3", "exporter"))
		e.Send(players.Upserts(1, players.Node("n1", 1)))
		if err := e.Err(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v", err)
		}
		eventually(t, "reported", func() (bool, string) {
			s := server.Status()[1]
			return strings.Contains(s.LastError, "before hello"), s.String()
		})
	})
	t.Run("a remote of its own", func(t *testing.T) {
		e := players.Publish(t, l.dial("c3", "exporter"))
		e.Greet(players.Hello("c3", "e1", 1, kind))
		e.Send(players.Snapshot(kind, 1, players.Node("n1", 9, "10.3.1.0/24"))...)
		e.Acked(1)
		if got := sink.take(); !strings.HasSuffix(got, "c3 +node n1") {
			t.Errorf("took %s", got)
		}
	})
}

// A stream that has only begun reports nothing about its cluster.
func TestHelloAloneIsNoReport(t *testing.T) {
	kubetest.NoLeaks(t)
	l := serve(t)
	for range 3 {
		e := l.exporter("c2")
		e.Greet(players.Hello("c2", "e1", 0, semaphorev1.Kind_KIND_NODE))
		if at := l.server.LastPayload()["c2"]; !at.IsZero() {
			t.Fatalf("spoke at %s", at)
		}
		e.Cancel()
	}
	e := l.exporter("c2")
	e.Send(players.Hello("c2", "e1", 0, semaphorev1.Kind_KIND_NODE))
	e.Send(players.Snapshot(semaphorev1.Kind_KIND_NODE, 0)...)
	e.Acked(0)
	if l.server.LastPayload()["c2"].IsZero() {
		t.Error("did not speak")
	}
	e.Cancel()
}
