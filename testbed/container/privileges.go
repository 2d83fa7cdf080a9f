//go:build linux

package container

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// privileges are what a process may do, see credentials(7) and capabilities(7).
type privileges struct {
	User, Group int
	Groups      []int
	// Bounding has a bit for each capability that the process can have at most.
	Bounding   uint64
	NoNewPrivs bool
}

const allCapabilities = ^uint64(0)

var capabilityNumbers = map[string]uint{
	"AUDIT_CONTROL": unix.CAP_AUDIT_CONTROL, "AUDIT_READ": unix.CAP_AUDIT_READ, "AUDIT_WRITE": unix.CAP_AUDIT_WRITE,
	"BLOCK_SUSPEND": unix.CAP_BLOCK_SUSPEND, "BPF": unix.CAP_BPF, "CHECKPOINT_RESTORE": unix.CAP_CHECKPOINT_RESTORE,
	"CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH,
	"FOWNER": unix.CAP_FOWNER, "FSETID": unix.CAP_FSETID, "IPC_LOCK": unix.CAP_IPC_LOCK, "IPC_OWNER": unix.CAP_IPC_OWNER,
	"KILL": unix.CAP_KILL, "LEASE": unix.CAP_LEASE, "LINUX_IMMUTABLE": unix.CAP_LINUX_IMMUTABLE,
	"MAC_ADMIN": unix.CAP_MAC_ADMIN, "MAC_OVERRIDE": unix.CAP_MAC_OVERRIDE, "MKNOD": unix.CAP_MKNOD,
	"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
	"NET_BROADCAST": unix.CAP_NET_BROADCAST, "NET_RAW": unix.CAP_NET_RAW, "PERFMON": unix.CAP_PERFMON,
	"SETFCAP": unix.CAP_SETFCAP, "SETGID": unix.CAP_SETGID, "SETPCAP": unix.CAP_SETPCAP, "SETUID": unix.CAP_SETUID,
	"SYSLOG": unix.CAP_SYSLOG, "SYS_ADMIN": unix.CAP_SYS_ADMIN, "SYS_BOOT": unix.CAP_SYS_BOOT,
	"SYS_CHROOT": unix.CAP_SYS_CHROOT, "SYS_MODULE": unix.CAP_SYS_MODULE, "SYS_NICE": unix.CAP_SYS_NICE,
	"SYS_PACCT": unix.CAP_SYS_PACCT, "SYS_PTRACE": unix.CAP_SYS_PTRACE, "SYS_RAWIO": unix.CAP_SYS_RAWIO,
	"SYS_RESOURCE": unix.CAP_SYS_RESOURCE, "SYS_TIME": unix.CAP_SYS_TIME,
	"SYS_TTY_CONFIG": unix.CAP_SYS_TTY_CONFIG, "WAKE_ALARM": unix.CAP_WAKE_ALARM,
}

func capabilitySet(names []string) (uint64, error) {
	var set uint64
	for _, name := range names {
		number, ok := capabilityNumbers[strings.TrimPrefix(strings.ToUpper(name), "CAP_")]
		if !ok {
			return 0, fmt.Errorf("%q is no capability; want a name such as NET_ADMIN", name)
		}
		set |= 1 << number
	}
	return set, nil
}

// apply changes the calling thread, which must be locked and go on to execute a program. The system calls are raw, for
// the wrappers of the standard library change all threads.
func (p privileges) apply() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	for number := range uintptr(64) {
		if p.Bounding&(1<<number) != 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, number, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // past the last capability of this kernel
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", number, err)
		}
	}
	groups := make([]uint32, len(p.Groups), len(p.Groups)+1)
	for i, g := range p.Groups {
		groups[i] = uint32(g)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0)
	if errno != 0 {
		return fmt.Errorf("set supplementary groups: %w", errno)
	}
	group := uintptr(p.Group)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, group, group, group); errno != 0 {
		return fmt.Errorf("become group %d: %w", p.Group, errno)
	}
	user := uintptr(p.User)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, user, user, user); errno != 0 {
		return fmt.Errorf("become user %d: %w", p.User, errno)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for i, mask := range []uint32{uint32(p.Bounding), uint32(p.Bounding >> 32)} {
		data[i].Permitted &= mask
		data[i].Effective &= mask
		data[i].Inheritable = 0
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	if p.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
	}
	return nil
}
