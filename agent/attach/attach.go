// Package attach is the agent's stream to its broker: it begins again whenever it ends, and hands on what the broker
// says. What that means is not its business; a stream that breaks changes nothing.
//
// It may import no other package of the agent.
package attach

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/internal/stream/link"
	"github.com/kube-semaphore/semaphore/internal/stream/wire"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// window is how much of what the broker says may be on its way.
const window = 1 << 20

// Handler receives what happens on the stream, from one goroutine at a time. It must not wait for the stream.
type Handler interface {
	// Begin returns the first messages of a new stream.
	Begin() []*semaphorev1.AttachRequest
	// Receive takes one message of the broker. An error ends the stream.
	Receive(context.Context, *semaphorev1.AttachResponse) error
	// Ended tells why a stream, or the attempt at one, has ended.
	Ended(error)
}

// Stream is the agent's stream to its broker.
type Stream struct {
	cfg     *config.Agent
	handler Handler
	token   *tokenFile
	// tokenEvery is the interval at which a stream checks for a new token.
	tokenEvery time.Duration

	mu sync.Mutex
	// report and applied wait to be sent: the newest of each, which stands for those before it.
	report, applied *semaphorev1.AttachRequest
	more            chan struct{}
}

// New makes the stream. Nothing is dialled before Run.
func New(cfg *config.Agent, handler Handler) *Stream {
	return &Stream{cfg: cfg, handler: handler, token: &tokenFile{path: cfg.Broker.TokenFile}, tokenEvery: tokenEvery,
		more: make(chan struct{}, 1)}
}

// Send has a report or an applied revision sent on the stream that stands, in place of one of its kind
// that has not been sent yet. It never waits. What is not sent when the stream ends is forgotten: a new
// one begins with all there is to say.
func (s *Stream) Send(m *semaphorev1.AttachRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.GetApplied() != nil {
		s.applied = m
	} else {
		s.report = m
	}
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// take is the next message to send, nil for none. What was found out goes before the word that all is done.
func (s *Stream) take() *semaphorev1.AttachRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := &s.report
	if *next == nil {
		next = &s.applied
	}
	m := *next
	*next = nil
	return m
}

// drain forgets what an earlier stream did not send.
func (s *Stream) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report, s.applied = nil, nil
}

// Run keeps a stream until ctx ends.
func (s *Stream) Run(ctx context.Context) error {
	roots, err := identity.OpenRoots(ctx, s.cfg.Broker.BundleFile, s.cfg.Broker.WorkloadAPI)
	if err != nil {
		return err
	}
	defer roots.Close()
	return link.Keep(ctx, link.End{
		Address: s.cfg.Broker.Address,
		TLS:     roots.ClientTLS(identity.Broker(s.cfg.Cluster)),
		Options: []grpc.DialOption{
			grpc.WithPerRPCCredentials(s.token),
			// A window that does not grow spares the pings by which gRPC would look for its size: the broker's
			// messages have at most 512 KiB.
			grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
			bounds(),
		},
	}, func(ctx context.Context, conn *grpc.ClientConn) error {
		return s.one(ctx, semaphorev1.NewPeeringServiceClient(conn))
	}, s.handler.Ended)
}

const (
	// maxMessage is what the broker may send at once, and maxDecoded what that may take of memory once decoded: 512 KiB
	// of peers with many pod CIDRs, the worst that a broker sends, take less than 4 MiB.
	maxMessage = 1 << 20
	maxDecoded = 16 << 20
)

// bounds has a message refused that a broker does not send: 4 MiB of empty changes, which gRPC would take, are 600 MiB
// once decoded.
func bounds() grpc.DialOption {
	return grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage),
		grpc.ForceCodecV2(wire.Codec{Most: maxDecoded}))
}

// one is one stream. It always returns an error.
func (s *Stream) one(ctx context.Context, client semaphorev1.PeeringServiceClient) error {
	g, ctx := errgroup.WithContext(ctx)
	stream, err := client.Attach(ctx)
	if err != nil {
		return err
	}
	s.drain()
	for _, m := range s.handler.Begin() {
		if err := stream.Send(m); err != nil {
			return link.Reason(stream.Recv)
		}
	}
	g.Go(func() error {
		for {
			m, err := stream.Recv()
			if err != nil {
				return err
			}
			if err := s.handler.Receive(ctx, m); err != nil {
				return err
			}
		}
	})
	g.Go(func() error {
		look := time.NewTicker(s.tokenEvery)
		defer look.Stop()
		for {
			var next *semaphorev1.AttachRequest
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-look.C:
				next = s.token.renewed()
			case <-s.more:
				next = s.take()
			}
			for ; next != nil; next = s.take() {
				if err := stream.Send(next); err != nil {
					<-ctx.Done() // Recv returns the reason
					return ctx.Err()
				}
			}
		}
	})
	return g.Wait()
}

// Hello is the first message of a stream: what there is to go on from, and what is held in case that means nothing
// to the broker.
func Hello(epoch string, revision uint64, held []*semaphorev1.HeldCluster) *semaphorev1.AttachRequest {
	return &semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Hello{Hello: &semaphorev1.AgentHello{
		SoftwareVersion: program.Version, Features: []string{semaphorev1.FeatureRotateKey}, ResumeEpoch: epoch,
		ResumeRevision: revision, Held: held,
	}}}
}
