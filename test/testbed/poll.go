package testbed

import (
	"context"
	"fmt"
	"time"
)

// patience is the timeout of everything that has no bound of its own, for a busy machine: BIRD waits up to 30 s after
// an error before it connects again, and so do client-go's watches.
const patience = 3 * time.Minute

// pollEvery is short because an attempt is cheap and Up waits for many components one after the other.
const pollEvery = 25 * time.Millisecond

// WaitFor calls f until it returns nil. When the time is over or ctx ends, it returns an error with what it waited for
// and the last error of f.
func WaitFor(ctx context.Context, within time.Duration, what string, f func(context.Context) error) error {
	return WaitEvery(ctx, within, 100*time.Millisecond, what, f)
}

// poll is WaitFor with the interval of Up.
func poll(ctx context.Context, within time.Duration, what string, f func(context.Context) error) error {
	return WaitEvery(ctx, within, pollEvery, what, f)
}

// WaitEvery is WaitFor with an interval between two calls.
func WaitEvery(ctx context.Context, within, every time.Duration, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("not within %s", within))
	defer cancel()
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		// Keep the error of the attempt before: one that the timeout cut short says nothing about the cause.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; at last: %w", what, context.Cause(ctx), last)
		case <-time.After(every):
		}
	}
}
