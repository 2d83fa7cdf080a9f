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
	_ "google.golang.org/grpc/encoding/gzip" // exporters compress their messages
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/operator"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/internal/conns"
	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// A peer that disappears without closing the connection is noticed within pingEvery + pingTimeout.
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second
	pingAtMost  = 5 * time.Second
	// maxHeaders bounds the headers, which have little more than a token.
	maxHeaders = 64 << 10
	// handshakeTimeout for TLS and HTTP/2.
	handshakeTimeout = 10 * time.Second
	// idle bounds the time of a connection without a stream.
	idle = 30 * time.Second
	// maxAge bounds the life of a connection that a certificate authenticated, give or take a tenth, and maxGrace the
	// further life of its streams: the client has to authenticate again. Streams of exporters have a shorter life, and
	// end themselves with a better message. Streams of agents are reviewed while they run, and stay while the apiserver
	// does not answer.
	maxAge, maxGrace = 80 * time.Minute, time.Minute
)

var alive = keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout, MaxConnectionIdle: idle}

// The connections of the listeners. An exporter or an operator has one, and more until a dead one is noticed. Agents
// that all connect at the same time, to a new broker, wait unauthenticated until their tokens are reviewed.
var (
	federationConnections = conns.Limits{All: 4_096, Unproven: 1_024, Each: 8}
	peeringConnections    = conns.Limits{All: 16_384, Unproven: 8_192, Each: 4}
)

func owner(info credentials.AuthInfo) string {
	id, err := identity.OfAuthInfo(info)
	if err != nil {
		return "" // no identity; refused before this is called
	}
	return id.String()
}

// servers builds the gRPC servers, which share their metrics.
type servers struct {
	metrics *grpcprom.ServerMetrics
	refused *prometheus.CounterVec
	log     *slog.Logger
}

func newServers(reg prometheus.Registerer, log *slog.Logger) servers {
	s := servers{metrics: grpcprom.NewServerMetrics(), log: log, refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "semaphore_broker_connections_refused_total",
		Help: "Connections that were closed because the listener or the client had reached its limit.",
	}, []string{"listener"})}
	reg.MustRegister(s.metrics, s.refused)
	return s
}

type server struct {
	name, address string
	grpc          *grpc.Server
	conns         *conns.Table
}

func (s servers) table(listener string, limits conns.Limits) *conns.Table {
	refused := s.refused.WithLabelValues(listener)
	return conns.New(limits, func(string) { refused.Inc() })
}

// federation serves exporters and operators, which authenticate with certificates.
func (s servers) federation(
	address string, source *identity.Source, f *federation.Server, d semaphorev1.DebugServiceServer,
	operators *operator.Server,
) *server {
	table := s.table("federation", federationConnections)
	alive := alive
	alive.MaxConnectionAge, alive.MaxConnectionAgeGrace = maxAge, maxGrace
	admit := func(ctx context.Context) (context.Context, error) {
		method, _ := grpc.Method(ctx)
		return ctx, f.AuthorizeMethod(ctx, method)
	}
	g := s.new(table.Credentials(credentials.NewTLS(source.ServerTLS(f.Authorize)), owner), alive, admit,
		federation.ServerOptions()...)
	semaphorev1.RegisterFederationServiceServer(g, f)
	semaphorev1.RegisterDebugServiceServer(g, d)
	operators.Register(g)
	return &server{"federation", address, g, table}
}

// peering serves agents, which authenticate with tokens.
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
	g := s.new(credentials.NewTLS(source.ServerOnlyTLS()), alive, admit, peering.ServerOptions()...)
	semaphorev1.RegisterPeeringServiceServer(g, p)
	return &server{"peering", address, g, table}
}

// new returns a server that serves the calls that admit returns no error for.
func (s servers) new(creds credentials.TransportCredentials, alive keepalive.ServerParameters, admit auth.AuthFunc,
	more ...grpc.ServerOption) *grpc.Server {
	recovered := recovery.WithRecoveryHandlerContext(func(_ context.Context, p any) error {
		s.log.Error("a call panicked", "panic", p, "stack", string(debug.Stack()))
		return status.Error(codes.Internal, "an error in the broker; its log has the details")
	})
	logger := logging.LoggerFunc(func(ctx context.Context, level logging.Level, msg string, fields ...any) {
		s.log.Log(ctx, slog.Level(level), msg, fields...)
	})
	quiet := []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall),
		// The services themselves log the ends of streams, with better messages.
		logging.WithLevels(func(codes.Code) logging.Level { return logging.LevelDebug }),
		logging.WithDisableLoggingFields("protocol", "grpc.component", "grpc.method_type"),
	}
	return grpc.NewServer(append(more,
		grpc.Creds(creds),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(alive),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAtMost, PermitWithoutStream: true}),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ChainUnaryInterceptor(
			s.metrics.UnaryServerInterceptor(), logging.UnaryServerInterceptor(logger, quiet...),
			recovery.UnaryServerInterceptor(recovered), auth.UnaryServerInterceptor(admit)),
		grpc.ChainStreamInterceptor(
			s.metrics.StreamServerInterceptor(), logging.StreamServerInterceptor(logger, quiet...),
			recovery.StreamServerInterceptor(recovered), auth.StreamServerInterceptor(admit)),
	)...)
}

// serve listens until ctx ends, and calls up once it does. Streams do not end by themselves, so it cuts them.
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
