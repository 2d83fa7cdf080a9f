package kubetest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// errExited is the error if a server exits by itself.
var errExited = errors.New("exited")

// runs returns a function that calls run with these arguments, and that can be called several times.
func runs(env []string, dir, name, path string, args ...string) func(testing.TB) (*testkit.Process, error) {
	return func(t testing.TB) (*testkit.Process, error) { return run(t, env, dir, name, path, args...) }
}

// run starts a server with variables in its environment. The server is killed at the end, because its state is not
// needed: an apiserver that is asked to stop waits for its watches.
func run(t testing.TB, env []string, dir, name, path string, args ...string) (*testkit.Process, error) {
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	// The servers must not depend on the machine's environment.
	cmd.Env = append([]string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}, env...)
	return testkit.Start(t, name, filepath.Join(dir, name+".log"), cmd)
}
