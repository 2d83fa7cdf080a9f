package kubetest

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestProcessThatExits: a server that cannot start reports the reason.
func TestProcessThatExits(t *testing.T) {
	p := testkit.Value(run(t, nil, t.TempDir(), "sh", "/bin/sh", "-c", "echo the reason; exit 3"))(t)
	<-p.Exited
	if p.Err == nil || !strings.Contains(p.Tail(), "the reason") {
		t.Errorf("err %v, log %q", p.Err, p.Tail())
	}
}

func TestProcessEndsWithTest(t *testing.T) {
	var pid int
	t.Run("inner", func(t *testing.T) {
		dir := t.TempDir()
		testkit.Value(run(t, nil, dir, "sh", "/bin/sh", "-c", "echo $$ > pid; mv pid pid.done; exec sleep 600"))(t)
		pid = readPID(t, dir+"/pid.done")
	})
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("process %d after the end of its test: %v; want it gone", pid, err)
	}
}

func TestFindNamesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(binDir, dir)
	if _, err := find(t.Context()); err == nil || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("empty directory: %v; want an error that names etcd", err)
	}
	testkit.Must(t, os.WriteFile(dir+"/etcd", nil, 0o755))
	if _, err := find(t.Context()); err == nil || !strings.Contains(err.Error(), "kube-apiserver") {
		t.Errorf("no apiserver: %v; want an error that names it", err)
	}
}

func readPID(t *testing.T, path string) int {
	t.Helper()
	for range 6000 {
		if b, err := os.ReadFile(path); err == nil {
			return testkit.Value(strconv.Atoi(strings.TrimSpace(string(b))))(t)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s was never written", path)
	return 0
}
