package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// binDir names a directory that holds etcd and kube-apiserver, to be used instead of
// those that the testbed builds.
const binDir = "SEMAPHORE_TESTBED_BIN"

type binaries struct{ etcd, apiserver string }

// find returns where the servers are.
func find(context.Context) (binaries, error) {
	dir := os.Getenv(binDir)
	if dir == "" {
		return binaries{}, fmt.Errorf("set %s to a directory that holds etcd and kube-apiserver", binDir)
	}
	// etcd's program is called "server" where the Go tool named it after its module.
	etcd, err := firstOf(dir, "etcd", "server")
	if err != nil {
		return binaries{}, err
	}
	apiserver, err := firstOf(dir, "kube-apiserver")
	return binaries{etcd, apiserver}, err
}

func firstOf(dir string, names ...string) (string, error) {
	for _, name := range names {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s=%s holds no %s", binDir, dir, strings.Join(names, " or "))
}

// calicoCRDs is the directory of Calico's CustomResourceDefinitions, in the module that
// tools/felix pins.
func calicoCRDs(ctx context.Context) (string, error) {
	gomod, err := output(exec.CommandContext(ctx, "go", "env", "GOMOD"))
	if err != nil {
		return "", err
	}
	felix := filepath.Join(filepath.Dir(gomod), "tools", "felix")
	dir, err := output(exec.CommandContext(ctx, "go", "-C", felix, "list", "-m", "-f", "{{.Dir}}", "github.com/projectcalico/calico"))
	if err != nil {
		return "", err
	}
	if dir == "" {
		return "", errors.New("the module github.com/projectcalico/calico is not downloaded: run go mod download in tools/felix")
	}
	return filepath.Join(dir, "libcalico-go", "config", "crd"), nil
}

func output(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}
