package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Process is a program that a test started.
type Process struct {
	// Name of the program in messages, and Log, the file that has what it wrote.
	Name, Log string
	// PID is the number of the process.
	PID int
	// Exited is closed when it has ended.
	Exited chan struct{}
	// Err is how it ended, once Exited is closed.
	Err error
}

// Start starts a command whose output is appended to a file. The process ends with the test, also with one that is
// killed; what it wrote last is logged if the test failed.
func Start(t testing.TB, name, log string, cmd *exec.Cmd) (*Process, error) {
	t.Helper()
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &Process{Name: name, Log: log, Exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer file.Close()
		// The death signal comes when the thread that started the process ends, so that thread is kept for as long as
		// the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.Err = cmd.Wait()
			close(p.Exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.PID = cmd.Process.Pid
	t.Cleanup(func() {
		p.Kill(t)
		if t.Failed() {
			t.Logf("%s wrote at last:\n%s", name, p.Tail())
		}
	})
	return p, nil
}

// Kill ends the process as a crash would, and waits for its end.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	if !p.Runs() {
		return // its number may be another's
	}
	_ = syscall.Kill(p.PID, syscall.SIGKILL)
	select {
	case <-p.Exited:
	case <-time.After(time.Minute):
		t.Errorf("%s (pid %d) does not end", p.Name, p.PID)
	}
}

// Runs reports whether the process has not ended.
func (p *Process) Runs() bool {
	select {
	case <-p.Exited:
		return false
	default:
		return true
	}
}

// Tail returns the last lines that the process wrote.
func (p *Process) Tail() string {
	const lines = 25
	data, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
