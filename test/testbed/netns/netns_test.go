//go:build linux

package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// needRoot skips the test without root, or fails it where CI promises root.
func needRoot(t *testing.T) {
	t.Helper()
	testkit.NeedsRoot(t, "it makes namespaces")
}

func create(t *testing.T, suffix string) *Namespace {
	t.Helper()
	needRoot(t)
	n := testkit.Value(Create(fmt.Sprintf("netns-test-%d-%s", os.Getpid(), suffix)))(t)
	t.Cleanup(func() { testkit.NoError(t, n.Delete()) })
	return n
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	testkit.Must(t, unix.Stat(path, &st))
	return st.Ino
}

func TestCreateOpenDelete(t *testing.T) {
	n := create(t, "a")
	if _, err := Create(n.Name()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second Create: %v, want ErrExist", err)
	}
	if _, err := Open(n.Name()); err != nil {
		t.Error(err)
	}
	names, err := List(n.Name())
	if err != nil || !slices.Equal(names, []string{n.Name()}) {
		t.Errorf("List = %v, %v", names, err)
	}
	handle := testkit.Value(n.Netlink())(t)
	defer handle.Close()
	links := testkit.Value(handle.LinkList())(t)
	for _, l := range links {
		if l.Attrs().Name == "lo" && l.Attrs().Flags&net.FlagUp == 0 {
			t.Error("lo is down")
		}
	}
	for range 2 {
		testkit.Must(t, n.Delete())
	}
	if _, err := Open(n.Name()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open after Delete: %v, want ErrNotExist", err)
	}
	if err := n.Do(func() error { return nil }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Do after Delete: %v, want ErrNotExist", err)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b"} {
		if _, err := Create(name); err == nil {
			t.Errorf("Create(%q) did not fail", name)
		}
	}
}

// Many goroutines enter at once. Each must be in the namespace while it runs, and all threads must be back afterwards.
func TestDoRestoresThreads(t *testing.T) {
	n := create(t, "do")
	inside, outside := inode(t, n.Path()), inode(t, "/proc/self/ns/net")
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			err := n.Do(func() error {
				time.Sleep(time.Millisecond)
				if got := inode(t, threadNamespace()); got != inside {
					return fmt.Errorf("in namespace %d, want %d", got, inside)
				}
				return nil
			})
			testkit.NoError(t, err)
		})
	}
	wg.Wait()
	tasks := testkit.Value(os.ReadDir("/proc/self/task"))(t)
	for _, task := range tasks {
		var st unix.Stat_t
		if unix.Stat("/proc/self/task/"+task.Name()+"/ns/net", &st) == nil && st.Ino != outside {
			t.Errorf("thread %s stayed in namespace %d", task.Name(), st.Ino)
		}
	}
	want := errors.New("from f")
	if err := n.Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("Do = %v", err)
	}
}

func TestDialAndListen(t *testing.T) {
	n := create(t, "net")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	listener := testkit.Value(n.Listen(ctx, "tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	conn := testkit.Value(n.DialContext(ctx, "tcp", listener.Addr().String()))(t)
	_ = conn.Close()
	if conn, err := net.DialTimeout("tcp", listener.Addr().String(), time.Second); err == nil {
		_ = conn.Close()
		t.Error("the listener is reachable from outside the namespace")
	}
	packets := testkit.Value(n.ListenPacket(ctx, "udp", "127.0.0.1:0"))(t)
	_ = packets.Close()
	if _, err := n.DialContext(ctx, "tcp", "localhost:1"); err == nil {
		t.Error("a name was resolved")
	}
}

func TestProcesses(t *testing.T) {
	n := create(t, "ps")
	if pids, err := n.Processes(); err != nil || len(pids) != 0 {
		t.Fatalf("Processes = %v, %v", pids, err)
	}
	cmd := exec.Command("sleep", "60")
	testkit.Must(t, n.Do(cmd.Start))
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if pids, err := n.Processes(); err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("Processes = %v, %v, want [%d]", pids, err, cmd.Process.Pid)
	}
}
