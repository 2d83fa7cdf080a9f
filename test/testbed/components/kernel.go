package components

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Kernel is an unpacked Debian kernel with all its modules.
type Kernel struct {
	// Version is the package version.
	Version string
	// Image is the file for the boot loader.
	Image string
	// Modules is the directory of the modules, with the output of depmod(8). Its base name is the kernel release.
	Modules string
}

// kernelPackage depends on the package of the newest kernel. The smaller linux-image-cloud lacks the 9p file system.
const kernelPackage = "linux-image-amd64"

// Kernel returns the kernel of this system's package sources and caches it. apt verifies it with the signed index.
func (b *Builder) Kernel(ctx context.Context) (Kernel, error) {
	if runtime.GOARCH != "amd64" {
		return Kernel{}, fmt.Errorf("no kernel is known for %s, only for amd64", runtime.GOARCH)
	}
	cache, err := b.cache()
	if err != nil {
		return Kernel{}, err
	}
	unlock, err := Lock(ctx, filepath.Join(cache, "kernel.lock"),
		func() { b.say("another process is fetching a kernel; waiting for it") })
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()
	name, version, err := offeredKernel(ctx)
	if err != nil {
		b.say("%v: asking the package sources again", err)
		if err = aptGet(ctx, cache, "update"); err == nil {
			name, version, err = offeredKernel(ctx)
		}
	}
	if err != nil {
		return Kernel{}, err
	}
	k := Kernel{Version: version}
	dir := filepath.Join(cache, name+"-"+strings.ReplaceAll(version, "/", "_"))
	if _, err := os.Stat(dir); err != nil {
		if err := b.fetchKernel(ctx, dir, name+"="+version); err != nil {
			return Kernel{}, err
		}
	}
	release := strings.TrimPrefix(name, "linux-image-")
	k.Image, k.Modules = filepath.Join(dir, "boot", "vmlinuz-"+release), filepath.Join(dir, "lib", "modules", release)
	for _, path := range []string{k.Image, filepath.Join(k.Modules, "modules.dep")} {
		if _, err := os.Stat(path); err != nil {
			return Kernel{}, fmt.Errorf("kernel package %s %s is not as expected: %w", name, version, err)
		}
	}
	return k, nil
}

// fetchKernel unpacks a kernel package into dir.
func (b *Builder) fetchKernel(ctx context.Context, dir, pkg string) error {
	b.say("fetching kernel package %s (70 MB; once)", pkg)
	return b.fetchPackage(ctx, dir, pkg, func(ctx context.Context, root string) error {
		releases, err := filepath.Glob(filepath.Join(root, "lib", "modules", "*"))
		if err != nil || len(releases) != 1 {
			return fmt.Errorf("kernel package %s: modules of %d releases, want one", pkg, len(releases))
		}
		return command(ctx, root, "depmod", "-b", root, filepath.Base(releases[0]))
	})
}

// offeredKernel returns the package that kernelPackage depends on, and its version.
func offeredKernel(ctx context.Context) (name, version string, err error) {
	cmd := exec.CommandContext(ctx, "apt-cache", "show", "--no-all-versions", kernelPackage)
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", cmd, err)
	}
	return parseKernelPackage(string(out))
}

// parseKernelPackage parses a line like "Depends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)".
func parseKernelPackage(record string) (name, version string, err error) {
	for line := range strings.Lines(record) {
		depends, ok := strings.CutPrefix(line, "Depends:")
		if !ok {
			continue
		}
		for dependency := range strings.SplitSeq(depends, ",") {
			name, version, _ := strings.Cut(strings.TrimSpace(dependency), " ")
			version, ok := strings.CutPrefix(strings.Trim(version, "()"), "= ")
			if ok && strings.HasPrefix(name, "linux-image-") {
				return name, version, nil
			}
		}
	}
	return "", "", fmt.Errorf("package %s depends on no version of a kernel's package", kernelPackage)
}

func aptGet(ctx context.Context, dir string, args ...string) error {
	// Sandbox::User=root makes apt fetch as the calling user, who owns the cache directory. Lock::Timeout waits for other
	// apt processes.
	return command(ctx, dir, "apt-get",
		append([]string{"-q", "-o", "APT::Sandbox::User=root", "-o", "DPkg::Lock::Timeout=120"}, args...)...)
}

func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if path := "/usr/sbin/" + name; cmd.Err != nil && isProgram(path) { // a user's PATH may lack it
		cmd.Path, cmd.Err = path, nil
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, errors.Join(err, ctx.Err()), out.String())
	}
	return nil
}
