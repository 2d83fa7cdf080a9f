//go:build linux

package spawn

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// shell returns a Spec that runs a script in a new root.
func shell(t *testing.T, script string) Spec {
	t.Helper()
	needRoot(t)
	return Spec{
		Name: t.Name(), Args: []string{"sh", "-c", script}, Env: []string{"A=1"},
		Root: t.TempDir(), Mounts: append([]Mount{}, machine...), Output: filepath.Join(t.TempDir(), "output"),
	}
}

func start(t *testing.T, spec Spec) *Process {
	t.Helper()
	p := testkit.Value(Start(spec))(t)
	t.Cleanup(func() { testkit.NoError(t, p.Stop(0)) })
	return p
}

// output runs a process until it ends and returns its output.
func output(t *testing.T, spec Spec) string {
	t.Helper()
	state := start(t, spec).Wait()
	text := testkit.Value(os.ReadFile(spec.Output))(t)
	if state.Code != 0 {
		t.Errorf("exit code %d, output:\n%s", state.Code, text)
	}
	return string(text)
}

func machineMounts(t *testing.T) string {
	t.Helper()
	mounts := testkit.Value(os.ReadFile("/proc/self/mountinfo"))(t)
	return string(mounts)
}

func TestRoot(t *testing.T) {
	spec := shell(t, `set -e
echo a $A
ls -d /* | grep -v lib32 | tr '\n' ' '; echo
cat /data/file /etc/single
echo x >/var/run/x; cat /run/x
test -c /dev/net/tun && test -c /dev/kmsg && echo devices
`)
	data := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(data, "file"), []byte("bound\n"), 0o644))
	spec.Mounts = append(spec.Mounts,
		Mount{Source: data, Target: "/data"},
		Mount{Source: filepath.Join(data, "file"), Target: "/etc/single"})
	got := output(t, spec)
	want := `a 1
/bin /data /dev /etc /lib /lib64 /proc /root /run /sbin /sys /tmp /usr /var 
bound
bound
x
devices
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if mounts := machineMounts(t); strings.Contains(mounts, spec.Root) || strings.Contains(mounts, data) {
		t.Errorf("mounts leaked to the machine:\n%s", mounts)
	}
	if left, err := os.ReadDir(spec.Root); err != nil || len(left) != 0 {
		t.Errorf("left in the root directory: %v, %v", left, err)
	}
}

func TestMounts(t *testing.T) {
	spec := shell(t, `
try() { if touch $1/x 2>/dev/null; then echo $1 writable; else echo $1 read-only; fi; }
try /usr; try /ro; try /rw; try /empty; try /over; cat /over/lower; echo changed > /over/lower; cat /over/lower`)
	rw, ro, lower, disk := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(lower, "lower"), []byte("as it was\n"), 0o644))
	spec.Mounts = append(spec.Mounts,
		Mount{Source: ro, Target: "/ro", ReadOnly: true},
		Mount{Source: rw, Target: "/rw"},
		Mount{Source: lower, Target: "/over", Overlay: disk},
		Mount{Target: "/empty", Tmpfs: true})
	want := `/usr read-only
