package testbed

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/kube-semaphore/semaphore/test/testbed/spawn"
)

// Process is a supervised component: it is restarted when it exits.
type Process struct {
	// Name is the component's name, with its node if it runs on one: "kube-apiserver", "kubelet/n1".
	Name string
	// Log is the path of its output.
	Log string

	start func() (*spawn.Process, error)
	// clean ends what the process leaves behind when it exits. It may be nil.
	clean func() error
	// retries is the number of exits that are part of the component's start-up, after which died is called.
	retries int
	log     *slog.Logger
	// died is called with each exit that nobody requested and that is not one of retries.
	died func(error)

	mu      sync.Mutex // guards the following
	wanted  bool
	current *spawn.Process
	idle    chan struct{} // closed while the process neither runs nor starts
	wake    chan struct{} // signals that wanted has become true
}

// restartDelay bounds the load of a component that exits immediately after its start.
const restartDelay = time.Second

// stopGrace is the time between SIGTERM and SIGKILL when a component is stopped.
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

// run supervises the process until ctx ends. It then kills the process without a grace period, because its data is
// removed anyway.
func (p *Process) run(ctx context.Context) {
	exits := 0
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
			if exits++; exits > p.retries {
				p.died(err)
			}
			pause(ctx, restartDelay)
		}
	}
}

// once runs the process until it exits and returns the reason as an error.
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

// begin reports whether the process should start. If so, it marks the process as starting.
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

// PID returns the process ID, or 0 while the process does not run.
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

// Stop ends the process and prevents restarts until Start.
func (p *Process) Stop() error { return p.stop(stopGrace) }

// unwant prevents restarts without ending the process.
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
	// Wait until no start is in progress and clean has run.
	select {
	case <-idle:
		return nil
	case <-time.After(12 * stopGrace):
		return fmt.Errorf("%s did not end", p.Name)
	}
}

// Kill ends the process like a crash. It restarts after restartDelay, unless it was stopped before.
func (p *Process) Kill() error {
	p.mu.Lock()
	current := p.current
	p.mu.Unlock()
	if current == nil {
		return fmt.Errorf("%s does not run", p.Name)
	}
	return current.Stop(0)
}

// Start allows a stopped process to run again. It does not wait until the process is ready.
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

// tail returns the last lines of a file, indented.
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
