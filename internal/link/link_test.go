package link

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
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
				time.Sleep(2 * heldLong) // this one held
			case 10:
				return ErrAgain
			case 12:
				cancel()
			}
			return failed
		}
		err := Keep(ctx, End{Address: "192.0.2.1:1", TLS: &tls.Config{}}, carry, func(err error) { reasons = append(reasons, err) })
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
			t.Errorf("told of %d ends, the first %v; the one that ctx ended is nobody's business", len(reasons), reasons[0])
		}
	})
}

func TestAStreamThatEndsWithoutAnErrorIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		Keep(ctx, End{Address: "192.0.2.1:1", TLS: &tls.Config{}}, func(context.Context, *grpc.ClientConn) error { return nil }, func(err error) {
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
