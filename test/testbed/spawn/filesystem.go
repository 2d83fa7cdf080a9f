//go:build linux

package spawn

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// filesystem describes the root filesystem of a process. The child builds it in its own mount namespace.
type filesystem struct {
	Root   string
	Mounts []Mount
	Shared bool // later mounts propagate to mount namespaces that are cloned from this one
}

// build makes the mounts and changes the root.
func (f *filesystem) build() error {
	// Make mounts private: pivot_root(2) rejects shared mounts, and no mount may propagate to the machine.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// Open the sources as detached mounts while the machine's paths still resolve. Attach them after the change of root,
	// when the targets, including symlinks, resolve as the process sees them.
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
	// pivot_root(".", ".") stacks the old root on the new one, from where it is unmounted (pivot_root(2), NOTES).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change root to %s: %w", f.Root, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave old root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("enter new root: %w", err)
	}
	if err := system(); err != nil {
		return err
	}
	for i, m := range f.Mounts {
		if err := m.attach(trees[i]); err != nil {
			return err
		}
	}
	if f.Shared {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
			return fmt.Errorf("share mounts: %w", err)
		}
	}
	return nil
}

func (f *filesystem) openSources() ([]int, error) {
	trees := make([]int, len(f.Mounts))
	for i, m := range f.Mounts {
		trees[i] = -1
		if m.Tmpfs || m.Symlink {
			continue
		}
		var err error
		if m.Overlay != "" {
			trees[i], err = openOverlay(m.Source, m.Overlay)
		} else {
			trees[i], err = openTree(m.Source)
		}
		if err != nil {
			return nil, err
		}
	}
	return trees, nil
}

// openOverlay creates a detached overlay of a directory, with the upper directory in another; see fsopen(2).
func openOverlay(lower, dir string) (int, error) {
	upper, work := filepath.Join(dir, "upper"), filepath.Join(dir, "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return -1, fmt.Errorf("overlay of %s: %w", lower, err)
		}
	}
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("overlay of %s: does the kernel have overlayfs? %w", lower, err)
	}
	defer unix.Close(fs)
	for _, option := range [][2]string{{"lowerdir", lower}, {"upperdir", upper}, {"workdir", work}} {
		if err := unix.FsconfigSetString(fs, option[0], option[1]); err != nil {
			return -1, fmt.Errorf("overlay of %s: option %s=%s: %w", lower, option[0], option[1], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("overlay of %s with %s: %w", lower, dir, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("overlay of %s with %s: %w", lower, dir, err)
	}
	return fd, nil
}

// openTree clones the mounts at and below a path into a detached tree; see open_tree(2).
func openTree(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("mount source %s: %w", path, err)
	}
	return fd, nil
}

// attach makes one mount. For a bind mount, tree is its detached tree, which attach closes.
func (m *Mount) attach(tree int) error {
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
	if err := makeTarget(m.Target, directory); err != nil {
		return err
	}
	if m.Tmpfs {
		flags := uintptr(0)
		if m.ReadOnly {
			flags = unix.MS_RDONLY
		}
		if err := unix.Mount("tmpfs", m.Target, "tmpfs", flags, "mode=0755"); err != nil {
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
	// Follow a symlink in the last part of the target, like mount(2).
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

// device is a character device of the small /dev: those of the OCI runtime specification and those that a node's
// programs open.
type device struct {
	name         string
	major, minor uint32
}

var devices = []device{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"kmsg", 1, 11}, {"tty", 5, 0},
	{"net/tun", 10, 200}, {"fuse", 10, 229},
}

var deviceLinks = map[string]string{
	"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	"ptmx": "pts/ptmx",
}

// system mounts /proc, /sys and /dev in a new root, and creates /tmp and /run.
func system() error {
	const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, m := range []struct {
		fstype, target string
		flags          uintptr
		data           string
	}{
		{"proc", "/proc", safe, ""},
		{"sysfs", "/sys", safe, ""},
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
	for path, mode := range map[string]uint32{"/tmp": 0o1777, "/run": 0o755, "/root": 0o700, "/dev/net": 0o755} {
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
	return nil
}
