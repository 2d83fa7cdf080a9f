package components

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// facts are the properties of a machine that a testbed checks before it starts anything.
type facts struct {
	root     bool
	packages []string // missing Debian packages
	// capabilities are the effective capabilities of this process, as in /proc/self/status.
	capabilities uint64
	cgroups      cgroups
	// failed maps the failed probes to their output.
	failed map[string]string
}

// cgroups describes the control groups that are mounted below /sys/fs/cgroup.
type cgroups struct {
	// v2 means that all controllers are in the unified hierarchy.
	v2 bool
	// controllers are the available controllers.
	controllers []string
	// writeError is the error of creating a group, empty if that works.
	writeError string
}

// neededControllers are required by the kubelet. In version 1, three more are separate controllers.
var (
	neededControllers   = []string{"cpu", "cpuset", "memory", "pids"}
	neededControllersV1 = append([]string{"cpuacct", "devices", "freezer"}, neededControllers...)
)

// neededCapabilities are the capabilities that the testbed needs or that a container runtime gives to each container.
// CAP_SYS_RESOURCE is not required: without it, OOM scores and file limits of containers keep their values.
var neededCapabilities = []struct {
	name string
	bit  uint
}{
	{"CAP_CHOWN", unix.CAP_CHOWN}, {"CAP_DAC_OVERRIDE", unix.CAP_DAC_OVERRIDE}, {"CAP_FOWNER", unix.CAP_FOWNER},
	{"CAP_FSETID", unix.CAP_FSETID}, {"CAP_KILL", unix.CAP_KILL}, {"CAP_SETGID", unix.CAP_SETGID},
	{"CAP_SETUID", unix.CAP_SETUID},
	{"CAP_SETPCAP", unix.CAP_SETPCAP}, {"CAP_SETFCAP", unix.CAP_SETFCAP},
	{"CAP_NET_BIND_SERVICE", unix.CAP_NET_BIND_SERVICE},
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN}, {"CAP_NET_RAW", unix.CAP_NET_RAW}, {"CAP_SYS_CHROOT", unix.CAP_SYS_CHROOT},
	{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN}, {"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE}, {"CAP_MKNOD", unix.CAP_MKNOD},
	{"CAP_AUDIT_WRITE", unix.CAP_AUDIT_WRITE},
}

// probe tries an operation that nodes perform, in spare network and mount namespaces. This also loads kernel modules.
type probe struct {
	name   string
	script string // for sh; $DIR is on the file system of the nodes' files
	remedy string
}

// A failing probe means a container without privileges, or a kernel without the feature.
const moduleRemedy = "load the module %s (modprobe), or use a kernel that has it"

var probes = []probe{
	{
		"overlayfs",
		`mount -t tmpfs none "$DIR" && mkdir "$DIR/u" "$DIR/w" "$DIR/m" && mount -t overlay -o ` +
			`"lowerdir=/,upperdir=$DIR/u,workdir=$DIR/w" none "$DIR/m"`,
		fmt.Sprintf(moduleRemedy, "overlay"),
	},
	{"overlayfs on the disk",
		`mkdir "$DIR/l" "$DIR/u" "$DIR/w" "$DIR/m" && mount -t overlay -o "lowerdir=$DIR/l,upperdir=$DIR/u,workdir=$DIR/w" ` +
			`none "$DIR/m"`,
		"the file system of the testbed's directory cannot hold containers' layers (one that is an overlay itself cannot): " +
			"mount an ext4, an xfs or a volume there"},
	{"veth", "ip link add name sbv0 type veth peer name sbv1", fmt.Sprintf(moduleRemedy, "veth")},
	{"bridge", "ip link add name sbbr0 type bridge", fmt.Sprintf(moduleRemedy, "bridge")},
	{"TUN devices", "ip tuntap add dev sbtun0 mode tun", "load the module tun, and let /dev/net/tun be opened"},
	{"routing rules", "ip rule add from 192.0.2.1 lookup 94", "use a kernel with CONFIG_IP_MULTIPLE_TABLES"},
	{"ipset", "ipset create a hash:net", fmt.Sprintf(moduleRemedy, "ip_set_hash_net")},
	{"iptables in nftables", "iptables-nft -t nat -A POSTROUTING -m conntrack --ctstate NEW -m mark --mark 1 -m comment " +
		"--comment x -j MASQUERADE",
		fmt.Sprintf(moduleRemedy, "nf_tables, nft_compat, nft_chain_nat, xt_conntrack and xt_MASQUERADE")},
	{"iptables with ipset", "ipset create a hash:net && iptables-nft -A FORWARD -m set --match-set a src -j ACCEPT",
		fmt.Sprintf(moduleRemedy, "xt_set")},
	{"conntrack", "conntrack -L", fmt.Sprintf(moduleRemedy, "nf_conntrack_netlink")},
}

