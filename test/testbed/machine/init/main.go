// Command init is the first process of an emulated machine, see package machine. It mounts the host's files read-only
// with an overlay in memory, runs the commands of its job there, reports their results, and powers off. It logs to the
// console.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/test/testbed/machine/job"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "this is the first process of an emulated machine; see package machine")
		os.Exit(2)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	// PID 1 must not exit: the kernel would panic.
	fmt.Fprintln(os.Stderr, "init: powering off:", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
	select {}
}

func run() error {
	data, err := os.ReadFile(job.File)
	if err != nil {
		return err
	}
	var j job.Job
	if err := json.Unmarshal(data, &j); err != nil {
		return fmt.Errorf("%s: %w", job.File, err)
	}
	for _, file := range j.Modules {
		if err := load(file); err != nil {
			return fmt.Errorf("load module %s: %w", file, err)
		}
	}
	if err := enterRoot(j.ModuleTree); err != nil {
		return err
	}
	if err := deviceNodes(filepath.Join(j.ModuleTree, "modules.devname")); err != nil {
		return fmt.Errorf("device nodes: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	output, err := port(job.OutputPort)
	if err != nil {
		return err
	}
	defer output.Close()
	results, err := port(job.ResultPort)
	if err != nil {
		return err
	}
	defer results.Close()
	for _, c := range j.Commands {
		fmt.Fprintf(output, "== %s\n", c.Name)
		if err := json.NewEncoder(results).Encode(result(c, output)); err != nil {
			return fmt.Errorf("telling how %s ended: %w", c.Name, err)
		}
	}
	return nil
}

func load(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// enterRoot changes the root to the host's files with an in-memory overlay, and with the machine's own devices,
// processes and runtime directories. It does so like switch_root(8).
func enterRoot(modules string) error {
	const (
		host = "/host"
		over = "/over"
		root = "/new"
	)
	type mount struct {
		kind, source, target string
		flags                uintptr
		options              string
	}
	mounts := []mount{
		// cache=loose assumes that the host's files do not change while the machine runs.
		{"9p", job.HostTag, host, unix.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=512000,cache=loose"},
		{"tmpfs", "tmpfs", over, 0, ""},
		{"overlay", "overlay", root, 0, "lowerdir=" + host + ",upperdir=" + over + "/upper,workdir=" + over + "/work"},
		{"proc", "proc", root + "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "sysfs", root + "/sys", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"devtmpfs", "devtmpfs", root + "/dev", unix.MS_NOSUID, ""},
		{"devpts", "devpts", root + "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, ""},
		{"tmpfs", "tmpfs", root + "/dev/shm", unix.MS_NOSUID | unix.MS_NODEV, ""},
		{"tmpfs", "tmpfs", root + "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
		// The kernel runs modprobe(8) on demand, which looks for modules here.
		{"", host + modules, root + "/lib/modules/" + filepath.Base(modules), unix.MS_BIND, ""},
	}
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.target, err)
		}
		if m.target == over {
			for _, dir := range []string{"upper", "work"} {
				if err := os.Mkdir(filepath.Join(over, dir), 0o755); err != nil {
					return err
				}
			}
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the new root to /: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	return os.Chdir("/")
}

// deviceNodes creates the device nodes whose modules load on open, such as /dev/net/tun, like kmod-static-nodes of
// systemd. file is written by depmod(8): "MODULE NAME TYPE MAJOR:MINOR".
func deviceNodes(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		var module, name string
		var kind rune
		var major, minor uint32
		if n, _ := fmt.Sscanf(line, "%s %s %c%d:%d", &module, &name, &kind, &major, &minor); n != 5 || kind != 'c' {
			continue // a comment or a block device
		}
		path := filepath.Join("/dev", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor)))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// port opens one of the machine's ports. A port appears shortly after its driver has loaded, as vportNpNUMBER, where N
// depends on the other devices of the machine.
func port(number int) (*os.File, error) {
	pattern := fmt.Sprintf("/dev/vport*p%d", number)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		if len(found) == 1 {
			return os.OpenFile(found[0], os.O_WRONLY, 0)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%d ports %s, want one", len(found), pattern)
		}
	}
}

// result runs a command. As PID 1, init also inherits orphans. It does not reap them, because the machine ends soon.
func result(c job.Command, output io.Writer) job.Result {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Dir, cmd.Env = c.Dir, c.Env
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	started := time.Now()
	err := cmd.Run()
	r := job.Result{Name: c.Name, Seconds: time.Since(started).Seconds()}
	if err != nil {
		r.Exit, r.Problem = -1, err.Error()
	}
	if cmd.ProcessState != nil {
		r.Exit = cmd.ProcessState.ExitCode()
	}
	return r
}
