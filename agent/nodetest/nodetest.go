// Package nodetest gives a test of the agent a node of its own: a process in network, mount and pid
// namespaces that end with it, with whatever the test made there. The node has no interface but loopback, and
// an empty /run, where named network namespaces and the sockets of userspace devices live.
//
// It is for tests only, and imports nothing of the agent but what carries a userspace device.
package nodetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/wireguard"
)

// inside is set, to the name of the one test to run, in the process on a node.
const inside = "SEMAPHORE_NODETEST"

// Main is a TestMain: it lets the test binary be what the agent's is, a userspace device's process,
// when asked to, and else runs the tests, after which no goroutine may be left.
func Main(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == wireguard.UserspaceCommand {
		mtu, err := strconv.Atoi(os.Args[3])
		if err == nil {
			err = wireguard.RunUserspace(context.Background(), os.Args[2], mtu)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// Run runs f, the whole of a test, on a node of its own. It needs root: without, or with -short, the
// test is skipped; but where CI=true it fails rather than be skipped for want of root.
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
	if problem := unable(); problem != "" {
		if os.Getenv("CI") == "true" {
			t.Fatal(problem)
		}
		t.Skip(problem)
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=170s")
	// The race detector has each process, also those of devices, sleep for a second at its end.
	cmd.Env = append(os.Environ(), inside+"="+t.Name(), "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	// A userspace device's process may hold the output open until the node ends.
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("on its node: %v\n%s", err, out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Errorf("on its node, the test did not run to its end:\n%s", out)
	case testing.Verbose():
		t.Logf("on its node:\n%s", out)
	}
}

// unable says why no node can be made here; empty when one can.
func unable() string {
	if os.Geteuid() != 0 {
		return "needs root, for namespaces and devices"
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return "needs TUN devices, for userspace WireGuard: " + err.Error()
	}
	return ""
}

// prepare makes what a freshly started node has.
func prepare(t *testing.T) {
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
	// /var/run leads there by a symbolic link on a system as it should be.
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
