// Package loopback gives the tests of a package a loopback of their own: a network namespace in which no other process
// can take a port, and addresses on it that are given out once.
//
// A port that was free when a test checked may be in use when the tested program binds it: by another test's server, or
// by an outgoing connection, which takes a port of the ephemeral range. In a namespace of its own, below that range, no
// other process uses a port.
//
// It is for tests only.
package loopback

import (
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inside is an environment variable. It is set in the process whose network namespace Enter created, and in its
// children.
const inside = "SEMAPHORE_TEST_LOOPBACK"

// Address returns ports from firstPort to lastPort. Ports of outgoing connections begin at 32768:
// net.ipv4.ip_local_port_range of a new namespace.
const firstPort, lastPort = 10000, 32767

// Enter moves the test binary into a network namespace of its own, with nothing but loopback, by executing the binary
// again from its start. A TestMain calls it first. Unless -short is set, prepare runs before that, in the machine's
// namespace: it is for steps that need the network, such as building programs.
//
// Enter needs root. Without root, and where root lacks the right, the tests share the machine's loopback.
func Enter(prepare ...func() error) {
	called.Store(true)
	if os.Getenv(inside) != "" || os.Geteuid() != 0 {
		return
	}
	if !flag.Parsed() {
		flag.Parse()
	}
	if !testing.Short() {
		for _, p := range prepare {
			if err := p(); err != nil {
				exit(err)
			}
		}
	}
	// The thread is never unlocked: it executes the binary, and is the only thread that survives, with its namespace.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		fmt.Fprintf(os.Stderr, "no network namespace for these tests, they share the machine's loopback: %v\n", err)
		return
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err == nil {
		err = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), inside+"=1"))
	}
	exit(err)
}

func exit(err error) {
	fmt.Fprintf(os.Stderr, "before the tests: %v\n", err)
	os.Exit(1)
}

var (
	called atomic.Bool
	last   atomic.Int64
)

// Address returns an address, 127.0.0.1 with a port, on which nobody listens, and which is not returned again. After
// Enter no other process can take it.
func Address(tb testing.TB) string {
	tb.Helper()
	if !called.Load() {
		tb.Fatal("TestMain has to call loopback.Enter: these tests would share the machine's loopback")
	}
	if os.Getenv(inside) == "" {
		return shared(tb)
	}
	port := firstPort + last.Add(1) - 1
	if port > lastPort {
		tb.Fatalf("more than %d ports of loopback in one test binary", lastPort-firstPort+1)
	}
	return net.JoinHostPort("127.0.0.1", strconv.FormatInt(port, 10))
}

// shared returns a free address on the machine's loopback. Another process may take it before the caller does.
func shared(tb testing.TB) string {
	tb.Helper()
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(tb)
	defer l.Close()
	return l.Addr().String()
}
