//go:build linux

// Package cgroup makes the control groups of a testbed, finds and kills the processes in them, and removes them.
//
// It works with version 1 (a hierarchy for each controller), with version 2 alone (the unified hierarchy), and with
// both side by side. A group has the same path, such as sb-a1b2/c1-n1, in every hierarchy. The package imports nothing
// else of this module. See cgroups(7).
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mount is where control groups are mounted, everywhere.
const Mount = "/sys/fs/cgroup"

// Hierarchies are the hierarchies of control groups in which a testbed makes its groups.
type Hierarchies struct {
	// Mount is the directory that a node has at /sys/fs/cgroup: of the unified hierarchy itself, or with one directory
	// for each hierarchy of version 1.
	Mount string
	// Unified says that there is version 2 alone.
	Unified bool

	dirs []string
}

// Find finds the hierarchies at a mount point. A machine with both versions has the unified one in a directory of its
// own: when that is the mount point, version 2 alone is used, as far as its controllers are not bound to version 1.
func Find(mount string) (*Hierarchies, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(mount, &st); err != nil {
		return nil, fmt.Errorf("find control groups: %w", &fs.PathError{Op: "statfs", Path: mount, Err: err})
	}
	h := &Hierarchies{Mount: mount}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		h.Unified, h.dirs = true, []string{mount}
		return h, nil
	}
	entries, err := os.ReadDir(mount)
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	for _, e := range entries {
		// Links, as cpu -> cpu,cpuacct, are not entries of their own.
		dir := filepath.Join(mount, e.Name())
		if e.IsDir() && unix.Statfs(dir, &st) == nil &&
			(st.Type == unix.CGROUP_SUPER_MAGIC || st.Type == unix.CGROUP2_SUPER_MAGIC) {
			h.dirs = append(h.dirs, dir)
		}
	}
	if len(h.dirs) == 0 {
		return nil, fmt.Errorf("no control groups are mounted at %s: mount them, with `mount -t cgroup2 none %s` if "+
			"nothing else does", mount, mount)
	}
	return h, nil
}

// tracking are controllers of version 1 in whose hierarchies a process is put to be found by. None of them changes how
// the process runs, unlike cpu, cpuset and memory.
var tracking = []string{"cpuacct", "freezer", "pids"}

// tracks reports whether processes are put into a group of the hierarchy.
func (h *Hierarchies) tracks(dir string) bool {
	if h.Unified {
		return true
	}
	// Hierarchies may have several controllers: cpu,cpuacct has cpuacct.
	for controller := range strings.SplitSeq(filepath.Base(dir), ",") {
		if slices.Contains(tracking, controller) {
			return !strings.Contains(dir, "cpu,") // there a group would also take its share of processor time
		}
	}
	return false
}

// needed are controllers without which runc starts no container in version 2.
var needed = []string{"cpu", "memory", "pids"}

// Check reports whether groups can be made, and what to do where they cannot.
func (h *Hierarchies) Check() error {
	if h.Unified {
		has, err := os.ReadFile(filepath.Join(h.Mount, "cgroup.controllers"))
		if err != nil {
			return fmt.Errorf("read controllers: %w", err)
		}
		for _, c := range needed {
			if !slices.Contains(strings.Fields(string(has)), c) {
				return fmt.Errorf("the unified hierarchy of control groups at %s has the controllers %s, and not %s, which "+
					"containers need: "+
					"it is bound to version 1, or the kernel lacks it", h.Mount, strings.TrimSpace(string(has)), c)
			}
		}
	}
	found := 0
	for _, dir := range h.dirs {
		if unix.Access(dir, unix.W_OK) != nil {
			return fmt.Errorf("control groups at %s cannot be changed: the testbed needs them writable, as for a container "+
				"with --privileged", dir)
		}
		if h.tracks(dir) {
			found++
		}
	}
	if found == 0 {
		return fmt.Errorf("the hierarchies of control groups at %s have none of the controllers %s", h.Mount,
			strings.Join(tracking, ", "))
	}
	return nil
}

