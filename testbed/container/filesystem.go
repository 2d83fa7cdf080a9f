//go:build linux

package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// filesystem is what a container sees of files. It is built in the child, in a mount namespace of its own.
type filesystem struct {
	Root         string
	ReadOnlyRoot bool
	Mounts       []Mount
	Confined     bool // no control of the kernel through /proc/sys and /sys
	OwnNetns     bool // the network namespace is not the one that the machine's /sys was mounted in
}

// build makes the mounts and, with a Root, changes into it. dir is the working directory to be.
func (f *filesystem) build(dir string) error {
	if f.Root == "" {
		return f.overlay()
	}
	// Private, for pivot_root(2) refuses shared mounts, and nothing made here may show outside.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// The sources are taken as detached mounts while the machine's paths can still be resolved, and attached after the
	// change of root, when the targets resolve as the container sees them, symbolic links included.
	trees, err := f.openSources()
	if err != nil {
		return err
	}
	if err := unix.Mount("root", f.Root, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount root on %s: %w", f.Root, err)
	}
	if err := os.Chdir(f.Root); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	// pivot_root(".", ".") stacks the old root upon the new one (pivot_root(2), NOTES); it is then unmounted.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change root to %s: %w", f.Root, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave old root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("enter new root: %w", err)
	}
	if err := f.system(); err != nil {
		return err
	}
	for i, m := range f.Mounts {
		if err := m.attach(trees[i], true); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make working directory: %w", err)
	}
	if f.ReadOnlyRoot {
		if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("make root read-only: %w", err)
		}
	}
	return nil
}

// overlay adds the mounts to the machine's root filesystem.
func (f *filesystem) overlay() error {
	// Slave, so that what the machine unmounts later goes away here too, and nothing shows in the other direction.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if f.OwnNetns {
		// /sys/class/net shows the network namespace that sysfs was mounted in; ip-netns(8) does the same.
		if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
			return fmt.Errorf("mount /sys: %w", err)
		}
	}
	var own []string // tmpfs mounts: what is made below them is not the machine's
	for _, m := range f.Mounts {
		tree := -1
		if !m.Tmpfs && !m.Symlink {
			var err error
			if tree, err = openTree(m.Source); err != nil {
				return err
			}
		}
		resolved, err := filepath.EvalSymlinks(m.Target)
		if err != nil {
			// Not there yet: /var/run/x below a tmpfs on /run. The longest part that exists decides.
			resolved = evalExisting(m.Target)
		}
		below := false
		for _, dir := range own {
			below = below || strings.HasPrefix(resolved, dir+"/")
		}
		if err := m.attach(tree, below); err != nil {
			return err
		}
		if m.Tmpfs {
			own = append(own, resolved)
		}
	}
	return nil
}

func evalExisting(path string) string {
	for dir, rest := path, ""; dir != "/"; dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest) {
		if resolved, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(resolved, rest)
		}
	}
	return path
}

func (f *filesystem) openSources() ([]int, error) {
	trees := make([]int, len(f.Mounts))
	for i, m := range f.Mounts {
		trees[i] = -1
		if m.Tmpfs || m.Symlink {
			continue
		}
		var err error
		if trees[i], err = openTree(m.Source); err != nil {
			return nil, err
		}
	}
	return trees, nil
}

// openTree copies the mounts at and below a path into a detached tree, see open_tree(2).
func openTree(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("mount source %s: %w", path, err)
	}
	return fd, nil
}

// attach makes one mount, of the tree where it is a bind mount, which it closes.
func (m *Mount) attach(tree int, mayCreate bool) error {
	if m.Symlink {
		if err := os.MkdirAll(filepath.Dir(m.Target), 0o755); err != nil {
			return fmt.Errorf("link %s: %w", m.Target, err)
		}
		return os.Symlink(m.Source, m.Target)
	}
	directory := m.Tmpfs
	if !m.Tmpfs {
		defer unix.Close(tree)
		var st unix.Stat_t
		if err := unix.Fstat(tree, &st); err != nil {
			return fmt.Errorf("mount source %s: %w", m.Source, err)
		}
		directory = st.Mode&unix.S_IFMT == unix.S_IFDIR
	}
	if mayCreate {
		if err := makeTarget(m.Target, directory); err != nil {
			return err
		}
	}
	if m.Tmpfs {
		flags := uintptr(0)
		if m.ReadOnly {
			flags = unix.MS_RDONLY
		}
		if err := unix.Mount("tmpfs", m.Target, "tmpfs", flags, "mode=1777"); err != nil {
			return fmt.Errorf("mount tmpfs on %s: %w", m.Target, err)
		}
		return nil
	}
	if m.ReadOnly {
		attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
			return fmt.Errorf("make %s read-only: %w", m.Source, err)
		}
	}
	// Symbolic links in the last part of the target are followed, as mount(2) does.
	err := unix.MoveMount(tree, "", unix.AT_FDCWD, m.Target,
		unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
	if err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.Source, m.Target, err)
	}
	return nil
}

func makeTarget(path string, directory bool) error {
	if directory {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make mount point: %w", err)
		}
		return nil
	}
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	return file.Close()
}

// device is a character device of the minimal /dev that the OCI runtime specification asks for.
type device struct {
	name         string
	major, minor uint32
}

var devices = []device{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

var deviceLinks = map[string]string{
	"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	"ptmx": "pts/ptmx",
}

// system mounts /proc, /sys and /dev in a new root. /tmp and /run are the root's own, and read-only with it, as those of
// an image are.
func (f *filesystem) system() error {
	const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	sysFlags := uintptr(safe)
	if f.Confined {
		sysFlags |= unix.MS_RDONLY
	}
	for _, m := range []struct {
		fstype, target string
		flags          uintptr
		data           string
	}{
		{"proc", "/proc", safe, ""},
		{"sysfs", "/sys", sysFlags, ""},
		{"tmpfs", "/dev", unix.MS_NOSUID, "mode=0755"},
		{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"},
		{"tmpfs", "/dev/shm", safe, "mode=1777"},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return fmt.Errorf("make mount point: %w", err)
		}
		if err := unix.Mount(m.fstype, m.target, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	old := unix.Umask(0)
	defer unix.Umask(old)
	for path, mode := range map[string]uint32{"/tmp": 0o1777, "/run": 0o755} {
		if err := unix.Mkdir(path, mode); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
	}
	for _, d := range devices {
		path := "/dev/" + d.name
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make device %s: %w", path, err)
		}
	}
	for name, target := range deviceLinks {
		if err := os.Symlink(target, "/dev/"+name); err != nil {
			return fmt.Errorf("link device: %w", err)
		}
	}
	if f.Confined {
		return protect("/proc/sys", "/proc/sysrq-trigger")
	}
	return nil
}

// protect makes paths read-only by binding them upon themselves.
func protect(paths ...string) error {
	for _, path := range paths {
		err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, "")
		if errors.Is(err, unix.ENOENT) {
			continue // this kernel has no such control
		}
		if err == nil {
			err = unix.Mount("", path, "",
				unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		}
		if err != nil {
			return fmt.Errorf("make %s read-only: %w", path, err)
		}
	}
	return nil
}
