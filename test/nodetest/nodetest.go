// Package nodetest gives a test of the agent a node of its own: a process in network, mount and pid namespaces that end
// with it, with everything that the test created there. The node has no interface but loopback, and an empty /run,
// where named network namespaces and the sockets of userspace devices are.
//
// A test on a node runs with each backend of WireGuard that this machine has, or only with the one that the environment
// variable SEMAPHORE_TEST_BACKEND names. See docs/testbed.md, "A real kernel".
//
// It is for tests only.
package nodetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

// inside is set, to the name of the one test to run, in the process on a node.
const inside = "SEMAPHORE_NODETEST"

// backendVariable names the one backend to test. slownessVariable is how many times slower this machine is than those
// for which the tests are written: an emulated machine. ownKernelVariable is 1 if only the tests use the kernel.
const (
	backendVariable   = "SEMAPHORE_TEST_BACKEND"
	slownessVariable  = "SEMAPHORE_TEST_SLOWNESS"
	ownKernelVariable = "SEMAPHORE_TEST_OWN_KERNEL"
)

// OwnKernel reports whether a test may change the complete machine, such as its loaded modules. Such a test must not be
// parallel, so that no other test runs beside it.
func OwnKernel() bool { return os.Getenv(ownKernelVariable) == "1" }

// Backend returns the backend of WireGuard for a test on a node, for kernel.NewHost and an agent's configuration.
// Elsewhere it is auto.
func Backend() string {
	if b := os.Getenv(backendVariable); b != "" {
		return b
	}
	return "auto"
}

// Patience returns how long to wait on this machine for what takes d elsewhere: a multiple of d on a slow machine.
// Every limit in a test on a node uses it.
func Patience(d time.Duration) time.Duration {
	if factor, err := strconv.Atoi(os.Getenv(slownessVariable)); err == nil && factor > 1 {
		return d * time.Duration(factor)
	}
	return d
}

// Main is a TestMain: it makes the test binary a userspace device's process, as the agent's binary is, if asked to.
// Otherwise it runs the tests, after which no goroutine may remain.
func Main(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == kernel.UserspaceCommand {
		err := carry(os.Args[2], os.Args[3])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(patient{m})
}

// patient waits for the processes of deleted devices, for each of which a goroutine waits: on a busy machine that takes
// longer than goleak waits. A process that does not end prints its goroutines, because it is the cause.
type patient struct{ *testing.M }

func (m patient) Run() int {
	code := m.M.Run()
	for begin := time.Now(); time.Since(begin) < Patience(time.Minute); time.Sleep(5 * time.Millisecond) {
		if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); errors.Is(err, unix.ECHILD) {
			return code
		}
	}
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		for _, child := range strings.Fields(string(children)) {
			if pid, err := strconv.Atoi(child); err == nil {
				_ = unix.Kill(pid, unix.SIGQUIT)
			}
		}
	}
	time.Sleep(time.Second) // for what they print
	return code
}

// carry does what cmd/semaphore-agent does with the same arguments.
func carry(name, arg string) error {
	if name == "--serve" {
		return kernel.ServeUserspace(context.Background(), arg)
	}
	mtu, err := strconv.Atoi(arg)
	if err != nil {
		return err
	}
	return kernel.RunUserspace(context.Background(), name, mtu)
}

// Run runs f, a complete test, on a node of its own, once for each available backend. It needs root: without, or with
// -short, the test is skipped. With CI=true it fails if the machine lacks what it needs.
func Run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		prepare(t)
		f(t)
		return
	}
	if testing.Short() {
		t.Skip("needs namespaces and devices; not with -short")
	}
	backends, problem := backends()
	if problem != "" {
		if os.Getenv("CI") == "true" || os.Getenv(backendVariable) != "" {
			t.Fatal(problem)
		}
		t.Skip(problem)
	}
	if len(backends) == 1 {
		t.Parallel()
		onNode(t, t.Name(), backends[0])
		return
	}
	test := t.Name()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			onNode(t, test, backend)
		})
	}
}

// onNode runs a test in a process on a node.
func onNode(t *testing.T, test, backend string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience(10*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^"+test+"$", "-test.v",
		"-test.timeout="+Patience(590*time.Second).String())
	// The race detector delays the end of each process, also of devices, by a second.
	cmd.Env = append(os.Environ(), inside+"="+test, backendVariable+"="+backend, "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	// A userspace device's process may keep the output open until the node ends.
	cmd.WaitDelay = Patience(30 * time.Second)
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("on its node: %v\n%s", err, out)
	case !strings.Contains(string(out), "--- PASS: "+test):
		t.Errorf("on its node, the test did not run to its end:\n%s", out)
	case testing.Verbose():
		t.Logf("on its node:\n%s", out)
	}
}

// backends returns those to test, or why no node can be created here.
func backends() (backends []string, problem string) {
	if os.Geteuid() != 0 {
		return nil, "needs root, for namespaces and devices"
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return nil, "needs TUN devices, for userspace WireGuard: " + err.Error()
	}
	wanted := os.Getenv(backendVariable)
	if wanted == kernel.InUserspace {
		return []string{wanted}, ""
	}
	switch err := kernelBackend(); {
	case wanted == kernel.InKernel && err != nil:
		return nil, fmt.Sprintf("%s=%s: %v", backendVariable, wanted, err)
	case wanted == kernel.InKernel:
		return []string{wanted}, ""
	case wanted != "":
		return nil, fmt.Sprintf("%s=%s: use %s or %s", backendVariable, wanted, kernel.InKernel, kernel.InUserspace)
	case err != nil:
		return []string{kernel.InUserspace}, ""
	}
	return []string{kernel.InUserspace, kernel.InKernel}, ""
}

// kernelBackend returns why this kernel has no WireGuard; nil if it has. It creates a device in a network namespace
// that ends with its thread.
var kernelBackend = sync.OnceValue(func() error {
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- fmt.Errorf("network namespace: %w", err)
			return
		}
		if err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: "wg0"}}); err != nil {
			made <- fmt.Errorf("WireGuard in this kernel: %w", err)
			return
		}
		made <- nil
	}()
	return <-made
})

// prepare creates what a freshly booted node has.
func prepare(t testing.TB) {
	t.Helper()
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			t.Fatalf("mounting %s: %v", m.target, err)
		}
	}
	// On a system that follows the standard, /var/run is a symbolic link to it.
	if real, err := filepath.EvalSymlinks("/var/run"); err != nil || real != "/run" {
		if err := unix.Mount("tmpfs", "/var/run", "tmpfs", 0, ""); err != nil {
			t.Fatalf("mounting /var/run: %v", err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatalf("loopback: %v", err)
	}
}

// ProcessOf returns the process of a userspace device on this node, and its parent.
func ProcessOf(t testing.TB, device string) (pid, parent int) {
	t.Helper()
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range commands {
		args, _ := os.ReadFile(file)
		if !strings.Contains(string(args), "\x00"+kernel.UserspaceCommand+"\x00"+device+"\x00") {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "stat"))
		// The file has pid (command) state ppid, see proc(5).
		if n, _ := fmt.Sscanf(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " %s %d", new(string), &parent); n == 2 {
			pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid, parent
		}
	}
	t.Fatalf("there is no process of %s", device)
	return 0, 0
}
