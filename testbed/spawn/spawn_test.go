//go:build linux

package spawn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kube-semaphore/semaphore/testbed/netns"
)

// needRoot skips where containers cannot be made, and fails instead where CI promises they can.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("containers need root, and CI=true does not allow a skip")
	}
	t.Skip("SKIPPED: containers need root")
}

// machine are the mounts that let the machine's programs run in a root of its own.
var machine = []Mount{
	{Source: "/usr", Target: "/usr", ReadOnly: true},
	{Source: "usr/bin", Target: "/bin", Symlink: true},
	{Source: "usr/sbin", Target: "/sbin", Symlink: true},
	{Source: "usr/lib", Target: "/lib", Symlink: true},
	{Source: "usr/lib64", Target: "/lib64", Symlink: true},
	{Source: "/run", Target: "/var/run", Symlink: true},
}

// shell is a Spec that runs a script in a root of its own.
func shell(t *testing.T, script string) Spec {
	t.Helper()
	needRoot(t)
	return Spec{
		Name: t.Name(), Args: []string{"sh", "-c", script}, Env: []string{"A=1"},
		Root: t.TempDir(), Mounts: append([]Mount{}, machine...),
		PIDNamespace: true, Output: filepath.Join(t.TempDir(), "output"),
	}
}

func start(t *testing.T, spec Spec) *Process {
	t.Helper()
	p, err := Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(0); err != nil {
			t.Error(err)
		}
	})
	return p
}

// output runs a container to its end and gives what it printed.
func output(t *testing.T, spec Spec) string {
	t.Helper()
	state := start(t, spec).Wait()
	text, err := os.ReadFile(spec.Output)
	if err != nil {
		t.Fatal(err)
	}
	if state.Code != 0 {
		t.Errorf("exit code %d, output:\n%s", state.Code, text)
	}
	return string(text)
}

func machineMounts(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(mounts)
}

func TestRoot(t *testing.T) {
	spec := shell(t, `set -e
echo pid $$ host $(hostname) a $A
ls /
cat /data/file /etc/single
ls -l /dev | grep -c '^c'
echo x >/var/run/x; cat /run/x
cd /proc; set -- [0-9]*; echo $#
`)
	spec.Hostname = "pod-1"
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "file"), []byte("bound\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec.Mounts = append(spec.Mounts,
		Mount{Source: data, Target: "/data"},
		Mount{Source: filepath.Join(data, "file"), Target: "/etc/single"})
	spec.Dir = "/workdir/dir"
	got := output(t, spec)
	want := `pid 1 host pod-1 a 1
bin
data
dev
etc
lib
lib64
proc
run
sbin
sys
tmp
usr
var
workdir
bound
bound
6
x
1
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

func TestReadOnly(t *testing.T) {
	spec := shell(t, `
try() { if touch $1/x 2>/dev/null; then echo $1 writable; else echo $1 read-only; fi; }
try /; try /etc; try /usr; try /usr/bin; try /ro; try /rw; try /tmp; try /run; try /empty`)
	rw, ro := t.TempDir(), t.TempDir()
	spec.ReadOnlyRoot = true
	spec.Mounts = append(spec.Mounts,
		Mount{Source: ro, Target: "/ro", ReadOnly: true},
		Mount{Source: rw, Target: "/rw"},
		Mount{Target: "/empty", Tmpfs: true})
	want := `/ read-only
/etc read-only
/usr read-only
/usr/bin read-only
/ro read-only
/rw writable
/tmp read-only
/run read-only
/empty writable
`
	if diff := cmp.Diff(want, output(t, spec)); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(rw, "x")); err != nil {
		t.Error(err)
	}
}

func TestPrivileges(t *testing.T) {
	const report = `grep -E '^(Uid|Gid|CapPrm|CapEff|CapBnd|NoNewPrivs|Groups)' /proc/self/status | tr -s ' \t' ' '
