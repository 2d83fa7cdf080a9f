package kubetest

import (
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// StartControllers runs some of Kubernetes' own controllers, by their names, such as endpointslice-mirroring-controller, until the test ends.
func StartControllers(t testing.TB, cfg *rest.Config, names ...string) {
	t.Helper()
	servers, err := find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, t.TempDir(), "kube-controller-manager", servers.controllerManager, "--kubeconfig="+Kubeconfig(t, cfg),
		"--controllers="+strings.Join(names, ","), "--leader-elect=false", "--secure-port=0"); err != nil {
		t.Fatal(err)
	}
}
