package identity

import (
	"crypto/tls"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// standing is a gRPC stream that is opened once and must stay open.
type standing struct {
	stream grpc.BidiStreamingClient[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]
	peer   string // as the server knows it
}

// echoServer answers each message of a stream with the ID of its peer.
type echoServer struct {
	grpc_testing.UnimplementedTestServiceServer
}

func (echoServer) FullDuplexCall(stream grpc_testing.TestService_FullDuplexCallServer) error {
	id, err := PeerID(stream.Context())
	if err != nil {
		return err
	}
	answer := &grpc_testing.StreamingOutputCallResponse{Payload: &grpc_testing.Payload{Body: []byte(id.String())}}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func serveEcho(t *testing.T, server *tls.Config) (address string) {
	t.Helper()
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(server)))
	grpc_testing.RegisterTestServiceServer(g, echoServer{})
	testkit.Serve(t, listener, g)
	return listener.Addr().String()
}

// dialEcho opens a stream on a connection of its own.
func dialEcho(t *testing.T, address string, client *tls.Config) (*standing, error) {
	t.Helper()
	conn := testkit.Value(grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(client))))(t)
	t.Cleanup(func() { conn.Close() })
	stream, err := grpc_testing.NewTestServiceClient(conn).FullDuplexCall(t.Context())
	if err != nil {
		return nil, err
	}
	s := &standing{stream: stream}
	return s, s.try()
}

// stand opens a stream between two ends that must accept each other.
func stand(t *testing.T, server, client *tls.Config) *standing {
	t.Helper()
	return testkit.Value(dialEcho(t, serveEcho(t, server), client))(t)
}

func (s *standing) try() error {
	_ = s.stream.Send(&grpc_testing.StreamingOutputCallRequest{}) // Recv has the reason of its failure
	m, err := s.stream.Recv()
	s.peer = string(m.GetPayload().GetBody())
	return err
}

func (s *standing) echo(t *testing.T) {
	t.Helper()
	if err := s.try(); err != nil {
		t.Errorf("the standing stream: %v", err)
	}
}
