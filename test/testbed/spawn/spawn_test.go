//go:build linux

package spawn

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// needRoot skips the test without root, or fails it where CI promises root.
func needRoot(t *testing.T) {
	t.Helper()
	testkit.NeedsRoot(t, "it makes namespaces")
}

// machine are the mounts with which the machine's programs run in a new root.
var machine = []Mount{
	{Source: "/usr", Target: "/usr", ReadOnly: true},
	{Source: "usr/bin", Target: "/bin", Symlink: true},
	{Source: "usr/sbin", Target: "/sbin", Symlink: true},
	{Source: "usr/lib", Target: "/lib", Symlink: true},
	{Source: "usr/lib64", Target: "/lib64", Symlink: true},
	{Source: "/run", Target: "/var/run", Symlink: true},
}

func start(t *testing.T, spec Spec) *Process {
	t.Helper()
	p := testkit.Value(Start(spec))(t)
	t.Cleanup(func() { testkit.NoError(t, p.Stop(0)) })
	return p
}

func machineMounts(t *testing.T) string {
	t.Helper()
	mounts := testkit.Value(os.ReadFile("/proc/self/mountinfo"))(t)
	return string(mounts)
}

func namespace(t *testing.T) *netns.Namespace {
	t.Helper()
	needRoot(t)
	n := testkit.Value(netns.Create(fmt.Sprintf("spawn-test-%d-%s", os.Getpid(), filepath.Base(t.Name()))))(t)
	t.Cleanup(func() { testkit.NoError(t, n.Delete()) })
	return n
}

// until waits for a condition.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	testkit.Eventually(t, time.Minute, what, testkit.True(f))
}

func says(file, word string) func() bool {
	return func() bool {
		text, _ := os.ReadFile(file)
		return strings.Contains(string(text), word)
	}
}

// initial starts the first process of new namespaces.
func initial(t *testing.T) (*Process, *netns.Namespace) {
	t.Helper()
	ns := namespace(t)
	return start(t, Spec{Name: t.Name(), Root: t.TempDir(), Mounts: machine, Init: true, Netns: ns}), ns
}

// TestInit checks that mounts in an Init's namespace are visible there and not outside, that orphans are reaped, and
// that all processes end with the first.
func TestInit(t *testing.T) {
	p, ns := initial(t)
	out := filepath.Join(t.TempDir(), "output")
	daemon := testkit.Value(StartIn(p.PID(), Spec{
		Name: "daemon", Env: []string{"PATH=" + defaultPath}, Output: out, Args: []string{"sh", "-c",
			`mount -t tmpfs below-init /tmp; (sh -c 'setsid sleep 0.1 & echo $!' ); echo ready; sleep 300`},
	}))(t)
	until(t, "the daemon", says(out, "ready"))
	var mounts bytes.Buffer
	testkit.Must(t, Join(t.Context(), p.PID(), JoinSpec{Args: []string{"cat", "/proc/mounts"}, Stdout: &mounts}))
	if !strings.Contains(mounts.String(), "below-init") || strings.Contains(machineMounts(t), "below-init") {
		t.Errorf("the mount shows inside: %v, and outside: %v", strings.Contains(mounts.String(), "below-init"),
			strings.Contains(machineMounts(t), "below-init"))
	}
	text := testkit.Value(os.ReadFile(out))(t)
	orphan, _, _ := strings.Cut(string(text), "\n")
	until(t, "the end of process "+orphan, func() bool {
		return Join(t.Context(), p.PID(), JoinSpec{Args: []string{"test", "!", "-e", "/proc/" + orphan}}) == nil
	})
	testkit.Must(t, p.Stop(0))
	select {
	case <-daemon.Done():
	case <-time.After(time.Minute):
		t.Error("the daemon outlived the first process")
	}
	if pids, err := ns.Processes(); err != nil || len(pids) > 0 {
		t.Errorf("processes are left: %v, %v", pids, err)
	}
}

// ownerEnv makes the test binary start processes and wait until it is killed.
const ownerEnv = "SPAWN_TEST_OWNER"

// TestProcessesEndWithTheirOwner checks that started processes end with the process that started them, even if it is
// killed.
func TestProcessesEndWithTheirOwner(t *testing.T) {
	if dir := os.Getenv(ownerEnv); dir != "" {
		first := testkit.Value(Start(Spec{Name: "init", Root: dir, Mounts: machine, Init: true}))(t)
		inside := testkit.Value(StartIn(first.PID(), Spec{Name: "inside", Args: []string{"sleep", "300"}}))(t)
		alone := testkit.Value(Start(Spec{Name: "alone", Root: dir, Mounts: machine, Args: []string{"sleep", "300"}}))(t)
		fmt.Println("pids", first.PID(), inside.PID(), alone.PID())
		select {}
	}
	needRoot(t)
	owner := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^TestProcessesEndWithTheirOwner$")
	owner.Env = append(os.Environ(), ownerEnv+"="+t.TempDir())
	out := testkit.Value(owner.StdoutPipe())(t)
	testkit.Must(t, owner.Start())
	t.Cleanup(func() { _ = owner.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) != 4 {
		t.Fatalf("the owner says %q, %v", line, err)
	}
	testkit.Must(t, owner.Process.Kill())
	_ = owner.Wait() // killed
	for _, word := range words[1:] {
		pid := testkit.Value(strconv.Atoi(word))(t)
		until(t, "the end of process "+word, func() bool {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			return err != nil || strings.Contains(string(status), "State:\tZ")
		})
	}
}
