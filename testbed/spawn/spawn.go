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

	"github.com/kube-semaphore/semaphore/testbed/netns"
	"golang.org/x/sys/unix"
)

// Spec describes a process to start.
type Spec struct {
	// Name is used in errors.
	Name string
	// Netns is the network namespace of the process; the caller's when nil.
	Netns *netns.Namespace
	// Args is the argument vector. Args[0] is looked up in the PATH of Env, inside the root.
	Args []string
	// Env is the whole environment, NAME=VALUE each.
	Env []string
	// Root is an existing directory on which a fresh tmpfs is mounted, inside the process's mount namespace only, to
	// become the root filesystem, with /proc, /sys and a small /dev.
	Root string
	// Mounts are made in their order.
	Mounts []Mount
	// Init makes the process the first of new namespaces for processes, IPC and the host name, instead of executing
	// Args: it only waits for the end of processes that lost their parent. What it mounts is shared with mount
	// namespaces made from its own. All processes in its namespaces end with it.
	Init bool
	// Hostname of an Init.
	Hostname string
	// Groups are files of control groups; the process enters them before it does anything else.
	Groups []string
	// Output is a file that stdout and stderr are appended to; they are discarded when empty.
	Output string
}

// Mount is one mount of a Spec.
type Mount struct {
	// Source is a file or directory of the machine, bound with all that is mounted below it; for a Symlink the link's
	// text. Unused for a Tmpfs; the lower directory of an Overlay.
	Source string
	// Target is an absolute path inside the root. What is missing of it is made.
	Target   string
	ReadOnly bool
	// Tmpfs mounts an empty tmpfs with mode 0755 instead of Source.
	Tmpfs bool
	// Symlink makes Target a symbolic link to Source instead.
	Symlink bool
	// Overlay, when set, is an existing directory: Source is shown, and what is changed is written there, into "upper".
	Overlay string
}

// ExitState is how a process ended.
type ExitState struct {
	// Code is the exit status, or 128 plus the signal's number.
	Code int
	// Signal that ended the process, 0 if none did.
	Signal   syscall.Signal
	Started  time.Time
	Finished time.Time
}

// Process is a process that was started.
type Process struct {
	name    string
	cmd     *exec.Cmd
	started time.Time
	done    chan struct{} // closed when state is set
	state   ExitState
}

// killPatience is how long a process may take to vanish after SIGKILL.
const killPatience = 10 * time.Second

// Start starts a process and returns when it executes its own program, or, for an Init, when its namespaces are as the
// Spec says. An error of the set-up, or a program that does not exist (errors.Is fs.ErrNotExist), is returned here. A
// goroutine waits for the process until it ends. The kernel kills it when the calling process ends.
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
		// What the kernel takes for the death of a parent is that of the thread that made the child, so this thread
		// waits for the child: PR_SET_PDEATHSIG(2const).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := launch(cmd, order, func() error {
			if spec.Netns == nil {
				return cmd.Start()
			}
			// The child inherits the thread's network namespace, so it is there from its first instruction.
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

// reexec prepares the current binary to run as the child that init.go describes.
func reexec() *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: []string{initName}, Env: []string{}}
}

// launch runs start, hands the order to the child and waits until the child executes its own program. When the child
// could not, it has ended and been waited for.
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
	// A child that dies early makes the write fail; what it said on the other pipe is the better error.
	writeErr := json.NewEncoder(orderWrite).Encode(order)
	_ = orderWrite.Close()
	// The pipe closes when the child executes its program, as it is close-on-exec there.
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
	_ = p.cmd.Wait() // the state says it all
	p.state = ExitState{Code: p.cmd.ProcessState.ExitCode(), Started: p.started, Finished: time.Now()}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		p.state.Signal = status.Signal()
		p.state.Code = 128 + int(status.Signal())
	}
	close(p.done)
}

// PID is the process's id in the machine's pid namespace.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended and been waited for.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the process to end.
func (p *Process) Wait() ExitState {
	<-p.done
	return p.state
}

// Signal sends a signal to the process alone; os.ErrProcessDone when it has ended.
func (p *Process) Signal(sig os.Signal) error {
	return p.cmd.Process.Signal(sig)
}

// Stop sends SIGTERM and, when the process has not ended after grace, SIGKILL to its process group. It returns when the
// process has ended. Stopping a process that has ended is no error.
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
	// The group: the process leads a session of its own, and without a pid namespace its children would stay. The
	// process is not reaped yet, so its id cannot be another's.
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

// lookupEnv finds the last setting of a name in an environment.
func lookupEnv(env []string, name string) string {
	for _, e := range slices.Backward(env) {
		if len(e) > len(name) && e[:len(name)] == name && e[len(name)] == '=' {
			return e[len(name)+1:]
		}
	}
	return ""
}
