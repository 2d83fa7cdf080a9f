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

// systemPrograms are the system programs that a testbed or its components call, with their Debian packages. The
// Makefile has the same list in PACKAGES, for a machine on which nothing is built yet.
var systemPrograms = []struct{ program, pkg string }{
	{"ip", "iproute2"},
	{"iptables", "iptables"},
	{"xtables-legacy-multi", "iptables"},
	{"ipset", "ipset"},
	{"conntrack", "conntrack"},
	{"curl", "curl"},
	{"dash", "dash"},
	{"nc.openbsd", "netcat-openbsd"},
	{"wg", "wireguard-tools"},
	{"ldd", "libc-bin"},
	{"gcc", "gcc"},
}

// MissingPackages returns the Debian packages of the system programs that are not installed.
func MissingPackages() []string {
	return missingPackages(func(program string) bool {
		if _, err := exec.LookPath(program); err == nil {
			return true
		}
		// The PATH of an unprivileged user may lack these directories.
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

// CheckSystem returns one error with everything that the system lacks for a testbed, and a remedy for each. It leaves
// no changes. dir is the directory for the files of nodes; if it does not exist, the nearest existing parent is
// checked.
func CheckSystem(ctx context.Context, dir string) error {
	facts, err := gather(ctx, dir)
	if err != nil {
		return fmt.Errorf("find out what this machine has: %w", err)
	}
	return facts.check()
}

// InstallPackages installs the packages of MissingPackages with apt-get and reports them to progress.
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
