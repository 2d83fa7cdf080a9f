//go:build linux

// Package netns creates, enters and removes named network namespaces.
//
// A named namespace is a bind mount of the namespace below /run/netns, as with ip-netns(8), so `ip netns exec NAME …`
// works on it. The package owns only that mount: the interfaces, routes and processes in a namespace belong to the
// caller.
//
// A network namespace is a property of a thread, and Go schedules goroutines over threads. Every function here
// therefore runs on a locked thread and unlocks it only when it is in its old namespace again.
package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dir is the directory of named namespaces, the same as in ip-netns(8).
const dir = "/run/netns"

// nsfsMagic is NSFS_MAGIC of linux/magic.h, the file system type of a namespace file.
const nsfsMagic = 0x6e736673

// Namespace is a named network namespace. It holds no file descriptor and so does not keep the namespace alive. Methods
// fail after Delete.
type Namespace struct {
	name string
	path string // of the namespace file; below dir when empty
}

// Create creates a network namespace and brings up its loopback interface. The name must not be in use. It needs
// CAP_SYS_ADMIN. On failure it leaves nothing.
func Create(name string) (_ *Namespace, err error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := shareDir(); err != nil {
		return nil, fmt.Errorf("create network namespace %s: %w", name, err)
	}
	n := &Namespace{name: name}
	file, err := os.OpenFile(n.Path(), os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return nil, fmt.Errorf("create network namespace %s: %w", name, err)
	}
	_ = file.Close()
	defer func() {
		if err != nil {
			_ = n.Delete()
		}
	}()
	err = onSpareThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		// Use the thread's entry in /proc: /proc/self is the main thread, which is in another namespace.
		if err := unix.Mount(threadNamespace(), n.Path(), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount at %s: %w", n.Path(), err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("create network namespace %s: %w", name, err)
	}
	links, err := n.Netlink()
	if err != nil {
		return nil, err
	}
	defer links.Close()
	lo, err := links.LinkByName("lo")
	if err == nil {
		err = links.LinkSetUp(lo)
	}
	if err != nil {
		return nil, fmt.Errorf("bring up loopback of network namespace %s: %w", name, err)
	}
	return n, nil
}

// shareDir makes dir, and makes it a shared mount if it is none, as `ip netns add` does (netns_add of iproute2's
// ipnetns.c, with the same lock). Otherwise the first `ip netns add` of somebody else would bind dir to itself, and the
// namespaces that are there would be mounted twice: visible, and hidden below.
func shareDir() error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer lock.Close() // which unlocks it, too
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return &fs.PathError{Op: "lock", Path: dir, Err: err}
	}
	err = unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // dir is no mount point
		if err = unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return fmt.Errorf("make %s a shared mount: %w", dir, err)
	}
	return nil
}

// Open returns an existing namespace.
func Open(name string) (*Namespace, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	n := &Namespace{name: name}
	var st unix.Statfs_t
	if err := unix.Statfs(n.Path(), &st); err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	if st.Type != nsfsMagic {
		return nil, fmt.Errorf("open network namespace %s: %s is no namespace: %w", name, n.Path(), fs.ErrNotExist)
	}
	return n, nil
}

// List returns the sorted names of the namespaces below dir with a prefix. They include files without a namespace,
// which a killed program has left, so that Delete can remove them.
func List(prefix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names, nil
}

// Remove deletes the namespace with a name like Delete, also if only its file is left.
func Remove(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	return (&Namespace{name: name}).Delete()
}

// OfProcess returns the network namespace of a process, valid while the process lives. It has no name below dir.
func OfProcess(pid int) *Namespace {
	return &Namespace{name: fmt.Sprintf("of process %d", pid), path: fmt.Sprintf("/proc/%d/ns/net", pid)}
}

// OfFile returns the namespace of an open file of /proc/PID/ns/net. The file keeps the namespace alive after the
// process has ended. The Namespace is valid until the file is closed.
func OfFile(f *os.File) *Namespace {
	return &Namespace{name: "of " + f.Name(), path: fmt.Sprintf("/proc/self/fd/%d", f.Fd())}
}

// Name returns the name of the namespace.
func (n *Namespace) Name() string { return n.name }

// Path returns the path of the namespace file for setns(2).
func (n *Namespace) Path() string {
	if n.path != "" {
		return n.path
	}
	return filepath.Join(dir, n.name)
}

// Do runs f on a thread in the namespace and returns its error. Sockets that f opens and processes that it starts are
// in the namespace; goroutines that it starts are not. f runs in another goroutine, so it must not call
// testing.T.FailNow or the like.
func (n *Namespace) Do(f func() error) error {
	target, err := unix.Open(n.Path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", n.name, err)
	}
	defer unix.Close(target)
	return onSpareThread(func() error {
		if err := unix.Setns(target, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", n.name, err)
		}
		return f()
	})
}

