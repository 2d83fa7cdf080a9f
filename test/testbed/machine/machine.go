// Package machine runs programs of this host in an emulated machine with its own kernel. Tests that need a kernel
// feature which the host may lack, such as WireGuard, can run wherever qemu does. It uses no hardware acceleration.
//
// The machine has the host's files with an overlay in memory, so the host's programs run in it without copying, and its
// writes are lost when it ends. It has no network device, so its programs reach nothing outside. The kernel loads
// modules on demand, as on a node.
package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testbed/machine/job"
)

const emulator = "qemu-system-x86_64"

// initPackage is the package of the machine's first process.
const initPackage = components.Module + "/test/testbed/machine/init"

// ErrUnavailable means that no machine can run here.
var ErrUnavailable = errors.New("no emulated machine can be had here")

// Machine is an emulated machine, ready to start.
type Machine struct {
	// Repository is the checkout from which init is built.
	Repository string
	Kernel     components.Kernel
	// Append are more arguments of the kernel.
	Append string
	// Memory is in MiB. The emulator takes memory from the host only as it is used.
	Memory int
	// Output receives the output of commands while they run. The machine blocks while a write to it blocks.
	Output io.Writer
}

// New finds the parts of a machine and fetches the kernel if necessary. The error is ErrUnavailable if a part is not
// available.
func New(ctx context.Context, b *components.Builder, output io.Writer) (*Machine, error) {
	if _, err := exec.LookPath(emulator); err != nil {
		return nil, fmt.Errorf("%w: run `make deps`: %w", ErrUnavailable, err)
	}
	repository := b.Repository
	if repository == "" {
		var err error
		if repository, err = components.FindRepository(); err != nil {
			return nil, err
		}
	}
	kernel, err := b.Kernel(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return &Machine{Repository: repository, Kernel: kernel, Memory: 2048, Output: output}, nil
}

// Run starts the machine, runs the commands one after the other, and returns their results. An error means that the
// machine did not start or did not complete. It includes the last lines of the console, and the results are those
// before the failure. When ctx ends, the machine is switched off.
func (m *Machine) Run(ctx context.Context, commands []job.Command) ([]job.Result, error) {
	dir, err := os.MkdirTemp("", "semaphore-machine-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := m.writeInitramfs(ctx, dir, commands); err != nil {
		return nil, fmt.Errorf("the machine's first files: %w", err)
	}
	console, told := filepath.Join(dir, "console"), filepath.Join(dir, "results")
	cmd := exec.CommandContext(ctx, emulator, m.arguments(dir, console, told)...)
	var problems bytes.Buffer
	// Wrap Output to force a pipe: the emulator would truncate a file.
	cmd.Stdout, cmd.Stderr = struct{ io.Writer }{m.Output}, &problems
	cmd.WaitDelay = 5 * time.Second
	// The emulator has its own session, so that Ctrl-C reaches only this process, which then stops it. Pdeathsig ends it
	// with this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig refers to the thread that started the child
	defer runtime.UnlockOSThread()
	err = errors.Join(cmd.Run(), ctx.Err())
	results, parseErr := readResults(told)
	if err = errors.Join(err, parseErr); err == nil && len(results) < len(commands) {
		err = fmt.Errorf("it powered off after %d of %d commands", len(results), len(commands))
	}
	if err != nil {
		return results, fmt.Errorf("emulated machine: %w\n%s\nits console at the end:\n%s", err, problems.String(),
			tail(console, 120))
	}
	return results, nil
}

// arguments returns the arguments of qemu(1). It does not use KVM: inside another machine /dev/kvm can exist and hang,
// and tests must behave the same everywhere.
func (m *Machine) arguments(dir, console, results string) []string {
	return []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", strconv.Itoa(min(runtime.NumCPU(), 4)), "-m", strconv.Itoa(m.Memory),
		"-kernel", m.Kernel.Image, "-initrd", filepath.Join(dir, "initramfs"),
		// Mitigations are slow to emulate and not needed here. On a busy host the kernel's timer check at boot can fail, and
		// the kernel then panics.
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check " + m.Append,
		"-serial", "file:" + console,
		"-virtfs", "local,path=/,mount_tag=" + job.HostTag + ",security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-serial-pci",
		"-chardev", "file,id=output,path=/dev/stdout", "-device", fmt.Sprintf("virtserialport,chardev=output,nr=%d",
			job.OutputPort),
		"-chardev", "file,id=results,path=" + results, "-device", fmt.Sprintf("virtserialport,chardev=results,nr=%d",
			job.ResultPort),
	}
}

// readResults returns no results and no error if the file does not exist.
func readResults(path string) ([]job.Result, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []job.Result
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		var r job.Result
		err := d.Decode(&r)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, fmt.Errorf("results: %w", err)
		}
		all = append(all, r)
	}
}

// tail returns the last lines of a file, or the error of reading it.
func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.ReplaceAll(strings.TrimSpace(string(data)), "\r", ""), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
