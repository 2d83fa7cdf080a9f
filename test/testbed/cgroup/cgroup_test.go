//go:build linux

package cgroup

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// mounts returns the hierarchies of this machine to test with: the mount point of all, and the unified one below it if
// the machine has both versions.
func mounts(t *testing.T) []string {
	t.Helper()
	testkit.NeedsRoot(t, "it makes control groups")
	all := []string{Mount}
	var st unix.Statfs_t
	if unified := filepath.Join(Mount, "unified"); unix.Statfs(unified, &st) == nil &&
		st.Type == unix.CGROUP2_SUPER_MAGIC {
		all = append(all, unified)
	}
	return all
}

// TestLife checks that processes and their children are found and killed in nested groups, and that nothing is left.
func TestLife(t *testing.T) {
	for _, mount := range mounts(t) {
		t.Run(filepath.Base(mount), func(t *testing.T) {
			h := testkit.Value(Find(mount))(t)
			if err := h.Check(); err != nil && (!h.Unified || !strings.Contains(err.Error(), "bound to version 1")) {
				t.Fatal(err)
			}
			name := fmt.Sprintf("cgrouptest-%d-%s", os.Getpid(), filepath.Base(mount))
			t.Cleanup(func() {
				testkit.NoError(t, h.Kill(name))
				testkit.NoError(t, h.Remove(name))
			})
			deep := name + "/node/daemons"
			testkit.Must(t, h.Create(deep))
			if err := h.Create(deep); err != nil {
				t.Errorf("again: %v", err)
			}
			testkit.NoError(t, h.Weigh(name, 10))
			files := h.Files(deep)
			if len(files) == 0 {
				t.Fatal("no files to enter the group by")
			}
			script := ""
			for _, f := range files {
				script += "echo 0 > " + f + " && "
			}
			cmd := exec.Command("sh", "-c", script+"{ sleep 300 & sleep 301 & echo in; wait; }")
			out := testkit.Value(cmd.StdoutPipe())(t)
			testkit.Must(t, cmd.Start())
			testkit.Value(bufio.NewReader(out).ReadString('\n'))(t)
			for _, group := range []string{name, deep} {
				pids, err := h.Processes(group)
				if err != nil || len(pids) != 3 || !slices.Contains(pids, cmd.Process.Pid) {
					t.Errorf("processes of %s: %v, %v; want %d and its two children", group, pids, err, cmd.Process.Pid)
				}
			}
			names, err := h.List("cgrouptest-")
			if err != nil || !slices.Contains(names, name) {
				t.Errorf("groups: %v, %v", names, err)
			}
			if inside := h.FilesInside(deep); !strings.HasPrefix(inside[0], Mount+"/") ||
				!strings.HasSuffix(inside[0], deep+"/cgroup.procs") {
				t.Errorf("files inside: %v", inside)
			}
			go func() { _ = cmd.Wait() }()
			testkit.NoError(t, h.Kill(name))
			if pids, err := h.Processes(name); err != nil || len(pids) > 0 {
				t.Errorf("left: %v, %v", pids, err)
			}
			testkit.NoError(t, h.Remove(name))
			if left, err := filepath.Glob(Mount + "/*/" + name); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			if err := h.Remove(name); err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
}

func TestFindFails(t *testing.T) {
	if _, err := Find("/no/such/place"); err == nil || !strings.Contains(err.Error(), "/no/such/place") {
		t.Errorf("no mount point: %v", err)
	}
	dir := t.TempDir()
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "cpu"), fs.ModePerm))
	if _, err := Find(dir); err == nil || !strings.Contains(err.Error(), "mount -t cgroup2") {
		t.Errorf("no control groups: %v", err)
	}
}
