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
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// reportEvery is the interval of progress lines during a build.
const reportEvery = 15 * time.Second

// goFlags are the Makefile's: with different ones, each would compile what the other has compiled.
var goFlags = []string{"-trimpath", "-tags=grpcnotrace", "-gcflags=all=-dwarf=false"}

// goCommand prepares a go command for the module in dir, without a workspace.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "PWD="+dir)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// componentFlags leave out what a testbed does not use, and compile without inlining what the product does not import:
// that takes a fifth less. A testbed spends its time in the apiserver's library and etcd, which keep it.
var componentFlags = []string{
	"-tags=grpcnotrace,nri_no_wasm",
	"-gcflags=k8s.io/kubernetes/...=-dwarf=false -l", "-gcflags=k8s.io/kubectl/...=-dwarf=false -l",
	"-gcflags=github.com/containerd/containerd/v2/...=-dwarf=false -l",
	"-gcflags=github.com/projectcalico/calico/...=-dwarf=false -l",
}

// apiServerFlags do the same for Calico's API server, which shares only the standard library with the product.
var apiServerFlags = []string{"-gcflags=k8s.io/...=-dwarf=false -l", "-gcflags=github.com/...=-dwarf=false -l"}

// run builds packages of the module in dir into bin and reports its progress. minutes is the time on two cores with an
// empty cache.
func (b *Builder) run(ctx context.Context, what string, minutes float64, dir, bin string,
	flags, packages []string) error {
	b.say("building %s (from nothing about %s min on two cores; once)", what, trimZero(minutes))
	started := time.Now()
	total, err := b.uncompiled(ctx, dir, flags, packages)
	if err != nil {
		return fmt.Errorf("build %s: %w", what, err)
	}
	// With -v, go prints the name of each package that it compiles.
	cmd := goCommand(ctx, dir, slices.Concat([]string{"build", "-v", "-o", bin + "/"}, flags, packages)...)
	var out counted
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w", what, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	compiling := time.Now()
	for {
		select {
		case <-tick.C:
			b.say("  %s", progress(out.lines(), total, time.Since(compiling), minutes))
		case err := <-ended:
			if err != nil {
				return fmt.Errorf("build %s: %s in %s: %w\n%s", what, cmd, dir, errors.Join(err, ctx.Err()), out.text())
			}
			b.say("built %s in %s", what, time.Since(started).Round(100*time.Millisecond))
			return nil
		}
	}
}

// uncompiled returns how many packages a build of packages has yet to compile. It loads the modules that are missing.
func (b *Builder) uncompiled(ctx context.Context, dir string, flags, packages []string) (int, error) {
	cmd := goCommand(ctx, dir, slices.Concat([]string{"list", "-deps", "-f", "{{if .Stale}}x{{end}}"}, flags,
		packages)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%s in %s: %w\n%s", cmd, dir, err, &errs)
	}
	return bytes.Count(out, []byte("x")), nil
}

// progress says how much of a build is done and how long the rest will take: as long for a package as for those so
// far, and at first as long as the whole takes from nothing.
func progress(done, total int, took time.Duration, minutes float64) string {
	if done >= total {
		return fmt.Sprintf("all %d packages are compiled, linking; %s so far", total, took.Round(time.Second))
	}
	left := time.Duration(minutes*float64(time.Minute)) - took
	if done*10 > total {
		left = took * time.Duration(total-done) / time.Duration(done)
	}
	return fmt.Sprintf("%d of %d packages are compiled, %s so far, about %s left", done, total,
		took.Round(time.Second), max(left, 0).Round(5*time.Second))
}

// counted keeps what a command prints. It is safe for concurrent use.
type counted struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (c *counted) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Write(p)
}

func (c *counted) lines() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Count(c.out.Bytes(), []byte("\n"))
}

// text returns the last lines: the errors come after the names of packages.
func (c *counted) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := strings.SplitAfter(c.out.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "")
}

func trimZero(f float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") }

// productPrograms are the programs of this repository for a testbed, each built from cmd/NAME.
var productPrograms = []string{"semaphore-exporter", "semaphore-broker", "semaphore-agent", "semaphorectl", "testbed"}

// Programs builds the programs of the checkout into its bin/ and returns their paths by name. A call costs about a
// second if they are up to date.
func (b *Builder) Programs(ctx context.Context) (map[string]string, error) {
	return b.programs(ctx, "", runtime.GOARCH, productPrograms)
}

// ProgramsFor builds programs of the checkout, each from cmd/NAME, for Linux on another GOARCH into bin/linux-ARCH, and
// returns their paths by name.
func (b *Builder) ProgramsFor(ctx context.Context, arch string, names []string) (map[string]string, error) {
	return b.programs(ctx, "linux-"+arch, arch, names)
}

func (b *Builder) programs(ctx context.Context, dir, arch string, names []string) (map[string]string, error) {
	repo, err := b.repository()
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(repo, "bin", dir)
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, err
	}
	unlock, err := Lock(ctx, filepath.Join(bin, ".lock"), func() {
		b.say("another process is building the programs of %s; waiting for it", repo)
	})
	if err != nil {
		return nil, err
	}
	defer unlock()
	// -buildvcs=false gives the same programs outside of a repository; the version has the commit.
	ldflags := "-s -w -X " + Module + "/internal/program.Version=" + Version(ctx, repo)
	paths := map[string]string{}
	args := append([]string{"build", "-buildvcs=false", "-ldflags", ldflags, "-o", bin + "/"}, goFlags...)
	for _, name := range names {
		paths[name] = filepath.Join(bin, name)
		args = append(args, "./cmd/"+name)
	}
	cmd := goCommand(ctx, repo, args...)
	cmd.Env = append(cmd.Env, "GOOS=linux", "GOARCH="+arch)
	started := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the programs of %s for %s: %w\n%s", repo, arch, errors.Join(err, ctx.Err()), out)
	}
	for name, path := range paths {
		if !isProgram(path) {
			return nil, fmt.Errorf("build the programs of %s: no %s was built: %w", repo, name, fs.ErrNotExist)
		}
	}
	b.say("programs of %s for %s are current (%s)", repo, arch, time.Since(started).Round(100*time.Millisecond))
	return paths, nil
}

// Version returns the version of a checkout, computed as in the Makefile.
func Version(ctx context.Context, repo string) string {
	if v := os.Getenv("VERSION"); v != "" {
		return v
	}
	cmd := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty")
	cmd.Dir = repo
	if out, err := cmd.Output(); err == nil {
		return strings.TrimSpace(string(out))
	}
	return "development"
}
