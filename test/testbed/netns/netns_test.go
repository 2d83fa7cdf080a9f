//go:build linux

package netns

import (
	"errors"
	"fmt"
	"os"
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
