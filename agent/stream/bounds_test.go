package stream

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// says is a broker that sends fixed messages.
type says struct {
	semaphorev1.UnimplementedPeeringServiceServer
	message *semaphorev1.AttachResponse
}

func (s says) Attach(call semaphorev1.PeeringService_AttachServer) error { return call.Send(s.message) }

// heard returns how many changes an agent receives from a broker that sends n of them, and the error that ends the
// stream.
func heard(t *testing.T, change func(i int) *semaphorev1.PeeringChange, n int) (int, error) {
	all := &semaphorev1.PeeringChanges{}
	for i := range n {
		all.Changes = append(all.Changes, change(i))
	}
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	semaphorev1.RegisterPeeringServiceServer(server,
		says{message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Changes{Changes: all}}})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Serve(listener) //nolint:errcheck // it ends by Stop
	}()
	defer func() { server.Stop(); <-ended }()
	conn, err := grpc.NewClient("passthrough:broker", bounds(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	must(t, err)
	defer conn.Close()
	stream, err := semaphorev1.NewPeeringServiceClient(conn).Attach(t.Context())
	must(t, err)
	m, err := stream.Recv()
	return len(m.GetChanges().GetChanges()), err
}

// TestMessagesOfTheBrokerAreBounded: the agent accepts the broker's messages, but decodes none that would fill the
// node's memory.
func TestMessagesOfTheBrokerAreBounded(t *testing.T) {
	peer := func(i int) *semaphorev1.PeeringChange {
		p := &semaphorev1.Peer{Key: &semaphorev1.PeerKey{Cluster: "c2", Node: fmt.Sprint("n", i)}}
		for j := range 30 {
			p.AllowedIps = append(p.AllowedIps, fmt.Sprintf("10.2.%d.%d/32", i%256, j))
		}
		return &semaphorev1.PeeringChange{Revision: uint64(i + 1), Change: &semaphorev1.PeeringChange_Peer{Peer: p}}
	}
	if n, err := heard(t, peer, 1000); err != nil || n != 1000 {
		t.Errorf("a batch of 1000 peers: %d changes, %v", n, err)
	}
	empty := func(int) *semaphorev1.PeeringChange { return &semaphorev1.PeeringChange{} }
	for n, want := range map[int]string{300_000: "would take more than", 1_000_000: "received message larger than max"} {
		if _, err := heard(t, empty, n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d empty changes: %v, and not that it %s", n, err, want)
		}
	}
}
