package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/semaphore/deploy/image"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// containerd is a real containerd in its own mount and PID namespaces. It ends with the test.
type containerd struct {
	t      *testing.T
	paths  components.Paths
	socket string
	group  string // the cgroup parent of its containers
}

func startContainerd(t *testing.T, paths components.Paths, root string) *containerd {
	t.Helper()
	dir, err := os.MkdirTemp("", "sb-images-") // short, because socket paths have a length limit
	testkit.Must(t, err)
	c := &containerd{t: t, paths: paths, socket: filepath.Join(dir, "sock"), group: filepath.Base(dir)}
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("version = 3\nroot = %q\nstate = %q\n[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n",
		root, filepath.Join(dir, "state"), c.socket, c.socket+".ttrpc")
	testkit.Must(t, os.WriteFile(config, []byte(text), 0o644))
	var log bytes.Buffer
	// Shims always have their sockets below /run/containerd, so give it a private /run.
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-c", `mount -t tmpfs tmpfs /run && exec "$0" --config "$1"`, paths.Containerd, config)
	cmd.Env = []string{"PATH=" +
		strings.Join([]string{filepath.Dir(paths.ContainerdShim), filepath.Dir(paths.Runc), os.Getenv("PATH")}, ":")}
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // and with it containerd, the first of its PID namespace, and so all of that
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("containerd: %s", &log)
		}
		c.removeGroups()
		testkit.NoError(t, os.RemoveAll(dir))
	})
	testkit.Eventually(t, 2*time.Minute, "containerd answers", func() error {
		_, err := c.ctr(t.Context(), "version")
		return err
	})
	return c
}

// removeGroups removes the cgroups of containers. They stay busy for a moment after their processes were killed.
func (c *containerd) removeGroups() {
	deadline := time.Now().Add(time.Minute)
	for _, pattern := range []string{"/sys/fs/cgroup/*/" + c.group + "/*", "/sys/fs/cgroup/*/" + c.group,
		"/sys/fs/cgroup/" + c.group + "/*", "/sys/fs/cgroup/" + c.group} {
		groups, err := filepath.Glob(pattern)
		testkit.NoError(c.t, err)
		for _, group := range groups {
			if info, err := os.Stat(group); err != nil || !info.IsDir() {
				continue // a cgroupfs file
			}
			err := os.Remove(group)
			for ; errors.Is(err, syscall.EBUSY) && time.Now().Before(deadline); err = os.Remove(group) {
				time.Sleep(20 * time.Millisecond)
			}
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				c.t.Error(err)
			}
		}
	}
}

// ctr runs the client and returns its stdout. The error includes its stderr.
func (c *containerd) ctr(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.paths.Ctr, append([]string{"--address", c.socket, "--namespace", "k8s.io"},
		args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s", cmd, err, &stderr)
	}
	return stdout.String(), nil
}

// run runs a command in a container of an image.
func (c *containerd) run(reference, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Minute)
	defer cancel()
	return c.ctr(ctx, append([]string{"run", "--rm", "--read-only", "--fifo-dir", filepath.Dir(c.socket), "--cgroup",
		c.group + "/" + name, reference, name}, args...)...)
}

// environment is what the images are made of.
func environment(t *testing.T) (paths components.Paths, programs map[string]string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs the components")
	}
	testkit.NeedsRoot(t, "it runs containerd")
	builder := &components.Builder{Progress: t.Output()}
	paths, err := builder.Ensure(t.Context())
	testkit.Must(t, err)
	if programs, err = builder.Programs(t.Context()); err != nil {
		t.Fatal(err)
	}
	return paths, programs
}

// TestEnsure checks that images are imported once, although several ask for them at once, and that a copy has the
// content of images in common with the cache, outlives it, and shares no database with it.
func TestEnsure(t *testing.T) {
	tier.OnlyAll(t, "each bed's images are made and imported so")
	paths, programs := environment(t)
	dir := t.TempDir()
	var progress [4]bytes.Buffer
	var asked errgroup.Group
	cache := filepath.Join(dir, "cache")
	for i := range progress {
		asked.Go(func() error {
			b := &Builder{Cache: cache, Progress: &progress[i]}
			return b.Ensure(t.Context(), filepath.Join(dir, fmt.Sprint(i)), paths, programs)
		})
	}
	testkit.Must(t, asked.Wait())
	imports := 0
	for i := range progress {
		t.Logf("%d: %s", i, &progress[i])
		imports += strings.Count(progress[i].String(), "imported")
	}
	roots := slices.DeleteFunc(names(t, cache), func(name string) bool { return name == "lock" })
	if imports != 1 || len(roots) != 1 {
		t.Fatalf("%d imports, and the cache has %q; want one", imports, roots)
	}
	files := 0
	root := filepath.Join(cache, roots[0])
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		files++
		inside, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		for i := range progress {
			ours, err1 := os.Stat(path)
			copied, err2 := os.Stat(filepath.Join(dir, fmt.Sprint(i), inside))
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			if linked := os.SameFile(ours, copied); linked == (filepath.Ext(path) == ".db") {
				t.Errorf("%s of copy %d: linked is %v", inside, i, linked)
			}
		}
		return nil
	})
	if err != nil || files < 20 {
		t.Fatalf("%d files in the cache, %v", files, err)
	}
	testkit.Must(t, prune(cache, 0))
	c := startContainerd(t, paths, filepath.Join(dir, "2"))
	if out, err := c.run(Testbed, "copy", "sh", "-c", "id"); err != nil || !strings.Contains(out, "uid=0") {
		t.Errorf("an image of a copy whose cache is empty: %q, %v", out, err)
	}
	programs["semaphore-agent"] = "/usr/bin/env"
	err = (&Builder{Cache: cache}).Ensure(t.Context(), filepath.Join(dir, "none"), paths, programs)
	if err == nil || !strings.Contains(err.Error(), "program semaphore-agent") {
		t.Errorf("a program that is none of ours: %v", err)
	}
}

