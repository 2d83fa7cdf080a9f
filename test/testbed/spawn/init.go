//go:build linux

package spawn

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// initName is the argv[0] with which the current binary is executed again as a child.
const initName = "semaphore-testbed-init"

// File descriptors of the child, in the order of exec.Cmd.ExtraFiles.
const (
	orderFD = 3 // the order, as JSON
	failFD  = 4 // the failure, as JSON; closed by a successful exec
)

// defaultPath is the PATH of a process whose environment has none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// order is the parent's instruction to the child.
type order struct {
	Args []string
	Env  []string
	// Groups are cgroup.procs files.
	Groups []string
	// Filesystem is nil for a child in the namespaces of another process.
	Filesystem *filesystem
	Init       bool
	Hostname   string
}

// failure carries a child's error to the parent. The errno preserves errors.Is.
type failure struct {
	Message string
	Errno   syscall.Errno
}

func (f *failure) Error() string { return f.Message }

func (f *failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

// init runs the child's code if the process was started as initName. During init functions the runtime keeps the main
// goroutine on the main thread, so per-thread changes apply to the executed program.
func init() {
	if len(os.Args) != 1 || os.Args[0] != initName {
		return
	}
	err := become()
	report := failure{Message: err.Error()}
	errors.As(err, &report.Errno)
	_ = json.NewEncoder(os.NewFile(failFD, "failure")).Encode(report)
	os.Exit(127)
}

// become sets up what the order describes and executes the program. It returns only on failure.
func become() error {
	unix.CloseOnExec(orderFD)
	unix.CloseOnExec(failFD)
	var order order
	if err := json.NewDecoder(os.NewFile(orderFD, "order")).Decode(&order); err != nil {
		return fmt.Errorf("read order: %w", err)
	}
	for _, file := range order.Groups {
		if err := os.WriteFile(file, []byte("0"), 0); err != nil {
			return fmt.Errorf("enter control group: %w", err)
		}
	}
	if order.Hostname != "" {
		if err := unix.Sethostname([]byte(order.Hostname)); err != nil {
			return fmt.Errorf("set host name %s: %w", order.Hostname, err)
		}
	}
	if order.Filesystem != nil {
		if err := order.Filesystem.build(); err != nil {
			return err
		}
	}
	unix.Umask(0o022)
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	if order.Init {
		return adopt()
	}
	program, err := findProgram(order.Args[0], order.Env)
	if err != nil {
		return err
	}
	// Use syscall.Exec, because it restores the file limit that the Go runtime has raised.
	if err := syscall.Exec(program, order.Args, order.Env); err != nil {
		return fmt.Errorf("execute %s: %w", program, err)
	}
	return nil
}

// adopt closes the pipe to the parent, which signals success, and then reaps orphans permanently: the kernel reparents
// them to the first process of a PID namespace.
func adopt() error {
	if err := unix.Close(failFD); err != nil {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for {
		_, err := unix.Wait4(-1, nil, 0, nil)
		if errors.Is(err, unix.ECHILD) {
			<-ended
		}
	}
}

// findProgram looks up a program like execvp(3).
func findProgram(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := lookupEnv(env, "PATH")
	if path == "" {
		path = defaultPath
	}
	for _, dir := range filepath.SplitList(path) {
		candidate := filepath.Join(dir, name)
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", &fs.PathError{Op: "find program in " + path, Path: name, Err: unix.ENOENT}
}