/ro read-only
/rw writable
/empty writable
/over writable
as it was
changed
`
	if diff := cmp.Diff(want, output(t, spec)); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(rw, "x")); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(lower, "lower")); err != nil || string(text) != "as it was\n" {
		t.Errorf("below the overlay: %q, %v", text, err)
	}
	if text, err := os.ReadFile(filepath.Join(disk, "upper/lower")); err != nil || string(text) != "changed\n" {
		t.Errorf("what was written to the overlay: %q, %v", text, err)
	}
}

func namespace(t *testing.T) *netns.Namespace {
	t.Helper()
	needRoot(t)
	n := testkit.Value(netns.Create(fmt.Sprintf("spawn-test-%d-%s", os.Getpid(), filepath.Base(t.Name()))))(t)
	t.Cleanup(func() { testkit.NoError(t, n.Delete()) })
	return n
}

func TestNetworkNamespace(t *testing.T) {
	spec := shell(t, `ls /sys/class/net`)
	spec.Netns = namespace(t)
	if got := output(t, spec); got != "lo\n" {
		t.Errorf("interfaces: %q", got)
	}
	// The thread that started the process is in its old namespace again.
	spec.Netns, spec.Output = nil, filepath.Join(t.TempDir(), "output")
	here := testkit.Value(os.Readlink("/proc/self/ns/net"))(t)
	spec.Args = []string{"readlink", "/proc/self/ns/net"}
	if got := strings.TrimSpace(output(t, spec)); got != here {
		t.Errorf("a process of this namespace, %s, is in %s", here, got)
	}
}

func TestErrors(t *testing.T) {
	spec := shell(t, "")
	spec.Args = []string{"no-such-program"}
	if _, err := Start(spec); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("missing program: %v", err)
	}
	spec.Args = []string{"/no/such/program"}
	if _, err := Start(spec); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing program: %v", err)
	}
	spec.Args = []string{"true"}
	spec.Groups = []string{"/no/such/group"}
	if _, err := Start(spec); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "control group") {
		t.Errorf("missing control group: %v", err)
	}
	spec.Groups = nil
	spec.Mounts = append(spec.Mounts, Mount{Source: "/no/such/file", Target: "/x"})
	if _, err := Start(spec); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("missing mount source: %v", err)
	}
	spec.Mounts = []Mount{{Source: "/usr", Target: "usr"}}
	if _, err := Start(spec); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("relative target: %v", err)
	}
	if _, err := Start(Spec{}); err == nil || !strings.Contains(err.Error(), "Args") {
		t.Errorf("no arguments: %v", err)
	}
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

func TestStop(t *testing.T) {
	spec := shell(t, `trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done`)
	p := start(t, spec)
	until(t, "the process", says(spec.Output, "ready"))
	testkit.Must(t, p.Stop(time.Minute))
	if state := p.Wait(); state.Code != 3 || state.Signal != 0 || !state.Finished.After(state.Started) {
		t.Errorf("state %+v", state)
	}
	if err := p.Stop(time.Second); err != nil {
		t.Errorf("second stop: %v", err)
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
	// Stop kills the whole process group.
	spec.Netns, spec.Output = namespace(t), filepath.Join(t.TempDir(), "output")
	spec.Args = []string{"sh", "-c", `trap '' TERM; sleep 300 & echo ready; sleep 301`}
	p = start(t, spec)
	until(t, "the process", says(spec.Output, "ready"))
	testkit.Must(t, p.Stop(100*time.Millisecond))
	if state := p.Wait(); state.Signal != syscall.SIGKILL || state.Code != 137 {
		t.Errorf("state %+v", state)
	}
	until(t, "the end of the group", func() bool {
		pids, err := spec.Netns.Processes()
		return err == nil && len(pids) == 0
	})
}

// initial starts the first process of new namespaces.
func initial(t *testing.T) (*Process, *netns.Namespace) {
	t.Helper()
	spec := shell(t, "")
	spec.Args, spec.Init, spec.Hostname, spec.Netns = nil, true, "host-of-init", namespace(t)
	return start(t, spec), spec.Netns
}

func TestJoin(t *testing.T) {
	p, _ := initial(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	err := Join(ctx, p.PID(), JoinSpec{
		Args: []string{"sh", "-c",
			`hostname; pwd; echo $B; ls /sys/class/net; cat; cd /proc; ls -d [0-9]* | grep -cx 1; echo oops >&2; exit 7`},
		Env: []string{"B=2"}, Stdin: strings.NewReader("from stdin\n"), Stdout: &stdout, Stderr: &stderr,
	})
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("Join = %v, want exit code 7", err)
	}
	if diff := cmp.Diff("host-of-init\n/\n2\nlo\nfrom stdin\n1\n", stdout.String()); diff != "" {
		t.Error(diff)
	}
	if stderr.String() != "oops\n" {
		t.Errorf("stderr %q", &stderr)
	}
	if err := Join(ctx, p.PID(), JoinSpec{Args: []string{"no-such-program"}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing program: %v", err)
	}

	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := Join(short, p.PID(), JoinSpec{Args: []string{"sleep", "60"}}); err == nil {
		t.Error("it outlived its context")
	}

	stdout.Reset()
	err = Join(ctx, p.PID(), JoinSpec{Args: []string{"sh", "-c",
		"test -t 0 && stty size >/dev/null && echo a terminal; read x; echo $x"},
		Stdin: strings.NewReader("typed\n"), Stdout: &stdout, TTY: true})
	if err != nil || !strings.Contains(stdout.String(), "a terminal") || !strings.Contains(stdout.String(), "typed") {
		t.Errorf("terminal: %v, %q", err, &stdout)
	}
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
