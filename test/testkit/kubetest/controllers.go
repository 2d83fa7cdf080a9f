package kubetest

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"k8s.io/client-go/rest"
)

// keys maps the URL of an apiserver to the directory with its keys.
var keys sync.Map

// StartControllers runs some of Kubernetes' own controllers until the test ends. Names are, for example,
// endpointslice-mirroring-controller.
func StartControllers(t testing.TB, cfg *rest.Config, names ...string) {
	t.Helper()
	servers := testkit.Value(find(t.Context()))(t)
	args := []string{"--kubeconfig=" + Kubeconfig(t, cfg), "--controllers=" + strings.Join(names, ","),
		"--leader-elect=false", "--secure-port=0"}
	if dir, ok := keys.Load(cfg.Host); ok && slices.Contains(names, "serviceaccount-token-controller") {
		args = append(args, "--service-account-private-key-file="+filepath.Join(dir.(string), "service-account.key"),
			"--root-ca-file="+filepath.Join(dir.(string), "ca.crt"))
	}
	testkit.Value(run(t, nil, t.TempDir(), "kube-controller-manager", servers.controllerManager, args...))(t)
}
