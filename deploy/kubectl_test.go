package deploy_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// findKubectl returns the kubectl in SEMAPHORE_TESTBED_BIN, else the one in PATH, else the testbed's.
var findKubectl = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("SEMAPHORE_TESTBED_BIN"); dir != "" {
		return exec.LookPath(filepath.Join(dir, "kubectl"))
	}
	if path, err := exec.LookPath("kubectl"); err == nil {
		return path, nil
	}
	paths, err := components.Ensure(context.Background(), os.Stderr)
	return paths.Kubectl, err
})

// kubectl runs kubectl and returns its output.
func kubectl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs kubectl, which -short leaves out")
	}
	path, err := findKubectl()
	if err != nil {
		testkit.Lacks(t, "no kubectl to test with: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(os.Environ(), components.CollectsLess)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// server is a real kube-apiserver, with RBAC and no controllers.
type server struct {
	admin      *rest.Config
	kubeconfig string
	// refused receives the policies' messages about requests of other users than the administrator.
	refused *refusals
}

func startServer(t *testing.T) *server {
	t.Helper()
	cfg := kubetest.StartWith(t, "10.96.0.0/16,fd00:96::/112")
	return &server{admin: cfg, kubeconfig: kubetest.Kubeconfig(t, cfg), refused: &refusals{}}
}

// kubectl runs kubectl as the administrator.
func (s *server) kubectl(t *testing.T, args ...string) {
	t.Helper()
	testkit.Value(kubectl(t, append([]string{"--kubeconfig", s.kubeconfig}, args...)...))(t)
}

// client returns a client that impersonates a ServiceAccount, or is the administrator if user is empty.
func (s *server) client(user string) kubernetes.Interface {
	cfg := rest.CopyConfig(s.admin)
	if user != "" {
		cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups(user)}
		cfg.WarningHandler = s.refused
	}
	return kubernetes.NewForConfigOrDie(cfg)
}

// groups returns the groups of a ServiceAccount's token.
func groups(user string) []string {
	parts := strings.Split(user, ":")
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + parts[2], "system:authenticated"}
}

// eventually waits until f succeeds.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, what, f)
}

// apply applies a directory in a quarter of the time that kubectl needs to do so without --server-side, as users do and
// testExample tests.
func (s *server) apply(t *testing.T, dir string) {
	t.Helper()
	s.kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", dir)
}
