package testbed

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/kube-semaphore/semaphore/testbed/container"
)

// programsDir is where the root filesystems of control planes and nodes have the testbed's programs.
const programsDir = "/opt/testbed/bin"

// searchPath is the PATH in control planes and nodes.
const searchPath = programsDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// systemMounts show the machine's programs and settings, read-only, in a root filesystem. Nothing else of the machine
// is seen there, and, as other testbeds' namespaces are not mounted either, nothing of those is kept from going away.
func systemMounts() ([]container.Mount, error) {
	var mounts []container.Mount
	for _, dir := range []string{"/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		info, err := os.Lstat(dir)
		switch {
		case os.IsNotExist(err):
			continue
		case err != nil:
			return nil, err
		case info.Mode()&os.ModeSymlink != 0:
			// Merged /usr: /bin is usr/bin.
			target, err := os.Readlink(dir)
			if err != nil {
				return nil, err
			}
			mounts = append(mounts, container.Mount{Source: target, Target: dir, Symlink: true})
		default:
			mounts = append(mounts, container.Mount{Source: dir, Target: dir, ReadOnly: true})
		}
	}
	return mounts, nil
}

// programMounts put programs into programsDir under their own names.
func programMounts(paths ...string) []container.Mount {
	var mounts []container.Mount
	for _, p := range paths {
		mounts = append(mounts, container.Mount{Source: p, Target: filepath.Join(programsDir, filepath.Base(p)), ReadOnly: true})
	}
	return mounts
}

// legacyIPTables makes iptables mean the legacy variant, the one that Felix is told to use: what kube-proxy and a person
// at a shell see is then in the same tables.
func legacyIPTables() []container.Mount {
	var mounts []container.Mount
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			mounts = append(mounts, container.Mount{
				Source: "/usr/sbin/xtables-legacy-multi", Target: filepath.Join(programsDir, name+verb), Symlink: true,
			})
		}
	}
	return mounts
}

// nodeDisk makes the directory that stands for a node's disk, as far as it is not the machine's programs: /var and /run.
func nodeDisk(root string) error {
	for _, dir := range []string{"run/wireguard", "run/netns", "var/lib/calico", "var/log/calico"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return fmt.Errorf("make node's disk: %w", err)
		}
	}
	// Relative, so that it leads to the node's /run also when it is followed from outside.
	if err := os.Symlink("../run", filepath.Join(root, "var/run")); err != nil {
		return fmt.Errorf("make node's disk: %w", err)
	}
	return nil
}
