package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestKeepBacksOffAndStartsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var at []time.Duration
		var reasons []error
		started := time.Now()
		failed := errors.New("failed")
		carry := func(context.Context, *grpc.ClientConn) error {
			at = append(at, time.Since(started))
			switch len(at) {
			case 8:
				time.Sleep(2 * heldLong) // this stream lasts long enough
			case 10:
				return ErrAgain
			case 12:
				cancel()
			}
			return failed
		}
		err := Keep(ctx, End{Address: "192.0.2.1:1", TLS: &tls.Config{}}, carry,
			func(err error) { reasons = append(reasons, err) })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Keep returned %v", err)
		}
		between := func(i int, low, high time.Duration) {
			t.Helper()
			if d := at[i] - at[i-1]; d < low || d > high {
				t.Errorf("attempt %d came %s after the one before, not %s to %s", i, d, low, high)
			}
		}
		between(1, minBackoff/2, minBackoff)
		between(2, minBackoff, 2*minBackoff)
		between(3, 2*minBackoff, 4*minBackoff)
		between(7, maxBackoff/2, maxBackoff)
		between(8, 2*heldLong+minBackoff/2, 2*heldLong+minBackoff)
		between(9, minBackoff, 2*minBackoff)
		between(10, minBackoff/2, minBackoff)
		if len(reasons) != 11 || !errors.Is(reasons[0], failed) {
			t.Errorf("%d ends are reported, the first %v; the one that ctx ended is nobody's business", len(reasons), reasons[0])
		}
	})
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
		carry := func(context.Context, *grpc.ClientConn) error {
			if !ended.IsZero() {
				waits = append(waits, time.Since(ended))
			}
			time.Sleep(2 * heldLong)
			ended = time.Now()
			switch n := len(waits); {
			case n < 8:
				return fmt.Errorf("stream: %w", tooMuch)
			case n < 10:
				return status.Error(codes.Aborted, "dial again")
			}
			cancel()
			return tooMuch
		}
		Keep(ctx, End{Address: "192.0.2.1:1", TLS: &tls.Config{}}, carry, func(error) {})
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
