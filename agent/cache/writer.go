package cache

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
	// gather is how long a change waits for those that come with it.
	gather = 250 * time.Millisecond
	// everyWrite is the least time between two writes: some of thousands of peers change all the time, and the broker
	// sends again what a crash loses.
	everyWrite = 5 * time.Second
	// everyConfirm is how often a state that has not changed is noted as confirmed.
	everyConfirm = time.Minute
)

// Writer keeps the file of one agent as its state is.
type Writer struct {
	path, cluster string
	snapshot      Snapshot
	dirty         chan struct{}
	// last is the digest of what is in the file, zero for unknown, and since when that counts as confirmed. Both
	// belong to Run.
	last      [sha256.Size]byte
	confirmed time.Time

	mu      sync.Mutex
	problem string

	writes *prometheus.CounterVec
	bytes  prometheus.Gauge
}

// Snapshot is the state as it is now and when a broker last stood by all of it; false where it was never heard whole.
type Snapshot func() (c Contents, whole bool)

// NewWriter makes the writer of one file. Nothing is written before Run.
func NewWriter(path, cluster string, snapshot Snapshot) *Writer {
	w := &Writer{
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

// Collectors are its metrics.
func (w *Writer) Collectors() []prometheus.Collector {
	return []prometheus.Collector{w.writes, w.bytes}
}

// Changed says that the state may differ from what is in the file. It never waits.
func (w *Writer) Changed() {
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// Problem is why the file could not be written at last; empty when it could.
func (w *Writer) Problem() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.problem
}

// Run writes what changes until ctx ends, and then once more.
func (w *Writer) Run(ctx context.Context) error {
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

// write makes the file what the state is. Where it is, only the time at which that was confirmed may be new.
func (w *Writer) write() {
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
		// Someone took it away, or it cannot be changed: writing it again tells.
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

// failed records the result of a write, and logs a change.
func (w *Writer) failed(err error) {
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
		slog.Info("state file is written again", "file", w.path)
	}
}

// unwrapped is an error of a file without its path, which the message has already.
func unwrapped(err error) string {
	var of *os.PathError
	if errors.As(err, &of) {
		return of.Op + ": " + of.Err.Error()
	}
	return err.Error()
}
