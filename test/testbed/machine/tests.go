package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/test/testbed/machine/job"
)

// Tests selects Go tests to run in a machine.
type Tests struct {
	// Packages are package patterns for go test, relative to Repository. If Using is set, only packages whose tests import
	// it are selected.
	Packages []string
	Using    string
	// Run and Count are the flags -run and -count of go test. By default all tests run once. With Bench, the flag -bench,
	// no test runs, and each of its benchmarks once.
	Run, Bench string
	Count      int
	// Env is the additional environment of the tests.
	Env []string
	// Timeout bounds the tests of one package.
	Timeout time.Duration
}

// errNoTests means that no test was selected, which is an error.
var errNoTests = errors.New("no tests")

// Test builds the tests and runs them one after the other in one machine. The error names the failed packages.
func (m *Machine) Test(ctx context.Context, progress io.Writer, tests ...Tests) error {
	dir, err := os.MkdirTemp("", "semaphore-machine-tests-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var commands []job.Command
	for i, one := range tests {
		some, err := one.build(ctx, m.Repository, filepath.Join(dir, fmt.Sprint(i)), progress)
		if err != nil {
			return err
		}
		commands = append(commands, some...)
	}
	fmt.Fprintf(progress, "machine: starting one with Linux %s\n", m.Kernel.Version)
	results, err := m.Run(ctx, commands)
	var failed []error
	for _, r := range results {
		took := time.Duration(r.Seconds * float64(time.Second)).Round(100 * time.Millisecond)
		if r.Exit == 0 {
			fmt.Fprintf(progress, "ok    %s  %s, on Linux %s\n", r.Name, took, m.Kernel.Version)
			continue
		}
		fmt.Fprintf(progress, "FAIL  %s  %s: %s\n", r.Name, took, r.Problem)
		failed = append(failed, fmt.Errorf("tests of %s in the machine: %s", r.Name, r.Problem))
	}
	return errors.Join(append(failed, err)...)
}

// build builds the test programs into dir and returns the commands that run them. They are static and need no files of
// the host.
func (tests *Tests) build(ctx context.Context, repository, dir string, progress io.Writer) ([]job.Command, error) {
	packages, err := tests.find(ctx, repository)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var commands []job.Command
	for i, p := range packages {
		program := filepath.Join(dir, fmt.Sprintf("%d.test", i))
		started := time.Now()
		if _, err := goOutput(ctx, repository, "test", "-c", "-trimpath", "-ldflags=-s -w", "-o", program,
			p.path); err != nil {
			return nil, err
		}
		if progress != nil {
			fmt.Fprintf(progress, "machine: built the tests of %s in %s\n", p.path,
				time.Since(started).Round(100*time.Millisecond))
		}
		args := []string{program, "-test.v", "-test.timeout=" + tests.Timeout.String(), "-test.count=" +
			fmt.Sprint(max(1, tests.Count))}
		if tests.Bench != "" {
			args = append(args, "-test.run=^$", "-test.bench="+tests.Bench, "-test.benchtime=1x")
		} else if tests.Run != "" {
			args = append(args, "-test.run="+tests.Run)
		}
		env := append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
			"TMPDIR=/tmp"}, tests.Env...)
		commands = append(commands, job.Command{Name: p.path, Args: args, Dir: p.dir, Env: env})
	}
	return commands, nil
}

type testPackage struct{ path, dir string }

func (tests *Tests) find(ctx context.Context, repository string) ([]testPackage, error) {
	out, err := goOutput(ctx, repository, append([]string{"list", "-f",
		`{{.ImportPath}}{{"\t"}}{{.Dir}}{{"\t"}}{{join .TestImports " "}} {{join .XTestImports " "}}`}, tests.Packages...)...)
	if err != nil {
		return nil, err
	}
	var found []testPackage
	for line := range strings.Lines(out) {
		fields := strings.Split(line, "\t")
		imports := strings.Fields(fields[2])
		if len(imports) > 0 && (tests.Using == "" || slices.Contains(imports, tests.Using)) {
			found = append(found, testPackage{fields[0], fields[1]})
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w in %s that use %s", errNoTests, strings.Join(tests.Packages, " "), tests.Using)
	}
	return found, nil
}

func goOutput(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "PWD="+dir)
	cmd.WaitDelay = 5 * time.Second
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, errors.Join(err, ctx.Err()), problems.String())
	}
	return out.String(), nil
}
