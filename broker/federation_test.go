package broker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

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
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
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

// startFederation serves the federation listener of c1, with remotes c2 and c3.
func startFederation(t *testing.T, c clusters) (address string, server *federation.Server, sink *took) {
	t.Helper()
	cfg := brokerConfig(t, c)
	sink = &took{}
	registry := prometheus.NewRegistry()
	recorder := debug.NewRecorder("broker", "c1", "")
	server = federation.New(federation.Options{
		Cluster: "c1", Remotes: cfg.Remotes, Own: cfg.Own(), Local: cfg.LocalPrefixes, Sink: sink,
		Metrics: federation.NewMetrics(registry), Recorder: recorder, Log: quiet(),
	})
	d := debug.NewServer(recorder, func() *semaphorev1.GetStatusResponse {
		return &semaphorev1.GetStatusResponse{Links: server.Status()}
	}, debug.Answers{})
	address = loopback.Address(t)
	s := newServers(registry, quiet()).federation(address, c.Source(t, "c1", "broker"), server, d, operator.New(quiet()))
	ctx, cancel := context.WithCancel(context.Background())
	up, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		if err := s.serve(ctx, func() { close(up) }); err != nil && err != context.Canceled {
			t.Error(err)
		}
	}()
	<-up
	t.Cleanup(func() {
		cancel()
		<-done
		if _, err := registry.Gather(); err != nil {
			t.Error(err)
		}
	})
	return address, server, sink
}

// exporter is the other end of a Publish stream.
type exporter struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[semaphorev1.PublishRequest, semaphorev1.PublishResponse]
	cancel context.CancelFunc
}

func publish(t *testing.T, conn *grpc.ClientConn) *exporter {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lifetime)
	t.Cleanup(cancel)
	stream := testkit.Value(semaphorev1.NewFederationServiceClient(conn).Publish(ctx))(t)
	return &exporter{t, stream, cancel}
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

func (e *exporter) send(all ...*semaphorev1.PublishRequest) {
	e.t.Helper()
	for _, m := range all {
		if err := e.stream.Send(m); err != nil {
			_, err = e.stream.Recv()
			e.t.Fatalf("send %v: %v", m, err)
		}
	}
}

func (e *exporter) recv() *semaphorev1.PublishResponse {
	e.t.Helper()
	m := testkit.Value(e.stream.Recv())(e.t)
	return m
}

// acked waits until a revision is acknowledged and returns the refusals before it.
func (e *exporter) acked(revision uint64) (refused []*semaphorev1.Refusal) {
	e.t.Helper()
	for {
		m := e.recv()
		if r := m.GetRefusal(); r != nil {
			refused = append(refused, r)
		}
		if a := m.GetAck(); a != nil && a.GetRevision() >= revision {
			return refused
		}
	}
}

// err waits for the end of the stream. One that does not end is cancelled after half a minute, so that the test says
// what was expected of it.
func (e *exporter) err() error {
	defer time.AfterFunc(30*time.Second, e.cancel).Stop()
	for {
		if _, err := e.stream.Recv(); err != nil {
			return err
		}
	}
}

func helloMessage(cluster, epoch string, head uint64, kinds ...semaphorev1.Kind) *semaphorev1.PublishRequest {
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Hello{Hello: &semaphorev1.Hello{
		Cluster: cluster, ProtocolVersion: 1, MinProtocolVersion: 1, Epoch: epoch, HeadRevision: head, Kinds: kinds,
		SoftwareVersion: "test",
	}}}
}

// snapshotOf returns the snapshot of a kind at a revision.
func snapshotOf(kind semaphorev1.Kind, revision uint64, objects ...*semaphorev1.Object) []*semaphorev1.PublishRequest {
	out := []*semaphorev1.PublishRequest{
		{
			Message: &semaphorev1.PublishRequest_SnapshotBegin{
				SnapshotBegin: &semaphorev1.SnapshotBegin{Kind: kind, Revision: revision},
			},
		},
	}
	if len(objects) > 0 {
		out = append(out, changesFrom(1, objects...))
	}
	return append(
		out,
		&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotEnd{SnapshotEnd: &semaphorev1.SnapshotEnd{
			Kind: kind, Revision: revision, Objects: uint64(len(objects)),
		}}},
	)
}

// changesFrom returns upserts with consecutive revisions from first.
func changesFrom(first uint64, objects ...*semaphorev1.Object) *semaphorev1.PublishRequest {
	var all []*semaphorev1.Change
	for i, o := range objects {
		all = append(all, &semaphorev1.Change{Revision: first + uint64(i), ObservedAt: nowProto(),
			Change: &semaphorev1.Change_Upsert{Upsert: o}})
	}
	return &semaphorev1.PublishRequest{
		Message: &semaphorev1.PublishRequest_Changes{Changes: &semaphorev1.Changes{Changes: all}},
	}
}

func deletion(revision uint64, o *semaphorev1.Object) *semaphorev1.PublishRequest {
	return &semaphorev1.PublishRequest{
		Message: &semaphorev1.PublishRequest_Changes{Changes: &semaphorev1.Changes{Changes: []*semaphorev1.Change{
			{Revision: revision, ObservedAt: nowProto(), Change: &semaphorev1.Change_Delete{Delete: o.Key}},
		}}},
	}
}

