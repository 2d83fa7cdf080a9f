package stream

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// gather is how long a change waits for further changes.
	gather = 250 * time.Millisecond
	// everyWrite is the minimal interval between two writes. Some of thousands of peers change all the time, and the
	// broker sends again the changes that a crash loses.
	everyWrite = 5 * time.Second
	// everyConfirm is the interval at which the time of confirmation of an unchanged state is updated.
	everyConfirm = time.Minute
)

type StateWriter struct {
	path, cluster string
	// snapshot returns the current state and when a broker last confirmed all of it; false before a complete state was
	// received.
	snapshot func() (c StateFile, whole bool)
	dirty    chan struct{}
	// last is the digest of the file's contents, zero for unknown, and since when they are confirmed. Only Run uses
	// them.
	last      [sha256.Size]byte
	confirmed time.Time

	mu      sync.Mutex
	problem string

	writes *prometheus.CounterVec
	bytes  prometheus.Gauge
}

// NewStateWriter makes the writer of one file. Nothing is written before Run.
func NewStateWriter(path, cluster string, snapshot func() (StateFile, bool)) *StateWriter {
	w := &StateWriter{
		path: path, cluster: cluster, snapshot: snapshot, dirty: make(chan struct{}, 1),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_agent_state_file_writes_total",
			Help: "Writes of the state file; result is ok or error.",
		}, []string{"result"}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "semaphore_agent_state_file_bytes",
			Help: "Size of the state file when it was last written or read.",
		}),
	}
	for _, result := range []string{"ok", "error"} {
		w.writes.WithLabelValues(result)
	}
	return w
}

func (w *StateWriter) Collectors() []prometheus.Collector {
	return []prometheus.Collector{w.writes, w.bytes}
}

// Changed marks the state as changed since the last write. It never blocks.
func (w *StateWriter) Changed() {
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// Problem returns why the last write failed; empty if it did not.
func (w *StateWriter) Problem() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.problem
}

// Run writes changes until ctx ends, and then a last time. It returns only ctx's error.
func (w *StateWriter) Run(ctx context.Context) error {
	if data, info, err := read(w.path); err == nil {
		w.last, w.confirmed = sha256.Sum256(data), info.ModTime()
		w.bytes.Set(float64(len(data)))
	}
	confirm := time.NewTicker(everyConfirm)
	defer confirm.Stop()
	due := time.NewTimer(0)
	due.Stop()
	defer due.Stop()
	waits := false
	var written time.Time
	for {
		select {
		case <-ctx.Done():
			w.write()
			return ctx.Err()
		case <-w.dirty:
			if !waits {
				waits = true
				due.Reset(max(gather, everyWrite-time.Since(written)))
			}
		case <-due.C:
			waits = false
			written = time.Now()
			w.write()
		case <-confirm.C:
			w.write()
		}
	}
}

// write writes the state if it differs from the file, and otherwise updates only the time of confirmation.
func (w *StateWriter) write() {
	now, whole := w.snapshot()
	if !whole {
		return
	}
	data, err := encode(w.cluster, now)
	if err != nil {
		w.failed(err)
		return
	}
	sum := sha256.Sum256(data)
	if sum == w.last {
		if now.Confirmed.Equal(w.confirmed) {
			return
		}
		if err := os.Chtimes(w.path, now.Confirmed, now.Confirmed); err == nil {
			w.confirmed = now.Confirmed
			w.failed(nil)
			return
		}
		// The file is gone, or it cannot be changed. A new write shows which.
	}
	if err := replace(w.path, data, now.Confirmed); err != nil {
		w.last = [sha256.Size]byte{}
		w.writes.WithLabelValues("error").Inc()
		w.failed(err)
		w.Changed() // again, as often as anything is written
		return
	}
	w.last, w.confirmed = sum, now.Confirmed
	w.writes.WithLabelValues("ok").Inc()
	w.bytes.Set(float64(len(data)))
	w.failed(nil)
}

// failed records the result of a write, and logs a change of it.
func (w *StateWriter) failed(err error) {
	problem := ""
	if err != nil {
		problem = "state file " + w.path + " cannot be written, a reboot without a broker would find an older state: " +
			unwrapped(err)
	}
	w.mu.Lock()
	news := problem != w.problem
	w.problem = problem
	w.mu.Unlock()
	switch {
	case news && problem != "":
		slog.Warn(problem)
	case news:
		slog.Info("the state file can be written again", "file", w.path)
	}
}

// unwrapped removes the path from an error of a file, because the message has it already.
func unwrapped(err error) string {
	if of, is := errors.AsType[*os.PathError](err); is {
		return of.Op + ": " + of.Err.Error()
	}
	return err.Error()
}
