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
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/internal/conns"
	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// A peer that is gone without a word is noticed within pingEvery + pingTimeout.
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// Clients may ping this often.
	pingAtMost = 5 * time.Second
	// maxHeaders holds a token and little else.
	maxHeaders = 64 << 10
	// handshakeTimeout for TLS and HTTP/2.
	handshakeTimeout = 10 * time.Second
	// idle is how long a connection without a stream stays.
	idle = 30 * time.Second
	// maxAge is how long a connection that was proven by a certificate may live, give or take a tenth, and maxGrace how much longer
	// its streams may: whoever has one shows it again. Streams of exporters have a shorter life and end by themselves, in better
	// words. Those of agents are reviewed as they are, and stay while the apiserver cannot be asked.
	maxAge, maxGrace = 80 * time.Minute, time.Minute
)

// alive is how connections of every listener are kept.
var alive = keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout, MaxConnectionIdle: idle}

// servers makes the gRPC servers, which share their metrics.
type servers struct {
	metrics *grpcprom.ServerMetrics
	refused *prometheus.CounterVec
	log     *slog.Logger
}

func newServers(reg prometheus.Registerer, log *slog.Logger) servers {
	s := servers{metrics: grpcprom.NewServerMetrics(), log: log, refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "semaphore_broker_connections_refused_total",
		Help: "Connections that were closed because a listener, or the caller, had as many as it may have.",
	}, []string{"listener"})}
	reg.MustRegister(s.metrics, s.refused)
	return s
}

type server struct {
	name, address string
	grpc          *grpc.Server
	conns         *conns.Table
}

// table is that of the connections of a listener.
func (s servers) table(listener string, limits conns.Limits) *conns.Table {
	refused := s.refused.WithLabelValues(listener)
	return conns.New(limits, func(string) { refused.Inc() })
}

// federation serves exporters and operators, who prove themselves by certificates.
func (s servers) federation(address string, source *identity.Source, f *federation.Server, d semaphorev1.DebugServiceServer, c *control) *server {
	table := s.table("federation", federationConnections)
	alive := alive
	alive.MaxConnectionAge, alive.MaxConnectionAgeGrace = maxAge, maxGrace
	g := s.new(table.Credentials(credentials.NewTLS(source.ServerTLS(f.Authorize)), owner), alive,
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
		}},
		federation.ServerOptions()...)
	semaphorev1.RegisterFederationServiceServer(g, f)
	semaphorev1.RegisterDebugServiceServer(g, d)
	c.register(g)
	return &server{"federation", address, g, table}
}

// peering serves agents, who prove themselves by tokens.
func (s servers) peering(address string, source *identity.Source, p *peering.Server) *server {
	table := s.table("peering", peeringConnections)
	admit := func(ctx context.Context) (context.Context, error) {
		ctx, err := p.Authenticate(ctx)
		if err != nil {
			return nil, err
		}
		if from, ok := peer.FromContext(ctx); ok {
			table.Prove(from.Addr, peering.Admitted(ctx))
		}
		return ctx, nil
	}
	g := s.new(credentials.NewTLS(source.ServerOnlyTLS()), alive, nil, []grpc.StreamServerInterceptor{auth.StreamServerInterceptor(admit)}, peering.ServerOptions()...)
	semaphorev1.RegisterPeeringServiceServer(g, p)
	return &server{"peering", address, g, table}
}

func (s servers) new(creds credentials.TransportCredentials, alive keepalive.ServerParameters, unary []grpc.UnaryServerInterceptor,
	stream []grpc.StreamServerInterceptor, more ...grpc.ServerOption,
) *grpc.Server {
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
		grpc.KeepaliveParams(alive),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAtMost, PermitWithoutStream: true}),
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
	if err := s.grpc.Serve(s.conns.Listener(listener)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("%s listener %s: %w", s.name, s.address, err)
	}
	return ctx.Err()
}
