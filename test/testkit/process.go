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

// ProcessorTime is the time for which this process has had a processor so far, in the system's calls, too.
func ProcessorTime() time.Duration {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // cannot fail
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// Process is a program that a test started.
type Process struct {
	// Name is the program's name in messages, and Log the path of the file with its output.
	Name, Log string
	// PID is the process ID.
	PID int
	// Exited is closed when the process has ended.
	Exited chan struct{}
	// Err is the result of the process. It is valid once Exited is closed.
	Err error
}

// Start starts a command and appends its output to a file. The process ends with the test, even if the test binary is
// killed. If the test failed, Start's cleanup logs the last lines of output.
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
		// The death signal is sent when the thread that started the process ends, so the thread must live as long as
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

// Kill kills the process, as in a crash, and waits until it has ended.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	if !p.Runs() {
		return // its PID may belong to another process
	}
	_ = syscall.Kill(p.PID, syscall.SIGKILL)
	select {
	case <-p.Exited:
	case <-time.After(time.Minute):
		t.Errorf("%s (pid %d) does not end", p.Name, p.PID)
	}
}

// Runs reports whether the process is still running.
func (p *Process) Runs() bool {
	select {
	case <-p.Exited:
		return false
	default:
		return true
	}
}

// Tail returns the last lines of the process's output.
func (p *Process) Tail() string {
	const lines = 25
	data, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