// TestContainerd checks that a real containerd has each image under its references, and that the images work: each
// program of the product runs as its user, the tools of Testbed and CoreDNS run, and pause ends on request.
func TestContainerd(t *testing.T) {
	tier.OnlyAll(t, "each bed's images are made and imported so")
	paths, programs := environment(t)
	root := filepath.Join(t.TempDir(), "root")
	testkit.Must(t, (&Builder{Progress: t.Output()}).Ensure(t.Context(), root, paths, programs))
	c := startContainerd(t, paths, root)
	published := releaseArchive(t, programs)
	testkit.Value(c.ctr(t.Context(), "images", "import", published))(t)
	if out, err := c.run(image.Reference+":v0.1.0", "published", "/usr/local/bin/semaphorectl", "--version"); err != nil ||
		!strings.HasPrefix(out, "semaphorectl version ") {
		t.Errorf("the image as it is published: %q, %v", out, err)
	}
	listed := testkit.Value(c.ctr(t.Context(), "images", "list", "--quiet"))(t)
	for _, reference := range append([]string{Pause, CoreDNS, Testbed, Semaphore}, ofSuite...) {
		if !slices.Contains(strings.Fields(listed), reference) {
			t.Errorf("containerd has no image %s:\n%s", reference, listed)
		}
	}
	for i, name := range image.Programs {
		out, err := c.run(Semaphore, fmt.Sprint("product-", i), "/usr/local/bin/"+name, "--version")
		if err != nil || !strings.HasPrefix(out, name+" version ") {
			t.Errorf("%s --version in a container: %q, %v", name, out, err)
		}
	}
	if _, err := c.ctr(t.Context(), "containers", "create", Semaphore, "user"); err != nil {
		t.Error(err)
	}
	info, err := c.ctr(t.Context(), "containers", "info", "user")
	var container struct {
		Spec struct {
			Process struct {
				User struct{ UID, GID int }
				Env  []string
			}
		}
	}
	if err := errors.Join(err, json.Unmarshal([]byte(info), &container)); err != nil {
		t.Errorf("%v\n%s", err, info)
	}
	if p := container.Spec.Process; p.User.UID != 65532 || p.User.GID != 65532 || p.Env[0] != "PATH=/usr/local/bin" {
		t.Errorf("a container of %s runs as %+v", Semaphore, p)
	}
	for i, test := range []struct{ reference, command, want string }{
		{CoreDNS, "/coredns -version", "CoreDNS-1."},
		{Testbed, "testbed --version", "testbed version "},
		{Testbed, "sh -c id", "uid=0(root) gid=0"},
		{Testbed, "curl --version", "curl 7."},
		{Testbed, "curl -sS --max-time 1 http://127.0.0.1:1/", "Failed to connect to 127.0.0.1 port 1"},
		{Testbed, "getent passwd nonroot", "nonroot:x:65532:"},
		{Testbed, "ip -o link", "lo:"},
		// OpenBSD's nc, which busybox's shell would not run.
		{Testbed, "sh -c nc", "usage: nc [-46"},
		{Testbed, "ss -ltn", "Local Address:Port"},
		{Testbed, "socat TCP-LISTEN:42", "socat: 1 addresses, want 2"},
		{Testbed, "testbed /bin/sh -c id", "uid=0(root) gid=0"},
		{Testbed, "nslookup -type=a x.test 127.0.0.1", "timed out"},
	} {
		args := strings.Fields(test.command)
		out, err := c.run(test.reference, fmt.Sprint("tool-", i), args...)
		if !strings.Contains(out, test.want) && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s in a container of %s: %q, %v; want %q", test.command, test.reference, out, err, test.want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"run", "--detach", "--fifo-dir", filepath.Dir(c.socket), "--cgroup", c.group + "/pause", Pause, "pause"},
		{"tasks", "kill", "--signal", "SIGTERM", "pause"},
	} {
		testkit.Value(c.ctr(ctx, args...))(t)
	}
	for tasks := ""; !strings.Contains(tasks, "STOPPED"); {
		if tasks, err = c.ctr(ctx, "tasks", "list"); err != nil {
			t.Fatalf("the pause has not ended: %v", err)
		}
	}
	// The command exits with the status of pause.
	if _, err := c.ctr(ctx, "tasks", "delete", "pause"); err != nil {
		t.Error(err)
	}
}

// releaseArchive returns an archive as `make image` writes it: an index of compressed images for two architectures with
// SBOMs. The image of the other architecture has no programs here.
func releaseArchive(t *testing.T, programs map[string]string) string {
	t.Helper()
	own := testkit.Value(image.WithSBOM(image.Release{Arch: runtime.GOARCH, Programs: programs, Version: "v0.1.0"}))(t)
	other, err := image.New(image.Spec{Arch: "riscv64", Layers: [][]image.Entry{{image.File("/file", 0o644, "content")}}})
	testkit.Must(t, err)
	dir := t.TempDir()
	testkit.Value(image.WriteRelease(dir, "v0.1.0", own, image.Platform{Image: other, SBOM: own.SBOM}))(t)
	return filepath.Join(dir, "semaphore-v0.1.0.tar")
}
