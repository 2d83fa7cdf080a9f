package streams

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestKeepBacksOffAndStartsOver: the backoff grows up to maxBackoff, or up to maxUnreached while nothing accepts the
// connection, counted from the begin of the attempt, and starts over after a stream that lasted for a while.
func TestKeepBacksOffAndStartsOver(t *testing.T) {
	for reached, longest := range map[bool]time.Duration{true: maxBackoff, false: maxUnreached} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var at []time.Duration
			var reasons []error
			started := time.Now()
			failed := errors.New("failed")
			try := func(string) (bool, error) {
				at = append(at, time.Since(started))
				switch len(at) {
				case 7:
					if !reached {
						time.Sleep(answersWithin)
					}
				case 8:
					time.Sleep(2 * heldLong) // this stream lasts long enough
					return true, failed
				case 10:
					return true, ErrAgain
				case 12:
					cancel()
				}
				return reached, failed
			}
			err := keep(ctx, []string{"192.0.2.1:1"}, try, func(err error) { reasons = append(reasons, err) })
			if !errors.Is(err, context.Canceled) {
				t.Errorf("keep returned %v", err)
			}
			between := func(i int, low, high time.Duration) {
				t.Helper()
				if d := at[i] - at[i-1]; d < low || d > high {
					t.Errorf("reached: %t: attempt %d came %s after the one before, not %s to %s", reached, i, d, low, high)
				}
			}
			between(1, minBackoff/2, minBackoff)
			between(2, minBackoff, 2*minBackoff)
			between(3, 2*minBackoff, 4*minBackoff)
			between(7, longest/2, longest)
			between(8, 2*heldLong+minBackoff/2, 2*heldLong+minBackoff)
			between(9, minBackoff, 2*minBackoff)
			between(10, minBackoff/2, minBackoff)
			if len(reasons) != 11 || !errors.Is(reasons[0], failed) {
				t.Errorf("%d ends are reported, not 11 without the one of ctx; the first %v", len(reasons), reasons[0])
			}
		})
	}
}

// TestReached: a connection counts as accepted even if the handshake on it fails, and not if the address refuses it.
func TestReached(t *testing.T) {
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	connect := func(ctx context.Context, c *grpc.ClientConn) error {
		return c.Invoke(ctx, "/none/None", &emptypb.Empty{}, &emptypb.Empty{})
	}
	for address, want := range map[string]bool{listener.Addr().String(): true, "255.255.255.255:1": false} {
		reached, err := once(t.Context(), End{TLS: &tls.Config{}}, address, connect)
		if reached != want || err == nil {
			t.Errorf("%s is reached: %t, %v; want %t, and an error", address, reached, err, want)
		}
	}
}

// TestF26TooMuch (F26): a stream that ends because it asked too much is retried later and later, however long it lasted
// each time. After any other end of a stream that lasted for a while, the backoff starts over.
func TestF26TooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tooMuch := status.Error(codes.ResourceExhausted, "a message of 5 MiB")
		var ended time.Time
		var waits []time.Duration
		try := func(string) (reached bool, err error) {
			if !ended.IsZero() {
				waits = append(waits, time.Since(ended))
			}
			time.Sleep(2 * heldLong)
			ended = time.Now()
			switch n := len(waits); {
			case n < 8:
				return true, fmt.Errorf("stream: %w", tooMuch)
			case n < 10:
				return true, status.Error(codes.Aborted, "dial again")
			}
			cancel()
			return true, tooMuch
		}
		keep(ctx, []string{"192.0.2.1:1"}, try, func(error) {})
		want := minExhausted
		for i, wait := range waits {
			if i >= 8 {
				want = minBackoff
			}
			if wait < want/2 || wait > want {
				t.Errorf("wait %d was %s, not %s to %s", i, wait, want/2, want)
			}
			want = min(2*want, maxExhausted)
		}
		if len(waits) != 10 {
			t.Errorf("%d waits", len(waits))
		}
	})
}

