package components

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// debianPackage is a package whose programs a testbed runs without installing the package.
type debianPackage struct {
	name string
	// programs are paths in the package, all in one directory.
	programs []string
	// links are symlinks beside the programs, from name to target.
	links map[string]string
	// path is the field for the first program, or for the programs' directory if dir is set.
	path func(*Paths) *string
	dir  bool
}

var debianPackages = []debianPackage{
	{name: "runc", programs: []string{"usr/sbin/runc"}, path: func(p *Paths) *string { return &p.Runc }},
	{
		name: "bird", programs: []string{"usr/sbin/bird", "usr/sbin/bird6", "usr/sbin/birdc"},
		links: map[string]string{"birdcl": "birdc"}, // calico-node -bird-live runs birdcl
		path:  func(p *Paths) *string { return &p.Bird }, dir: true,
	},
	{
		name: "runit", programs: []string{"usr/bin/runsvdir", "usr/bin/runsv", "usr/bin/sv", "usr/bin/svlogd",
			"usr/bin/chpst"},
		path: func(p *Paths) *string { return &p.Runit }, dir: true,
	},
	{name: "busybox-static", programs: []string{"bin/busybox"}, path: func(p *Paths) *string { return &p.Busybox }},
}

// ensureDebian sets the paths of the programs of debianPackages. Fetched packages stay in the cache, in a directory per
// release of the system, because the programs use its libraries.
func (b *Builder) ensureDebian(ctx context.Context, cache string, paths *Paths) error {
	release, err := systemRelease()
	if err != nil {
		return err
	}
	for _, p := range debianPackages {
		dir := filepath.Join(cache, release+"-"+p.name)
		if _, err := os.Stat(dir); err != nil {
			b.say("fetching package %s (it is unpacked into %s, and not installed)", p.name, dir)
			if err := b.fetchPackage(ctx, dir, p.name, p.finish); err != nil {
				return fmt.Errorf("package %s of this system's package sources (Debian 12 has all that is needed): %w", p.name, err)
			}
		}
		*p.path(paths) = filepath.Join(dir, p.programs[0])
		if p.dir {
			*p.path(paths) = filepath.Join(dir, filepath.Dir(p.programs[0]))
		}
	}
	return nil
}

// finish checks an unpacked package and creates its links.
func (p debianPackage) finish(ctx context.Context, root string) error {
	for _, name := range p.programs {
		program := filepath.Join(root, name)
		if !isProgram(program) {
			return fmt.Errorf("package %s has no program %s", p.name, name)
		}
		// ldd fails for a statically linked program, which needs no library.
		out, _ := exec.CommandContext(ctx, "ldd", program).Output()
		for line := range strings.Lines(string(out)) {
			if library, ok := strings.CutSuffix(strings.TrimSpace(line), " => not found"); ok {
				return fmt.Errorf("%s of package %s needs %s, which this system lacks: install the package that has it "+
					"(apt-cache depends %s)",
					filepath.Base(name), p.name, library, p.name)
			}
		}
	}
	for link, target := range p.links {
		if err := os.Symlink(target, filepath.Join(root, filepath.Dir(p.programs[0]), link)); err != nil {
			return err
		}
	}
	return nil
}

// fetchPackage unpacks a package (NAME or NAME=VERSION) from the system's package sources into dir, which appears
// complete or not at all. apt verifies the package with the signed index. finish processes the unpacked files first.
func (b *Builder) fetchPackage(ctx context.Context, dir, spec string,
	finish func(ctx context.Context, root string) error) error {
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".package-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := aptGet(ctx, tmp, "download", spec); err != nil {
		// The index may be missing or older than the archive.
		b.say("package %s could not be fetched: asking the package sources again what they offer", spec)
		if err := aptGet(ctx, tmp, "update"); err != nil {
			return err
		}
		if err := aptGet(ctx, tmp, "download", spec); err != nil {
			return err
		}
	}
	packages, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(packages) != 1 {
		return fmt.Errorf("apt-get download %s: %d files, want one: %w", spec, len(packages),
			errors.Join(err, os.ErrNotExist))
	}
	root := filepath.Join(tmp, "root")
	if err := command(ctx, tmp, "dpkg-deb", "-x", packages[0], root); err != nil {
		return err
	}
	if err := finish(ctx, root); err != nil {
		return err
	}
	return os.Rename(root, dir)
}

// systemRelease returns the distribution and its release, such as "debian-12".
func systemRelease() (string, error) {
	const file = "/etc/os-release"
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	values := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[key] = strings.Trim(value, `"'`)
		}
	}
	if values["ID"] == "" {
		return "", fmt.Errorf("%s has no ID", file)
	}
	// A testing release has no VERSION_ID.
	return values["ID"] + "-" + cmp.Or(values["VERSION_ID"], values["VERSION_CODENAME"], "rolling"), nil
}
