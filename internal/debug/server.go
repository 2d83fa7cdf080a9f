package debug

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/conns"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Status returns a part's current state. The server fills in the part's name and the times.
type Status func() *semaphorev1.GetStatusResponse

// Answers are the calls that only some parts support; nil for those that the part does not. An error is a gRPC status.
type Answers struct {
	// Sets returns the requested policy sets of a broker, sorted.
	Sets func(*semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error)
	// Path returns how an agent's node handles packets to an address.
	Path func(context.Context, *semaphorev1.LookUpPathRequest) (*semaphorev1.LookUpPathResponse, error)
	// Holders returns the pods that had an address, as a broker remembers them.
	Holders func(context.Context, *semaphorev1.ListHoldersRequest) (*semaphorev1.ListHoldersResponse, error)
	// Locate returns where an object is in the part.
	Locate func(context.Context, *semaphorev1.LocateRequest) (*semaphorev1.LocateResponse, error)
}

type server struct {
	semaphorev1.UnimplementedDebugServiceServer
	recorder *Recorder
	status   Status
	answers  Answers
	started  time.Time
	limits   limits
}

// NewServer returns a server of rec's events, of the status, and of what else the part answers.
func NewServer(rec *Recorder, status Status, answers Answers) semaphorev1.DebugServiceServer {
	return &server{recorder: rec, status: status, answers: answers, started: time.Now(), limits: newLimits()}
}

func (s *server) GetStatus(ctx context.Context,
	_ *semaphorev1.GetStatusRequest) (*semaphorev1.GetStatusResponse, error) {
	done, err := s.limits.call(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	m := s.status()
	m.Part, m.Cluster = s.recorder.part, s.recorder.cluster
	s.recorder.mu.Lock()
	m.Node = s.recorder.node
	s.recorder.mu.Unlock()
	m.SoftwareVersion = program.Version
	m.StartedAt = timestamppb.New(s.started)
	m.Now = timestamppb.Now()
	if m.GetNode() != "" {
		for _, f := range m.GetFindings() {
			f.Command = strings.ReplaceAll(f.GetCommand(), "NODE", m.GetNode())
		}
	}
	return m, nil
}

func (s *server) Watch(req *semaphorev1.WatchRequest,
	stream grpc.ServerStreamingServer[semaphorev1.WatchResponse]) error {
	done, err := s.limits.watch()
	if err != nil {
		return err
	}
	defer done()
	position := s.recorder.position(req.GetRecent())
	end := s.recorder.position(false)
	for {
		if req.GetOnlyRecent() && position >= end {
			return nil
		}
		events, lost, next, err := s.recorder.after(stream.Context(), position)
		if err != nil {
			return nil // the reader has disconnected, or the part stops
		}
		position = next
		if lost > 0 {
			if err := stream.Send(&semaphorev1.WatchResponse{Message: &semaphorev1.WatchResponse_Lost{Lost: lost}}); err != nil {
				return err
			}
		}
		for _, e := range events {
			if err := stream.Send(&semaphorev1.WatchResponse{Message: &semaphorev1.WatchResponse_Event{Event: e}}); err != nil {
				return err
			}
		}
	}
}

// podsMessage is the most pods of a message of ListSets: each has a few dozen bytes, so that a message stays far below
// gRPC's 4 MiB.
const podsMessage = 10_000

func (s *server) ListSets(req *semaphorev1.ListSetsRequest,
	stream grpc.ServerStreamingServer[semaphorev1.ListSetsResponse]) error {
	if s.answers.Sets == nil {
		return status.Errorf(codes.Unimplemented, "this %s has no policy sets", s.recorder.part)
	}
	done, err := s.limits.call(stream.Context())
	if err != nil {
		return err
	}
	defer done()
	all, err := s.answers.Sets(req)
	if err != nil {
		return err
	}
	out, pods := &semaphorev1.ListSetsResponse{}, 0
	send := func() error {
		err := stream.Send(out)
		out, pods = &semaphorev1.ListSetsResponse{}, 0
		return err
	}
	for _, set := range all {
		rest := set.Pods
		for {
			n := min(len(rest), podsMessage-pods)
			set.Pods, rest = rest[:n], rest[n:]
			out.Sets = append(out.Sets, set)
			pods += n + 1 + len(set.GetMissing()) + len(set.GetLeftover())
			if pods >= podsMessage {
				if err := send(); err != nil {
					return err
				}
			}
			if len(rest) == 0 {
				break
			}
			set = &semaphorev1.PolicySet{Cluster: set.GetCluster(), Namespace: set.GetNamespace(), Name: set.GetName()}
		}
	}
	if len(out.GetSets()) == 0 {
		return nil
	}
	return send()
}

func (s *server) LookUpPath(ctx context.Context,
	req *semaphorev1.LookUpPathRequest) (*semaphorev1.LookUpPathResponse, error) {
	return answer(ctx, s, s.answers.Path, req, "has no devices")
}

func (s *server) ListHolders(ctx context.Context,
	req *semaphorev1.ListHoldersRequest) (*semaphorev1.ListHoldersResponse, error) {
	return answer(ctx, s, s.answers.Holders, req, "has no policy sets")
}

func (s *server) Locate(ctx context.Context, req *semaphorev1.LocateRequest) (*semaphorev1.LocateResponse, error) {
	return answer(ctx, s, s.answers.Locate, req, "keeps no objects")
}

// ServeSocket serves srv, and what more registers, on a unix socket that only the part's own user may open, until ctx
// ends. Beside it, srv alone has a socket of its own, for who may look and not order. It replaces sockets that an
// earlier process left. It fails if it cannot listen.
func ServeSocket(ctx context.Context, path string, srv semaphorev1.DebugServiceServer,
	more ...func(grpc.ServiceRegistrar)) error {
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("debug socket: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, one := range []struct {
		path string
		more []func(grpc.ServiceRegistrar)
	}{{conns.ToRead(path), nil}, {path, more}} {
		listener, err := conns.Listen(one.path)
		if err != nil {
			return fmt.Errorf("debug socket: %w", err)
		}
		g.Go(func() error {
			// All clients have one address and are the part's own user, so that none of them is authenticated.
			if err := serveOn(ctx, listener, conns.New(connections, ignore), srv, one.more); err != nil {
				return fmt.Errorf("debug socket %s: %w", one.path, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// ServeTLS serves srv on a listener until ctx ends, to clients that config accepts. It fails if the listener does.
func ServeTLS(ctx context.Context, listener net.Listener, config *tls.Config,
	srv semaphorev1.DebugServiceServer) error {
	table := conns.New(connections, ignore)
	creds := table.Credentials(credentials.NewTLS(config), func(credentials.AuthInfo) string { return "operator" })
	if err := serveOn(ctx, listener, table, srv, nil, grpc.Creds(creds)); err != nil {
		return fmt.Errorf("debug listener: %w", err)
	}
	return nil
}

func ignore(string) {}

func serveOn(ctx context.Context, listener net.Listener, table *conns.Table, srv semaphorev1.DebugServiceServer,
	more []func(grpc.ServiceRegistrar), options ...grpc.ServerOption) error {
	g := grpc.NewServer(append(options,
		grpc.MaxConcurrentStreams(16), grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle}),
		grpc.StreamInterceptor(recovery.StreamServerInterceptor()),
		grpc.UnaryInterceptor(recovery.UnaryServerInterceptor()),
	)...)
	semaphorev1.RegisterDebugServiceServer(g, srv)
	for _, register := range more {
		register(g)
	}
	stop := context.AfterFunc(ctx, g.Stop)
	defer stop()
	if err := g.Serve(table.Listener(listener)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}
