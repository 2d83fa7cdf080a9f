package kubetest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/testkit"
)

// errExited says that a server ended by itself.
var errExited = errors.New("exited")

func run(t testing.TB, dir, name, path string, args ...string) (*testkit.Process, error) {
	return runWith(t, nil, dir, name, path, args...)
}

// runs is run, later and as often as it is called.
func runs(dir, name, path string, args ...string) func(testing.TB) (*testkit.Process, error) {
	return func(t testing.TB) (*testkit.Process, error) { return run(t, dir, name, path, args...) }
}

// runWith is run with variables in the server's environment. Nothing is kept, so a server is killed at the end: an
// apiserver that is asked to stop would wait for its watches.
func runWith(t testing.TB, env []string, dir, name, path string, args ...string) (*testkit.Process, error) {
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	// Nothing of this machine's settings reaches the servers.
	cmd.Env = append([]string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}, env...)
	return testkit.Start(t, name, filepath.Join(dir, name+".log"), cmd)
}
