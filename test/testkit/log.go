package testkit

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Buffer collects what is written to it. It is safe for concurrent use.
type Buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns everything that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// CaptureLog collects the output of the default logger until the test ends. A test that calls it must not be parallel.
func CaptureLog(tb testing.TB) *Buffer {
	tb.Helper()
	log := &Buffer{}
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	tb.Cleanup(func() { slog.SetDefault(before) })
	return log
}

// Warnings is a slog.Handler that counts warnings and errors, and drops all else.
type Warnings struct{ n atomic.Int64 }

// Count returns the number so far.
func (w *Warnings) Count() int64 { return w.n.Load() }

func (w *Warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (w *Warnings) Handle(context.Context, slog.Record) error {
	w.n.Add(1)
	return nil
}

func (w *Warnings) WithAttrs([]slog.Attr) slog.Handler { return w }

func (w *Warnings) WithGroup(string) slog.Handler { return w }
