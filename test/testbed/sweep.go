package testbed

import (
	"bufio"
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

	"github.com/kube-semaphore/semaphore/test/testbed/cgroup"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
)

// Sweep removes the processes, mounts, network namespaces and files of testbeds whose owners are dead. It never touches
// a testbed whose owner is alive. It returns the IDs of the removed testbeds, also together with an error.
func Sweep() ([]string, error) {
	all, err := lockAll()
	if err != nil {
		return nil, err
	}
	defer all.Close()
	ids, err := stateDirs()
	if err != nil {
		return nil, err
	}
	// While this process holds the lock, no testbed is between the creation of its directory and its lock. A testbed
	// creates its directory before its first namespace and removes it after its last.
	namespaces, err := netns.List("sb-")
	if err != nil {
		return nil, err
	}
	for _, name := range namespaces {
		if id, ok := namespaceID(name); ok && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	groups, err := cgroup.Find(cgroup.Mount)
	if err != nil {
		return nil, err
	}
	left, err := groups.List("sb-")
	if err != nil {
		return nil, err
	}
	for _, name := range left {
		// namespaceID expects a suffix after the ID.
		if id, ok := namespaceID(name + "-group"); ok && name == cgroupName(id) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	var swept []string
	var errs []error
	for _, id := range ids {
		dir := &stateDir{id: id, path: filepath.Join(Directory, id)}
		_, err := os.Stat(dir.path)
		if err == nil {
			dir.lock, err = tryLock(filepath.Join(dir.path, "lock"))
		}
		switch {
		case errors.Is(err, errHeld):
			continue
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
			continue
		}
		swept = append(swept, id)
		if err := dir.remove(); err != nil {
			errs = append(errs, fmt.Errorf("testbed %s: %w", id, err))
		}
		dir.release()
	}
	return swept, errors.Join(errs...)
}

// remove removes everything that belongs to a testbed. Something that is already gone is no error.
func (d *stateDir) remove() error {
	var errs []error
	// The kernel ends all processes of a PID namespace with the first one, so pods end quickly too.
	groups, err := cgroup.Find(cgroup.Mount)
	if err == nil {
		group := cgroupName(d.id)
		err = errors.Join(groups.Kill(group), groups.Remove(group))
	}
	errs = append(errs, err, removeNamespaces(namespacePrefix(d.id)), unmountBelow(d.path))
	// A process may have written files during the first attempt.
	err = os.RemoveAll(d.path)
	for range 20 {
		if err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
		err = os.RemoveAll(d.path)
	}
	return errors.Join(append(errs, err)...)
}

// removeNamespaces removes the network namespaces with a prefix and kills the processes in them.
func removeNamespaces(prefix string) error {
	names, err := netns.List(prefix)
	if err != nil {
		return err
	}
	var errs []error
	var open []*netns.Namespace
	for _, name := range names {
		ns, err := netns.Open(name)
		if err != nil {
			continue // only its file is left
		}
		open = append(open, ns)
	}
	errs = append(errs, killAll(open))
	for _, name := range names {
		errs = append(errs, netns.Remove(name))
	}
	return errors.Join(errs...)
}

// killPatience bounds the time from SIGKILL to the end of a process.
const killPatience = time.Minute

// killAll kills every process in the namespaces and waits until all have ended. It repeats until a round finds none,
// because a process may start another in the meantime.
func killAll(namespaces []*netns.Namespace) error {
	inside := map[uint64]bool{}
	for _, ns := range namespaces {
		if inode, ok := inodeOf(ns.Path()); ok {
			inside[inode] = true
		}
	}
	if len(inside) == 0 {
		return nil
	}
	deadline := time.Now().Add(killPatience)
	for {
		killed, err := kill(inside, deadline)
		if err != nil || killed == 0 {
			return err
		}
	}
}

// kill sends SIGKILL to each process whose network namespace is in inside, waits until they have ended, and returns
// their number.
func kill(inside map[uint64]bool, deadline time.Time) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	ending := map[int]int{} // descriptors by pid
	defer func() {
		for _, fd := range ending {
			_ = unix.Close(fd)
		}
	}()
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		path := fmt.Sprintf("/proc/%d/ns/net", pid)
		if inode, ok := inodeOf(path); !ok || !inside[inode] {
			continue
		}
		// A pidfd pins the process. If the process is still in the namespace afterwards, the PID has not been reused.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		if inode, ok := inodeOf(path); !ok || !inside[inode] {
			_ = unix.Close(fd)
			continue
		}
		ending[pid] = fd
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return 0, fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	for pid, fd := range ending {
		if err := waitEnd(fd, deadline); err != nil {
			return 0, fmt.Errorf("process %d after SIGKILL: %w", pid, err)
		}
	}
	return len(ending), nil
}

// waitEnd waits until the process of a pidfd has ended; see pidfd_open(2).
func waitEnd(fd int, deadline time.Time) error {
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("it is still there %s later", killPatience)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
	}
}

// inodeOf identifies a namespace by its inode. All namespaces are on one file system.
func inodeOf(path string) (uint64, bool) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0, false
	}
	return st.Ino, true
}

// unmountBelow unmounts everything at or below a directory in reverse order of mounting.
func unmountBelow(dir string) error {
	targets, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range slices.Backward(targets) {
		if err := unix.Unmount(t, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", t, err))
		}
	}
	return errors.Join(errs...)
}

// mountsBelow returns the mount points at or below dir in this process, in mount order; see proc_pid_mountinfo(5).
func mountsBelow(dir string) ([]string, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var targets []string
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		if len(fields) < 5 {
			continue
		}
		target := unescape.Replace(fields[4])
		if target == dir || strings.HasPrefix(target, dir+"/") {
			targets = append(targets, target)
		}
	}
	return targets, scanner.Err()
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
