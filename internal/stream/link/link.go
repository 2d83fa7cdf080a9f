// Package link keeps a stream from one part of semaphore to another: it dials, lets the
// caller carry the stream, and begins anew whenever it ends.
//
// It knows gRPC and TLS, and nothing of what the streams say.
//
// It imports nothing of ours.
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

// connectWithin is how long the other end may take to be reached.
const connectWithin = 5 * time.Second

// A stream that failed is tried again after minBackoff, then twice as long, up to maxBackoff, with
// jitter, so that thousands of agents do not come back to a new broker at one moment. One that held
// for a while starts over at minBackoff.
const (
	minBackoff = 500 * time.Millisecond
	maxBackoff = 15 * time.Second
	heldLong   = 10 * time.Second
)

// A stream that the other end has ended because too much was asked of it is no better for having held: what
// would be told again is as large, and comes as often.
const (
	minExhausted = 5 * time.Second
	maxExhausted = 2 * time.Minute
)

// ErrAgain ends a stream that is to begin anew as if it had been the first.
var ErrAgain = errors.New("beginning anew")

// End is the other end of a link.
type End struct {
	// Address is host:port.
	Address string
	TLS     *tls.Config
	Options []grpc.DialOption
}

// Keep has carry carry one stream after the other until ctx ends, and returns the context's error.
// carry gets a connection of its own each time, because one that gRPC keeps and mends answers from
// what it knew before; it returns when its stream has ended, always with an error, which ended is told.
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
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout, PermitWithoutStream: true}),
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

// Reason is why a stream ended on which Send failed: what Recv says once it has given all that had come
// before, see grpc.ClientStream.
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
