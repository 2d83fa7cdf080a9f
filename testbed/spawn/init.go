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

// initName is the argv[0] under which the current binary is executed again to become another process.
const initName = "semaphore-testbed-init"

// File descriptors of the child, by their place in exec.Cmd.ExtraFiles.
const (
	orderFD = 3 // the order, as JSON
	failFD  = 4 // the failure, as JSON; closed by a successful exec
)

// defaultPath is the PATH of a process whose environment names none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// order tells the child what to become.
type order struct {
	Args []string
	Env  []string
	// Groups are files of control groups.
	Groups []string
	// Filesystem is nil for a child that was started inside the namespaces of another process.
	Filesystem *filesystem
	Init       bool
	Hostname   string
}

// failure is a child's error on its way to the parent; the errno keeps errors.Is working.
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

// init takes over a process that was executed to become another process. The runtime keeps the main goroutine on the
// main thread while init functions run, so what is changed here per thread is what the program is executed with.
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

// become sets up what the order says and executes the program; it returns only on failure.
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
	// syscall.Exec, and no raw system call, for it restores the file limit that the Go runtime raised.
	if err := syscall.Exec(program, order.Args, order.Env); err != nil {
		return fmt.Errorf("execute %s: %w", program, err)
	}
	return nil
}

// adopt closes the pipe to the parent, which is then answered, and waits for the end of every process that loses its
// parent, forever: the first process of a pid namespace gets those.
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

// findProgram looks a program up as execvp(3) does.
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
