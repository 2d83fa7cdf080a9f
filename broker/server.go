package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip" // exporters compress what they send
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// A peer that is gone without a word is noticed within pingEvery + pingTimeout.
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// Clients may ping this often.
	pingAtMost = 5 * time.Second
	// maxMessage is gRPC's own default, made explicit; senders stay under 1 MiB.
	maxMessage = 4 << 20
	// maxHeaders holds a token and little else.
	maxHeaders = 64 << 10
	// maxStreams on one connection: an exporter or agent has one.
	maxStreams = 16
	// handshakeTimeout for TLS and HTTP/2.
	handshakeTimeout = 10 * time.Second
)

// servers makes the gRPC servers, which share their metrics.
type servers struct {
	metrics *grpcprom.ServerMetrics
	refused *prometheus.CounterVec
	log     *slog.Logger
}

func newServers(reg prometheus.Registerer, log *slog.Logger) servers {
	s := servers{metrics: grpcprom.NewServerMetrics(), log: log, refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "semaphore_broker_connections_refused_total",
		Help: "Connections that were closed at once, because a listener had as many as it may have.",
	}, []string{"listener"})}
	reg.MustRegister(s.metrics, s.refused)
	return s
}

type server struct {
	name, address string
	grpc          *grpc.Server
	refused       prometheus.Counter
}

// federation serves exporters and operators, who prove themselves by certificates.
func (s servers) federation(address string, source *identity.Source, f *federation.Server, d semaphorev1.DebugServiceServer, c *control) *server {
	g := s.new(credentials.NewTLS(source.ServerTLS(f.Authorize)),
		[]grpc.UnaryServerInterceptor{func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := f.AuthorizeMethod(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return handler(ctx, req)
		}},
		[]grpc.StreamServerInterceptor{func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := f.AuthorizeMethod(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return handler(srv, stream)
		}})
	semaphorev1.RegisterFederationServiceServer(g, f)
	semaphorev1.RegisterDebugServiceServer(g, d)
	c.register(g)
	return &server{"federation", address, g, s.refused.WithLabelValues("federation")}
}

// peering serves agents, who prove themselves by tokens.
func (s servers) peering(address string, source *identity.Source, p *peering.Server) *server {
	g := s.new(credentials.NewTLS(source.ServerOnlyTLS()), nil,
		[]grpc.StreamServerInterceptor{auth.StreamServerInterceptor(p.Authenticate)}, peering.ServerOptions()...)
	semaphorev1.RegisterPeeringServiceServer(g, p)
	return &server{"peering", address, g, s.refused.WithLabelValues("peering")}
}

func (s servers) new(creds credentials.TransportCredentials, unary []grpc.UnaryServerInterceptor, stream []grpc.StreamServerInterceptor, more ...grpc.ServerOption) *grpc.Server {
	recovered := recovery.WithRecoveryHandlerContext(func(_ context.Context, p any) error {
		s.log.Error("panic in a call", "panic", p, "stack", string(debug.Stack()))
		return status.Error(codes.Internal, "a fault of the broker; its log has the details")
	})
	logger := logging.LoggerFunc(func(ctx context.Context, level logging.Level, msg string, fields ...any) {
		s.log.Log(ctx, slog.Level(level), msg, fields...)
	})
	quiet := []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall),
		// Ends of streams are told by the servers themselves, in better words.
		logging.WithLevels(func(codes.Code) logging.Level { return logging.LevelDebug }),
		logging.WithDisableLoggingFields("protocol", "grpc.component", "grpc.method_type"),
	}
	return grpc.NewServer(append(more,
		grpc.Creds(creds),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAtMost, PermitWithoutStream: true}),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ChainUnaryInterceptor(append([]grpc.UnaryServerInterceptor{
			s.metrics.UnaryServerInterceptor(), logging.UnaryServerInterceptor(logger, quiet...), recovery.UnaryServerInterceptor(recovered),
		}, unary...)...),
		grpc.ChainStreamInterceptor(append([]grpc.StreamServerInterceptor{
			s.metrics.StreamServerInterceptor(), logging.StreamServerInterceptor(logger, quiet...), recovery.StreamServerInterceptor(recovered),
		}, stream...)...),
	)...)
}

// serve listens until ctx ends, and calls up once it does. Streams have no end of their own, so they are cut.
func (s *server) serve(ctx context.Context, up func()) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("%s listener: %w", s.name, err)
	}
	stop := context.AfterFunc(ctx, s.grpc.Stop)
	defer stop()
	up()
	if err := s.grpc.Serve(&bounded{Listener: listener, max: maxConnections, refused: s.refused}); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("%s listener %s: %w", s.name, s.address, err)
	}
	return ctx.Err()
}
