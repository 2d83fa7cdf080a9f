// Package link keeps a stream from one part of semaphore to another: it dials, lets the caller run the stream, and
// begins again whenever it ends.
//
// It knows gRPC and TLS, and nothing of the streams' protocols.
//
// It imports no other package of semaphore.
package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// Keepalives find a half-open connection in 15 s; servers allow them every 5 s, see
// https://github.com/grpc/grpc-go/blob/master/Documentation/keepalive.md.
const (
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second
)

// connectWithin is the timeout of a connection.
const connectWithin = 5 * time.Second

// A stream that failed is retried after minBackoff, then twice as long, up to maxBackoff, with jitter, so that
// thousands of agents do not return to a new broker at one moment. After a stream that lasted for a while the backoff
// starts over.
const (
	minBackoff = 500 * time.Millisecond
	maxBackoff = 15 * time.Second
	heldLong   = 10 * time.Second
)

// A stream that the other end ended because it asked too much does not reset the backoff: the next one would be as
// large, and as frequent.
const (
	minExhausted = 5 * time.Second
	maxExhausted = 2 * time.Minute
)

// ErrAgain ends a stream after which the next one begins without backoff.
var ErrAgain = errors.New("the stream begins again")

// End is the other end of a link.
type End struct {
	// Address is host:port.
	Address string
	TLS     *tls.Config
	Options []grpc.DialOption
}

// Keep calls carry for one stream after the other until ctx ends, and returns the context's error. carry gets a
// connection of its own each time, because gRPC answers from old state on one that it reconnects. carry returns when
// its stream has ended, always with an error, which Keep passes to ended.
func Keep(ctx context.Context, end End, carry func(context.Context, *grpc.ClientConn) error, ended func(error)) error {
	wait := minBackoff
	for {
		started := time.Now()
		err := once(ctx, end, carry)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		ended(err)
		longest := maxBackoff
		switch {
		case exhausted(err):
			wait, longest = max(wait, minExhausted), maxExhausted
		case errors.Is(err, ErrAgain) || time.Since(started) > heldLong:
			wait = minBackoff
		default:
			wait = min(wait, maxBackoff)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait/2 + rand.N(wait/2)):
		}
		wait = min(2*wait, longest)
	}
}

// exhausted reports whether the other end ended a stream with RESOURCE_EXHAUSTED.
func exhausted(err error) bool { return status.Code(err) == codes.ResourceExhausted }

func once(ctx context.Context, end End, carry func(context.Context, *grpc.ClientConn) error) error {
	conn, err := grpc.NewClient(end.Address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(end.TLS)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout,
			PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectWithin}),
	}, end.Options...)...)
	if err != nil {
		return fmt.Errorf("address %q: %w", end.Address, err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := carry(ctx, conn); err != nil {
		return err
	}
	return errors.New("the stream ended without a reason")
}

// Reason returns why a stream on which Send failed has ended: what Recv returns after all earlier messages, see
// grpc.ClientStream.
func Reason[M any](recv func() (M, error)) error {
	for {
		_, err := recv()
		if errors.Is(err, io.EOF) {
			return errors.New("the other end has ended the stream")
		}
		if err != nil {
			return err
		}
	}
}
