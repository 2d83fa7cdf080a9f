package streams

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// This file keeps a stream from one part to another: it dials, lets the caller run the stream, and begins again
// whenever it ends.

// Keepalives find a half-open connection in 15 s; servers allow them every 5 s, see
// https://github.com/grpc/grpc-go/blob/master/Documentation/keepalive.md.
const (
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second
)

// connectWithin is the timeout of a connection with its TLS handshake. An address that does not answer at all, such as
// that of a killed leader until the next one leads, is given up after answersWithin, in which a lost packet is sent
// once more.
const (
	connectWithin = 5 * time.Second
	answersWithin = 2 * time.Second
)

// A stream that failed is retried after minBackoff, then twice as long, up to maxBackoff, with jitter, so that
// thousands of agents do not return to a new broker at one moment. As long as nothing accepts the connection, an
// attempt costs nobody anything: the wait counts from its begin, and is maxUnreached at most, so that a broker that
// begins to lead is soon found.
// After a stream that lasted for heldLong the backoff starts over. A broker takes less to refuse one: 30 s for an agent
// that waits for admission, 10 s for a Hello that it does not answer.
const (
	minBackoff   = 500 * time.Millisecond
	maxBackoff   = 15 * time.Second
	maxUnreached = 3 * time.Second
	heldLong     = 40 * time.Second
)

// A stream that the other end ended because it asked too much does not reset the backoff: the next one would be as
// large, and as frequent.
const (
	minExhausted = 5 * time.Second
	maxExhausted = 2 * time.Minute
)

// ErrAgain ends a stream after which the next one begins without backoff.
var ErrAgain = errors.New("the stream begins again")

type End struct {
	// Address is host:port. Others lead to the same end, and are tried in turn when one does not answer.
	Address string
	Others  []string
	TLS     *tls.Config
	Options []grpc.DialOption
}

// Keep calls carry for one stream after the other until ctx ends, and returns the context's error. carry gets a
// connection of its own each time, because gRPC answers from old state on one that it reconnects. carry returns when
// its stream has ended, always with an error, which Keep passes to ended.
func Keep(ctx context.Context, end End, carry func(context.Context, *grpc.ClientConn) error, ended func(error)) error {
	addresses := append([]string{end.Address}, end.Others...)
	return keep(ctx, addresses, func(address string) (bool, error) { return once(ctx, end, address, carry) }, ended)
}

// keep decides which address is tried, and when. try reports whether a connection to the address was accepted.
func keep(ctx context.Context, addresses []string, try func(address string) (bool, error), ended func(error)) error {
	at, wait := 0, minBackoff
	for {
		started := time.Now()
		reached, err := try(addresses[at])
		if ctx.Err() != nil {
			return ctx.Err()
		}
		ended(err)
		longest := maxUnreached
		if reached {
			longest = maxBackoff
		}
		held := errors.Is(err, ErrAgain) || reached && time.Since(started) > heldLong
		if !held && !exhausted(err) { // one that worked is tried again
			at = (at + 1) % len(addresses)
		}
		another := false // an address that was not tried since the last pause
		switch {
		case exhausted(err):
			wait, longest = max(wait, minExhausted), maxExhausted
		case held:
			wait = minBackoff
		default:
			wait, another = min(wait, longest), at > 0
		}
		pause := wait
		if another {
			pause = minBackoff
		} else {
			wait = min(2*wait, longest)
		}
		pause = pause/2 + rand.N(pause/2)
		if !reached && !held && !exhausted(err) {
			pause -= time.Since(started)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// exhausted reports whether the other end ended a stream with RESOURCE_EXHAUSTED.
func exhausted(err error) bool { return status.Code(err) == codes.ResourceExhausted }

func once(ctx context.Context, end End, address string,
	carry func(context.Context, *grpc.ClientConn) error) (reached bool, err error) {
	var accepted atomic.Bool
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{Timeout: answersWithin}).DialContext(ctx, "tcp", address)
		if err == nil {
			accepted.Store(true)
		}
		return conn, err
	}
	conn, err := grpc.NewClient(address, append([]grpc.DialOption{
		// A proxy of the environment, such as a webhook sets, is for other traffic: brokers are reached directly.
		grpc.WithNoProxy(),
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(credentials.NewTLS(end.TLS)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout,
			PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectWithin}),
	}, end.Options...)...)
	if err != nil {
		return false, fmt.Errorf("address %q: %w", address, err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := carry(ctx, conn); err != nil {
		return accepted.Load(), err
	}
	return accepted.Load(), errors.New("the stream ended without a reason")
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
