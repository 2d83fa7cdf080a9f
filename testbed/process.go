package testbed

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/kube-semaphore/semaphore/testbed/spawn"
)

// Process is a component that is kept running: when it ends by itself it is started again.
type Process struct {
	// Name is the component's name, and its node's where nodes have it: "kube-apiserver", "kubelet/n1".
	Name string
	// Log is the file with its output.
	Log string

	start func() (*spawn.Process, error)
	// clean, which may be nil, ends what the process leaves when it ends.
	clean func() error
	log   *slog.Logger
	// died is called with each end that nobody asked for.
	died func(error)

	mu      sync.Mutex // guards the following
	wanted  bool
	current *spawn.Process
	idle    chan struct{} // closed while nothing runs and nothing is being started
	wake    chan struct{} // wanted has become true
}

// restartDelay keeps a component that ends at once from taking the machine's time.
const restartDelay = time.Second

// stopGrace is how long a component has between SIGTERM and SIGKILL when it is asked to stop.
const stopGrace = 5 * time.Second

func newProcess(name, logFile string, start func() (*spawn.Process, error), log *slog.Logger,
	died func(error)) *Process {
	idle := make(chan struct{})
	close(idle)
	return &Process{
		Name: name, Log: logFile, start: start, log: log.With("process", name), died: died,
		wanted: true, idle: idle, wake: make(chan struct{}, 1),
	}
}

// run keeps the process running until ctx ends, and then kills it: what it would save is thrown away anyway.
func (p *Process) run(ctx context.Context) {
	for ctx.Err() == nil {
		if !p.begin() {
			select {
			case <-p.wake:
			case <-ctx.Done():
			}
			continue
		}
		err := p.once(ctx)
		p.ended()
		if err != nil && ctx.Err() == nil && p.isWanted() {
			err = fmt.Errorf("%s: %w", p.Name, err)
			p.log.Warn("is started again", "err", err)
			p.died(err)
			pause(ctx, restartDelay)
		}
	}
}

// once runs the process until it ends, and says how.
func (p *Process) once(ctx context.Context) error {
	process, err := p.start()
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	p.set(process)
	p.log.Info("started", "pid", process.PID())
	select {
	case <-process.Done():
	case <-ctx.Done():
		if err := process.Stop(0); err != nil {
			p.log.Error("cannot stop", "err", err)
		}
	}
	p.set(nil)
	if p.clean != nil {
		if err := p.clean(); err != nil {
			p.log.Error("cannot end what the process left", "err", err)
		}
	}
	state := process.Wait()
	return fmt.Errorf("ended with status %d after %s; its last output:\n%s",
		state.Code, state.Finished.Sub(state.Started).Round(time.Millisecond), tail(p.Log, 15))
}

// begin reports whether the process is to be started, and if so that it is under way.
func (p *Process) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted {
		p.idle = make(chan struct{})
	}
	return p.wanted
}

func (p *Process) ended() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.idle)
}

func (p *Process) set(c *spawn.Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current = c
	if c != nil && !p.wanted {
		// Stop was called while the process was starting.
		_ = c.Signal(os.Kill)
	}
}

func (p *Process) isWanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted
}

// PID is the id of the process, 0 while it does not run.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil {
		return 0
	}
	select {
	case <-p.current.Done():
		return 0
	default:
		return p.current.PID()
	}
}

// Stop ends the process and keeps it from being started again, until Start.
func (p *Process) Stop() error { return p.stop(stopGrace) }

// unwant keeps the process from being started again, and leaves it alone.
func (p *Process) unwant() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = false
}

func (p *Process) stop(grace time.Duration) error {
	p.mu.Lock()
	p.wanted = false
	current, idle := p.current, p.idle
	p.mu.Unlock()
	if current != nil {
		if err := current.Stop(grace); err != nil {
			return err
		}
	}
	// Nor is it being started, and what it left has ended.
	select {
	case <-idle:
		return nil
	case <-time.After(12 * stopGrace):
		return fmt.Errorf("%s did not end", p.Name)
	}
}

// Kill ends the process as a crash would. It is started again after a second, unless it was stopped before.
func (p *Process) Kill() error {
	p.mu.Lock()
	current := p.current
	p.mu.Unlock()
	if current == nil {
		return fmt.Errorf("%s does not run", p.Name)
	}
	return current.Stop(0)
}

// Start lets a stopped process run again. It does not wait until it is ready.
func (p *Process) Start() {
	p.mu.Lock()
	p.wanted = true
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// tail gives the last lines of a file, indented.
func tail(path string, lines int) string {
	const most = 16 << 10
	file, err := os.Open(path)
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	data := make([]byte, min(info.Size(), most))
	n, _ := file.ReadAt(data, info.Size()-int64(len(data)))
	all := strings.Split(strings.TrimSpace(string(data[:n])), "\n")
	return "  " + strings.Join(all[max(0, len(all)-lines):], "\n  ")
}
