package testbed

import (
	"os"
	"path/filepath"

	"github.com/kube-semaphore/semaphore/test/testbed/spawn"
)

// programsDir is where the testbed's programs are mounted in the root filesystems of control planes and nodes.
const programsDir = "/opt/testbed/bin"

// searchPath is the PATH in control planes and nodes.
const searchPath = programsDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// systemMounts mount directories of the machine read-only into a root filesystem. Nothing else of the machine is
// visible there. The namespaces of other testbeds are not mounted either, so a mount here does not keep them alive.
func systemMounts(dirs ...string) ([]spawn.Mount, error) {
	var mounts []spawn.Mount
	for _, dir := range dirs {
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
			mounts = append(mounts, spawn.Mount{Source: target, Target: dir, Symlink: true})
		default:
			mounts = append(mounts, spawn.Mount{Source: dir, Target: dir, ReadOnly: true})
		}
	}
	return mounts, nil
}

// programMounts mount programs into programsDir under their base names.
func programMounts(paths ...string) []spawn.Mount {
	var mounts []spawn.Mount
	for _, p := range paths {
		mounts = append(mounts, spawn.Mount{Source: p, Target: filepath.Join(programsDir, filepath.Base(p)), ReadOnly: true})
	}
	return mounts
}

// legacyIPTables selects the legacy variant of iptables, which Felix is configured to use. kube-proxy and a user at a
// shell then see the same tables.
func legacyIPTables() []spawn.Mount {
	var mounts []spawn.Mount
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			mounts = append(mounts, spawn.Mount{
				Source: "/usr/sbin/xtables-legacy-multi", Target: filepath.Join(programsDir, name+verb), Symlink: true,
			})
		}
	}
	return mounts
}