func TestAStreamThatEndsWithoutAnErrorIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		Keep(ctx, End{Address: "192.0.2.1:1", TLS: &tls.Config{}},
			func(context.Context, *grpc.ClientConn) error { return nil }, func(err error) {
				if err == nil {
					t.Error("the reason is nil")
				}
				cancel()
			})
	})
}

func TestReasonReadsWhatHadComeBefore(t *testing.T) {
	refused := errors.New("refused")
	for _, last := range []error{refused, io.EOF} {
		n := 0
		err := Reason(func() (int, error) {
			if n++; n < 3 {
				return n, nil
			}
			return 0, last
		})
		if err == nil || n != 3 || last == refused && !errors.Is(err, refused) {
			t.Errorf("after %d messages and %v the reason is %v", n, last, err)
		}
	}
}

// TestKeepTriesEachAddress: if an address does not answer, the next one is tried soon, and an address that worked is
// tried first again. The backoff grows only when all addresses have failed.
func TestKeepTriesEachAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var tried []string
		var at []time.Duration
		started := time.Now()
		try := func(address string) (reached bool, err error) {
			tried, at = append(tried, address), append(at, time.Since(started))
			switch len(tried) {
			case 8:
				time.Sleep(2 * heldLong) // this stream lasts long enough
				return true, errors.New("ended")
			case 11:
				cancel()
			}
			return false, errors.New("failed")
		}
		_ = keep(ctx, []string{"a:1", "b:1", "c:1"}, try, func(error) {})
		want := []string{"a:1", "b:1", "c:1", "a:1", "b:1", "c:1", "a:1", "b:1", "b:1", "c:1", "a:1"}
		if !slices.Equal(tried, want) {
			t.Errorf("tried %q, want %q", tried, want)
		}
		for _, i := range []int{1, 2, 4, 5, 7} {
			if pause := at[i] - at[i-1]; pause > minBackoff {
				t.Errorf("attempt %d came %s after the one before, not at most %s", i, pause, minBackoff)
			}
		}
		if first, second := at[3]-at[2], at[6]-at[5]; first < minBackoff/2 || second < minBackoff || second > 2*minBackoff {
			t.Errorf("after all addresses failed, it waited %s and then %s", first, second)
		}
	})
}

// TestSlowFailures: the next address is tried also after one whose name DNS does not answer, whose broker does not
// answer Hello, or that refuses an agent only after a while.
func TestSlowFailures(t *testing.T) {
	for fails, reached := range map[time.Duration]bool{2 * time.Minute: false, 11 * time.Second: true,
		31 * time.Second: true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var tried []string
			_ = keep(ctx, []string{"a:1", "b:1"}, func(address string) (bool, error) {
				if tried = append(tried, address); len(tried) == 2 {
					cancel()
				}
				time.Sleep(fails)
				return reached, errors.New("failed")
			}, func(error) {})
			if tried[1] != "b:1" {
				t.Errorf("an attempt of %s, reached: %t; tried %q", fails, reached, tried)
			}
		})
	}
}

// TestNoProxy: a proxy in the environment, as a webhook may set it in pods, is not used for streams.
func TestNoProxy(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	proxied := make(chan bool, 1)
	go func() {
		conn, err := proxy.Accept()
		if err == nil {
			conn.Close()
			cancel()
		}
		proxied <- err == nil
	}()
	// The address of a broadcast is refused at once.
	end := End{Address: "255.255.255.255:1", TLS: &tls.Config{}}
	err := Keep(ctx, end, func(ctx context.Context, c *grpc.ClientConn) error {
		c.Connect()
		for s := c.GetState(); s != connectivity.TransientFailure; s = c.GetState() {
			if !c.WaitForStateChange(ctx, s) {
				return ctx.Err()
			}
		}
		cancel()
		return errors.New("not reached")
	}, func(error) {})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	proxy.Close()
	if <-proxied {
		t.Error("the stream went to the proxy of the environment")
	}
}
