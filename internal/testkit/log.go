package testkit

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// Buffer collects what is written to it. It is safe for concurrent use.
type Buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
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
