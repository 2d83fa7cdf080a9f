//go:build linux

// Package cgroup creates and removes the control groups of a testbed, and finds and kills the processes in them.
//
// It supports version 1 (a hierarchy per controller), version 2 (the unified hierarchy) and both side by side. A group
// has the same path, such as sb-a1b2/c1-n1, in every hierarchy. See cgroups(7).
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

// Mount is the standard mount point of control groups.
const Mount = "/sys/fs/cgroup"

// Hierarchies are the cgroup hierarchies in which a testbed creates its groups.
type Hierarchies struct {
	// Mount is the directory that nodes have at /sys/fs/cgroup: the unified hierarchy, or a directory with one
	// subdirectory per hierarchy of version 1.
	Mount string
	// Unified means that only version 2 is used.
	Unified bool

	dirs []string
}

// Find returns the hierarchies at a mount point. On a machine with both versions, the unified hierarchy has its own
// subdirectory. With that as the mount point, only version 2 is used, with the controllers that are not bound to
// version 1.
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
		// Skip symlinks such as cpu -> cpu,cpuacct.
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

// tracking are the controllers of version 1 whose hierarchies are used to find processes. Unlike cpu, cpuset and
// memory, they do not change how a process runs.
var tracking = []string{"cpuacct", "freezer", "pids"}

// tracks reports whether processes enter a group of the hierarchy.
func (h *Hierarchies) tracks(dir string) bool {
	if h.Unified {
		return true
	}
	// A hierarchy may have several controllers, such as cpu,cpuacct.
	for controller := range strings.SplitSeq(filepath.Base(dir), ",") {
		if slices.Contains(tracking, controller) {
			return !strings.Contains(dir, "cpu,") // in cpu,cpuacct the group would change the share of processor time
		}
	}
	return false
}

// needed are the controllers that runc requires in version 2.
var needed = []string{"cpu", "memory", "pids"}

// Check returns an error with a remedy if groups cannot be created.
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

// Create creates a group and its missing parents in all hierarchies. In version 2 it enables all controllers for the
// group.
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

// enableControllers enables all controllers of dir for the groups below it. That fails with EBUSY if dir has processes
// of its own and is not the root; see cgroups(7), "no internal processes".
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
		// Other controllers may fail, for example while processes with real-time priority run. Nodes do not need them.
		if err != nil && slices.Contains(needed, c) {
			return fmt.Errorf("enable controller %s below %s: %w", c, dir, err)
		}
	}
	return nil
}

// copyCPUSet copies the CPUs and memory nodes of the parent to a new group of version 1. No process can enter a group
// without them.
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

// Weigh sets the CPU weight of a group to factor times that of a sibling process or group with the default weight.
func (h *Hierarchies) Weigh(path string, factor int) error {
	for _, dir := range h.dirs {
		for name, value := range map[string]int{"cpu.shares": 1024 * factor, "cpu.weight": min(100*factor, 10000)} {
			err := os.WriteFile(filepath.Join(dir, path, name), []byte(strconv.Itoa(value)), 0)
			// Only the hierarchy with the cpu controller has the file.
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("weigh control group: %w", err)
			}
		}
	}
	return nil
}

// Files returns the cgroup.procs files of a group. A process enters the group by writing 0 to them.
func (h *Hierarchies) Files(path string) []string {
	var files []string
	for _, dir := range h.dirs {
		if h.tracks(dir) {
			files = append(files, filepath.Join(dir, path, "cgroup.procs"))
		}
	}
	return files
}

// FilesInside returns Files with the paths on a node, where the hierarchies are mounted at Mount.
func (h *Hierarchies) FilesInside(path string) []string {
	files := h.Files(path)
	for i, f := range files {
		files[i] = Mount + strings.TrimPrefix(f, h.Mount)
	}
	return files
}

// List returns the names of the top-level groups with a prefix.
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

// Processes returns the PIDs of the processes in a group and in the groups below it.
func (h *Hierarchies) Processes(path string) ([]int, error) {
	var pids []int
	for _, dir := range h.dirs {
		err := filepath.WalkDir(filepath.Join(dir, path), func(sub string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed in the meantime
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
				// 0 is a process outside the PID namespace of this process.
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

// killPatience bounds the time from SIGKILL to the end of a process.
const killPatience = 10 * time.Second

// Kill kills all processes in a group and below it, and returns when they have ended.
func (h *Hierarchies) Kill(path string) error {
	deadline := time.Now().Add(killPatience)
	for {
		pids, err := h.Processes(path)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			// The PID was read just now and has not been reused: the process is in the group or has ended.
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

// Remove removes a group and all groups below it. They must have no processes.
func (h *Hierarchies) Remove(path string) error {
	var errs []error
	for _, dir := range h.dirs {
		if err := remove(filepath.Join(dir, path)); err != nil {
			errs = append(errs, fmt.Errorf("remove control group: %w", err))
		}
	}
	return errors.Join(errs...)
}

// remove removes a tree of groups, the deepest first. It retries, because a group stays busy for a moment after its
// last process has ended.
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
