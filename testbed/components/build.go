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
	"strings"
	"time"
)

// reportEvery is the interval of progress lines during a build.
const reportEvery = 15 * time.Second

// goCommand prepares a go command for the module in dir, without a workspace.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "PWD="+dir)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run runs a build and reports its progress. minutes is the build time on two cores with an empty cache.
func (b *Builder) run(ctx context.Context, what string, minutes float64, dir, program string, args ...string) error {
	b.say("building %s (from nothing about %s min on two cores; once)", what, trimZero(minutes))
	started := time.Now()
	cmd := goCommand(ctx, dir, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w", what, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			b.say("  still building %s, %s so far", what, time.Since(started).Round(time.Second))
		case err := <-ended:
			if err != nil {
				return fmt.Errorf("build %s: %s in %s: %w\n%s", what, cmd, dir, errors.Join(err, ctx.Err()), out.String())
			}
			b.say("built %s in %s", what, time.Since(started).Round(100*time.Millisecond))
			return nil
		}
	}
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
	// These are the Makefile's flags: with different ones, each would rebuild what the other has built. -buildvcs=false
	// gives the same programs outside of a repository; the version has the commit.
	ldflags := "-s -w -X " + Module + "/internal/program.Version=" + Version(ctx, repo)
	paths := map[string]string{}
	args := []string{"build", "-trimpath", "-tags=grpcnotrace", "-buildvcs=false", "-ldflags", ldflags, "-o", bin + "/"}
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