func TestFederation(t *testing.T) {
	kubetest.NoLeaks(t)
	c := newClusters(t, "c1", "c2", "c3", "c9")
	address, server, sink := startFederation(t, c)
	broker := identity.Broker("c1")
	dial := func(t *testing.T, cluster, part string) *grpc.ClientConn {
		return c.dial(t, cluster, part, address, broker)
	}
	kind := semaphorev1.Kind_KIND_NODE

	t.Run("snapshot, changes, refusal", func(t *testing.T) {
		e := publish(t, dial(t, "c2", "exporter"))
		e.send(helloMessage("c2", "e1", 3, kind))
		if w := e.recv().GetWelcome(); w.GetCluster() != "c1" || w.GetProtocolVersion() != 1 {
			t.Fatalf("welcome %v", w)
		}
		e.send(snapshotOf(kind, 3, nodeObject("n1", 1, "10.2.1.0/24"), nodeObject("n2", 2, "10.9.0.0/24"))...)
		refused := e.acked(3)
		if len(refused) != 1 || refused[0].GetCode() != "cidr-outside-pod-subnets" || refused[0].GetKey().GetName() != "n2" {
			t.Errorf("refused %v", refused)
		}
		e.send(changesFrom(4, nodeObject("n3", 3, "10.2.3.0/24")))
		e.acked(4)
		if got := sink.take(); got != "c2 +node n1, c2 +node n2, c2 +node n3" {
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
		e.cancel()
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
		e := publish(t, dial(t, "c2", "exporter"))
		e.send(helloMessage("c2", "e1", 4, kind))
		if w := e.recv().GetWelcome(); w.GetResumeEpoch() != "e1" || w.GetResumeRevision() != 4 {
			t.Fatalf("welcome %v", w)
		}
		e.send(deletion(5, nodeObject("n3", 3)))
		e.acked(5)
		if got := sink.take(); got != "c2 -node n3" {
			t.Errorf("took %s", got)
		}
	})
	t.Run("the newest stream is heard", func(t *testing.T) {
		conn := dial(t, "c2", "exporter")
		older := publish(t, conn)
		older.send(helloMessage("c2", "e2", 1, kind))
		older.recv()
		newer := publish(t, conn)
		newer.send(helloMessage("c2", "e3", 1, kind))
		newer.recv()
		if err := older.err(); status.Code(err) != codes.Aborted {
			t.Errorf("the older one ended with %v", err)
		}
		newer.send(snapshotOf(kind, 1, nodeObject("n1", 1, "10.2.1.0/24"))...)
		newer.acked(1)
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
			if err := refused(t, dial(t, c.cluster, c.part)); status.Code(err) != codes.Unavailable {
				t.Errorf("spiffe://%s/%s: %v, want the handshake to fail", c.cluster, c.part, err)
			}
		}
		if err := refused(t, dial(t, "c1", "semaphorectl")); status.Code(err) != codes.PermissionDenied {
			t.Errorf("an operator publishes: %v", err)
		}
		_, err := semaphorev1.NewDebugServiceClient(dial(t, "c2", "exporter")).GetStatus(t.Context(),
			&semaphorev1.GetStatusRequest{})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("a remote looks into the broker: %v", err)
		}
		st, err := semaphorev1.NewDebugServiceClient(dial(t, "c1", "semaphorectl")).GetStatus(t.Context(),
			&semaphorev1.GetStatusRequest{})
		if err != nil || st.GetPart() != "broker" || len(st.GetLinks()) != 2 {
			t.Errorf("the own operator: %v, %v", st, err)
		}
	})
	t.Run("R1: another cluster's name", func(t *testing.T) {
		e := publish(t, dial(t, "c3", "exporter"))
		e.send(helloMessage("c2", "e1", 0, kind))
		if err := e.err(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v", err)
		}
	})
	t.Run("R4: a message over the limit", func(t *testing.T) {
		e := publish(t, dial(t, "c3", "exporter"))
		big := helloMessage("c3", "e1", 0, kind)
		big.GetHello().Features = []string{strings.Repeat("x", federation.MaxMessage)}
		if err := e.stream.Send(big); err != nil && !errors.Is(err, io.EOF) { // it may have been answered already
			t.Fatal(err)
		}
		if err := e.err(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%v", err)
		}
	})
	t.Run("order", func(t *testing.T) {
		e := publish(t, dial(t, "c3", "exporter"))
		e.send(changesFrom(1, nodeObject("n1", 1)))
		if err := e.err(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v", err)
		}
		eventually(t, "reported", func() (bool, string) {
			s := server.Status()[1]
			return strings.Contains(s.LastError, "before hello"), s.String()
		})
	})
	t.Run("a remote of its own", func(t *testing.T) {
		e := publish(t, dial(t, "c3", "exporter"))
		e.send(helloMessage("c3", "e1", 1, kind))
		e.recv()
		e.send(snapshotOf(kind, 1, nodeObject("n1", 9, "10.3.1.0/24"))...)
		e.acked(1)
		if got := sink.take(); !strings.HasSuffix(got, "c3 +node n1") {
			t.Errorf("took %s", got)
		}
	})
}

// A stream that has only begun reports nothing about its cluster.
func TestHelloAloneIsNoReport(t *testing.T) {
	kubetest.NoLeaks(t)
	c := newClusters(t, "c1", "c2")
	address, server, _ := startFederation(t, c)
	for range 3 {
		e := publish(t, c.dial(t, "c2", "exporter", address, identity.Broker("c1")))
		e.send(helloMessage("c2", "e1", 0, semaphorev1.Kind_KIND_NODE))
		if e.recv().GetWelcome() == nil {
			t.Fatal("no welcome")
		}
		if at := server.LastPayload()["c2"]; !at.IsZero() {
			t.Fatalf("spoke at %s", at)
		}
		e.cancel()
	}
	e := publish(t, c.dial(t, "c2", "exporter", address, identity.Broker("c1")))
	e.send(helloMessage("c2", "e1", 0, semaphorev1.Kind_KIND_NODE))
	e.send(snapshotOf(semaphorev1.Kind_KIND_NODE, 0)...)
	e.acked(0)
	if server.LastPayload()["c2"].IsZero() {
		t.Error("did not speak")
	}
	e.cancel()
}
