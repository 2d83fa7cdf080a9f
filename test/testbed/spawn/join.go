//go:build linux

package spawn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/test/testbed/netns"
)

// JoinSpec describes a process to start in the namespaces of a running one.
type JoinSpec struct {
	// Args is the argument vector. Args[0] is looked up in the PATH of Env, inside the root.
	Args []string
	// Env is the complete environment.
	Env []string
	// Groups are cgroup.procs files, as seen from inside, whose groups the process enters.
	Groups []string
	// Stdin, Stdout and Stderr are as in exec.Cmd. Files are passed on unchanged.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// TTY gives the process a pseudoterminal. Stdout then receives all output, and Stderr nothing. If Stdin is a terminal,
	// it is in raw mode meanwhile and its size is forwarded.
	TTY bool
}

// outputPatience bounds the time for which Join waits for output after the process has ended, when its children keep
// the output open.
const outputPatience = time.Second

// Join runs a process in all namespaces and the root of a running one, with all privileges, and waits for it. The error
// is an *exec.ExitError if the process ran and failed. The end of ctx kills the process.
func Join(ctx context.Context, pid int, spec JoinSpec) error {
	if len(spec.Args) == 0 {
		return errors.New("no program: Args is empty")
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args, cmd.Env = []string{initName}, []string{}
	cmd.WaitDelay = outputPatience
	cmd.Stdin, cmd.Stdout, cmd.Stderr = spec.Stdin, spec.Stdout, spec.Stderr
	var terminal *terminal
	if spec.TTY {
		var err error
		if terminal, err = openTerminal(); err != nil {
			return err
		}
		defer terminal.Close()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal.inside, terminal.inside, terminal.inside
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
		if lookupEnv(spec.Env, "TERM") == "" {
			spec.Env = append(slices.Clone(spec.Env), "TERM="+os.Getenv("TERM"))
		}
	}
	if err := startIn(pid, cmd, &order{Args: spec.Args, Env: spec.Env, Groups: spec.Groups}); err != nil {
		return err
	}
	if terminal != nil {
		return terminal.serve(cmd, spec.Stdin, spec.Stdout)
	}
	return cmd.Wait()
}

// StartIn starts a process in all namespaces and the root of a running Init, and returns when it executes its program.
// It ends with the Init. StartIn ignores Netns, Root, Mounts and Hostname of the Spec.
func StartIn(pid int, spec Spec) (*Process, error) {
	if len(spec.Args) == 0 {
		return nil, fmt.Errorf("start %s: no program: Args is empty", spec.Name)
	}
	cmd := reexec()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	closeOutput, err := appendTo(cmd, spec.Output)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer closeOutput()
	if err := startIn(pid, cmd, &order{Args: spec.Args, Env: spec.Env, Groups: spec.Groups}); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p := &Process{name: spec.Name, cmd: cmd, started: time.Now(), done: make(chan struct{})}
	go p.reap()
	return p, nil
}

// startIn starts cmd in the namespaces of a process.
func startIn(pid int, cmd *exec.Cmd, order *order) error {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("find process %d: %w", pid, err)
	}
	defer unix.Close(pidfd)
	return launch(cmd, order, func() error {
		return netns.OnLostThread(func() error {
			// A thread that shares its working directory with other threads cannot change its mount namespace.
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("unshare filesystem context: %w", err)
			}
			const all = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC
			if err := unix.Setns(pidfd, all); err != nil {
				return fmt.Errorf("enter namespaces of process %d: %w", pid, err)
			}
			return cmd.Start()
		})
	})
}
