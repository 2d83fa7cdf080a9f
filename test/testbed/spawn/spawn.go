//go:build linux

package spawn

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"golang.org/x/sys/unix"
)

// Spec describes a process to start.
type Spec struct {
	// Name appears in errors.
	Name string
	// Netns is the network namespace of the process. The default is the caller's.
	Netns *netns.Namespace
	// Args is the argument vector. Args[0] is looked up in the PATH of Env, inside the root.
	Args []string
	// Env is the complete environment, as NAME=VALUE.
	Env []string
	// Root is an existing directory. In the mount namespace of the process, a new tmpfs is mounted on it and becomes the
	// root filesystem, with /proc, /sys and a small /dev.
	Root string
	// Mounts are made in order.
	Mounts []Mount
	// Init makes the process the first one of new PID, IPC and UTS namespaces. It executes nothing and only reaps orphans.
	// Its mounts are shared with mount namespaces that are cloned from its own. All processes in its namespaces end with
	// it.
	Init bool
	// Hostname is the host name of an Init.
	Hostname string
	// Groups are cgroup.procs files. The process enters these groups first.
	Groups []string
	// Output is a file to which stdout and stderr are appended. If empty, they are discarded.
	Output string
}

// Mount is one mount of a Spec.
type Mount struct {
	// Source is a file or directory of the machine, bind-mounted with all mounts below it. For a Symlink it is the link
	// text, for an Overlay the lower directory. A Tmpfs ignores it.
	Source string
	// Target is an absolute path inside the root. Missing parts are created.
	Target   string
	ReadOnly bool
	// Tmpfs mounts an empty tmpfs with mode 0755 instead of Source.
	Tmpfs bool
	// Symlink makes Target a symlink to Source instead.
	Symlink bool
	// Overlay is an existing directory. If set, Source is mounted as an overlay with its changes in "upper" below Overlay.
	Overlay string
}

// ExitState is the exit state of a process.
type ExitState struct {
	// Code is the exit status, or 128 plus the signal number.
	Code int
	// Signal is the signal that ended the process, or 0.
	Signal   syscall.Signal
	Started  time.Time
	Finished time.Time
}

// Process is a started process.
type Process struct {
	name    string
	cmd     *exec.Cmd
	started time.Time
	done    chan struct{} // closed after state is set
	state   ExitState
}

// killPatience bounds the time from SIGKILL to the end of a process.
const killPatience = 10 * time.Second

// Start starts a process. It returns when the process executes its program, or, for an Init, when the namespaces are
// set up. It returns errors of the set-up and of a missing program (errors.Is fs.ErrNotExist). A goroutine waits for
// the process. The kernel kills the process when the calling process ends.
func Start(spec Spec) (*Process, error) {
	order, err := spec.order()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	cmd := reexec()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if spec.Init {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	}
	closeOutput, err := appendTo(cmd, spec.Output)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer closeOutput()
	p := &Process{name: spec.Name, cmd: cmd, done: make(chan struct{})}
	launched := make(chan error, 1)
	go func() {
		// For PR_SET_PDEATHSIG(2const), the parent is the thread that created the child. So this thread waits for the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := launch(cmd, order, func() error {
			if spec.Netns == nil {
				return cmd.Start()
			}
			// The child inherits the network namespace of the thread.
			return spec.Netns.DoHere(cmd.Start)
		})
		p.started = time.Now()
		launched <- err
		if err == nil {
			p.reap()
		}
	}()
	if err := <-launched; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	return p, nil
}

func appendTo(cmd *exec.Cmd, output string) (done func(), err error) {
	if output == "" {
		return func() {}, nil
	}
	out, err := os.OpenFile(output, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	return func() { _ = out.Close() }, nil
}

func (s *Spec) order() (*order, error) {
	if len(s.Args) == 0 && !s.Init {
		return nil, errors.New("no program: Args is empty")
	}
	if s.Root == "" {
		return nil, errors.New("field Root: is empty")
	}
	for _, m := range s.Mounts {
		if !filepath.IsAbs(m.Target) {
			return nil, fmt.Errorf("field Mounts: target %q: want an absolute path", m.Target)
		}
		if m.Source == "" && !m.Tmpfs {
			return nil, fmt.Errorf("field Mounts: target %s: want a Source or Tmpfs", m.Target)
		}
	}
	return &order{
		Args: s.Args, Env: s.Env, Groups: s.Groups, Init: s.Init, Hostname: s.Hostname,
		Filesystem: &filesystem{Root: s.Root, Mounts: s.Mounts, Shared: s.Init},
	}, nil
}

// reexec prepares the current binary to run as the child of init.go.
func reexec() *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: []string{initName}, Env: []string{}}
}

// launch runs start, sends the order to the child and waits until the child executes its program. On failure, the child
// has ended and has been reaped.
func launch(cmd *exec.Cmd, order *order, start func() error) error {
	orderRead, orderWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	defer orderWrite.Close()
	failRead, failWrite, err := os.Pipe()
	if err != nil {
		_ = orderRead.Close()
		return err
	}
	defer failRead.Close()
	cmd.ExtraFiles = []*os.File{orderRead, failWrite} // orderFD, failFD
	err = start()
	_ = orderRead.Close()
	_ = failWrite.Close()
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	// If the child dies early, the write fails. The child's report on the other pipe is the better error.
	writeErr := json.NewEncoder(orderWrite).Encode(order)
	_ = orderWrite.Close()
	// The pipe is close-on-exec in the child, so it closes when the child executes its program.
	report, err := io.ReadAll(failRead)
	if err == nil && len(report) == 0 && writeErr == nil {
		return nil
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if len(report) > 0 {
		var failure failure
		if err := json.Unmarshal(report, &failure); err != nil {
			return fmt.Errorf("set up: %s", report)
		}
		return &failure
	}
	return fmt.Errorf("set up: child died: %w", errors.Join(err, writeErr))
}

func (p *Process) reap() {
	_ = p.cmd.Wait() // p.state has the result
	p.state = ExitState{Code: p.cmd.ProcessState.ExitCode(), Started: p.started, Finished: time.Now()}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		p.state.Signal = status.Signal()
		p.state.Code = 128 + int(status.Signal())
	}
	close(p.done)
}

// PID returns the process ID in the machine's PID namespace.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended and has been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the process to end.
func (p *Process) Wait() ExitState {
	<-p.done
	return p.state
}

// Signal sends a signal to the process only. It returns os.ErrProcessDone if the process has ended.
func (p *Process) Signal(sig os.Signal) error {
	return p.cmd.Process.Signal(sig)
}

// Stop sends SIGTERM, and SIGKILL to the process group if the process has not ended after grace. It returns when the
// process has ended. It is no error if the process has ended before.
func (p *Process) Stop(grace time.Duration) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if grace > 0 {
		if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("terminate %s: %w", p.name, err)
		}
		if p.endsWithin(grace) {
			return nil
		}
	}
	// Kill the group: the process leads its own session, and outside a PID namespace its children would survive. The
	// process is not reaped yet, so its PID is not reused.
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	} else if err == nil {
		_ = unix.Kill(-p.PID(), unix.SIGKILL)
	}
	if !p.endsWithin(killPatience) {
		return fmt.Errorf("%s: process %d is still there %s after SIGKILL", p.name, p.PID(), killPatience)
	}
	return nil
}

func (p *Process) endsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// lookupEnv returns the last value of a name in an environment.
func lookupEnv(env []string, name string) string {
	for _, e := range slices.Backward(env) {
		if len(e) > len(name) && e[:len(name)] == name && e[len(name)] == '=' {
			return e[len(name)+1:]
		}
	}
	return ""
}