// gather collects the facts. It skips the probes without root or with missing programs.
func gather(ctx context.Context, dir string) (facts, error) {
	f := facts{root: os.Geteuid() == 0, packages: MissingPackages(), failed: map[string]string{}}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return f, err
	}
	if f.capabilities, err = effectiveCapabilities(string(status)); err != nil {
		return f, err
	}
	if !f.root || len(f.packages) > 0 {
		return f, nil
	}
	if f.cgroups, err = gatherCgroups("/sys/fs/cgroup"); err != nil {
		return f, err
	}
	for _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist); _, err = os.Stat(dir) {
		dir = filepath.Dir(dir)
	}
	for _, p := range probes {
		if err := p.try(ctx, dir); err != nil {
			if ctx.Err() != nil {
				return f, ctx.Err()
			}
			f.failed[p.name] = err.Error()
		}
	}
	return f, nil
}

func (p probe) try(ctx context.Context, dir string) error {
	scratch, err := os.MkdirTemp(dir, ".check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	cmd := exec.CommandContext(ctx, "sh", "-c", p.script)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DIR="+scratch, "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin",
		"XTABLES_LOCKFILE="+filepath.Join(scratch, "lock"))
	// With Unshareflags, unlike Cloneflags, package syscall makes the mounts private, so none reaches the machine.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		return fmt.Errorf("%w: %s", err, strings.Join(lines[:min(3, len(lines))], "; "))
	}
	return nil
}

// effectiveCapabilities parses CapEff in /proc/PID/status.
func effectiveCapabilities(status string) (uint64, error) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return 0, errors.New("/proc/self/status has no CapEff")
}

// gatherCgroups reads the available controllers and tries to create a group.
func gatherCgroups(dir string) (cgroups, error) {
	var c cgroups
	group := dir
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	switch {
	case err == nil:
		c.v2, c.controllers = true, strings.Fields(string(controllers))
	case errors.Is(err, fs.ErrNotExist):
		// Version 1 has a directory per controller. Some may be symlinks to a common one.
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return c, nil
		}
		if err != nil {
			return c, err
		}
		for _, e := range entries {
			if _, err := os.Stat(filepath.Join(dir, e.Name(), "cgroup.procs")); err == nil {
				c.controllers = append(c.controllers, e.Name())
				group = filepath.Join(dir, e.Name())
			}
		}
	default:
		return c, err
	}
	if len(c.controllers) > 0 {
		trial, err := os.MkdirTemp(group, "sb-check-")
		if err == nil {
			err = os.Remove(trial)
		}
		if err != nil {
			c.writeError = err.Error()
		}
	}
	return c, nil
}

// check returns nil, or an error with everything that is missing and a remedy for each.
func (f facts) check() error {
	if !f.root {
		return errors.New("a testbed makes namespaces, mounts and control groups: run it as root")
	}
	if len(f.packages) > 0 {
		return fmt.Errorf("programs are missing: run `make deps`, or apt-get install %s", strings.Join(f.packages, " "))
	}
	var lacks []string
	lack := func(format string, args ...any) { lacks = append(lacks, fmt.Sprintf(format, args...)) }
	var capabilities []string
	for _, c := range neededCapabilities {
		if f.capabilities&(1<<c.bit) == 0 {
			capabilities = append(capabilities, c.name)
		}
	}
	if len(capabilities) > 0 {
		lack("%s: run it as root of the machine itself, or in a container with --privileged",
			strings.Join(capabilities, ", "))
	}
	lacks = append(lacks, f.cgroups.lacks()...)
	for _, p := range probes {
		if output, ok := f.failed[p.name]; ok {
			lack("%s (%s): %s", p.name, output, p.remedy)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("this machine cannot hold a testbed; it lacks\n- %s", strings.Join(lacks, "\n- "))
}

func (c cgroups) lacks() []string {
	if len(c.controllers) == 0 {
		return []string{"control groups: mount -t cgroup2 none /sys/fs/cgroup, or run it in a container with --privileged " +
			"--cgroupns=host"}
	}
	needed, remedy := neededControllersV1, "mount each: mount -t cgroup -o NAME none /sys/fs/cgroup/NAME; where "+
		"/proc/cgroups does not list it, start the kernel with cgroup_enable=NAME"
	if c.v2 {
		needed, remedy = neededControllers, "write +NAME into cgroup.subtree_control of the group above; a container needs "+
			"--cgroupns=host"
	}
	var missing []string
	for _, name := range needed {
		if !slices.Contains(c.controllers, name) {
			missing = append(missing, name)
		}
	}
	var lacks []string
	if len(missing) > 0 {
		lacks = append(lacks, fmt.Sprintf("cgroup controllers %s: %s", strings.Join(missing, ", "), remedy))
	}
	if c.writeError != "" {
		lacks = append(lacks, fmt.Sprintf("the right to make control groups (%s): mount -o remount,rw /sys/fs/cgroup, or "+
			"run it in a container with --privileged", c.writeError))
	}
	return lacks
}
