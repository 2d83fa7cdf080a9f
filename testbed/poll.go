package testbed

import (
	"context"
	"fmt"
	"time"
)

// patience is how long anything may take that has no bound of its own, on a machine with much else to do: BIRD alone
// waits up to 30 s after an error before it connects again, and client-go's watches as long.
const patience = 3 * time.Minute

// pollEvery is short: each component's answer costs little, and all of them wait in a row.
const pollEvery = 25 * time.Millisecond

// WaitFor calls f until it returns nil. When the time is over, or ctx ends, the error says what was waited for and what
// f said last.
func WaitFor(ctx context.Context, within time.Duration, what string, f func(context.Context) error) error {
	return wait(ctx, within, 100*time.Millisecond, what, f)
}

// poll is WaitFor for what Up waits for.
func poll(ctx context.Context, within time.Duration, what string, f func(context.Context) error) error {
	return wait(ctx, within, pollEvery, what, f)
}

func wait(ctx context.Context, within, every time.Duration, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("not within %s", within))
	defer cancel()
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		// An attempt that was cut short says nothing about what is waited for.
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
