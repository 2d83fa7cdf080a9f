package broker

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kube-semaphore/semaphore/internal/streams"
)

// balancer ends a connection on which one direction was silent for a minute.
type balancer struct {
	net.Conn
	reads, writes *time.Timer
}

func balanced(c net.Conn) *balancer {
	const silence = time.Minute
	return &balancer{c, time.AfterFunc(silence, func() { c.Close() }), time.AfterFunc(silence, func() { c.Close() })}
}

func (b *balancer) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	b.reads.Reset(time.Minute)
	return n, err
}

func (b *balancer) Write(p []byte) (int, error) {
	b.writes.Reset(time.Minute)
	return b.Conn.Write(p)
}

func anybody(ctx context.Context) (context.Context, error) { return ctx, nil }

// pipes is a listener of connections in memory.
type pipes struct {
	conns chan net.Conn
	end   func()
}

func newPipes() pipes {
	conns := make(chan net.Conn)
	return pipes{conns, sync.OnceFunc(func() { close(conns) })}
}

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error {
	p.end()
	return nil
}

func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestIdleTimeouts: a stream on which nothing is said for an hour stays behind a load balancer that ends connections
// which are silent in one direction for a minute.
func TestIdleTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		listener, dialled := newPipes(), 0
		server := newServers(prometheus.NewRegistry(), slog.Default()).new(insecure.NewCredentials(), alive, anybody,
			grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
				<-s.Context().Done()
				return nil
			}))
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		end := streams.End{Address: "passthrough:///broker:1", Options: []grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
				here, there := net.Pipe()
				dialled++
				listener.conns <- there
				return balanced(here), nil
			}),
		}}
		_ = streams.Keep(ctx, end, func(ctx context.Context, conn *grpc.ClientConn) error {
			s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/a/stream")
			if err != nil {
				return err
			}
			if dialled == 1 {
				time.AfterFunc(time.Hour, cancel)
			}
			var m any
			return s.RecvMsg(&m)
		}, func(err error) { t.Errorf("the stream ended: %v", err) })
		if dialled != 1 {
			t.Errorf("%d connections", dialled)
		}
		server.Stop()
		<-served
	})
}
