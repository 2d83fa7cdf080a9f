package testkit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// Run runs f in a goroutine until the test ends or stop is called, and waits for it. The test fails if f returns an
// error other than context.Canceled, or does not return within a minute.
func Run(t testing.TB, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("does not end")
		}
	})
	t.Cleanup(stop)
	return stop
}
