//go:build linux

package netns

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// inMounts runs the test in a process with a mount namespace of its own, in which /run is empty, and reports whether
// this is that process.
func inMounts(t *testing.T) bool {
	t.Helper()
	needRoot(t)
	const inside = "SEMAPHORE_TEST_MOUNTS"
	if os.Getenv(inside) == t.Name() {
		if err := unmountAll(dir); err != nil { // the machine's, a copy of it
			t.Fatal(err)
		}
		testkit.Must(t, unix.Mount("run", "/run", "tmpfs", 0, ""))
		return true
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	// Go makes the mounts of an unshared namespace private.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// mountsAt counts the mounts at a path.
func mountsAt(t *testing.T, path string) (n int) {
	t.Helper()
	data := testkit.Value(os.ReadFile("/proc/self/mountinfo"))(t)
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == path {
			n++
		}
	}
	return n
}

// ip runs ip-netns(8), as somebody else does.
func ip(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", append([]string{"netns"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip netns %v: %v\n%s", args, err, out)
	}
}

func made(t *testing.T, name string) *Namespace {
	t.Helper()
	return testkit.Value(Create(name))(t)
}

// `ip netns add` of somebody else, while there are namespaces, mounts nothing over them; those of both end with a
// Delete.
func TestBesideIPNetns(t *testing.T) {
	if !inMounts(t) {
		return
	}
	first := made(t, "first")
	ip(t, "add", "others")
	second := made(t, "second")
	for _, path := range []string{dir, first.Path(), second.Path()} {
		if n := mountsAt(t, path); n != 1 {
			t.Errorf("%d mounts are at %s, want 1", n, path)
		}
	}
	for _, n := range []*Namespace{first, second} {
		testkit.NoError(t, n.Delete())
	}
	wantOnly(t, "others")
	ip(t, "delete", "others")
	wantOnly(t)
}

// A mount that an earlier build or another program has made more than once goes, too, and the namespaces of others
// stay.
func TestStackedMounts(t *testing.T) {
	if !inMounts(t) {
		return
	}
	// As earlier builds made it: dir is no mount point, so that ip stacks a mount on it.
	testkit.Must(t, os.MkdirAll(dir, 0o755))
	bind := func(name string) {
		testkit.Must(t, os.WriteFile(dir+"/"+name, nil, 0o444))
		testkit.Must(t, unix.Mount("/proc/self/ns/net", dir+"/"+name, "", unix.MS_BIND, ""))
	}
	bind("hidden")
	bind("others-hidden")
	ip(t, "add", "others")
	if n := mountsAt(t, dir+"/hidden"); n != 2 {
		t.Fatalf("%d mounts are at %s/hidden, want 2: nothing is hidden", n, dir)
	}
	// And once more, as two `ip netns add` at once did before they took a lock.
	testkit.Must(t, unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""))
	second := made(t, "second")
	for _, name := range []string{"hidden", second.Name()} {
		testkit.NoError(t, Remove(name))
		if n := mountsAt(t, dir+"/"+name); n != 0 {
			t.Errorf("%d mounts of %s are left", n, name)
		}
	}
	wantOnly(t, "others", "others-hidden")
}

// wantOnly checks that dir has namespaces of these names and nothing else.
func wantOnly(t *testing.T, want ...string) {
	t.Helper()
	names, err := List("")
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("%s has %v, %v; want %v", dir, names, err, want)
	}
	for _, name := range want {
		if _, err := Open(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := Open("second"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a namespace that was deleted: %v, want ErrNotExist", err)
	}
}
