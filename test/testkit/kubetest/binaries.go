package kubetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kube-semaphore/semaphore/test/testbed/components"
)

// binDir names the environment variable for a directory with etcd, kube-apiserver, kube-controller-manager,
// calico-apiserver and, in crd/, Calico's CustomResourceDefinitions. They replace those that the testbed builds.
const binDir = "SEMAPHORE_TESTBED_BIN"

// servers has the paths of the programs, and of the directory with Calico's definitions.
type servers struct{ etcd, apiserver, controllerManager, calicoCRDs string }

// find returns the paths. It builds what is missing, which takes minutes the first time.
func find(ctx context.Context) (servers, error) {
	dir := os.Getenv(binDir)
	if dir == "" {
		paths, err := components.Ensure(ctx, os.Stderr)
		return servers{paths.Etcd, paths.APIServer, paths.ControllerManager, paths.CalicoCRDs}, err
	}
	etcd, err := program(dir, "etcd")
	if err != nil {
		return servers{}, err
	}
	apiserver, err := program(dir, "kube-apiserver")
	// Few tests need the other programs. Those tests report a missing one.
	return servers{etcd, apiserver, filepath.Join(dir, "kube-controller-manager"),
		filepath.Join(dir, "crd")}, err
}

// findCalicoAPIServer returns the path of the Calico API server. It builds the server if it is missing.
func findCalicoAPIServer(ctx context.Context) (string, error) {
	if dir := os.Getenv(binDir); dir != "" {
		return program(dir, "calico-apiserver")
	}
	return components.EnsureCalicoAPIServer(ctx, os.Stderr)
}

func program(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	if _, err := exec.LookPath(path); err != nil {
		return "", fmt.Errorf("%s=%s: %w", binDir, dir, err)
	}
	return path, nil
}

// definitionOf returns the file that defines a resource.
func (s servers) definitionOf(resource string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(s.calicoCRDs, CalicoCRD.Group+"_"+resource+".yaml"))
	// Each file begins with a document separator, and some end with one.
	return []byte(strings.Trim(strings.TrimSpace(string(data)), "-")), err
}
