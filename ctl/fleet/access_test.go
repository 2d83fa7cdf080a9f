package fleet_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
)

// TestAllContexts: --all-contexts stands for all contexts of the kubeconfig, and for none is an error.
func TestAllContexts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	must(t, os.WriteFile(file, []byte("apiVersion: v1\nkind: Config\n"+
		"clusters: [{name: k, cluster: {server: https://k}}]\n"+
		"contexts: [{name: c2, context: {cluster: k}}, {name: c1, context: {cluster: k}}]\n"), 0o600))
	a := &fleet.Access{All: true, Kubeconfig: file, Namespace: "sys"}
	must(t, a.Resolve())
	clusters, err := a.Clusters()
	must(t, err)
	if len(clusters) != 2 || clusters[0].Context != "c1" || clusters[1].Context != "c2" {
		t.Errorf("%v", a.Contexts)
	}
	if err := (&fleet.Access{All: true, Kubeconfig: file, Contexts: []string{"c1"}}).Resolve(); err == nil ||
		!strings.Contains(err.Error(), "without --context") {
		t.Errorf("beside --context: %v", err)
	}
	must(t, os.WriteFile(file, []byte("apiVersion: v1\nkind: Config\n"), 0o600))
	if err := (&fleet.Access{All: true, Kubeconfig: file}).Resolve(); err == nil {
		t.Error("a kubeconfig without contexts: no error")
	}
}
