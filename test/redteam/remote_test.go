package redteam

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// raw is an encoding.CodecV2 that sends and returns bytes unchanged.
type raw struct{}

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func (raw) Name() string { return "proto" }

// dial connects to the federation listener with the certificate of a part of a cluster.
func (v *victim) dial(cluster, part string) *grpc.ClientConn {
	v.t.Helper()
	source := trust.Dir(v.dir).Source(v.t, cluster, part)
	conn := testkit.Value(grpc.NewClient("passthrough:///"+v.federation,
		grpc.WithTransportCredentials(credentials.NewTLS(source.ClientTLS(identity.Broker("c1"))))))(v.t)
	v.t.Cleanup(func() { conn.Close() })
	return conn
}

// dialPeering connects to the agents' listener, as anybody with the public root of the cluster can.
func (v *victim) dialPeering() *grpc.ClientConn {
	v.t.Helper()
	conn := testkit.Value(grpc.NewClient("passthrough:///"+v.peering, grpc.WithTransportCredentials(credentials.NewTLS(
		trust.ClientTLS(v.path("bundles", "c1.pem"), identity.Broker("c1"))))))(v.t)
	v.t.Cleanup(func() { conn.Close() })
	return conn
}

// stream is a call whose messages are bytes of the attacker's choice.
type stream struct {
	t      *testing.T
	call   grpc.ClientStream
	cancel context.CancelFunc
}

const (
	publishMethod = "/semaphore.v1.FederationService/Publish"
	attachMethod  = "/semaphore.v1.PeeringService/Attach"
)

func open(t *testing.T, conn *grpc.ClientConn, method, token string) (*stream, error) {
	ctx := context.Background()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	call, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method,
		grpc.ForceCodecV2(raw{}), grpc.UseCompressor(gzip.Name), grpc.MaxCallSendMsgSize(64<<20),
		grpc.MaxCallRecvMsgSize(64<<20))
	if err != nil {
		cancel()
		return nil, err
	}
	return &stream{t, call, cancel}, nil
}

// publish opens an exporter stream of a cluster on a new connection.
func (v *victim) publish(cluster string) *stream {
	v.t.Helper()
	return testkit.Value(open(v.t, v.dial(cluster, "exporter"), publishMethod, ""))(v.t)
}

// sends has the exporter of a cluster send the snapshots of kinds, and waits until all is acknowledged.
func (v *victim) sends(cluster, epoch string, head uint64, kinds []semaphorev1.Kind,
	objects ...*semaphorev1.Object) (s *stream, refused []*semaphorev1.Refusal) {
	v.t.Helper()
	s = v.publish(cluster)
	s.tell(hello(cluster, epoch, head, kinds...))
	s.tell(players.Snapshots(kinds, head, objects...)...)
	return s, s.acked(head)
}

// tell sends messages as an honest exporter would.
func (s *stream) tell(messages ...*semaphorev1.PublishRequest) {
	s.t.Helper()
	for _, m := range messages {
		if err := s.call.SendMsg(encode(s.t, m)); err != nil {
			s.t.Fatalf("send: %v; %v", err, s.end(time.Second))
		}
	}
}

// next returns the broker's next answer.
func (s *stream) next(within time.Duration) (*semaphorev1.PublishResponse, error) {
	m := &semaphorev1.PublishResponse{}
	data, err := s.nextBytes(within)
	if err == nil {
		err = proto.Unmarshal(data, m)
	}
	return m, err
}

func (s *stream) nextBytes(within time.Duration) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	came := make(chan result, 1)
	go func() {
		var r result
		r.err = s.call.RecvMsg(&r.data)
		came <- r
	}()
	select {
	case r := <-came:
		return r.data, r.err
	case <-time.After(within):
		s.cancel()
		return nil, fmt.Errorf("nothing came within %s", within)
	}
}

// acked reads until a revision is acknowledged, and returns the refusals before it.
func (s *stream) acked(revision uint64) (refusals []*semaphorev1.Refusal) {
	s.t.Helper()
	for {
		m, err := s.next(patience)
		if err != nil {
			s.t.Fatalf("waiting for the acknowledgement of %d: %v", revision, err)
		}
		if r := m.GetRefusal(); r != nil {
			refusals = append(refusals, r)
		}
		if a := m.GetAck(); a != nil && a.GetRevision() >= revision {
			return refusals
		}
	}
}

// end reads until the stream ends and returns the reason, or nil if it does not end within a time.
func (s *stream) end(within time.Duration) error {
	deadline := time.Now().Add(within)
	for {
		if _, err := s.nextBytes(time.Until(deadline)); err != nil {
			if time.Now().After(deadline) {
				return nil
			}
			return err
		}
	}
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	return testkit.Value(proto.Marshal(m))(t)
}

// The text of an exporter.
var hello, snapshot, upsert, changesOf = players.Hello, players.Snapshot, players.Upsert, players.Changes

// member returns a pod of a set. Its address follows from its number.
func member(i int, ips ...string) *semaphorev1.Object {
	return players.Member("shop", fmt.Sprintf("pod-%d", i), fmt.Sprintf("uid-%d", i), "web", ips...)
}

// node returns a node of c2 or c3 whose key and address follow from a number from 1 to 14.
func node(cluster, name string, n byte, cidrs ...string) *semaphorev1.Object {
	first := byte(16)
	if cluster == "c3" {
		first = 32
	}
	key := make([]byte, 32)
	key[0], key[1], key[2] = 9, first, n
	o := players.Node(name, 0, cidrs...)
	o.GetNode().Wireguard = &semaphorev1.WireGuardEndpoint{PublicKey: key,
		Address: fmt.Sprintf("192.0.2.%d:51820", first+n)}
	return o
}