// DoHere is Do on the calling thread. The caller must have locked its goroutine to the thread. If the thread cannot
// return to its namespace, the process exits, because further code on the thread would run in the wrong namespace.
func (n *Namespace) DoHere(f func() error) error {
	target, err := unix.Open(n.Path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", n.name, err)
	}
	defer unix.Close(target)
	home, err := unix.Open(threadNamespace(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer unix.Close(home)
	if err := unix.Setns(target, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", n.name, err)
	}
	defer func() {
		if err := unix.Setns(home, unix.CLONE_NEWNET); err != nil {
			panic(fmt.Sprintf("leave network namespace %s: %v", n.name, err))
		}
	}()
	return f()
}

// open returns what f opens inside the namespace.
func open[T any](n *Namespace, f func() (T, error)) (opened T, err error) {
	err = n.Do(func() (err error) {
		opened, err = f()
		return err
	})
	return opened, err
}

// openAt is open for a literal IP (or none) and a port: the machine's resolver would resolve a name outside the
// namespace.
func openAt[T any](ctx context.Context, n *Namespace, network, address string,
	f func(ctx context.Context, network, address string) (T, error)) (none T, err error) {
	if err := checkAddress(network, address); err != nil {
		return none, err
	}
	return open(n, func() (T, error) { return f(ctx, network, address) })
}

// Netlink opens a netlink handle in the namespace. The caller closes it.
func (n *Namespace) Netlink() (*netlink.Handle, error) {
	handle, err := open(n, func() (*netlink.Handle, error) { return netlink.NewHandle() })
	if err != nil {
		return nil, fmt.Errorf("open netlink in network namespace %s: %w", n.name, err)
	}
	return handle, nil
}

// DialContext connects from inside the namespace. It fits rest.Config.Dial and http.Transport.DialContext. The address
// must be a literal IP and port.
func (n *Namespace) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return openAt(ctx, n, network, address, (&net.Dialer{}).DialContext)
}

// Listen listens for stream connections inside the namespace. The address must be a literal IP (or empty) and a port.
func (n *Namespace) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return openAt(ctx, n, network, address, (&net.ListenConfig{}).Listen)
}

// ListenPacket listens for datagrams inside the namespace. The address must be a literal IP (or empty) and a port.
func (n *Namespace) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	return openAt(ctx, n, network, address, (&net.ListenConfig{}).ListenPacket)
}

// Processes returns the PIDs of the processes in the namespace, in the machine's PID namespace and in ascending order.
func (n *Namespace) Processes() ([]int, error) {
	var self unix.Stat_t
	if err := unix.Stat(n.Path(), &self); err != nil {
		return nil, fmt.Errorf("list processes of network namespace %s: %w", n.name, err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes of network namespace %s: %w", n.name, err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var st unix.Stat_t
		// Processes that have ended and zombies have no namespace.
		if unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &st) == nil && st.Ino == self.Ino && st.Dev == self.Dev {
			pids = append(pids, pid)
		}
	}
	sort.Ints(pids)
	return pids, nil
}

// Delete unmounts the namespace and removes its name. The kernel destroys the namespace and its devices when its last
// process and socket are gone. It is no error if the namespace does not exist.
func (n *Namespace) Delete() error {
	if err := unmountAll(n.Path()); err != nil {
		return fmt.Errorf("delete network namespace %s: %w", n.name, err)
	}
	err := os.Remove(n.Path())
	if errors.Is(err, unix.EBUSY) {
		err = removeHidden(n.Path())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete network namespace %s: %w", n.name, err)
	}
	return nil
}

// removeHidden removes a file of dir that is a mount point below another mount of dir, where umount(2) finds it by no
// path. To take the upper mount away would take the namespaces of others away, which are mounted only there. But the
// kernel lets a file go that is a mount point in other mount namespaces only, and unmounts it in all of them. So a
// thread removes it in a mount namespace of its own, in which nothing is mounted at or below dir.
func removeHidden(path string) error {
	return OnLostThread(func() error {
		// A thread that shares its working directory with other threads cannot change its mount namespace.
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		// First the mounts on dir, which hide others, then those on the file.
		if err := errors.Join(unmountAll(dir), unmountAll(path)); err != nil {
			return err
		}
		return os.Remove(path)
	})
}

// unmountAll unmounts a path until nothing is mounted there: mounts may be stacked.
func unmountAll(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil // no mount point, or it does not exist
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// OnLostThread runs f on a thread that ends afterwards, so f may leave its namespaces permanently. It never uses the
// main thread, which the runtime cannot end.
func OnLostThread(f func() error) error {
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			err = OnLostThread(f)
			return
		}
		err = f()
	}()
	<-done
	return err
}

// onSpareThread runs f on a locked thread that may change its network namespace, and returns the thread to its
// namespace. A thread that cannot return is discarded. The main thread is never used: it represents the process in
// /proc, and the runtime cannot discard it.
func onSpareThread(f func() error) error {
	err := errors.New("the function ended its goroutine without returning")
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// While this goroutine is locked to the main thread, the next one runs on another.
			defer runtime.UnlockOSThread()
			err = onSpareThread(f)
			return
		}
		home, openErr := unix.Open(threadNamespace(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if openErr != nil {
			runtime.UnlockOSThread()
			err = fmt.Errorf("open own network namespace: %w", openErr)
			return
		}
		defer func() {
			if unix.Setns(home, unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			} // else the thread ends with the goroutine that holds it
			_ = unix.Close(home)
		}()
		err = f()
	}()
	<-done
	return err
}

func threadNamespace() string {
	return fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
}

func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > 255 {
		return fmt.Errorf("network namespace name %q: must be a file name", name)
	}
	return nil
}

func checkAddress(network, address string) error {
	if !strings.HasPrefix(network, "tcp") && !strings.HasPrefix(network, "udp") {
		return fmt.Errorf("network %q: want tcp or udp", network)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("address %q: %w", address, err)
	}
	if host == "" {
		return nil
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return fmt.Errorf("address %q: want a literal IP, a namespace resolves no names", address)
	}
	return nil
}
