package components

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// systemPrograms are the programs of the system that a testbed or one of its components calls, with their Debian
// packages. The Makefile's PACKAGES has them too, for a machine on which nothing is built yet.
var systemPrograms = []struct{ program, pkg string }{
	{"ip", "iproute2"},
	{"iptables", "iptables"},
	{"xtables-legacy-multi", "iptables"},
	{"ipset", "ipset"},
	{"conntrack", "conntrack"},
	{"curl", "curl"},
	{"wg", "wireguard-tools"},
	{"ldd", "libc-bin"},
	{"gcc", "gcc"},
}

// MissingPackages are the Debian packages of system programs that are not installed.
func MissingPackages() []string {
	return missingPackages(func(program string) bool {
		if _, err := exec.LookPath(program); err == nil {
			return true
		}
		// A user's PATH may lack the directories of the administrator.
		for _, dir := range []string{"/usr/sbin", "/sbin"} {
			if isProgram(filepath.Join(dir, program)) {
				return true
			}
		}
		return false
	})
}

func missingPackages(installed func(program string) bool) []string {
	var missing []string
	for _, p := range systemPrograms {
		if !installed(p.program) && !slices.Contains(missing, p.pkg) {
			missing = append(missing, p.pkg)
		}
	}
	return missing
}

// CheckSystem reports, in one error, all that a testbed needs of the system and does not find, with what to do about
// each. It makes nothing that stays. Nodes keep their files in dir, or in the nearest directory above it that exists.
func CheckSystem(ctx context.Context, dir string) error {
	facts, err := gather(ctx, dir)
	if err != nil {
		return fmt.Errorf("find out what this machine has: %w", err)
	}
	return facts.check()
}

// InstallPackages installs what MissingPackages names with apt-get, and says so.
func InstallPackages(ctx context.Context, progress io.Writer) error {
	missing := MissingPackages()
	if len(missing) == 0 {
		fmt.Fprintln(progress, "components: all system packages are there")
		return nil
	}
	fmt.Fprintf(progress, "components: installing Debian packages: %s\n", strings.Join(missing, " "))
	install := append([]string{"install", "-y", "--no-install-recommends"}, missing...)
	for _, args := range [][]string{{"update"}, install} {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q"}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = progress, progress
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apt-get %s: %w", strings.Join(args, " "), err)
		}
	}
	return nil
}
