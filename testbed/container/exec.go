//go:build linux

package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ExecSpec describes a further process inside a container.
type ExecSpec struct {
	// Args is the argument vector; Args[0] is looked up in the PATH of the environment, inside the root.
	Args []string
	// Env is added to the environment that the container's process was started with.
	Env []string
	// Stdin, Stdout and Stderr are as in exec.Cmd. Files are handed over as they are.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// TTY gives the process a pseudoterminal: Stdout gets what it writes there, and Stderr nothing. Where Stdin is
	// a terminal, it is made raw meanwhile and its size is passed on.
	TTY bool
}

// outputPatience is how long Exec waits, after the process has ended or was killed, for output that its children keep
// open.
const outputPatience = time.Second

// Exec runs a process in the container's namespaces and root, as the same user and with the same privileges, and waits
// for it. The error is an *exec.ExitError if the process ran and failed. Ending ctx kills the process.
func (p *Process) Exec(ctx context.Context, spec ExecSpec) error {
	select {
	case <-p.done:
		return fmt.Errorf("exec in container %s: %w", p.name, os.ErrProcessDone)
	default:
	}
	if err := ExecPID(ctx, p.PID(), spec); err != nil {
		return fmt.Errorf("exec in container %s: %w", p.name, err)
	}
	return nil
}

// ExecPID does what Process.Exec does, for a process that any program started, by its pid.
func ExecPID(ctx context.Context, pid int, spec ExecSpec) error {
	if len(spec.Args) == 0 {
		return errors.New("no program: Args is empty")
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("find process %d: %w", pid, err)
	}
	defer unix.Close(pidfd)
	order, err := orderLike(pid)
	if err != nil {
		return err
	}
	order.Args = spec.Args
	order.Env = append(order.Env, spec.Env...)

	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args, cmd.Env = []string{initName}, []string{}
	cmd.WaitDelay = outputPatience
	cmd.Stdin, cmd.Stdout, cmd.Stderr = spec.Stdin, spec.Stdout, spec.Stderr
	var terminal *terminal
	if spec.TTY {
		if terminal, err = openTerminal(); err != nil {
			return err
		}
		defer terminal.Close()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal.inside, terminal.inside, terminal.inside
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
		if lookupEnv(order.Env, "TERM") == "" {
			order.Env = append(order.Env, "TERM="+os.Getenv("TERM"))
		}
	}
	err = launch(cmd, order, func() error {
		return onLostThread(func() error {
			// A thread that shares its working directory with others may not change its mount namespace.
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
	if err != nil {
		return err
	}
	if terminal != nil {
		return terminal.serve(cmd, spec.Stdin, spec.Stdout)
	}
	return cmd.Wait()
}

// orderLike takes environment, working directory and privileges from a running process.
func orderLike(pid int) (*order, error) {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return nil, fmt.Errorf("read environment of process %d: %w", pid, err)
	}
	o := &order{}
	for _, e := range bytes.Split(environ, []byte{0}) {
		if len(e) > 0 {
			o.Env = append(o.Env, string(e))
		}
	}
	if o.Dir, err = os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil {
		return nil, fmt.Errorf("read working directory of process %d: %w", pid, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, fmt.Errorf("read privileges of process %d: %w", pid, err)
	}
	if o.Privileges, err = parseStatus(string(status)); err != nil {
		return nil, fmt.Errorf("read privileges of process %d: %w", pid, err)
	}
	return o, nil
}

// parseStatus reads the privileges from the text of /proc/PID/status, see proc_pid_status(5).
func parseStatus(status string) (privileges, error) {
	var p privileges
	seen := 0
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		var err error
		if key == "Groups" {
			for _, f := range fields {
				group, err := strconv.Atoi(f)
				if err != nil {
					return p, fmt.Errorf("field Groups: %w", err)
				}
				p.Groups = append(p.Groups, group)
			}
			continue
		}
		if len(fields) == 0 {
			continue
		}
		switch key {
		case "Uid":
			p.User, err = strconv.Atoi(fields[0])
		case "Gid":
			p.Group, err = strconv.Atoi(fields[0])
		case "CapBnd":
			p.Bounding, err = strconv.ParseUint(fields[0], 16, 64)
		case "NoNewPrivs":
			p.NoNewPrivs = fields[0] == "1"
		default:
			continue
		}
		if err != nil {
			return p, fmt.Errorf("field %s: %w", key, err)
		}
		seen++
	}
	if seen != 4 {
		return p, fmt.Errorf("status has %d of the 4 fields Uid, Gid, CapBnd, NoNewPrivs", seen)
	}
	return p, nil
}

// onLostThread runs f on a thread that ends afterwards, so f may leave its namespaces for good. It is never the main
// thread, which the runtime cannot end.
func onLostThread(f func() error) error {
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			err = onLostThread(f)
			return
		}
		err = f()
	}()
	<-done
	return err
}
