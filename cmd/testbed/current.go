package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/kube-semaphore/semaphore/test/testbed/components"
)

// became is an environment variable. It is set in the program that this one became.
const became = "SEMAPHORE_TESTBED_CURRENT"

// currentPrograms builds the programs of the checkout and returns them by name. If this program is the checkout's and
// its code has changed, this process becomes the one that was built: otherwise the build would replace the program of a
// testbed that runs, which starts itself for each process of a node, and nodes would be started by code of before.
func currentPrograms(ctx context.Context, repo string, out io.Writer) (map[string]string, error) {
	programs, err := (&components.Builder{Repository: repo, Progress: out}).Programs(ctx)
	if err != nil {
		return nil, err
	}
	return programs, becomeCurrent(programs["testbed"])
}

// becomeCurrent executes the program at path if this process was started from there, and another program is there now.
func becomeCurrent(path string) error {
	own, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	if strings.TrimSuffix(own, " (deleted)") != path || os.Getenv(became) != "" {
		return nil
	}
	running, err := os.Stat("/proc/self/exe")
	if err != nil {
		return err
	}
	built, err := os.Stat(path)
	if err != nil || os.SameFile(running, built) {
		return err
	}
	err = syscall.Exec(path, os.Args, append(os.Environ(), became+"=1"))
	return fmt.Errorf("continue as %s: %w", path, err)
}