// Create makes a group in all hierarchies, with those above it that are missing. In version 2 all controllers are
// enabled for it.
func (h *Hierarchies) Create(path string) error {
	for _, dir := range h.dirs {
		for part := range strings.SplitSeq(path, "/") {
			if h.Unified {
				if err := enableControllers(dir); err != nil {
					return err
				}
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make control group: %w", err)
			}
			if !h.Unified {
				if err := copyCPUSet(parent, dir); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// enableControllers lets the groups below dir have all controllers that dir has. A group with processes of its own
// cannot do that (EBUSY), unless it is the root: cgroups(7), "no internal processes".
func enableControllers(dir string) error {
	has, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read controllers: %w", err)
	}
	control := filepath.Join(dir, "cgroup.subtree_control")
	on, err := os.ReadFile(control)
	if err != nil {
		return fmt.Errorf("read controllers: %w", err)
	}
	enabled := strings.Fields(string(on))
	for _, c := range strings.Fields(string(has)) {
		if slices.Contains(enabled, c) {
			continue
		}
		err := os.WriteFile(control, []byte("+"+c), 0)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("enable controller %s below %s: it has processes of its own; move them to a group below it: %w",
				c, dir, err)
		}
		// Others cannot be enabled while processes with real-time priority run, for instance; a node does without them.
		if err != nil && slices.Contains(needed, c) {
			return fmt.Errorf("enable controller %s below %s: %w", c, dir, err)
		}
	}
	return nil
}

// copyCPUSet gives a new group of version 1 the processors and memory nodes of the one above, without which no process
// can be in it.
func copyCPUSet(parent, dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) || len(strings.TrimSpace(string(own))) > 0 {
			continue
		}
		value, readErr := os.ReadFile(filepath.Join(parent, name))
		if err := errors.Join(err, readErr); err != nil {
			return fmt.Errorf("make control group: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), value, 0); err != nil {
			return fmt.Errorf("make control group: %w", err)
		}
	}
	return nil
}

// Weigh gives a group that many times the share of processor time that a single process or group beside it has.
func (h *Hierarchies) Weigh(path string, factor int) error {
	for _, dir := range h.dirs {
		for name, value := range map[string]int{"cpu.shares": 1024 * factor, "cpu.weight": min(100*factor, 10000)} {
			err := os.WriteFile(filepath.Join(dir, path, name), []byte(strconv.Itoa(value)), 0)
			// Only the hierarchy with the controller has the file.
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("weigh control group: %w", err)
			}
		}
	}
	return nil
}

// Files are those to which a process writes 0 to enter a group.
func (h *Hierarchies) Files(path string) []string {
	var files []string
	for _, dir := range h.dirs {
		if h.tracks(dir) {
			files = append(files, filepath.Join(dir, path, "cgroup.procs"))
		}
	}
	return files
}

// FilesInside are the same as Files where the hierarchies are mounted at Mount, as on a node.
func (h *Hierarchies) FilesInside(path string) []string {
	files := h.Files(path)
	for i, f := range files {
		files[i] = Mount + strings.TrimPrefix(f, h.Mount)
	}
	return files
}

// List names the groups at the top whose name begins with prefix.
func (h *Hierarchies) List(prefix string) ([]string, error) {
	var names []string
	for _, dir := range h.dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("list control groups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && strings.HasPrefix(e.Name(), prefix) && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// Processes are the ids of the processes in a group and in all below it.
func (h *Hierarchies) Processes(path string) ([]int, error) {
	var pids []int
	for _, dir := range h.dirs {
		err := filepath.WalkDir(filepath.Join(dir, path), func(sub string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it has just gone
			}
			if err != nil || !e.IsDir() {
				return err
			}
			data, err := os.ReadFile(filepath.Join(sub, "cgroup.procs"))
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				return nil
			}
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(data)) {
				// 0 is a process outside our own pid namespace.
				if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list processes of control group %s: %w", path, err)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// killPatience is how long processes may take to vanish after SIGKILL.
const killPatience = 10 * time.Second

// Kill kills all processes in a group and below, and returns when they are gone.
func (h *Hierarchies) Kill(path string) error {
	deadline := time.Now().Add(killPatience)
	for {
		pids, err := h.Processes(path)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			// It is a process of the group or has ended; its id cannot be another's within this instant.
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d of control group %s: %w", pid, path, err)
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v of control group %s are still there %s after SIGKILL", pids, path, killPatience)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Remove removes a group and all below it, which must be without processes.
func (h *Hierarchies) Remove(path string) error {
	var errs []error
	for _, dir := range h.dirs {
		if err := remove(filepath.Join(dir, path)); err != nil {
			errs = append(errs, fmt.Errorf("remove control group: %w", err))
		}
	}
	return errors.Join(errs...)
}

// remove removes a directory of groups, the deepest first. A group whose last process has just ended is busy for an
// instant longer.
func remove(dir string) error {
	var last error
	for range 100 {
		var dirs []string
		err := filepath.WalkDir(dir, func(sub string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				dirs = append(dirs, sub)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
		if len(dirs) == 0 {
			return nil
		}
		last = nil
		for _, d := range slices.Backward(dirs) {
			if err := unix.Rmdir(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
				last = &fs.PathError{Op: "rmdir", Path: d, Err: err}
			}
		}
		if last == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return last
}
