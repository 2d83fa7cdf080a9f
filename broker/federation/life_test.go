package federation

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// call is the server's end of a stream of an exporter. One that is stuck takes no answer before it ends.
type call struct {
	grpc.BidiStreamingServer[semaphorev1.PublishRequest, semaphorev1.PublishResponse]
	ctx   context.Context
	in    chan []byte
	stuck bool
}

func (c *call) Context() context.Context { return c.ctx }

func (c *call) RecvMsg(m any) error {
	select {
	case data := <-c.in:
		*m.(*streams.Raw) = data
		return nil
	case <-c.ctx.Done():
		return status.FromContextError(c.ctx.Err()).Err()
	}
}

func (c *call) Send(*semaphorev1.PublishResponse) error {
	if !c.stuck {
		return nil
	}
	<-c.ctx.Done()
	return status.FromContextError(c.ctx.Err()).Err()
}

// begun is a server of c1 that takes these remotes.
func begun(options Options, remotes []config.Remote, own *config.Remote, to Engines) *Server {
	options.Cluster, options.Recorder, options.Log = "c1", debug.NewRecorder("broker", "c1", ""),
		slog.New(slog.DiscardHandler)
	options.Metrics = cmp.Or(options.Metrics, NewMetrics(prometheus.NewRegistry()))
	s := New(options)
	if to.Sink == nil {
		to.Sink = taker{}
	}
	s.Begin(remotes, own, to)
	return s
}

var onlyC2 = []config.Remote{{Name: "c2"}}

// callOf is the call of a cluster's exporter, whose certificate is proven.
func callOf(t *testing.T, cluster string) (context.Context, context.CancelFunc) {
	uri := &url.URL{Scheme: "spiffe", Host: cluster, Path: "/exporter"}
	return context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{}, AuthInfo: credentials.TLSInfo{
		State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{{URIs: []*url.URL{uri}}}}}}))
}

type taker struct{}

func (taker) Take(string, replica.Result) {}

// TestStreamsEndAtMaxAge: a stream ends after maxStreamAge at the latest, whatever its exporter does: one that
// continues, one that is silent, and one that takes no answers. So a key that was stolen or has expired, or whose root
// was taken out, is good no longer than that.
func TestStreamsEndAtMaxAge(t *testing.T) {
	for name, stuck := range map[string]bool{"it continues": false, "it reads nothing": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := begun(Options{}, onlyC2, nil, Engines{})
				ctx, cancel := callOf(t, "c2")
				st := &call{ctx: ctx, in: make(chan []byte), stuck: stuck}
				ended := make(chan error, 1)
				go func() {
					err := s.Publish(st)
					cancel() // as gRPC does when a handler returns
					ended <- err
				}()
				send := func(m *semaphorev1.PublishRequest) {
					data, err := proto.Marshal(m)
					if err != nil {
						t.Error(err)
					}
					select {
					case st.in <- data:
					case <-ctx.Done():
					}
				}
				go func() {
					send(players.Hello("c2", "e", 0, semaphorev1.Kind_KIND_NODE))
					for ctx.Err() == nil && !stuck {
						send(players.Beat(0, 0))
						select {
						case <-time.After(5 * time.Second):
						case <-ctx.Done():
						}
					}
				}()
				select {
				case err := <-ended:
					t.Fatalf("it ended before half its time with %v", err)
				case <-time.After(maxStreamAge/2 - time.Second):
				}
				select {
				case err := <-ended:
					if status.Code(err) != codes.Aborted {
						t.Errorf("it ended with %v", err)
					}
				case <-time.After(maxStreamAge/2 + time.Second):
					t.Errorf("it has not ended after %s", maxStreamAge)
					cancel()
				}
			})
		})
	}
}
