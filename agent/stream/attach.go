// Package stream runs the agent's stream to its broker, and owns the state that it brings.
//
// The Stream dials again whenever it ends, and passes messages to a Handler. The end of a stream changes nothing on the
// node. The Session owns the desired state, its age, and the positions of the stream, under one lock. In: messages of
// the broker (Receive). Out: changes, with the position up to which they are complete (Take), the desired state as
// immutable values, and reports to the broker (Send). The StateWriter keeps the last complete state in a file on the
// node, so that a node that boots without a broker restores its tunnels; package plan bounds the changes by a restored
// state, as by a broker's.
package stream

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const window = 1 << 20

// Handler receives the events of a stream, one at a time. It must not block on the stream.
type Handler interface {
	// Begin returns the first messages of a new stream.
	Begin() []*semaphorev1.AttachRequest
	// Receive handles one message of the broker. An error ends the stream.
	Receive(context.Context, *semaphorev1.AttachResponse) error
	// Ended receives why a stream, or the attempt to open one, ended.
	Ended(error)
}

type Stream struct {
	cfg     *config.Agent
	handler Handler
	token   *tokenFile
	// tokenEvery is the interval at which a stream checks for a new token.
	tokenEvery time.Duration

	mu sync.Mutex
	// report and applied are the next of each to send. A newer one replaces one that was not sent.
	report, applied *semaphorev1.AttachRequest
	more            chan struct{}
}

func New(cfg *config.Agent, handler Handler) *Stream {
	return &Stream{cfg: cfg, handler: handler, token: &tokenFile{path: cfg.Broker.TokenFile}, tokenEvery: tokenEvery,
		more: make(chan struct{}, 1)}
}

// Send queues a report or an applied revision for the current stream. It replaces a queued message of the same type,
// and never blocks. The end of the stream discards the queue: the Handler's Begin returns the complete state for the
// next one.
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

// take returns the next message to send; nil for none. A report precedes the applied revision that it explains.
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

// drain discards the unsent reports of an earlier stream.
func (s *Stream) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report, s.applied = nil, nil
}

// Run dials, and dials again with a backoff, until ctx ends. It returns ctx's error, or fails at once if the broker's
// roots cannot be opened.
func (s *Stream) Run(ctx context.Context) error {
	roots, err := identity.OpenRoots(ctx, s.cfg.Broker.BundleFile, s.cfg.Broker.WorkloadAPI)
	if err != nil {
		return err
	}
	defer roots.Close()
	return streams.Keep(ctx, streams.End{
		Address: s.cfg.Broker.Address,
		TLS:     roots.ClientTLS(identity.Broker(s.cfg.Cluster)),
		Options: []grpc.DialOption{
			grpc.WithPerRPCCredentials(s.token),
			// A static window avoids the pings by which gRPC estimates one. The broker's messages have at most 512 KiB.
			grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
			bounds(),
		},
	}, func(ctx context.Context, conn *grpc.ClientConn) error {
		return s.one(ctx, semaphorev1.NewPeeringServiceClient(conn))
	}, s.handler.Ended)
}

const (
	// maxMessage is the largest message that the agent accepts from the broker, and maxDecoded the largest decoded one.
	// 512 KiB of peers with many pod CIDRs, the worst case of a broker, decode to less than 4 MiB.
	maxMessage = 1 << 20
	maxDecoded = 16 << 20
)

// bounds refuses messages that no broker sends. Without it, 4 MiB of empty changes, which gRPC accepts by default,
// decode to 600 MiB.
func bounds() grpc.DialOption {
	return grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage),
		grpc.ForceCodecV2(streams.Codec{Most: maxDecoded}))
}

// one runs one stream. It always returns an error.
func (s *Stream) one(ctx context.Context, client semaphorev1.PeeringServiceClient) error {
	g, ctx := errgroup.WithContext(ctx)
	stream, err := client.Attach(ctx)
	if err != nil {
		return err
	}
	s.drain()
	for _, m := range s.handler.Begin() {
		if err := stream.Send(m); err != nil {
			return streams.Reason(stream.Recv)
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

// Hello returns the first message of a stream: the position to resume from, and the digests of the agent's state, in
// case the broker does not know the epoch.
func Hello(epoch string, revision uint64, held []*semaphorev1.HeldCluster) *semaphorev1.AttachRequest {
	return &semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Hello{Hello: &semaphorev1.AgentHello{
		SoftwareVersion: program.Version, ResumeEpoch: epoch,
		ResumeRevision: revision, Held: held,
	}}}
}
