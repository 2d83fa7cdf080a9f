package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/deploy/image"
	"github.com/kube-semaphore/semaphore/internal/testkit"
	"github.com/kube-semaphore/semaphore/testbed/components"
)

// containerd is a real containerd in its own mount and PID namespaces. It ends with the test.
type containerd struct {
	t      *testing.T
	paths  components.Paths
	socket string
	group  string // the cgroup parent of its containers
}

func startContainerd(t *testing.T, paths components.Paths) *containerd {
	t.Helper()
	testkit.NeedsRoot(t, "it runs containerd")
	dir, err := os.MkdirTemp("", "sb-images-") // short, because socket paths have a length limit
	if err != nil {
		t.Fatal(err)
	}
	c := &containerd{t: t, paths: paths, socket: filepath.Join(dir, "sock"), group: filepath.Base(dir)}
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("version = 3\nroot = %q\nstate = %q\n[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "state"), c.socket, c.socket+".ttrpc")
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	// Shims always have their sockets below /run/containerd, so give it a private /run.
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-c", `mount -t tmpfs tmpfs /run && exec "$0" --config "$1"`, paths.Containerd, config)
	cmd.Env = []string{"PATH=" +
		strings.Join([]string{filepath.Dir(paths.ContainerdShim), filepath.Dir(paths.Runc), os.Getenv("PATH")}, ":")}
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // and with it containerd, the first of its PID namespace, and so all of that
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("containerd: %s", &log)
		}
		c.removeGroups()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	deadline := time.Now().Add(2 * time.Minute)
	for {
		_, err := c.ctr(t.Context(), "version")
		if err == nil {
			return c
		}
		if time.Now().After(deadline) {
			t.Fatalf("containerd does not answer: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// removeGroups removes the cgroups of containers. They stay busy for a moment after their processes were killed.
func (c *containerd) removeGroups() {
	deadline := time.Now().Add(time.Minute)
	for _, pattern := range []string{"/sys/fs/cgroup/*/" + c.group + "/*", "/sys/fs/cgroup/*/" + c.group,
		"/sys/fs/cgroup/" + c.group + "/*", "/sys/fs/cgroup/" + c.group} {
		groups, err := filepath.Glob(pattern)
		if err != nil {
			c.t.Error(err)
		}
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

// TestContainerd checks that a real containerd loads each archive under its reference, and that the images work: each
// program of the product runs as its user, the tools of Testbed and CoreDNS run, and pause ends on request.
func TestContainerd(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the components")
	}
	builder := &components.Builder{Progress: t.Output()}
	paths, err := builder.Ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	programs, err := builder.Programs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	archives, err := (&Builder{Progress: t.Output()}).Ensure(t.Context(), t.TempDir(), paths, programs)
	if err != nil {
		t.Fatal(err)
	}
	c := startContainerd(t, paths)
	for _, a := range archives {
		started := time.Now()
		if _, err := c.ctr(t.Context(), "images", "import", a.Path); err != nil {
			t.Fatal(err)
		}
		t.Logf("imported %s in %s", a.Reference, time.Since(started).Round(time.Millisecond))
	}
	published := releaseArchive(t, programs)
	if _, err := c.ctr(t.Context(), "images", "import", published.Path); err != nil {
		t.Fatal(err)
	}
	if out, err := c.run(published.Reference, "published", "/usr/local/bin/semaphorectl", "--version"); err != nil ||
		!strings.HasPrefix(out, "semaphorectl version ") {
		t.Errorf("the image as it is published: %q, %v", out, err)
	}
	listed, err := c.ctr(t.Context(), "images", "list", "--quiet")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range archives {
		if !slices.Contains(strings.Fields(listed), a.Reference) {
			t.Errorf("containerd has no image %s:\n%s", a.Reference, listed)
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
		if _, err := c.ctr(ctx, args...); err != nil {
			t.Fatal(err)
		}
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
func releaseArchive(t *testing.T, programs map[string]string) Archive {
	t.Helper()
	own, err := image.WithSBOM(image.Release{Arch: runtime.GOARCH, Programs: programs, Version: "v0.1.0"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := image.New(image.Spec{Arch: "riscv64", Layers: [][]image.Entry{{image.File("/file", 0o644, "content")}}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := image.WriteRelease(dir, "v0.1.0", own, image.Platform{Image: other, SBOM: own.SBOM}); err != nil {
		t.Fatal(err)
	}
	return Archive{Reference: image.Reference + ":v0.1.0", Path: filepath.Join(dir, "semaphore-v0.1.0.tar")}
}
