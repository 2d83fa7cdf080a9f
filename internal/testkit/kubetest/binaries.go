package kubetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kube-semaphore/semaphore/testbed/components"
)

// binDir names a directory that holds etcd, kube-apiserver, kube-controller-manager, calico-apiserver and, in crd/,
// Calico's CustomResourceDefinitions, to be used instead of those that the testbed builds.
const binDir = "SEMAPHORE_TESTBED_BIN"

// servers is where the programs are, and the directory of Calico's definitions.
type servers struct{ etcd, apiserver, controllerManager, calicoAPIServer, calicoCRDs string }

// find returns where they are. It builds what has not been built yet, which takes minutes, once.
func find(ctx context.Context) (servers, error) {
	dir := os.Getenv(binDir)
	if dir == "" {
		paths, err := components.Ensure(ctx, os.Stderr)
		return servers{paths.Etcd, paths.APIServer, paths.ControllerManager, paths.CalicoAPIServer, paths.CalicoCRDs}, err
	}
	etcd, err := program(dir, "etcd")
	if err != nil {
		return servers{}, err
	}
	apiserver, err := program(dir, "kube-apiserver")
	// Few tests want the others: theirs say so when they are not there.
	return servers{etcd, apiserver, filepath.Join(dir, "kube-controller-manager"), filepath.Join(dir, "calico-apiserver"),
		filepath.Join(dir, "crd")}, err
}

func program(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	if _, err := exec.LookPath(path); err != nil {
		return "", fmt.Errorf("%s=%s: %w", binDir, dir, err)
	}
	return path, nil
}

// definitionOf is the file that defines a resource.
func (s servers) definitionOf(resource string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(s.calicoCRDs, CalicoCRD.Group+"_"+resource+".yaml"))
	// Each file begins with a document separator, and some end with one.
	return []byte(strings.Trim(strings.TrimSpace(string(data)), "-")), err
}