if (echo 1 >/proc/sys/net/ipv4/conf/lo/forwarding) 2>/dev/null; then echo sysctl; else echo no sysctl; fi`
	full := func() string { // what the machine allows at most
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(status), "CapBnd:\t")
		value, _, _ := strings.Cut(after, "\n")
		return value
	}()
	for _, tc := range []struct {
		name        string
		user, group int
		groups      []int
		caps        *[]string
		want        string
	}{
		{"privileged", 0, 0, nil, nil, "Uid: 0 0 0 0\nGid: 0 0 0 0\nGroups: \nCapPrm: " + full + "\nCapEff: " + full +
			"\nCapBnd: " + full + "\nNoNewPrivs: 0\nsysctl\n"},
		{"one capability", 0, 0, nil, &[]string{"NET_ADMIN"}, "Uid: 0 0 0 0\nGid: 0 0 0 0\nGroups: \nCapPrm: 0000000000001000\n" +
			"CapEff: 0000000000001000\nCapBnd: 0000000000001000\nNoNewPrivs: 1\nno sysctl\n"},
		{"user", 65532, 65533, []int{7, 8}, &[]string{"CAP_NET_BIND_SERVICE"}, "Uid: 65532 65532 65532 65532\n" +
			"Gid: 65533 65533 65533 65533\nGroups: 7 8 \nCapPrm: 0000000000000000\nCapEff: 0000000000000000\n" +
			"CapBnd: 0000000000000400\nNoNewPrivs: 1\nno sysctl\n"},
		{"nothing", 0, 0, nil, &[]string{}, "Uid: 0 0 0 0\nGid: 0 0 0 0\nGroups: \nCapPrm: 0000000000000000\n" +
			"CapEff: 0000000000000000\nCapBnd: 0000000000000000\nNoNewPrivs: 1\nno sysctl\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := shell(t, report)
			spec.Netns = namespace(t) // a sysctl of its own to write
			spec.User, spec.Group, spec.Groups, spec.Capabilities = tc.user, tc.group, tc.groups, tc.caps
			if diff := cmp.Diff(tc.want, output(t, spec)); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, err := Start(Spec{Args: []string{"true"}, Capabilities: &[]string{"FLY"}}); err == nil ||
		!strings.Contains(err.Error(), `Capabilities: "FLY"`) {
		t.Errorf("unknown capability: %v", err)
	}
}

func namespace(t *testing.T) *netns.Namespace {
	t.Helper()
	needRoot(t)
	n, err := netns.Create(fmt.Sprintf("container-test-%d-%s", os.Getpid(), filepath.Base(t.Name())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Delete(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func TestNetworkNamespace(t *testing.T) {
	spec := shell(t, `ls /sys/class/net; cat /proc/net/dev | wc -l`)
	spec.Netns = namespace(t)
	if got := output(t, spec); !strings.HasPrefix(got, "lo\n") || strings.Contains(got, "eth0") {
		t.Errorf("interfaces: %q", got)
	}
	// The same on the machine's root filesystem.
	spec.Root, spec.Mounts = "", []Mount{{Target: "/run", Tmpfs: true}, {Source: t.TempDir(), Target: "/var/run/below/it"}}
	spec.Output = filepath.Join(t.TempDir(), "output")
	spec.Args = []string{"sh", "-c", "ls /sys/class/net /run"}
	if got := output(t, spec); strings.Contains(got, "eth0") || !strings.Contains(got, "below") {
		t.Errorf("interfaces and /run: %q", got)
	}
	if _, err := os.Stat("/run/below"); err == nil {
		t.Error("/run/below was made on the machine")
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

func TestStop(t *testing.T) {
	ready := func(spec Spec) {
		t.Helper()
		for range 500 {
			if text, _ := os.ReadFile(spec.Output); strings.Contains(string(text), "ready") {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatal("process did not get ready")
	}
	spec := shell(t, `trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done`)
	p := start(t, spec)
	ready(spec)
	if err := p.Stop(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if state := p.Wait(); state.Code != 3 || state.Signal != 0 || !state.Finished.After(state.Started) {
		t.Errorf("state %+v", state)
	}
	if err := p.Stop(time.Second); err != nil {
		t.Errorf("second stop: %v", err)
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
	if err := p.Exec(t.Context(), ExecSpec{Args: []string{"true"}}); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("exec after the end: %v", err)
	}

	// Pid 1 without a handler ignores TERM; the children die with it.
	spec = shell(t, `sleep 300 & echo ready; sleep 301`)
	spec.Netns = namespace(t)
	p = start(t, spec)
	ready(spec)
	if err := p.Stop(200 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if state := p.Wait(); state.Signal != syscall.SIGKILL || state.Code != 137 {
		t.Errorf("state %+v", state)
	}
	if pids, err := spec.Netns.Processes(); err != nil || len(pids) != 0 {
		t.Errorf("processes left: %v, %v", pids, err)
	}

	// Without a pid namespace the group is killed.
	spec.PIDNamespace, spec.Output = false, filepath.Join(t.TempDir(), "output")
	spec.Args = []string{"sh", "-c", `trap '' TERM; sleep 300 & echo ready; sleep 301`}
	p = start(t, spec)
	ready(spec)
	if err := p.Stop(100 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if pids, _ := spec.Netns.Processes(); len(pids) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("processes of the group were left")
}

func TestExec(t *testing.T) {
	spec := shell(t, `echo ready; sleep 300`)
	spec.Netns, spec.Hostname, spec.Dir = namespace(t), "host-of-pod", "/workdir"
	spec.Capabilities = &[]string{"NET_ADMIN"}
	p := start(t, spec)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()

	var stdout, stderr bytes.Buffer
	err := p.Exec(ctx, ExecSpec{
		Args: []string{"sh", "-c", `hostname; pwd; echo $A $B; ls /sys/class/net; cat; grep CapEff /proc/self/status; cat /proc/1/cmdline | tr '\0' ' '; echo oops >&2; exit 7`},
		Env:  []string{"B=2"}, Stdin: strings.NewReader("from stdin\n"), Stdout: &stdout, Stderr: &stderr,
	})
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("Exec = %v, want exit code 7", err)
	}
	want := "host-of-pod\n/workdir\n1 2\nlo\nfrom stdin\nCapEff:\t0000000000001000\nsh -c echo ready; sleep 300 "
	if diff := cmp.Diff(want, stdout.String()); diff != "" {
		t.Error(diff)
	}
	if stderr.String() != "oops\n" {
		t.Errorf("stderr %q", &stderr)
	}
	if err := p.Exec(ctx, ExecSpec{Args: []string{"no-such-program"}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing program: %v", err)
	}

	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := p.Exec(short, ExecSpec{Args: []string{"sleep", "60"}}); err == nil {
		t.Error("exec outlived its context")
	}

	stdout.Reset()
	err = p.Exec(ctx, ExecSpec{Args: []string{"sh", "-c", "test -t 0 && stty size >/dev/null && echo a terminal; read x; echo $x"},
		Stdin: strings.NewReader("typed\n"), Stdout: &stdout, TTY: true})
	if err != nil || !strings.Contains(stdout.String(), "a terminal") || !strings.Contains(stdout.String(), "typed") {
		t.Errorf("terminal: %v, %q", err, &stdout)
	}
}

func TestParseStatus(t *testing.T) {
	p, err := parseStatus("Name:\tx\nUid:\t5\t5\t5\t5\nGid:\t6\t6\t6\t6\nCapBnd:\t00000000000000ff\nNoNewPrivs:\t1\nGroups:\t7 8 \n")
	want := privileges{User: 5, Group: 6, Groups: []int{7, 8}, Bounding: 255, NoNewPrivs: true}
	if diff := cmp.Diff(want, p); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if _, err := parseStatus("Uid:\t5\n"); err == nil {
		t.Error("a short status was accepted")
	}
	if _, err := parseStatus("Uid:\tx\nGid:\t6\nCapBnd:\t0\nNoNewPrivs:\t1\n"); err == nil {
		t.Error("a bad status was accepted")
	}
}

// How long the set-up of a container takes, from Start to the program's end.
func BenchmarkStart(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("SKIPPED: containers need root")
	}
	root := b.TempDir()
	for b.Loop() {
		p, err := Start(Spec{Args: []string{"true"}, Root: root, Mounts: machine, PIDNamespace: true, Hostname: "x"})
		if err != nil {
			b.Fatal(err)
		}
		p.Wait()
	}
}
