// Package machine runs programs of this host in an emulated machine with a kernel of its own: what needs something of a
// kernel that the host's may lack, WireGuard, runs against the real thing wherever qemu does, with no acceleration.
//
// The machine has the host's files, read-only; what is written is kept in memory and is gone with it. So the host's
// programs are the machine's, and nothing has to be copied or listed. It has no network device: what runs in it reaches
// nothing outside. Modules are loaded when the kernel wants them, as on a node.
//
// Of this module it imports only testbed/components, where the kernel comes from, and job.
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

	"github.com/kube-semaphore/semaphore/testbed/components"
	"github.com/kube-semaphore/semaphore/testbed/machine/job"
)

// emulator is the program that is the machine.
const emulator = "qemu-system-x86_64"

// initPackage is the machine's first process.
const initPackage = components.Module + "/testbed/machine/init"

// ErrUnavailable says that there can be no machine here, and why.
var ErrUnavailable = errors.New("no emulated machine can be had here")

// Machine is a machine that can be started.
type Machine struct {
	// Repository is the checkout whose init the machine runs.
	Repository string
	Kernel     components.Kernel
	// Memory is in MiB. What is not used is not taken from the host.
	Memory int
	// Output gets what commands write, while they run. It has to be taken: the machine waits for it.
	Output io.Writer
}

// New finds all that a machine is made of, and fetches the kernel where that is not there yet. The error is
// ErrUnavailable where one of them cannot be had.
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

// Run starts the machine, has it run commands one after the other, and returns how they ended. An error is the
// machine's: it did not start, or not get to the end. It holds what the console shows last; results are those until
// then. When ctx ends the machine is switched off.
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
	// Through a pipe also where Output is a file, which the emulator would truncate.
	cmd.Stdout, cmd.Stderr = struct{ io.Writer }{m.Output}, &problems
	cmd.WaitDelay = 5 * time.Second
	// A session of its own: Ctrl-C is for us, and we switch it off. It does not outlive us either.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // a parent's death is that of the thread
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

// arguments are the emulator's, see qemu(1). Acceleration is left alone: /dev/kvm can be there, inside another machine,
// and hang without a word, and the tests must mean the same everywhere.
func (m *Machine) arguments(dir, console, results string) []string {
	return []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", strconv.Itoa(min(runtime.NumCPU(), 4)), "-m", strconv.Itoa(m.Memory),
		"-kernel", m.Kernel.Image, "-initrd", filepath.Join(dir, "initramfs"),
		// Nobody attacks the machine, and what guards against that is slow to emulate. On a busy host the timer fails the
		// check that the kernel makes of it at boot, which then panics.
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check",
		"-serial", "file:" + console,
		"-virtfs", "local,path=/,mount_tag=" + job.HostTag + ",security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-serial-pci",
		"-chardev", "file,id=output,path=/dev/stdout", "-device", fmt.Sprintf("virtserialport,chardev=output,nr=%d",
			job.OutputPort),
		"-chardev", "file,id=results,path=" + results, "-device", fmt.Sprintf("virtserialport,chardev=results,nr=%d",
			job.ResultPort),
	}
}

// readResults returns nothing if the machine wrote none.
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

// tail is the end of a file, as far as there is one.
func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.ReplaceAll(strings.TrimSpace(string(data)), "\r", ""), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
